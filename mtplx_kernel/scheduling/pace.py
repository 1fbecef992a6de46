"""How many prompt tokens fit between two tokens of running requests, from what was measured."""

from __future__ import annotations

from mtplx_kernel.scheduling.policy import Machine

SMALLEST_CHUNK = 16
"""Prompt tokens of a quantum at least: with fewer, a prompt would take for ever."""

GUESSED_WORTH = 1 / 16
"""Decoded tokens that a prompt token costs as much as, until both are measured."""


MOST_FIXED = 0.9
"""Most of a chunk's time that is taken to be fixed: no token is free."""

UNLIKE = 0.25
"""Chunks that differ by this share of their size tell fixed costs from those of each token."""


class Pace:
    """Learns what prompt tokens and decode cycles cost, each new measurement counting half.

    A chunk costs something whatever its size, and something for each token. Until chunks of unlike
    sizes were measured all is taken to be for the tokens, so the first ones are rather too small.

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
        # Means of tokens, seconds, tokens squared, tokens times seconds; over chunks.
        self._means: tuple[float, ...] | None = None
        self._fixed = 0.0
        self._prompt: float | None = None

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
        smallest = min(SMALLEST_CHUNK, self._most)
        if self._prompt is None:
            return smallest
        room = gaps * self._gap - cycles * self.cycle - self._fixed
        return max(smallest, min(self._most, int(room / self._prompt)))

    def prefill_seconds(self, tokens: int, chunks: int) -> float:
        """How long so many prompt tokens take, in so many chunks; 0 until some were measured."""
        return chunks * self._fixed + tokens * (self._prompt or 0.0)

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
        """Learn from a chunk of so many tokens, padding included, by least squares."""
        new = (tokens, seconds, tokens * tokens, tokens * seconds)
        old = new if self._means is None else self._means
        self._means = tuple(map(_mean, old, new))
        size, time, squared, product = self._means
        spread = squared - size * size
        if spread > (UNLIKE * size) ** 2:
            self._fixed = time - size * (product - size * time) / spread
        self._fixed = min(max(self._fixed, 0.0), MOST_FIXED * time)
        self._prompt = (time - self._fixed) / size

    def cycled(self, tokens: int, seconds: float, rows: int = 1) -> None:
        """Learn from a decode cycle that gave so many tokens to so many rows."""
        self._cycle = _mean(self._cycle, seconds)
        self._decoded = _mean(self._decoded, seconds / max(tokens, 1))
        self._burst = _mean(self._burst, max(tokens / rows, 1.0))


def _mean(old: float | None, new: float) -> float:
    return new if old is None else (old + new) / 2
