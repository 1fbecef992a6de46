"""How far long work is: one line where somebody watches, of which nothing stays.

Somebody watches a terminal, and the cell of a notebook that could be asked a question. Nobody
watches a file or a pipe, nor a notebook that a program executes: there, nothing is drawn.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, TextIO

from tqdm import tqdm

if TYPE_CHECKING:
    from IPython.display import DisplayHandle

WIDEST = 100
"""Columns of a line; more are not easier to read."""
SPARE = 4
"""Columns that stay free behind it, for what the terminal echoes: `^C`."""
IN_A_CELL = 72
LARGE = {"B", "tok"}
"""Units that are counted in thousands and millions."""
UNHURRIED_S = 0.5
"""What takes less is not worth a line."""

Tick = Callable[[int], object]
"""Says that so much more is done."""
Stages = Callable[[int, str, str], AbstractContextManager[Tick]]
"""Opens a stage of some work: its total, what it is, and the unit that both count."""


class ProgressBar(tqdm):  # type: ignore[type-arg]
    """A line that tells how far something is, to be used as a context.

    Within another one it draws nothing: one line is enough.

    Parameters
    ----------
    wanted
        False draws nothing.
    iterable, **look
        As tqdm takes them: `total`, `desc`, `unit` and others.
    """

    monitor_interval = 0  # no thread beside those of the work

    def __init__(self, iterable: Any = None, *, wanted: bool = True, **look: Any) -> None:
        place = _place() if wanted and not self._is_inner() else None
        super().__init__(
            iterable,
            **look | {"file": place, "disable": place is None, "leave": False},
            ncols=IN_A_CELL if isinstance(place, _Cell) else None,
            dynamic_ncols=not isinstance(place, _Cell),
        )

    @property
    def format_dict(self) -> dict[str, Any]:
        """What the line says; its width is a little less than the terminal's."""
        known = dict(super().format_dict)
        if known.get("ncols"):
            known["ncols"] = max(1, min(WIDEST, known["ncols"] - SPARE))
        return known

    def display(self, msg: str | None = None, pos: int | None = None) -> Any:
        """Draw it; an empty message wipes the line out, with what the terminal echoed there."""
        if msg == "" and self.ncols:
            msg = " " * (self.ncols - 1)
        return super().display(msg, pos)

    def _is_inner(self) -> bool:
        others: list[Any] = list(tqdm._instances)  # type: ignore[attr-defined]
        return any(isinstance(bar, ProgressBar) and bar is not self for bar in others)


class Telling:
    """What one thread tells of its work, and another one, which waits for it, draws."""

    def __init__(self) -> None:
        self._stage: _Stage | None = None

    @contextmanager
    def stage(self, total: int, what: str, unit: str) -> Iterator[Tick]:
        """Open a stage; see `Stages`."""
        self._stage = stage = _Stage(total, what, unit)
        try:
            yield stage.advance
        finally:
            self._stage = None

    @contextmanager
    def drawn(self, wanted: bool = True) -> Iterator[Callable[[], None]]:
        """Give a function that draws what was told so far, to be called again and again."""
        stage: _Stage | None = None
        bar = ProgressBar(wanted=False)

        def draw() -> None:
            nonlocal stage, bar
            if self._stage is not stage:
                bar.close()
                stage = self._stage
                if stage is not None:
                    bar = stage.bar(wanted)
            if stage is not None:
                bar.update(min(stage.done, stage.total) - bar.n)

        try:
            yield draw
        finally:
            bar.close()


class _Stage:
    """A part of some work, and how far it is."""

    def __init__(self, total: int, what: str, unit: str) -> None:
        self.total, self.done = total, 0
        self._what, self._unit = what, unit

    def advance(self, more: int = 1) -> None:
        self.done += more

    def bar(self, wanted: bool) -> ProgressBar:
        return ProgressBar(
            wanted=wanted,
            total=self.total,
            desc=self._what,
            unit=self._unit,
            unit_scale=self._unit in LARGE,
            delay=UNHURRIED_S,
        )


@contextmanager
def draw(total: int, what: str, unit: str) -> Iterator[Tick]:
    """Open a stage of one's own work, and draw it; see `Stages`."""
    with ProgressBar(total=total, desc=what, unit=unit, unit_scale=unit in LARGE) as bar:
        yield bar.update


def untold(total: int, what: str, unit: str) -> AbstractContextManager[Tick]:
    """Open a stage that nobody wants to know of."""
    return nullcontext(lambda more: None)


def watched() -> bool:
    """Whether somebody watches what is written to the errors' stream now."""
    return _place() is not None


def watches(kernel: Any) -> bool:
    """Whether somebody watches the cell that a Jupyter kernel runs: who could answer a question.

    Programs that execute notebooks (nbclient, papermill, nbconvert) say that nobody can.
    """
    return bool(kernel.get_parent("shell").get("content", {}).get("allow_stdin", False))


def _place() -> TextIO | _Cell | None:
    """Where lines are drawn; None where nobody watches."""
    kernel = _kernel()
    if kernel is not None:
        return _Cell() if watches(kernel) else None
    # A command that a cell runs has a terminal that is no one's: it ends in the cell's output.
    return sys.stderr if sys.stderr.isatty() and "JPY_PARENT_PID" not in os.environ else None


def _kernel() -> Any:
    """The Jupyter kernel that this process is, where IPython is loaded and its shell has one."""
    loaded = sys.modules.get("IPython")
    return None if loaded is None else getattr(loaded.get_ipython(), "kernel", None)


class _Cell:
    """An output of the running cell, as a file that shows the line that was written last.

    It is a text of its own, not a part of a stream: so it can be taken away, where a stream would
    keep blanks. No widget: a saved notebook would keep one that is dead.
    """

    encoding = "utf-8"

    def __init__(self) -> None:
        self._handle: DisplayHandle | None = None
        self._line = ""

    def write(self, text: str) -> None:
        line = text.strip("\r ")
        if line == self._line:
            return
        self._line = line
        if self._handle is not None:
            self._handle.update({"text/plain": line}, raw=True)
            return
        from IPython.display import DisplayHandle

        self._handle = DisplayHandle()
        self._handle.display({"text/plain": line}, raw=True)

    def flush(self) -> None:
        """Nothing waits."""
