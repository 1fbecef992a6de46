"""Log-probabilities: the engine's numbers in OpenAI's two shapes, of the tokens of the text."""

from __future__ import annotations

from typing import Any

import pytest

from mtplx_kernel.engine.request import Generation, TokenLogprob
from mtplx_kernel.server.tokens import Piece, TokenTexts, Transcript, shown
from tests.engine.conftest import PROBE
from tests.server.site import CHAT, HELLO, TEXT, Site

HOT: dict[str, Any] = {"temperature": 1.5, "seed": 11, "max_tokens": 40}


def test_a_chat_tells_each_token_with_its_bytes_and_the_likeliest(site: Site) -> None:
    (choice,) = site.ask(CHAT, logprobs=True, top_logprobs=3, **HOT)["choices"]
    expected = site.engine.generate(HELLO, logprobs=3, **HOT)
    assert expected.logprobs is not None
    content = choice["logprobs"]["content"]
    assert choice["logprobs"]["refusal"] is None
    assert len(content) == len(expected.token_ids) == 40
    for told, found in zip(content, expected.logprobs, strict=True):
        # A byte a token: its id is its place in the sorted alphabet of bytes.
        assert told["logprob"] == pytest.approx(found.logprob)
        assert [top["logprob"] for top in told["top_logprobs"]] == pytest.approx(
            [logprob for _, logprob in found.top]
        )
    said = bytes(byte for told in content for byte in told["bytes"])
    assert said.decode(errors="replace") == choice["message"]["content"]


def test_top_logprobs_may_be_none_at_all(site: Site) -> None:
    (choice,) = site.ask(CHAT, logprobs=True)["choices"]
    assert {len(token["top_logprobs"]) for token in choice["logprobs"]["content"]} == {0}
    (choice,) = site.ask(CHAT, logprobs=False)["choices"]
    assert choice["logprobs"] is None


def test_a_completion_tells_four_lists(site: Site) -> None:
    (choice,) = site.ask(TEXT, prompt=PROBE, logprobs=2, **HOT)["choices"]
    expected = site.engine.generate(PROBE, logprobs=2, **HOT)
    assert expected.logprobs is not None
    told = choice["logprobs"]
    assert {len(values) for values in told.values()} == {40}
    assert told["token_logprobs"] == pytest.approx([each.logprob for each in expected.logprobs])
    for token, logprob, top in zip(
        told["tokens"], told["token_logprobs"], told["top_logprobs"], strict=True
    ):
        assert top[token] == logprob
        assert len(top) in (2, 3)
    assert told["text_offset"][0] == 0
    assert told["text_offset"] == sorted(told["text_offset"])
    (bare,) = site.ask(TEXT, prompt=PROBE, logprobs=0, **HOT)["choices"]
    assert bare["logprobs"]["top_logprobs"] is None
    assert bare["logprobs"]["tokens"] == told["tokens"]


def test_a_stream_tells_the_same_tokens(site: Site) -> None:
    for stop in (None, "stop"):
        fields: dict[str, Any] = {"logprobs": True, "top_logprobs": 2, **HOT}
        if stop is not None:
            whole = site.ask(CHAT, **fields)["choices"][0]["message"]["content"]
            fields["stop"] = whole[9:12]
        (choice,) = site.ask(CHAT, **fields)["choices"]
        chunks = site.stream(CHAT, **fields)
        told = [
            c["logprobs"]["content"] for c in (k["choices"][0] for k in chunks) if c["logprobs"]
        ]
        assert [token for tokens in told for token in tokens] == choice["logprobs"]["content"]
    (choice,) = site.ask(TEXT, logprobs=1, **HOT)["choices"]
    chunks = site.stream(TEXT, logprobs=1, **HOT)
    pieces = [c["logprobs"] for c in (k["choices"][0] for k in chunks) if c["logprobs"]]
    for name, values in choice["logprobs"].items():
        assert [value for piece in pieces for value in piece[name]] == values


def test_tokens_of_a_stop_are_not_told(site: Site) -> None:
    # Letters alone, so that each token is a character.
    letters = {str(token): 50 for token in site.engine.tokenizer.encode("abcdefghij")}
    fields: dict[str, Any] = {**HOT, "logit_bias": letters, "logprobs": 0}
    (whole,) = site.ask(TEXT, **fields)["choices"]
    assert "".join(whole["logprobs"]["tokens"]) == whole["text"]
    stop = whole["text"][12:15]
    (choice,) = site.ask(TEXT, **fields, stop=stop)["choices"]
    cut = whole["text"].index(stop)
    assert "".join(choice["logprobs"]["tokens"]) == choice["text"] == whole["text"][:cut]


class Bytes:
    """A tokenizer of bytes: token n is byte n; 300 is an end token, 301 of another script."""

    SPECIAL = ("<end>", "<｜fin｜>")

    def convert_ids_to_tokens(self, token: int) -> str | None:
        if token >= 300:
            return dict(zip((300, 301), self.SPECIAL, strict=True)).get(token)
        return {32: "Ġ", 10: "Ċ", 0xC3: "Ã", 0xA9: "©"}.get(token, chr(token))

    def convert_tokens_to_ids(self, token: str) -> int | None:
        return {"Ġ": 32, "Ċ": 10}.get(token)


class Pieces:
    """A tokenizer of pieces, where a space is a low line and a byte is written out."""

    TOKENS = ("<unk>", "▁Hi", "<0xE2>", "é")

    def convert_ids_to_tokens(self, token: int) -> str | None:
        return self.TOKENS[token] if token < len(self.TOKENS) else None

    def convert_tokens_to_ids(self, token: str) -> int:
        return self.TOKENS.index(token) if token in self.TOKENS else 0


def test_the_bytes_of_tokens_of_either_kind() -> None:
    of_bytes, of_pieces = TokenTexts(Bytes()), TokenTexts(Pieces())
    assert [of_bytes.content(t) for t in (65, 32, 10, 0xC3)] == [b"A", b" ", b"\n", b"\xc3"]
    assert of_bytes.content(300) == b"<end>"
    assert of_bytes.content(301) == "<｜fin｜>".encode()
    assert of_bytes.content(999) == b""
    assert [of_pieces.content(t) for t in (1, 2, 3)] == [b" Hi", b"\xe2", "é".encode()]
    assert [shown(b"ab"), shown(b"\xe2\x80")] == ["ab", "bytes:\\xe2\\x80"]


def told(*pieces: Piece) -> list[tuple[bytes, int]]:
    return [(each.content, each.offset) for piece in pieces for each in piece.reported]


def test_a_token_is_told_of_once_the_text_that_it_begins_is() -> None:
    transcript = Transcript(TokenTexts(Bytes()))

    def add(token: int, text: str) -> list[tuple[bytes, int]]:
        return told(transcript.add(text, TokenLogprob(token, -1.0, ())))

    assert add(65, "A") == [(b"A", 0)]
    assert add(0xC3, "") == []
    assert add(0xA9, "é") == [(b"\xc3", 1), (b"\xa9", 1)]
    assert add(66, "") == []  # held back: it may begin a stop
    assert add(67, "BC") == [(b"B", 2), (b"C", 3)]


def test_text_without_reports_is_passed_on(site: Site) -> None:
    generation: Generation = site.engine.generate(PROBE, max_tokens=6)
    transcript = Transcript(None)
    first = generation.text[:2]
    assert transcript.add(first, None) == Piece(first)
    assert transcript.end(generation) == Piece(generation.text[2:])
