"""Slots of rows: the fewest moves that make some rows neighbours, and none is lost."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from mtplx_kernel.decoding.seats import Seats, arrange, lane
from tests.decoding.rows import make_row


def test_lanes_are_powers_of_two() -> None:
    assert [lane(n) for n in (0, 1, 2, 3, 4, 5, 8, 9, 17)] == [1, 1, 2, 4, 4, 8, 8, 16, 32]


def test_rows_that_are_neighbours_stay() -> None:
    assert arrange([2, 1], [0, 1, 2, 3], 4) == {}
    assert arrange([3], [3], 8) == {}


def test_a_hole_is_filled_by_the_row_at_the_far_end() -> None:
    assert arrange([0, 1, 3], [0, 1, 3], 4) == {3: 2}
    assert arrange([0, 2, 3, 4], [0, 2, 3, 4], 8) == {4: 1}


def test_a_passenger_changes_places() -> None:
    assert arrange([0, 2], [0, 1, 2], 3) == {2: 1, 1: 2}
    assert arrange([0, 2], [0, 1, 2], 4) == {0: 3}


@st.composite
def seatings(draw: st.DrawFn) -> tuple[list[int], list[int], int]:
    slots = draw(st.sampled_from([1, 2, 4, 8]))
    taken = draw(st.lists(st.integers(0, slots - 1), min_size=1, unique=True))
    wanted = draw(st.lists(st.sampled_from(taken), min_size=1, unique=True))
    return wanted, taken, slots


def fewest(wanted: list[int], taken: list[int], slots: int) -> int:
    """By trying every place: whoever is not there moves in, whoever else is there moves out."""
    counts = []
    for first in range(slots - len(wanted) + 1):
        window = set(range(first, first + len(wanted)))
        strangers = (set(taken) - set(wanted)) & window
        counts.append(len(set(wanted) - window) + len(strangers))
    return min(counts)


@settings(max_examples=300, deadline=None)
@given(seatings())
def test_after_the_moves_the_rows_are_neighbours(case: tuple[list[int], list[int], int]) -> None:
    wanted, taken, slots = case
    moves = arrange(wanted, taken, slots)
    after = {slot: moves.get(slot, slot) for slot in taken}
    assert len(set(after.values())) == len(taken)
    assert set(moves) <= set(taken)
    assert all(0 <= slot < slots for slot in after.values())
    places = sorted(after[slot] for slot in wanted)
    assert places == list(range(places[0], places[0] + len(wanted)))
    assert len(moves) == fewest(wanted, taken, slots)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_history_of_rows(data: st.DataObject) -> None:
    seats, number = Seats(1), 0
    for _ in range(data.draw(st.integers(1, 20))):
        rows = seats.rows
        kind = data.draw(st.sampled_from(["come", "go", "meet", "pack"]))
        if kind == "come":
            if seats.full:
                seats.resize(lane(seats.slots + 1))
            seats.take(make_row((1,), number))
            number += 1
        elif kind == "go" and rows:
            gone = data.draw(st.sampled_from(rows))
            seats.leave(gone)
            assert gone.slot is None
            assert all(row is not gone for row in seats.rows)
        elif kind == "meet" and rows:
            chosen = data.draw(st.lists(st.sampled_from(rows), min_size=1, unique_by=id))
            seats.move(seats.together(chosen))
            places = sorted(row.place for row in chosen)
            assert places == list(range(places[0], places[0] + len(chosen)))
        elif kind == "pack":
            seats.move(seats.packed())
            assert [row.slot for row in seats.rows] == list(range(len(seats.rows)))
            seats.resize(lane(len(seats.rows)))
        expected = len(rows) + (kind == "come") - (kind == "go" and bool(rows))
        assert len(seats.rows) == expected
        assert [row.slot for row in seats.rows] == sorted({row.place for row in seats.rows})
