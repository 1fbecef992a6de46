"""Requests are sent again where the endpoint had not begun, and only there."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from mtplx_kernel.client import MTPLXClient, Retries
from mtplx_kernel.errors import EndpointError, EndpointLost, MTPLXError, RequestTimeout
from tests.client.replies import Replies, completion, refused

URL = "http://127.0.0.1:1"


class Pauses:
    """A sleep that only notes for how long it was asked."""

    def __init__(self) -> None:
        self.asked: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.asked.append(seconds)


@pytest.fixture
def pauses() -> Pauses:
    return Pauses()


def ask(replies: Replies, pauses: Pauses, **fields: Any) -> str:
    """The text that comes of a request, with retries that pause for exactly their time."""
    retries = Retries(chance=lambda: 0.0, sleep=pauses, **fields)
    with MTPLXClient(URL, "tiny", retries=retries, transport=replies) as client:
        return client.generate("Once").text


def good() -> httpx.Response:
    return httpx.Response(200, json=completion("fine"))


def busy(status: int = 503, **headers: str) -> httpx.Response:
    return httpx.Response(status, json=refused("the queue is full"), headers=headers)


@pytest.mark.parametrize(
    "fault",
    [
        busy(503),
        busy(429),
        httpx.ConnectError("refused"),
        httpx.ConnectTimeout("too slow"),
    ],
)
def test_busy_and_unreachable_endpoints_are_asked_again(
    fault: httpx.Response | Exception, pauses: Pauses
) -> None:
    replies = Replies(fault, fault, fault, good())
    assert ask(replies, pauses) == "fine"
    assert pauses.asked == [0.25, 0.5, 1.0]
    assert len({request.content for request in replies.requests}) == 1


def test_the_endpoint_says_how_long(pauses: Pauses) -> None:
    replies = Replies(busy(**{"Retry-After": "2"}), busy(**{"Retry-After": "0"}), good())
    assert ask(replies, pauses) == "fine"
    assert pauses.asked == [2.0, 0.0]


@pytest.mark.parametrize("header", ["Wed, 21 Oct 2026 07:28:00 GMT", "-1", "nan", "inf", "soon"])
def test_a_retry_after_that_is_no_number_of_seconds(header: str, pauses: Pauses) -> None:
    assert ask(Replies(busy(**{"Retry-After": header}), good()), pauses) == "fine"
    assert pauses.asked == [0.25]


def test_an_endpoint_that_wants_longer_is_left_alone(pauses: Pauses) -> None:
    with pytest.raises(EndpointError) as caught:
        ask(Replies(busy(**{"Retry-After": "31"})), pauses)
    assert (caught.value.status, caught.value.retry_after_s) == (503, 31.0)
    assert pauses.asked == []


def test_after_the_last_try_the_error_is_raised(pauses: Pauses) -> None:
    replies = Replies(*(busy() for _ in range(3)))
    line = r"^/v1/completions refused \(503 Service Unavailable\): the queue is full$"
    with pytest.raises(EndpointError, match=line):
        ask(replies, pauses, most=2)
    assert len(replies.requests) == 3
    with pytest.raises(EndpointLost, match="no endpoint answers at http"):
        ask(Replies(httpx.ConnectError("refused")), pauses, most=0)
    assert pauses.asked == [0.25, 0.5]


@pytest.mark.parametrize("status", [400, 401, 404, 408, 409, 500, 502, 504])
def test_other_statuses_are_final(status: int, pauses: Pauses) -> None:
    with pytest.raises(EndpointError) as caught:
        ask(Replies(busy(status, **{"Retry-After": "1"})), pauses)
    assert caught.value.status == status
    assert pauses.asked == []


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (httpx.ReadError("reset"), EndpointLost),
        (httpx.WriteError("reset"), EndpointLost),
        (httpx.RemoteProtocolError("no answer"), EndpointLost),
        (httpx.ReadTimeout("slow"), RequestTimeout),
    ],
)
def test_a_request_that_may_have_begun_is_not_sent_again(
    fault: Exception, kind: type[MTPLXError], pauses: Pauses
) -> None:
    with pytest.raises(kind):
        ask(Replies(fault), pauses)
    assert pauses.asked == []


def test_pauses_double_up_to_the_longest_and_vary_downwards() -> None:
    error = EndpointError("busy", status=503)
    exact = Retries(most=10, first_s=1.0, longest_s=5.0, chance=lambda: 0.0)
    assert [exact.pause_s(tries, error) for tries in range(1, 12)] == [
        *(1.0, 2.0, 4.0, 5.0, 5.0, 5.0, 5.0, 5.0, 5.0, 5.0),
        None,
    ]
    early = Retries(first_s=1.0, chance=lambda: 1.0)
    assert [early.pause_s(tries, error) for tries in (1, 2, 3)] == [0.5, 1.0, 2.0]
    told = EndpointError("busy", status=503, retry_after_s=2.0)
    assert (exact.pause_s(1, told), early.pause_s(1, told)) == (2.0, 3.0)
