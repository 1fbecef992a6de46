"""Bars in kernels: there for who watches the cell, and never in what a program saves."""

from __future__ import annotations

import shlex
import sys
from typing import Any

from nbclient import NotebookClient
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_notebook

WORK = """
import time
from mtplx_kernel.models.progress import ProgressBar
with ProgressBar(total=3, desc="working", unit="run") as bar:
    for _ in range(3):
        time.sleep(0.15)
        bar.update()
"""
CELLS = (
    WORK,
    f"import threading\nthread = threading.Thread(target=exec, args=[{WORK!r}])\n"
    "thread.start()\nthread.join()",
    f"get_ipython().system({shlex.join([sys.executable, '-c', WORK])!r})",  # as ! does
    f"try:\n    exec({WORK.replace('bar.update()', '1 / 0')!r})\nexcept ZeroDivisionError:\n    2",
)
"""A bar of a cell, of a thread, of a command, and one that an error ends."""


class Executed(NotebookClient):
    """A notebook that was executed, by one who can answer questions or by a program.

    Attributes
    ----------
    seen
        The texts of the outputs that came and changed, in order.
    """

    def __init__(self, *, watched: bool) -> None:
        self.seen: list[str] = []
        self._watched = watched
        book = new_notebook(cells=[new_code_cell(source) for source in CELLS])
        super().__init__(book, kernel_name="python3", on_notebook_start=self._start)
        self.execute()

    def process_message(self, msg: dict[str, Any], cell: NotebookNode, cell_index: int) -> Any:
        if msg["msg_type"] in ("display_data", "update_display_data"):
            self.seen.append(msg["content"]["data"]["text/plain"])
        return super().process_message(msg, cell, cell_index)

    @property
    def outputs(self) -> list[list[NotebookNode]]:
        """What each cell holds at the end."""
        return [cell.outputs for cell in self.nb.cells]

    def _start(self, **_: object) -> None:
        assert self.kc is not None
        self.kc.allow_stdin = self._watched


def test_a_program_saves_none() -> None:
    executed = Executed(watched=False)
    assert executed.outputs == [[], [], [], []]


def test_who_watches_sees_a_line_of_which_nothing_stays() -> None:
    executed = Executed(watched=True)
    runs, rest = executed.seen[:-2], executed.seen[-2:]
    for seen in (runs[: len(runs) // 2], runs[len(runs) // 2 :]):
        assert [line.partition("|")[0] for line in seen] == [
            *(f"working: {percent:>3}%" for percent in (0, 33, 67, 100)),
            "",
        ]
    assert [line.partition("|")[0] for line in rest] == ["working:   0%", ""]
    left = [[dict(output) for output in cell] for cell in executed.outputs]
    nothing = {"output_type": "display_data", "metadata": {}, "data": {"text/plain": ""}}
    assert left == [[nothing], [nothing], [], [nothing]]
