"""Keys and records of pages on disk: what differs, what is found damaged, what is never mixed up."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from helpers.disk_pages import IDENTITY, PAGE_SIZE, chain, page_of
from octavo.cache.disk_format import (
    CorruptPageError,
    PageKey,
    as_bytes,
    pack_record,
    page_keys,
    record_bytes,
    scatter,
    unpack_record,
)


def test_only_full_pages_have_keys_and_each_names_the_one_before() -> None:
    tokens = list(range(3 * PAGE_SIZE + PAGE_SIZE - 1))
    keys = page_keys(IDENTITY, tokens)
    assert len(keys) == 3
    assert [key.parent for key in keys] == [IDENTITY.root, keys[0].digest, keys[1].digest]
    assert b"".join(key.tokens for key in keys) == np.arange(3 * PAGE_SIZE, dtype=np.int32).tobytes()
    assert page_keys(IDENTITY, tokens[: PAGE_SIZE - 1]) == []


def test_keys_can_be_continued_from_a_page() -> None:
    tokens = np.arange(5 * PAGE_SIZE, dtype=np.int32)
    whole = page_keys(IDENTITY, tokens)
    assert page_keys(IDENTITY, tokens[2 * PAGE_SIZE :], whole[1]) == whole[2:]


def test_one_early_token_changes_every_later_digest() -> None:
    a, b = chain(4, first_token=0), chain(4, first_token=7)
    assert all(x.digest != y.digest for x, y in zip(a, b, strict=True))
    assert [x.tokens for x in a[1:]] == [y.tokens for y in b[1:]]


@pytest.mark.parametrize(
    "change",
    [
        {"model": "n" * 64},
        {"producer": "native 2"},
        {"dtype": "bfloat16"},
        {"layers": 3},
        {"kv_heads": 2},
        {"head_dim": 32},
        {"adapter": "a"},
        {"salt": "s"},
        {"salt": ""},
        {"adapter": "None"},
    ],
)
def test_every_field_of_the_identity_separates_pages(change: dict[str, Any]) -> None:
    other = replace(IDENTITY, **change)
    assert other.text != IDENTITY.text
    assert replace(IDENTITY, page_size=32).root != IDENTITY.root
    mine, theirs = chain(2), chain(2, identity=other)
    assert mine[0].digest != theirs[0].digest
    assert mine[1].digest != theirs[1].digest


def test_a_record_gives_its_page_back() -> None:
    key = chain(2)[1]
    page = page_of(key)
    record = b"".join(pack_record(key, page))
    assert len(record) == record_bytes(key, len(page))
    assert unpack_record(key, memoryview(record), len(page)) == page


def test_a_flipped_bit_anywhere_is_found() -> None:
    key = chain(1)[0]
    page = page_of(key, 40)
    record = bytearray(b"".join(pack_record(key, page)))
    for bit in range(8 * len(record)):
        record[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptPageError, match="checksum"):
            unpack_record(key, memoryview(record), len(page))
        record[bit // 8] ^= 1 << bit % 8
    assert unpack_record(key, memoryview(record), len(page)) == page


def test_a_record_of_any_other_length_is_found() -> None:
    key = chain(1)[0]
    page = page_of(key, 40)
    record = b"".join(pack_record(key, page))
    for length in range(len(record)):
        with pytest.raises(CorruptPageError, match="bytes"):
            unpack_record(key, memoryview(record)[:length], len(page))
    with pytest.raises(CorruptPageError, match="bytes"):
        unpack_record(key, memoryview(record + b"\0"), len(page))


@pytest.mark.parametrize("field", ["parent", "tokens", "identity"])
def test_an_equal_digest_alone_serves_nothing(field: str) -> None:
    asked, other = chain(2)[1], chain(2, 9)[1]
    values = {
        "parent": other.parent,
        "tokens": bytes(len(asked.tokens)),
        "identity": replace(IDENTITY, model="n" * 64),  # its text has the same length
    }
    collision = PageKey(**{**asked._asdict(), field: values[field]})
    page = page_of(asked)
    record = b"".join(pack_record(collision, page))
    assert len(record) == record_bytes(asked, len(page))
    assert unpack_record(collision, memoryview(record), len(page)) == page
    assert unpack_record(asked, memoryview(record), len(page)) is None


@pytest.mark.parametrize("dtype", ["float16", "float32", "uint16"])
def test_parts_of_arrays_are_seen_as_bytes(dtype: str) -> None:
    array = np.arange(2 * 3 * 16).reshape(2, 3, 16).astype(dtype)
    view = as_bytes(array[1])
    assert view.tobytes() == array[1].tobytes()
    target = np.zeros_like(array)
    scatter(array.tobytes(), [as_bytes(target[0]), as_bytes(target[1])])
    assert target.tobytes() == array.tobytes()


def test_a_part_with_gaps_is_refused() -> None:
    with pytest.raises(TypeError, match="contiguous"):
        as_bytes(np.zeros((4, 4))[:, 1])
