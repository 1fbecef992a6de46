"""Runs sides in turn over the same prompts and keeps what each run took."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

Member = TypeVar("Member")


class BenchmarkFailed(Exception):
    """A benchmark cannot be run as asked, or a side broke; one line says why."""


@dataclass(frozen=True, slots=True)
class Run:
    """One prompt answered once by one side.

    Attributes
    ----------
    ids
        The output.
    ttft_s
        Seconds from asking to the first token.
    decode_s
        Seconds from the first token to the last.
    block
        How many tokens came together as the first: they took no decode time, so the rate leaves
        them out.
    tokens_per_cycle
        Tokens a forward of the target.
    """

    ids: tuple[int, ...]
    ttft_s: float
    decode_s: float
    block: int = 1
    tokens_per_cycle: float = 1.0

    @property
    def decoded(self) -> int:
        """Tokens that came within `decode_s`."""
        return len(self.ids) - self.block

    @property
    def tok_s(self) -> float:
        """Tokens a second after the first block."""
        return self.decoded / self.decode_s


class Side(Protocol):
    """One of the things that are compared."""

    name: str

    def run(self, prompt_ids: Sequence[int], max_tokens: int) -> Run:
        """Answer greedily with exactly `max_tokens` tokens, past any end token."""
        ...


@dataclass(frozen=True, slots=True)
class EncodedPrompt:
    """A prompt as all sides get it."""

    name: str
    domain: str
    ids: tuple[int, ...]


Runs = dict[tuple[str, str], list[Run]]
"""The runs of each (prompt name, side name), one a round."""


def run_round(
    sides: Sequence[Side],
    prompts: Sequence[EncodedPrompt],
    max_tokens: int,
    turn: int,
    done: Callable[[], object] = lambda: None,
) -> dict[tuple[str, str], Run]:
    """Run every side once on every prompt.

    Parameters
    ----------
    turn
        Number of the round. From prompt to prompt and from round to round another side goes first,
        and the order is reversed, so that none always follows the same other.
    done
        Called after each run, outside all times.

    Raises
    ------
    BenchmarkFailed
        If a side gives another number of tokens than it was asked for.
    """
    found = {}
    for place, prompt in enumerate(prompts, start=turn):
        for side in in_turn(sides, place):
            run = side.run(prompt.ids, max_tokens)
            if len(run.ids) != max_tokens:
                raise BenchmarkFailed(
                    f"{side.name} gave {len(run.ids)} of {max_tokens} tokens on {prompt.name}: "
                    "rates of different lengths cannot be compared"
                )
            found[prompt.name, side.name] = run
            done()
    return found


def in_turn(sides: Sequence[Member], place: int) -> list[Member]:
    """The sides, rotated by `place`, every other time backwards."""
    first = place // 2 % len(sides)
    order = [*sides[first:], *sides[:first]]
    return order[::-1] if place % 2 else order


def gathered(rounds: Sequence[Mapping[tuple[str, str], Run]]) -> Runs:
    """Rounds as one list of runs for each prompt and side."""
    return {key: [one[key] for one in rounds] for key in rounds[0]}
