"""How many prompt tokens fit between two tokens of running requests, from what was measured."""

from __future__ import annotations

from mtplx_kernel.scheduling.policy import Machine

FIRST_CHUNK = 16
"""Prompt tokens of a quantum that others wait for, before anything was measured."""
SMALLEST_CHUNK = 8
"""Prompt tokens of a quantum at least: with fewer, a prompt would take for ever."""
GUESSED_WORTH = 1 / 16
"""Decoded tokens that a prompt token costs as much as, until both are measured."""
UNLIKE = 2
"""Two chunks, one after the other, tell fixed costs from those of each token if one is so many
times as long. Where sizes differ less it may be the growing text that made one dearer."""
MOST_FIXED = 64
"""Prompt tokens that what a chunk costs whatever its size may be worth."""
SAFETY = 3.0
"""Mean deviations from what was expected that a gap leaves room for."""


class Pace:
    """Learns what prompt tokens and decode cycles cost, each new measurement counting half.

    A chunk costs as much as its tokens and some tokens more, whatever its size. Until chunks of
    unlike sizes were measured those are taken to be none, so the first ones are rather too small.

    Parameters
    ----------
    machine
        Has the largest chunk.
    itl_ms
        The target for the gap between two tokens of a running request.
    """

    def __init__(self, machine: Machine, itl_ms: float) -> None:
        self._most = machine.chunk
        self._gap = itl_ms / 1000
        self._cycle: float | None = None
        self._decoded: float | None = None
        self._burst: float | None = None
        self._fixed = 0.0
        self._prompt: float | None = None
        self._last: tuple[int, float] | None = None
        # Mean deviations of a cycle and of a chunk from what was expected, in seconds.
        self._uneven_cycle = self._uneven_chunk = 0.0

    @property
    def cycle(self) -> float:
        """Seconds of a decode cycle; 0 until one was measured."""
        return self._cycle or 0.0

    @property
    def burst(self) -> float:
        """Tokens that a row gets from a cycle; 1 until one was measured."""
        return self._burst or 1.0

    def chunk(self, cycles: int, gaps: float = 1.0) -> int:
        """Prompt tokens of the next chunk: with some decode cycles it is to fill the gap.

        Parameters
        ----------
        cycles
            Decode cycles that the gap must hold too; with none, nobody waits for the chunk.
        gaps
            How many gaps they fill together.
        """
        if cycles == 0:
            return self._most
        if self._prompt is None:
            return min(FIRST_CHUNK, self._most)
        uneven = SAFETY * (self._uneven_chunk + cycles * self._uneven_cycle)
        room = gaps * self._gap - cycles * self.cycle - uneven
        fitting = int(room / self._prompt - self._fixed)
        return min(self._most, max(SMALLEST_CHUNK, fitting))

    def prefill_seconds(self, tokens: int, chunks: int) -> float:
        """How long so many prompt tokens take, in so many chunks; 0 until some were measured."""
        return (tokens + chunks * self._fixed) * (self._prompt or 0.0)

    def worth(self, tokens: int, seconds: float) -> float:
        """How many decoded tokens cost as much as a chunk.

        Parameters
        ----------
        tokens
            Prompt tokens of the chunk.
        seconds
            How long it took; more than such a chunk takes as a rule was for something else.
        """
        if not self._prompt or not self._decoded:
            return tokens * GUESSED_WORTH
        return min(self.prefill_seconds(tokens, 1), seconds) / self._decoded

    def prefilled(self, tokens: int, seconds: float) -> None:
        """Learn from a chunk of so many tokens, padding included."""
        if self._prompt is not None:
            off = abs(seconds - self.prefill_seconds(tokens, 1))
            self._uneven_chunk = _mean(self._uneven_chunk, off)
        if self._told_apart(tokens, seconds):
            self._prompt = seconds / (tokens + self._fixed)
            self._uneven_chunk = 0.0
        else:
            self._prompt = _mean(self._prompt, seconds / (tokens + self._fixed))
        self._last = tokens, seconds

    def cycled(self, tokens: int, seconds: float, rows: int = 1) -> None:
        """Learn from a decode cycle that gave so many tokens to so many rows."""
        if self._cycle is not None:
            self._uneven_cycle = _mean(self._uneven_cycle, abs(seconds - self._cycle))
        self._cycle = _mean(self._cycle, seconds)
        self._decoded = _mean(self._decoded, seconds / max(tokens, 1))
        self._burst = _mean(self._burst, max(tokens / rows, 1.0))

    def _told_apart(self, tokens: int, seconds: float) -> bool:
        """Learn the fixed costs from this chunk and the one before; whether they tell them."""
        if self._last is None:
            return False
        before, took = self._last
        if max(before, tokens) < UNLIKE * min(before, tokens):
            return False
        each = (seconds - took) / (tokens - before)
        if each <= 0:
            return False  # something else took the time of the smaller one
        self._fixed = min(max(seconds / each - tokens, 0.0), MOST_FIXED)
        return True


def _mean(old: float | None, new: float) -> float:
    return new if old is None else (old + new) / 2
