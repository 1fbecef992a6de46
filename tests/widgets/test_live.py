"""One output: live while something runs, a picture at rest, and nothing left behind."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest
from IPython.display import DisplayHandle

from mtplx_kernel.widgets.live import Shown

REST_S = 5.0


class Board:
    """Notes what is displayed, and stands for all that a view asks."""

    def __init__(self) -> None:
        self.seen: list[object] = []
        self.now = 0.0
        self.busy = self.gone = self.broken = False
        self.version = 0
        self.views: list[View] = []

    def made(self) -> View:
        self.views.append(View())
        return self.views[-1]

    def shown(self, **options: Any) -> Shown:
        shown = Shown(
            self.made,
            self.picture,
            lambda: self.busy,
            version=lambda: self.version,
            gone=lambda: self.gone,
            rest_s=REST_S,
            clock=lambda: self.now,
            **options,
        )
        # The test looks itself, when its clock says so.
        shown._pump.start = lambda: None
        shown.show()
        return shown

    def picture(self) -> dict[str, str]:
        if self.broken:
            raise ValueError("no picture")
        return {"text/plain": f"picture {self.now:g}"}

    def at(self, now: float, shown: Shown, *, busy: bool) -> object:
        """What is displayed after a look at this time."""
        self.now, self.busy = now, busy
        shown.look()
        return self.seen[-1]


class View:
    def __init__(self) -> None:
        self.held = self.closed = False

    def close(self) -> None:
        assert not self.closed
        self.closed = True


@pytest.fixture
def board(monkeypatch: pytest.MonkeyPatch) -> Board:
    made = Board()

    def note(handle: DisplayHandle, what: object, *, raw: bool = False) -> None:
        made.seen.append(what["text/plain"] if raw and isinstance(what, dict) else what)

    monkeypatch.setattr(DisplayHandle, "display", note)
    monkeypatch.setattr(DisplayHandle, "update", note)
    return made


def test_it_is_a_picture_until_something_runs_and_after_it_rested(board: Board) -> None:
    shown = board.shown()
    assert board.seen == ["picture 0"]
    assert not shown.live
    assert board.at(1.0, shown, busy=True) is board.views[0]
    assert shown.live
    assert board.at(2.0, shown, busy=False) is board.views[0]
    assert board.at(5.9, shown, busy=False) is board.views[0]
    assert board.at(6.0, shown, busy=False) == "picture 6"
    assert board.views[0].closed
    assert board.at(7.0, shown, busy=True) is board.views[1]
    shown.close()
    assert board.views[1].closed


def test_it_begins_live_where_something_runs(board: Board) -> None:
    board.busy = True
    shown = board.shown()
    assert board.seen == board.views
    board.at(1.0, shown, busy=True)
    assert len(board.seen) == 1


def test_a_reader_who_holds_it_keeps_it(board: Board) -> None:
    shown = board.shown()
    board.at(1.0, shown, busy=True)
    board.views[0].held = True
    assert board.at(60.0, shown, busy=False) is board.views[0]
    board.views[0].held = False
    assert board.at(61.0, shown, busy=False) == "picture 61"


def test_it_may_be_kept_live(board: Board) -> None:
    shown = board.shown(keep=True)
    assert board.at(60.0, shown, busy=False) is board.views[0]
    shown.close()
    assert board.seen[-1] == "picture 60"


def test_the_end_of_the_engine_is_its_end(board: Board) -> None:
    shown = board.shown(keep=True)
    board.gone = True
    assert board.at(3.0, shown, busy=True) == "picture 3"
    assert board.views[0].closed
    assert board.at(4.0, shown, busy=True) == "picture 3"
    shown.close()
    assert board.seen[-1] == "picture 3"


def test_what_ran_between_two_looks_is_shown(board: Board) -> None:
    shown = board.shown()
    assert board.at(1.0, shown, busy=False) == "picture 0"
    board.version += 1
    assert board.at(2.0, shown, busy=False) is board.views[0]
    assert board.at(6.9, shown, busy=False) is board.views[0]
    assert board.at(7.0, shown, busy=False) == "picture 7"
    assert board.at(8.0, shown, busy=False) == "picture 7"


@pytest.mark.parametrize("end", ["close", "gone"])
def test_what_ran_right_before_the_end_is_in_the_last_picture(board: Board, end: str) -> None:
    shown = board.shown()
    board.version, board.now = 1, 1.0
    if end == "close":
        shown.close()
    else:
        board.gone = True
        shown.look()
    assert board.seen == ["picture 0", "picture 1"]


def test_a_view_without_a_picture_is_closed_too(board: Board) -> None:
    shown = board.shown(keep=True)
    board.broken = True
    with pytest.raises(ValueError, match="no picture"):
        shown.close()
    assert board.views[0].closed
    assert not shown.live
    assert shown._pump._stopped.is_set()


def test_closing_twice_does_nothing(board: Board) -> None:
    shown = board.shown()
    board.at(1.0, shown, busy=True)
    for _ in range(2):
        shown.close()
    assert len(board.seen) == 3
    assert board.at(2.0, shown, busy=True) == "picture 1"


def test_a_picture_that_took_long_does_not_make_the_next_look_late(board: Board) -> None:
    """On a processor's clock that stands for a slow picture: the wake is seen soon all the same."""
    spent = [0.0]
    board.version = 1
    shown = board.shown(keep=True)
    drawn = threading.Event()

    def slow() -> dict[str, str]:
        spent[0] += 60.0
        drawn.set()
        return {"text/plain": "picture"}

    looked = list[float]()

    class Waits(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            assert timeout is not None
            looked.append(timeout)
            return len(looked) > 2

    shown._keep, shown._bundle = False, slow
    board.now = 60.0
    with pytest.MonkeyPatch.context() as patch:
        clock = SimpleNamespace(thread_time=lambda: spent[0])
        patch.setattr("mtplx_kernel.widgets.pump.time", clock)
        shown._pump._run(Waits())
    assert drawn.is_set()
    assert looked == [0.25, 1.0, 0.5]


def test_no_thread_is_left(board: Board) -> None:
    before = set(threading.enumerate())
    shown = Shown(board.made, lambda: {"text/plain": "picture"}, lambda: True)
    shown.show()
    assert len(set(threading.enumerate()) - before) == 1
    shown.close()
    assert set(threading.enumerate()) == before
