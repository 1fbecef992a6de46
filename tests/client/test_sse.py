"""Events come out whole, however their bytes were cut."""

from __future__ import annotations

import pytest

from mtplx_kernel.client.sse import EventDecoder

STREAMS = {
    b"data: one\n\ndata: two\n\n": [b"one", b"two"],
    b"data:one\r\n\r\ndata:  two\r\n\r\n": [b"one", b" two"],
    b"data: one\r\rdata: two\r\r": [b"one", b"two"],
    b"data: a\ndata: b\n\n": [b"a\nb"],
    b"data: a\r\ndata: b\r\n\r\n": [b"a\nb"],
    b": ping\n\nevent: x\nid: 7\nretry: 1\n\n: ping\ndata: one\n\n": [b"one"],
    b"data\n\ndata: one\n\n": [b"", b"one"],
    "data: a\u2028b\u0085c\x0bd\n\n".encode(): ["a\u2028b\u0085c\x0bd".encode()],
    b"data: one\n\ndata: no blank line follows\n": [b"one"],
    b"": [],
}


def decoded(*chunks: bytes) -> list[bytes]:
    events = EventDecoder()
    return [data for chunk in chunks for data in events.feed(chunk)]


@pytest.mark.parametrize(("stream", "expected"), STREAMS.items())
def test_events_of_a_stream(stream: bytes, expected: list[bytes]) -> None:
    assert decoded(stream) == expected


@pytest.mark.parametrize(("stream", "expected"), STREAMS.items())
def test_the_cuts_do_not_matter(stream: bytes, expected: list[bytes]) -> None:
    for first in range(len(stream) + 1):
        for second in range(first, len(stream) + 1):
            cut = decoded(stream[:first], stream[first:second], stream[second:])
            assert cut == expected
    assert decoded(*(stream[i : i + 1] for i in range(len(stream)))) == expected


def test_an_event_is_given_as_soon_as_it_is_whole() -> None:
    events = EventDecoder()
    assert list(events.feed(b"data: one\r\n\r")) == [b"one"]
    assert list(events.feed(b"\ndata: two\n")) == []
    assert list(events.feed(b"\n")) == [b"two"]
