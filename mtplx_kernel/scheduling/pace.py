"""How many prompt tokens fit between two tokens of running requests, from what was measured."""

from __future__ import annotations

from mtplx_kernel.scheduling.policy import Machine

SMALLEST_CHUNK = 16
"""Prompt tokens of a quantum at least: with fewer, a prompt would take for ever."""

GUESSED_WORTH = 1 / 16
"""Decoded tokens that a prompt token costs as much as, until both are measured."""


class Pace:
    """Learns what prompt tokens and decode cycles cost, each new measurement counting half.

    A chunk has fixed costs too, so a token of a small one seems dearer. As the chunk is sized anew
    each time, it still settles on the size that just fits.

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
        self._prompt: float | None = None

    @property
    def cycle(self) -> float:
        """Seconds of a decode cycle; 0 until one was measured."""
        return self._cycle or 0.0

    def chunk(self, cycles: int) -> int:
        """Prompt tokens of the next chunk: with some decode cycles it is to fill the gap.

        Parameters
        ----------
        cycles
            Decode cycles that the gap must hold too; with none, nobody waits for the chunk.
        """
        if cycles == 0:
            return self._most
        smallest = min(SMALLEST_CHUNK, self._most)
        if self._prompt is None:
            return smallest
        room = self._gap - cycles * self.cycle
        return max(smallest, min(self._most, int(room / self._prompt)))

    def prefill_seconds(self, tokens: int) -> float:
        """How long so many prompt tokens take; 0 until some were measured."""
        return tokens * (self._prompt or 0.0)

    def worth(self, tokens: int, seconds: float) -> float:
        """How many decoded tokens cost as much as a chunk.

        Parameters
        ----------
        tokens
            Prompt tokens of the chunk; there may have been fewer.
        seconds
            How long it took.
        """
        if not self._prompt or not self._decoded:
            return tokens * GUESSED_WORTH
        return min(tokens * self._prompt, seconds) / self._decoded

    def prefilled(self, tokens: int, seconds: float) -> None:
        """Learn from a chunk of so many tokens, padding included."""
        self._prompt = _mean(self._prompt, seconds / tokens)

    def cycled(self, tokens: int, seconds: float) -> None:
        """Learn from a decode cycle that gave so many tokens."""
        self._cycle = _mean(self._cycle, seconds)
        self._decoded = _mean(self._decoded, seconds / max(tokens, 1))


def _mean(old: float | None, new: float) -> float:
    return new if old is None else (old + new) / 2
