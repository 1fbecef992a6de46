"""Which caches a model decodes with, and what a forward over them costs on this machine."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import accumulate

import mlx.core as mx

from mtplx_kernel.caching.slots import Caches, SlotCaches, StockCaches, UnsupportedCache
from mtplx_kernel.caching.span import Span
from mtplx_kernel.decoding.depth import CostCurve
from mtplx_kernel.heads.base import Head
from mtplx_kernel.models.progress import Tick
from mtplx_kernel.models.target import Target

CHECK_IDS = (1, 5, 2, 7, 3, 6)
CHECK_COSINE = 0.98
CURVE_BLOCKS = (1, 2, 3, 4, 5, 6, 8, 12, 17)
LANE_BLOCKS = (1, 2, 3, 4, 8)
LEAST_ROUNDS = 2
MOST_ROUNDS = 5
PATIENCE_S = 2.0
"""No more rounds than the least after that."""
STEADY = 1.25
POSITIONS = (8, 64)
"""Logits of so many positions are timed to tell what one more takes."""
LAUNCHES = 4
HEAD_IDS = (1, 5, 2)
"""As many pairs as a cycle commonly brings."""
HEAD_ROUNDS = 6


def _unheard(more: int) -> None:
    """Tell nobody."""


def choose_caches(target: Target) -> tuple[Caches, str | None]:
    """Build a model's caches, tried on a few tokens.

    Returns
    -------
    caches
        With rollback if that gives the logits of mlx-lm's own caches, else those.
    reason
        Why tokens cannot be taken back; None where they can.
    """
    model = target.model
    try:
        if not _agrees(target, SlotCaches(model), StockCaches(model)):
            raise UnsupportedCache("its layers give other logits with caches that take tokens back")
        return SlotCaches(model), None
    except UnsupportedCache as error:
        reason = str(error)
    except Exception as error:  # a family that asks more of a cache: its own still serve
        reason = f"its layers need another cache ({type(error).__name__}: {error})"
    return StockCaches(model), reason


def decode_timer(target: Target, caches: Caches) -> Callable[[], float]:
    """A function that runs a decode and a verify forward from empty caches and times them.

    Returns
    -------
    Callable
        Takes nothing, returns seconds.
    """

    def run() -> float:
        blocks = (1, 4) if caches.rollback else (1,)
        return sum(_seconds(target, caches, 1, block) for block in blocks)

    return run


def forwards(blocks: Sequence[int]) -> int:
    """How many forwards a curve over these blocks takes at least."""
    return len(blocks) * (1 + LEAST_ROUNDS)


def measure_costs(
    target: Target, caches: Caches, *, look_ahead: bool, tick: Tick = _unheard
) -> tuple[CostCurve, bool]:
    """Time forwards over blocks of different lengths; the least disturbed of a few each.

    Parameters
    ----------
    look_ahead
        Whether decoding without drafts launches ahead: then single tokens are timed that way too.
    tick
        Called before each forward with 1.

    Returns
    -------
    tuple
        The curve, and whether it was steady: on a busy machine the rounds differ, and what was
        measured then is not worth keeping.
    """

    def timed(block: int) -> float:
        return _seconds(target, caches, 1, block, LAUNCHES if look_ahead and block == 1 else 1)

    seconds, steady = _least(timed, CURVE_BLOCKS, tick)
    return CostCurve(CURVE_BLOCKS, seconds), steady


def measure_lane(
    target: Target, rows: int, *, look_ahead: bool, tick: Tick = _unheard
) -> tuple[CostCurve, bool]:
    """The same for several rows, in caches of its own: what runs in others is left alone.

    Returns
    -------
    tuple
        The curve, which never falls, and whether it was steady.
    """
    caches = SlotCaches(target.model, rows)

    def timed(block: int) -> float:
        return _seconds(target, caches, rows, block, LAUNCHES if look_ahead and block == 1 else 1)

    seconds, steady = _least(timed, LANE_BLOCKS, tick)
    return CostCurve(LANE_BLOCKS, tuple(accumulate(seconds, max))), steady


def measure_position(target: Target) -> float:
    """Seconds that the logits of one position more take."""
    few, many = POSITIONS
    hidden = target.forward(mx.zeros((1, many), mx.int32), None)[0]
    mx.eval(hidden)

    def timed(count: int) -> float:
        start = time.perf_counter()
        mx.eval(target.logits(hidden[:count]))
        return time.perf_counter() - start

    (fewer, more), _ = _least(timed, POSITIONS)
    return max(0.0, more - fewer) / (many - few)


def _least(
    timed: Callable[[int], float], sizes: Sequence[int], tick: Tick = _unheard
) -> tuple[tuple[float, ...], bool]:
    """The least times of a few rounds, after one that warms up.

    Returns
    -------
    tuple
        A time for each size, and whether the least two of each agree; rounds are added until they
        do, as long as there is hope.
    """

    def run() -> list[float]:
        times = []
        for size in sizes:
            tick(1)
            times.append(timed(size))
        return times

    run()
    rounds: list[list[float]] = []
    steady, end = False, time.perf_counter() + PATIENCE_S
    while len(rounds) < LEAST_ROUNDS or (
        not steady and len(rounds) < MOST_ROUNDS and time.perf_counter() < end
    ):
        rounds.append(run())
        best = [sorted(times)[:2] for times in zip(*rounds, strict=True)]
        steady = all(times[-1] <= STEADY * times[0] for times in best)
    return tuple(times[0] for times in best), steady


def measure_head(head: Head, caches: SlotCaches, target: Target, rows: int = 1) -> dict[str, float]:
    """Time the parts of drafting with a head, as `HeadCost` names them, in seconds.

    Parameters
    ----------
    caches
        The head's.
    target
        Has its states tapped for the head.
    rows
        How many draft together.
    """
    ids = mx.array([HEAD_IDS] * rows)
    features = target.features(target.forward(ids, None))
    own = mx.zeros_like(head.feed(features, ids, caches.begin(_span(rows, 0, len(HEAD_IDS)))))
    mx.eval(features, own)

    def first() -> mx.array:
        states = head.feed(features, ids, caches.begin(_span(rows, 0, len(HEAD_IDS))))
        return mx.argmax(head.logits(states[:, -1]), axis=-1)

    def step() -> mx.array:
        cache = caches.begin(_span(rows, len(HEAD_IDS), 1))
        states = head.recur(own[:, :1], ids[:, :1], cache)
        return mx.argmax(head.logits(states[:, -1]), axis=-1)

    def timed(part: Callable[[], mx.array]) -> float:
        start = time.perf_counter()
        mx.eval(part(), caches.arrays)
        return time.perf_counter() - start

    def cycle() -> tuple[float, float]:
        """As between two verifies: the model's weights have taken the head's place in the cache."""
        mx.eval(target.forward(ids[:, :1], None))
        return timed(first), timed(step)

    cycle()
    rounds = [cycle() for _ in range(HEAD_ROUNDS)]
    return dict(zip(("first", "step"), map(min, zip(*rounds, strict=True)), strict=True))


def _span(rows: int, start: int, count: int) -> Span:
    return Span(0, [start] * rows, [count] * rows)


def _seconds(target: Target, caches: Caches, rows: int, block: int, launches: int = 1) -> float:
    """Seconds of a verify of `block` tokens a row, launched so often before the last is read."""
    start = time.perf_counter()
    # Different ids: experts are chosen by token, and equal ones would read fewer of them.
    tokens = [
        [(7 * (i + block * r) + 1) % target.vocabulary for i in range(block)] for r in range(rows)
    ]
    for n in range(launches):
        hidden = target.forward(mx.array(tokens), caches.begin(_span(rows, n * block, block)))
        logits = target.logits(hidden.reshape(-1, hidden.shape[-1]))
        mx.async_eval(logits, caches.arrays)
        caches.commit([True] * rows)
    mx.eval(logits)
    return (time.perf_counter() - start) / launches


def _agrees(target: Target, ragged: SlotCaches, stock: StockCaches) -> bool:
    """Feed a few ids with a draft taken back, and compare with mlx-lm's own caches."""
    ids = list(CHECK_IDS)
    expected = _feed(target, stock, 0, ids)
    _feed(target, ragged, 0, ids[:3])
    _feed(target, ragged, 3, [*ids[3:5], 0], whole=False)
    start = 3 if ragged.recurrent else 5
    found = _feed(target, ragged, start, ids[start:])
    norm = mx.linalg.norm(expected) * mx.linalg.norm(found)
    return bool(mx.sum(expected * found) >= CHECK_COSINE * norm)


def _feed(
    target: Target, caches: Caches, start: int, ids: list[int], whole: bool = True
) -> mx.array:
    """The last one's logits, of a feed that is right as a whole or not."""
    hidden = target.forward(mx.array([ids]), caches.begin(_span(1, start, len(ids))))
    logits = target.logits(hidden[0, -1:])
    mx.eval(logits, caches.arrays)
    caches.commit([whole])
    return logits[0]
