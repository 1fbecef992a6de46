"""Text pieces against the tokenizer's own decode; stop strings against a plain search."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from mtplx_kernel.decoding.text import CONTEXT_TOKENS, MAX_UNDECIDED, REPLACEMENT, TextStream
from tests import tiny
from tests.decoding.rows import Letters

BYTES = tiny.tokenizer()
HALVES = BYTES.encode("é€😀ﬁ").ids
"""One id a byte: any order of them makes broken characters."""


def byte_fallback() -> Tokenizer:
    """A tokenizer in the way of SentencePiece: spaces as marks, unknown characters as bytes."""
    known = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), *"▁abcé"]
    made = Tokenizer(
        models.BPE({t: i for i, t in enumerate(known)}, [], byte_fallback=True, unk_token="<unk>")
    )
    made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always", split=False)
    made.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return made


FALLBACK = byte_fallback()


def pieces(
    ids: list[int],
    tokenizer: Any = BYTES,
    prompt: tuple[int, ...] = (),
    stop: tuple[str, ...] = (),
) -> tuple[list[str], TextStream]:
    """What each token releases, then what the end releases; stops as the step does."""
    stream = TextStream(tokenizer, prompt, stop)
    released = []
    for token in ids:
        released.append(stream.add(token))
        if stream.stopped:
            break
    released.append(stream.finish())
    assert stream.text == "".join(released)
    return released, stream


@settings(deadline=None)
@given(text=st.text(), prompt=st.text(max_size=8))
@example(text="naïve 👩‍👩‍👧‍👦 e\u0301 日本 \ufffd \x00", prompt="é")
@example(text="\ufffd" * 20, prompt="")
def test_pieces_add_up_to_the_text(text: str, prompt: str) -> None:
    released, _ = pieces(BYTES.encode(text).ids, prompt=tuple(BYTES.encode(prompt).ids))
    assert "".join(released) == text


@settings(deadline=None)
@given(text=st.text(st.characters(codec="utf-8", exclude_characters=REPLACEMENT)))
def test_no_piece_holds_half_a_character(text: str) -> None:
    released, _ = pieces(BYTES.encode(text).ids)
    assert not any(REPLACEMENT in piece for piece in released)
    assert released[-1] == ""


@settings(max_examples=300, deadline=None)
@given(ids=st.lists(st.sampled_from(HALVES) | st.integers(0, tiny.VOCABULARY - 1), max_size=40))
@example(ids=[94] * 7 + [126, 94])
@example(ids=[*BYTES.encode("😀").ids[:3]] * 6)
@example(ids=[0, 256, 257, 258, 259, 0])
def test_any_ids_give_the_tokenizers_own_text(ids: list[int]) -> None:
    """Broken bytes are shown in the end, as many marks as the tokenizer makes of them."""
    released, _ = pieces(ids)
    assert "".join(released) == BYTES.decode(ids)


def test_what_waits_is_at_most_an_unfinished_character() -> None:
    ids = [BYTES.encode("é").ids[0]] * 50
    stream = TextStream(BYTES, ())
    for count, token in enumerate(ids, 1):
        stream.add(token)
        assert len(stream.text) == max(0, count - MAX_UNDECIDED)
    assert stream.finish() == REPLACEMENT * MAX_UNDECIDED


@settings(deadline=None)
@given(
    text=st.text(st.sampled_from("abcé 日😀\n")),
    prompt=st.text(st.sampled_from("ab 日"), max_size=9),
)
def test_a_tokenizer_with_byte_fallback_and_spaces_as_marks(text: str, prompt: str) -> None:
    before, ids = FALLBACK.encode(prompt).ids, FALLBACK.encode(text).ids
    # Not cut inside a character, whose bytes would be nothing by themselves.
    tail = tuple(before) if len(before) <= CONTEXT_TOKENS else (before[0],)
    released, _ = pieces(ids, FALLBACK, tail)
    whole = FALLBACK.decode([*tail, *ids])
    assert "".join(released) == whole[len(FALLBACK.decode(list(tail))) :]
    assert not any(REPLACEMENT in piece for piece in released)


def test_characters_come_with_their_last_byte() -> None:
    released, _ = pieces(BYTES.encode("a€b").ids)
    assert released == ["a", "", "", "€", "b", ""]


def test_an_unfinished_character_is_shown_at_the_end() -> None:
    released, _ = pieces(BYTES.encode("a😀").ids[:-1])
    assert released == ["a", "", "", "", REPLACEMENT]


def letters(text: str) -> list[int]:
    """Ids that `Letters` decodes to a text over four characters, written here as abcd."""
    return ["abcd".index(c) for c in text]


def shown(text: str) -> str:
    return "".join(chr(0x4E00 + i) for i in letters(text))


STOPS = st.lists(
    st.text(st.sampled_from("abc"), min_size=1, max_size=4), min_size=1, max_size=3
).map(tuple)


def cut(text: str, stops: tuple[str, ...]) -> tuple[str, bool]:
    """A text up to the first stop string, found as it grows character by character."""
    for end in range(1, len(text) + 1):
        starts = [at for stop in stops if (at := text[:end].find(stop)) >= 0]
        if starts:
            return text[: min(starts)], True
    return text, False


@settings(max_examples=300, deadline=None)
@given(text=st.text(st.sampled_from("abc"), max_size=30), stops=STOPS)
def test_text_ends_where_a_stop_string_first_does(text: str, stops: tuple[str, ...]) -> None:
    released, stream = pieces(letters(text), Letters(), stop=tuple(shown(s) for s in stops))
    expected, stopped = cut(text, stops)
    assert ("".join(released), stream.stopped) == (shown(expected), stopped)
    if stopped:
        assert released[-1] == ""


@settings(max_examples=200, deadline=None)
@given(
    text=st.text(st.sampled_from("aé日😀")),
    stops=st.lists(st.text(st.sampled_from("aé日😀"), min_size=1, max_size=3), max_size=2),
)
def test_stop_strings_across_bytes(text: str, stops: list[str]) -> None:
    released, stream = pieces(BYTES.encode(text).ids, stop=tuple(stops))
    assert ("".join(released), stream.stopped) == cut(text, tuple(stops))


@settings(max_examples=200, deadline=None)
@given(text=st.text(st.sampled_from("abc"), max_size=20), stops=STOPS)
def test_only_what_may_begin_a_stop_string_is_held_back(text: str, stops: tuple[str, ...]) -> None:
    stream = TextStream(Letters(), (), tuple(shown(s) for s in stops))
    fed = ""
    for token, letter in zip(letters(text), text, strict=True):
        stream.add(token)
        fed += letter
        if stream.stopped:
            return
        held = len(fed) - len(stream.text)
        begun = [n for s in stops for n in range(1, len(s)) if fed.endswith(s[:n])]
        assert held == max(begun, default=0)


class Words:
    """Decodes ids to words, so that one token holds many characters."""

    words = ("one ", "two STOP three", "ST", "OP", "x", "END", " STOPEND ")

    def decode(self, ids: list[int]) -> str:
        return "".join(self.words[i] for i in ids)


WORD_CASES: dict[str, tuple[list[int], tuple[str, ...], list[str], bool]] = {
    "inside a piece": ([0, 1, 0], ("STOP",), ["one ", "two ", ""], True),
    "across tokens": ([0, 2, 3], ("STOP",), ["one ", "", "", ""], True),
    "not after all": ([2, 4, 0], ("STOP",), ["", "STx", "one ", ""], False),
    "released at the end": ([0, 2], ("STOP",), ["one ", "", "ST"], False),
    "begins anew": ([2, 2, 3], ("STOP",), ["", "ST", "", ""], True),
    "the earliest of several": ([6], ("END", "STOP"), [" ", ""], True),
    "the order does not matter": ([6], ("STOP", "END"), [" ", ""], True),
    "the shorter of two at one place": ([0, 2, 3], ("STOP", "ST"), ["one ", "", ""], True),
    "at the very start": ([2, 3], ("STOP",), ["", "", ""], True),
    "none": ([0, 4], (), ["one ", "x", ""], False),
}


@pytest.mark.parametrize("case", WORD_CASES)
def test_stop_strings(case: str) -> None:
    ids, stop, expected, stopped = WORD_CASES[case]
    released, stream = pieces(ids, Words(), stop=stop)
    assert released == expected
    assert stream.stopped is stopped


def test_a_stop_string_in_the_prompt_does_not_count() -> None:
    released, stream = pieces([3, 0], Words(), prompt=(2,), stop=("STOP",))
    assert ("".join(released), stream.stopped) == ("OPone ", False)


def test_a_long_prompt_changes_nothing() -> None:
    ids = BYTES.encode("日本語").ids
    released, _ = pieces(ids, prompt=tuple(BYTES.encode("日" * 30).ids))
    assert "".join(released) == "日本語"


def test_text_that_a_decoder_takes_back_for_a_moment_is_not_said_twice() -> None:
    class Hesitates:
        def decode(self, ids: list[int]) -> str:
            return ("", "ab", "a", "abc")[len(ids)]

    released, _ = pieces([0, 0, 0], Hesitates())
    assert released == ["ab", "", "c", ""]
