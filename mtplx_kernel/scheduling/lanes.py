"""Lanes: the widths at which batches run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

INSTALLED = (1, 2, 4, 8, 16, 32)
PAYS = 0.9
"""A lane stays that gives this share of a narrower one's rows a second: measurements differ by as
much, and rows that run at once wait less."""


class Lanes:
    """The installed widths up to a limit, without those that do not pay on this machine.

    Matrix kernels work in tiles, so a width just past a tile's edge can be slower than a smaller
    one: such a lane is dropped.

    Parameters
    ----------
    limit
        Most rows wanted; a lane of its own.
    throughput
        By lane: rows a second, where it was measured. It is read at each question, so what is
        measured later counts from then on.
    installed
        Widths to choose from.
    """

    def __init__(
        self,
        limit: int,
        throughput: Mapping[int, float] | None = None,
        installed: Sequence[int] = INSTALLED,
    ) -> None:
        self._wanted = sorted({1, limit, *(width for width in installed if width < limit)})
        self._throughput = {} if throughput is None else throughput

    @property
    def widths(self) -> tuple[int, ...]:
        """The lanes, the narrowest first."""
        best, kept = 0.0, []
        for width in self._wanted:
            rows = self._throughput.get(width, best)
            if rows >= PAYS * best:
                kept.append(width)
            best = max(best, rows)
        return tuple(kept)

    @property
    def dropped(self) -> tuple[int, ...]:
        """Lanes that give clearly fewer rows a second than a narrower one."""
        kept = self.widths
        return tuple(width for width in self._wanted if width not in kept)

    @property
    def limit(self) -> int:
        """Most rows of a forward."""
        return self.widths[-1]

    def lane_for_width(self, rows: int) -> int:
        """The narrowest lane for so many rows.

        Raises
        ------
        ValueError
            If there is none.
        """
        for width in self.widths:
            if 1 <= rows <= width:
                return width
        raise ValueError(f"no lane has room for {rows} rows; allowed: 1 to {self.limit}")
