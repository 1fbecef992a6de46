"""Serves plans with every side in turn, round after round, and keeps what came of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.arrivals import Plan, shortened
from benchmarks.measure import BenchmarkFailed, in_turn
from benchmarks.served import PlanRun, PlanSide

WARM_UP_TOKENS = 8
CellRuns = dict[str, list[PlanRun]]
"""The runs of each side, one a round."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One thing that is measured: a load, for so many clients.

    Attributes
    ----------
    plans
        What the rounds serve, in turn: the first round the first plan, and so on around.
    """

    load: str
    clients: int
    plans: tuple[Plan, ...]
    rounds: int

    def runs_of(self, sides: int) -> int:
        """How often `run_cell` serves a plan."""
        return sides * (1 + self.rounds)


def run_cell(
    cell: Cell, sides: Sequence[PlanSide], done: Callable[[], object] = lambda: None
) -> CellRuns:
    """Warm every side up, then serve each round's plan with all of them.

    From round to round another side goes first and the order is reversed, so that none always
    follows the same other.

    Parameters
    ----------
    done
        Called after each run, outside all times.

    Raises
    ------
    BenchmarkFailed
        If a side gives another number of tokens than it was asked for.
    """
    runs: CellRuns = {side.name: [] for side in sides}
    for side in sides:
        side.serve(shortened(cell.plans[0], WARM_UP_TOKENS))
        done()
    for turn in range(cell.rounds):
        for side in in_turn(sides, turn):
            run = side.serve(cell.plans[turn % len(cell.plans)])
            _check_lengths(side.name, run)
            runs[side.name].append(run)
            done()
    return runs


def _check_lengths(side: str, run: PlanRun) -> None:
    for served in run.served:
        if len(served.ids) != served.ask.tokens:
            raise BenchmarkFailed(
                f"{side} gave {len(served.ids)} of {served.ask.tokens} tokens on "
                f"{served.ask.prompt.name}: rates of different lengths cannot be compared"
            )
