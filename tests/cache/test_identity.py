"""Identities of pages: whatever may change a value makes another one, and nothing else does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from octavo.cache.identity import page_identities
from octavo.cache.radix import Namespace
from octavo.ops.api import RopeTable
from octavo.ops.kv import KVStore


def rope(scale: float = 1.0, interleaved: bool = False, positions: int = 8) -> RopeTable:
    angles = np.arange(positions)[:, None] * np.array([1, 1e-6]) * scale
    return RopeTable(np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32), interleaved)


def identities(shape: dict[str, Any] | None = None, **changed: Any) -> Any:
    kv = KVStore(
        **{"layers": 2, "num_pages": 3, "page_size": 16, "kv_heads": 2, "head_dim": 8, "dtype": "float16"}
        | (shape or {})
    )
    settings = {"model": "m", "ropes": [rope()], "version": "1", "backend": "native", "tier": "avx2"}
    return page_identities(kv, **settings | changed)


BASE = identities()(None)


@pytest.mark.parametrize(
    "changed",
    [
        {"model": "n"},
        {"version": "2"},
        {"backend": "reference", "tier": None},
        {"tier": "avx512_bf16"},
        {"ropes": [rope(scale=1.01)]},
        {"ropes": [rope(interleaved=True)]},
        {"ropes": [rope(), rope()]},
        {"shape": {"layers": 3}},
        {"shape": {"page_size": 32}},
        {"shape": {"kv_heads": 1}},
        {"shape": {"head_dim": 16}},
        {"shape": {"dtype": "bfloat16"}},
    ],
)
def test_what_may_change_a_value_makes_another_identity(changed: dict[str, Any]) -> None:
    other = identities(**changed)(None)
    assert other != BASE
    assert other.root != BASE.root


def test_what_changes_no_value_does_not() -> None:
    assert identities()(None) == BASE
    assert identities(shape={"num_pages": 7})(None) == BASE
    assert identities(ropes=[rope(positions=16)])(None) == BASE, "a longer context has the same first positions"


def test_namespaces() -> None:
    identity = identities()
    assert identity("x") == identity(Namespace(salt="x"))
    assert identity("x").salt == "x"
    assert identity(Namespace()) == identity(None)
    roots = {identity(n).root for n in (None, "", "x", Namespace(adapter="x"), Namespace("x", "x"), Namespace("", "x"))}
    assert len(roots) == 6
    assert identity(None) is identity(None), "its digest is computed once"


def test_an_unknown_kind_of_namespace_is_refused() -> None:
    with pytest.raises(TypeError, match="Namespace or a cache_salt, not to 7"):
        identities()(7)
