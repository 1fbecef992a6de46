"""Each token is told by how it came, with its text, while its request runs and after."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from mtplx_kernel.decoding.text import TextStream
from mtplx_kernel.engine.timeline import Cycle, DecodeWindow, Timeline
from mtplx_kernel.errors import InvalidRequest
from mtplx_kernel.widgets.tracing import CycleLine, Piece, Tracer, tracer_of
from tests.ipython.scripted import made


def bytes_decoded(ids: list[int]) -> str:
    """A tokenizer with a token a byte."""
    return bytes(ids).decode(errors="replace")


BYTES = SimpleNamespace(decode=bytes_decoded)


def window(*cycles: tuple[float, int, int, str | None, bytes], end: bool = False) -> DecodeWindow:
    """A window with cycles of (time, drafted, accepted, drafter, bytes that came)."""
    found = DecodeWindow("req-1", 0.0)
    for at, drafted, accepted, drafter, text in cycles:
        found.cycles.record(Cycle(at, drafted, accepted, len(text), drafter, 2), list(text))
    if end:
        found.cycles.record(Cycle(9.0, 1, 1, 1, "head", 1), [])
        found.end_token, found.ended = True, 9.0
    return found


SOME = (
    (1.0, 0, 0, None, b"T"),
    (1.1, 3, 2, "head", b"he "),
    (1.25, 2, 2, "lookup", b"sky"),
)


def test_tokens_are_told_by_their_cycles() -> None:
    trace = Tracer(window(*SOME, end=True), BYTES).trace()
    assert trace.pieces == (
        Piece("T", "plain", 0, 1),
        Piece("h", "accepted", 1, 2),
        Piece("e", "accepted", 2, 2),
        Piece(" ", "correction", 0, 2),
        Piece("s", "accepted", 1, 3),
        Piece("k", "accepted", 2, 3),
        Piece("y", "bonus", 0, 3),
    )
    assert trace.counts == {"accepted": 4, "correction": 1, "bonus": 1, "plain": 1}
    assert trace.cycles[1] == CycleLine(2, pytest.approx(100.0), 3, 2, 3, "correction", "head", 2)
    assert trace.cycles[0].ms is None
    assert not trace.running
    assert trace.summary == (
        "req-1: 7 tokens and an end token in 4 cycles (2.00 a cycle), 5 of 6 drafts right (83%)"
    )


def test_a_running_request_is_followed_without_decoding_anything_twice() -> None:
    decoded: list[int] = []

    def decode(ids: list[int]) -> str:
        decoded.append(len(ids))
        return bytes_decoded(ids)

    found = window(*SOME[:1])
    tracer = Tracer(found, SimpleNamespace(decode=decode))
    assert tracer.trace().summary == "req-1: 1 token in 1 cycle (1.00 a cycle), not ended"
    calls = len(decoded)
    assert len(tracer.trace().pieces) == 1
    assert len(decoded) == calls
    found.cycles.record(Cycle(1.1, 1, 1, 2, "head", 1), list(b"wo"))
    assert "".join(piece.text for piece in tracer.trace().pieces) == "Two"
    assert max(decoded) <= 7, "only some tokens before each new one are decoded with it"


@pytest.mark.parametrize(
    "text",
    ["aé", "日本語", "a😀b", "é" * 9, "né\n\n日"],
    ids=["two", "three", "four", "many", "mix"],
)
def test_a_character_of_several_tokens_comes_whole(text: str) -> None:
    ids = list(text.encode())
    found = window((1.0, 0, 0, None, bytes(ids)))
    pieces = [piece.text for piece in Tracer(found, BYTES).trace().pieces]
    assert "".join(pieces) == text
    assert len(pieces) == len(ids)
    # As the engine releases it.
    stream = TextStream(BYTES, [])
    assert pieces == [stream.add(token) for token in ids]


def test_bytes_that_are_no_character_do_not_hold_the_text_up() -> None:
    found = window((1.0, 0, 0, None, b"a\xff\xff\xff\xff\xff" + b"bcd"))
    pieces = [piece.text for piece in Tracer(found, BYTES).trace().pieces]
    assert "".join(pieces).startswith("a\N{REPLACEMENT CHARACTER}")
    assert "".join(pieces).endswith("bcd")


@pytest.mark.parametrize("text", [b"caf\xc3", b"\xf0\x9f\x98", b"a\xff", b"ok"])
def test_an_answer_that_ends_within_a_character_is_shown_to_its_end(text: bytes) -> None:
    found = window((1.0, 0, 0, None, text))
    tracer = Tracer(found, BYTES)
    stream = TextStream(BYTES, ())
    so_far = "".join(stream.add(token) for token in text)
    assert "".join(piece.text for piece in tracer.trace().pieces) == so_far
    found.ended = 2.0
    whole = so_far + stream.finish()
    for _ in range(2):
        assert "".join(piece.text for piece in tracer.trace().pieces) == whole
    assert whole == bytes_decoded(list(text))


def test_the_first_token_is_shown_as_it_follows_the_prompt() -> None:
    """Many tokenizers leave out a space at the start of what they decode."""
    tokenizer = SimpleNamespace(decode=lambda ids: bytes_decoded(ids).removeprefix(" "))
    found = window((1.0, 0, 0, None, b" Paris"))
    found.context = tuple(b"is")
    pieces = Tracer(found, tokenizer).trace().pieces
    assert "".join(piece.text for piece in pieces) == " Paris"


def test_forgotten_cycles_leave_tokens_of_unknown_origin() -> None:
    found = window(*SOME[:2])
    found.cycles.forget()
    found.cycles.record(Cycle(1.25, 2, 2, 3, "lookup", 1), list(b"sky"))
    by_window = Tracer(found, BYTES).trace()
    assert [piece.kind for piece in by_window.pieces[:4]] == ["unknown"] * 4
    assert "".join(piece.text for piece in by_window.pieces) == "sky"
    assert by_window.pieces[4] == Piece("s", "accepted", 1, 3)
    assert by_window.summary == (
        "req-1: 7 tokens, the last 3 of them in 1 cycle (3.00 a cycle), "
        "2 of 2 drafts right (100%), not ended"
    )
    # A result knows its ids, whatever was forgotten of how they came.
    by_result = Tracer(found, BYTES, list(b"The sky")).trace()
    assert "".join(piece.text for piece in by_result.pieces) == "The sky"
    assert [line.number for line in by_result.cycles] == [3]


def engine(*windows: DecodeWindow, decode: Callable[[list[int]], str] = bytes_decoded) -> Any:
    timeline = Timeline()
    for found in windows:
        timeline.open(found)
    return SimpleNamespace(timeline=timeline, tokenizer=SimpleNamespace(decode=decode))


def test_a_request_is_found_by_its_id_or_its_result_and_else_is_the_newest() -> None:
    first, second = window(*SOME), window(*SOME[:1])
    second.request_id = "req-2"
    found = engine(first, second)
    assert len(tracer_of(found, "req-1").trace().pieces) == 7
    assert tracer_of(found).trace().request_id == "req-2"
    result = made("a", "b")
    result.window.cycles.record(Cycle(1.0, 0, 0, 2, None, 1), result.token_ids)
    trace = tracer_of(engine(), result).trace()
    assert [piece.kind for piece in trace.pieces] == ["plain", "plain"]


def test_a_request_that_is_not_remembered_is_refused_in_one_line() -> None:
    with pytest.raises(InvalidRequest, match=r"^there was no request yet; ask something first$"):
        tracer_of(engine())
    with pytest.raises(InvalidRequest, match=r"^no request 'x' is remembered; .*: req-1$"):
        tracer_of(engine(window(*SOME)), "x")
