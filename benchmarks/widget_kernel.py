"""A kernel that decodes with and without open views, and a listener in place of a browser."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jupyter_client.manager import KernelManager

from benchmarks.measure import BenchmarkFailed

ROOT = Path(__file__).resolve().parents[1]
START_S = 120
CELL_S = 1800
OF_VIEWS = ("comm_open", "comm_msg", "comm_close", "display_data", "update_display_data")
"""The messages that views send."""


@dataclass(frozen=True, slots=True)
class ViewsRun:
    """The plan answered once.

    Attributes
    ----------
    ids
        A digest of all ids.
    messages
        How many the views sent meanwhile.
    busiest
        Most messages that one of them sent within a second.
    """

    seconds: float
    tokens: int
    tok_s: float
    ids: str
    messages: int
    busiest: int


class ViewsKernel:
    """A kernel of its own, used as a context.

    Parameters
    ----------
    setup
        Cells to run first; the last of them makes `rounds`.
    """

    def __init__(self, setup: Sequence[str]) -> None:
        self._manager = KernelManager(kernel_name="python3")
        self._manager.start_kernel(cwd=str(ROOT))
        self._client = self._manager.client()
        try:
            self._client.start_channels()
            self._client.wait_for_ready(timeout=START_S)
            for cell in setup:
                self.run(cell)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> ViewsKernel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the kernel."""
        self._client.stop_channels()
        self._manager.shutdown_kernel(now=True)

    def machine(self) -> dict[str, Any]:
        """The machine, as the kernel sees it."""
        described: dict[str, Any] = json.loads(self.run("print(rounds.machine())")[0])
        return described

    def serve(self, views: Sequence[str]) -> ViewsRun:
        """Answer the plan with these views open, each in an output of its own."""
        for view in views:
            self.run(f"%mtplx show {view}")
        text, sent = self.run("print(rounds.run())")
        if views:
            self.run("%mtplx show off")
        return ViewsRun(**json.loads(text), messages=len(sent), busiest=busiest(sent))

    def run(self, cell: str) -> tuple[str, list[tuple[str, float]]]:
        """Run a cell; what it printed, and who sent a message of a view when.

        Raises
        ------
        BenchmarkFailed
            If the cell fails; its error is the message.
        """
        request = self._client.execute(cell)
        printed: list[str] = []
        sent: list[tuple[str, float]] = []
        while True:
            message = self._client.get_iopub_msg(timeout=CELL_S)
            kind, content = message["msg_type"], message["content"]
            if kind in OF_VIEWS:
                sent.append((str(content.get("comm_id", kind)), time.perf_counter()))
            if message["parent_header"].get("msg_id") != request:
                continue
            if kind == "stream" and content["name"] == "stdout":
                printed.append(content["text"])
            elif kind == "error":
                raise BenchmarkFailed(f"{cell.splitlines()[0]}: {content['evalue']}")
            elif kind == "status" and content["execution_state"] == "idle":
                break
        reply = self._client.get_shell_msg(timeout=START_S)["content"]
        if reply["status"] != "ok":
            raise BenchmarkFailed(f"{cell.splitlines()[0]}: {reply.get('evalue', 'it failed')}")
        return "".join(printed), sent


def busiest(sent: Sequence[tuple[str, float]]) -> int:
    """Most messages of one sender within one second, counted second by second."""
    if not sent:
        return 0
    first = sent[0][1]
    return max(Counter((who, int(at - first)) for who, at in sent).values())
