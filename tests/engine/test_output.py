"""Text as callers see it: stop strings found and held back, whatever the pieces in which the text arrives."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import hypothesis.strategies as st
import pytest
from hypothesis import given

from octavo.engine.output import StopStrings, TextBuilder, assemble_logprobs


class Pieces:
    """A detokenizer whose token i is pieces[i]; `rest` is what flush finds."""

    def __init__(self, pieces: list[str], rest: str = "") -> None:
        self.pieces, self.rest = pieces, rest

    def append(self, token: int) -> str:
        return self.pieces[token]

    def flush(self) -> str:
        return self.rest


def feed(builder: TextBuilder, pieces: list[str]) -> Iterator[tuple[str, str | None]]:
    for i in range(len(pieces)):
        stop = builder.append(i)
        yield builder.text, stop
        if stop is not None:
            return


def test_what_may_become_a_stop_string_is_held_back() -> None:
    pieces = ["ab", "cS", "T", "x", "ST", "OP", "more"]
    builder = TextBuilder(Pieces(pieces), ("STOP",))
    shown = list(feed(builder, pieces))
    assert shown == [
        ("ab", None),
        ("abc", None),
        ("abc", None),
        ("abcSTx", None),
        ("abcSTx", None),
        ("abcSTx", "STOP"),
    ]


def test_held_text_is_shown_when_the_output_ends() -> None:
    builder = TextBuilder(Pieces(["abS", "TO"], rest="\ufffd"), ("STOP",))
    builder.append(0)
    builder.append(1)
    assert builder.text == "ab"
    builder.finish()
    assert builder.text == "abSTO\ufffd"


def test_text_is_given_from_any_character_on() -> None:
    pieces = ["ab", "", "cS", "T", "x", "yz"]
    for stops in ((), ("STOP",)):
        for looked in (False, True):
            builder = TextBuilder(Pieces(pieces, rest="!"), stops)
            for i in range(len(pieces)):
                builder.append(i)
                if looked and i == 3:
                    assert builder.text == ("ab" + "cST" if not stops else "abc")
            assert [builder.since(at) for at in range(9)] == ["abcSTxyz"[at:] for at in range(9)]
            builder.finish()
            assert builder.since(6) == "yz!"
            assert builder.since(9) == ""
            assert builder.text == "abcSTxyz!"


def test_the_stop_string_is_kept_on_request_and_ignored_while_it_may_not_stop() -> None:
    builder = TextBuilder(Pieces(["STOP", "ST", "OP!"]), ("STOP",), include_stop=True)
    assert builder.append(0, may_stop=False) is None
    assert builder.text == "STOP"
    assert builder.append(1) is None
    assert builder.append(2) == "STOP"
    assert builder.text == "STOPSTOP"


ALPHABET = st.text("ab", min_size=1, max_size=4)


@given(st.lists(ALPHABET, max_size=12), st.lists(ALPHABET, min_size=1, max_size=3), st.booleans())
def test_the_same_as_searching_after_every_piece(pieces: list[str], stops: list[str], include: bool) -> None:
    builder = TextBuilder(Pieces(pieces), tuple(stops), include_stop=include)
    text, last = "", ""
    for i, piece in enumerate(pieces):
        text += piece
        stop = builder.append(i)
        assert builder.text.startswith(last)
        last = builder.text
        found = sorted((at, number) for number, s in enumerate(stops) if (at := text.find(s)) >= 0)
        if found:
            at, number = found[0]
            assert stop == stops[number]
            assert builder.text == text[: at + len(stop) if include else at]
            return
        assert stop is None
        # Exactly what can still become a stop string is missing.
        held = text[len(builder.text) :]
        assert builder.text + held == text
        assert not held or any(s.startswith(held) for s in stops)
        assert len(held) == max(
            (k for s in stops for k in range(1, len(s)) if text.endswith(s[:k])),
            default=0,
        )
    builder.finish()
    assert builder.text == text


def test_the_first_listed_of_two_that_start_together_wins() -> None:
    assert StopStrings(("abc", "ab")).find("xabc") == (1, "abc")
    assert StopStrings(("ab", "abc")).find("xabc") == (1, "ab")
    assert StopStrings(("c", "b")).find("abc") == (1, "b")


def test_logprobs_keep_the_order_and_name_a_token_once() -> None:
    ranked = [(7, -1.5, 2), (3, -0.5, 1), (7, -1.5, 2)]
    result = assemble_logprobs(ranked, str)
    assert list(result) == [7, 3]
    assert (result[7].logprob, result[7].rank, result[7].decoded_token) == (pytest.approx(-1.5), 2, "7")


def test_without_stop_strings_tokens_become_text_when_somebody_looks() -> None:
    pieces = Pieces(["ab", "", "c", "d"], rest="!")
    seen: list[int] = []
    plain = pieces.append
    pieces.append = lambda token: seen.append(token) or plain(token)  # type: ignore[method-assign,func-returns-value]
    builder = TextBuilder(pieces)
    assert [builder.append(i) for i in (0, 1, 2)] == [None] * 3
    assert seen == []
    assert builder.text == "abc"
    assert builder.text == "abc"
    builder.append(3)
    builder.finish()
    assert builder.text == "abcd!"
    assert seen == [0, 1, 2, 3]


def test_a_reader_in_another_thread_loses_nothing() -> None:
    builder = TextBuilder(Pieces([str(i % 10) for i in range(20_000)]))
    done = threading.Event()
    shown: list[str] = []

    def read() -> None:
        while not done.is_set():
            shown.append(builder.text)

    with ThreadPoolExecutor(2) as pool:
        readers = [pool.submit(read) for _ in range(2)]
        for i in range(20_000):
            builder.append(i)
        done.set()
    for reader in readers:
        reader.result()
    whole = "".join(str(i % 10) for i in range(20_000))
    assert builder.text == whole
    assert all(whole.startswith(text) for text in shown)
