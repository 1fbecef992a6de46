"""Waiting in the foreground: whatever ends the showing ends the request."""

from __future__ import annotations

import pytest

from mtplx_kernel.decoding.params import GenerationMode, SamplingParams
from mtplx_kernel.display import SilentSink
from mtplx_kernel.engine.request import FinishReason, Handle, Request
from mtplx_kernel.engine.timeline import DecodeWindow
from mtplx_kernel.errors import EngineClosed, RequestFailed
from mtplx_kernel.waiting import ended, wait
from tests.ipython.scripted import generation


@pytest.fixture
def handle() -> Handle:
    """A request that goes on until it is cancelled, with one piece to show."""
    request = Request(
        request_id="req-1",
        prompt_ids=(1,),
        params=SamplingParams(),
        seed=0,
        mode=GenerationMode.AR,
    )
    handle = Handle(request, DecodeWindow("req-1", 0.0))

    def end() -> None:
        assert handle.cancel_reason is not None
        handle.finish(generation(request, ["a"], handle.cancel_reason))

    handle.attach(end, lambda: None, lambda: None)
    handle.push("a")
    return handle


class FailingSink(SilentSink):
    """Raises an error where it is told to."""

    def __init__(self, error: BaseException, at: str) -> None:
        super().__init__()
        self.error, self.at = error, at

    def write(self, piece: str) -> None:
        super().write(piece)
        if self.at == "write":
            raise self.error

    def close(self) -> None:
        if self.at == "close":
            raise self.error


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (OSError("broken pipe"), FinishReason.CANCELLED),
        (KeyboardInterrupt(), FinishReason.INTERRUPTED),
        (SystemExit(), FinishReason.INTERRUPTED),
    ],
)
def test_a_sink_that_fails_ends_the_request(
    handle: Handle, error: BaseException, reason: FinishReason
) -> None:
    with pytest.raises(type(error)):
        wait(handle, FailingSink(error, "write"))
    assert handle.cancel_reason is reason
    kept = ended(handle)
    assert kept is not None
    assert (kept.text, kept.finish_reason) == ("a", reason)


def test_a_sink_that_fails_at_the_end_keeps_the_answer(handle: Handle) -> None:
    handle.finish(generation(handle.request, ["a"], FinishReason.STOP))
    with pytest.raises(OSError, match="full"):
        wait(handle, FailingSink(OSError("full"), "close"))
    kept = ended(handle)
    assert kept is not None
    assert kept.finish_reason is FinishReason.STOP


def test_what_there_is_of_a_request(handle: Handle) -> None:
    assert ended(handle) is None
    handle.fail(EngineClosed("the engine died"), 1.0)
    assert ended(handle) is None
    with pytest.raises(EngineClosed, match="died"):
        wait(handle, SilentSink())


def test_a_failed_request_has_what_it_had(handle: Handle) -> None:
    failed = generation(handle.request, ["a"], FinishReason.ERROR, "NaN")
    handle.finish(failed)
    with pytest.raises(RequestFailed, match="NaN"):
        wait(handle, SilentSink())
    assert ended(handle) is failed
