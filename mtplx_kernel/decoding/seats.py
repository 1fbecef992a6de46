"""Which slot each row has, and the moves that bring the rows of a forward side by side."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from mtplx_kernel.decoding.row import Row


def lane(rows: int) -> int:
    """The number of slots for so many rows: the next power of two."""
    return 1 << max(0, rows - 1).bit_length()


def arrange(wanted: Sequence[int], taken: Collection[int], slots: int) -> dict[int, int]:
    """The fewest moves after which some rows are neighbours and none is lost.

    Parameters
    ----------
    wanted
        Slots of the rows that must become neighbours.
    taken
        All slots with a row in them, the wanted ones too.
    slots
        How many slots there are.

    Returns
    -------
    dict
        From slot to slot, to be made all at once.
    """
    count, inside = len(wanted), set(wanted)
    if max(wanted) - min(wanted) < count:
        return {}
    passengers = set(taken) - inside

    def cost(first: int) -> int:
        window = range(first, first + count)
        return sum(slot not in window for slot in inside) + sum(s in window for s in passengers)

    first = min(range(slots - count + 1), key=cost)
    window = range(first, first + count)
    coming = sorted(slot for slot in inside if slot not in window)
    going = sorted(slot for slot in passengers if slot in window)
    # Every passenger makes place for one that comes, and takes the place that this one leaves.
    open_slots = [slot for slot in window if slot not in inside and slot not in passengers]
    moves = dict(zip(coming, [*going, *open_slots], strict=True))
    return moves | dict(zip(going, coming, strict=False))


class Seats:
    """The rows in the slots.

    Parameters
    ----------
    slots
        How many slots there are.
    """

    def __init__(self, slots: int) -> None:
        self._rows: list[Row | None] = [None] * slots

    @property
    def slots(self) -> int:
        """How many slots there are."""
        return len(self._rows)

    @property
    def rows(self) -> list[Row]:
        """The rows, in slot order."""
        return [row for row in self._rows if row is not None]

    def __contains__(self, row: Row) -> bool:
        return row.slot is not None and row.slot < self.slots and self._rows[row.slot] is row

    @property
    def full(self) -> bool:
        """Whether no slot is free."""
        return None not in self._rows

    def resize(self, slots: int) -> None:
        """Have another number of slots; those that go must be free."""
        self._rows = (self._rows + [None] * slots)[:slots]

    def take(self, row: Row) -> None:
        """Give a row the first free slot."""
        row.slot = self._rows.index(None)
        self._rows[row.slot] = row

    def leave(self, row: Row) -> None:
        """Free a row's slot."""
        self._rows[row.place] = None
        row.slot = None

    def together(self, rows: Sequence[Row]) -> list[tuple[Row, int]]:
        """The moves that make these rows neighbours."""
        taken = [row.place for row in self.rows]
        return self._moves(arrange([row.place for row in rows], taken, self.slots))

    def packed(self) -> list[tuple[Row, int]]:
        """The moves that bring all rows into the first slots."""
        holes = [slot for slot, row in enumerate(self._rows) if row is None]
        count = len(self.rows)
        late = [row.place for row in self.rows if row.place >= count]
        return self._moves(dict(zip(late, holes, strict=False)))

    def _moves(self, moves: dict[int, int]) -> list[tuple[Row, int]]:
        return [(row, moves[row.place]) for row in self.rows if row.place in moves]

    def move(self, moves: Sequence[tuple[Row, int]]) -> None:
        """Make moves, all at once."""
        for row, _ in moves:
            self._rows[row.place] = None
        for row, slot in moves:
            self._rows[slot], row.slot = row, slot
