"""What caches come to take is foretold from one forward that is never computed."""

from __future__ import annotations

import mlx.core as mx
import pytest

from mtplx_kernel.caching.footprint import GROWTH, Footprint, most_positions, positions
from mtplx_kernel.caching.slots import SlotCaches, StockCaches
from mtplx_kernel.caching.span import Span
from mtplx_kernel.models.target import Target
from tests.tiny import CONFIGS, build


def fed(target: Target, caches: SlotCaches | StockCaches, start: int, count: int) -> None:
    """Lay out a forward; nothing is computed."""
    target.forward(mx.array([[1] * count]), caches.begin(Span(0, [start], [count])))
    caches.commit([True])


def test_a_position_of_a_llama_takes_what_its_shapes_say() -> None:
    target = Target(build("llama"))
    ragged, stock = SlotCaches(target.model), StockCaches(target.model)
    for caches in (ragged, stock):
        fed(target, caches, 0, 1)
        # 4 layers, keys and values, 2 heads of 16 numbers of 4 bytes.
        assert caches.footprint == Footprint(fixed=0, position=4 * 2 * 2 * 16 * 4)


def test_recurrent_states_do_not_grow() -> None:
    target = Target(build("qwen3_next"))
    sizes = set()
    for count in (1, 300):
        caches = SlotCaches(target.model)
        fed(target, caches, 0, count)
        sizes.add(caches.footprint)
    (found,) = sizes
    # Two of four layers attend; the others keep a matrix and a convolution's inputs.
    assert found.position == 2 * 2 * 2 * 16 * 4
    assert found.fixed > 2 * 4 * 16 * 16 * 4


@pytest.mark.parametrize("kind", CONFIGS)
def test_caches_hold_what_was_foretold_and_never_more(kind: str) -> None:
    target = Target(build(kind))
    caches = SlotCaches(target.model)
    fed(target, caches, 0, 1)
    footprint = caches.footprint
    assert caches.nbytes == footprint.nbytes(1)
    for start in range(1, 902, 90):
        fed(target, caches, start, 90)
        assert caches.nbytes <= footprint.nbytes(start + 90)
    assert footprint.nbytes(991) - footprint.nbytes(1) == 4 * GROWTH * footprint.position


def test_no_way_of_growing_goes_beyond_the_most() -> None:
    for step in (1, 7, 100, 255, 256, 257, 1000):
        held = end = 0
        while end < 5000:
            end += step
            held = positions(end, held) if end > held else held
            assert end <= held <= most_positions(end)


def test_the_longest_row_that_fits_is_the_inverse() -> None:
    footprint = Footprint(fixed=1000, position=10)
    for nbytes in range(3000, 40_000, 77):
        most = footprint.tokens(nbytes)
        assert most is not None
        assert footprint.nbytes(most) <= nbytes < footprint.nbytes(most + 1)
    assert footprint.tokens(999) == 0
    assert Footprint(fixed=1000).tokens(1000) is None
    assert footprint + Footprint(1, 2) == Footprint(1001, 12)
