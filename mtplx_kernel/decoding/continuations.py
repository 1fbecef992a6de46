"""How a text has gone on before after the words that it ends with: once for each next token."""

from __future__ import annotations

from collections.abc import Sequence

from mtplx_kernel.decoding.lookup import NGRAM_SIZES, continuation

LEAST, MOST = min(NGRAM_SIZES), max(NGRAM_SIZES)


class Continuations:
    """The places of one text that may be copied from.

    Parameters
    ----------
    ids
        The text; it may grow.
    """

    def __init__(self, ids: Sequence[int]) -> None:
        self._ids = ids
        self._after: dict[tuple[int, ...], dict[int, int]] = {}
        self._indexed = LEAST

    def besides(self, guess: Sequence[int], most: int) -> list[list[int]]:
        """Other guesses at what follows, as long as a first one, each beginning differently.

        Parameters
        ----------
        guess
            What is guessed already; at least one token.
        most
            How many others.

        Returns
        -------
        list of list of int
            Those after the most words in common first, of equals the latest.
        """
        ids = self._ids
        for end in range(self._indexed, len(ids)):
            self._after.setdefault(tuple(ids[end - LEAST : end]), {})[ids[end]] = end
        self._indexed = max(self._indexed, len(ids))
        found = self._after.get(tuple(ids[-LEAST:]), {})
        starts = [start for token, start in found.items() if token != guess[0]]
        starts.sort(key=lambda start: (self._alike(start), start), reverse=True)
        return [continuation(ids, start, len(guess)) for start in starts[:most]]

    def _alike(self, start: int) -> int:
        """How many words before a place are those that the text ends with."""
        ids, count = self._ids, LEAST
        while count < min(MOST, start) and ids[start - count - 1] == ids[-count - 1]:
            count += 1
        return count
