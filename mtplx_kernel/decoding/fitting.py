"""Which caches a model decodes with, and what a forward over them costs on this machine."""

from __future__ import annotations

import time
from collections.abc import Callable

import mlx.core as mx

from mtplx_kernel.caching.slots import Caches, SlotCaches, StockCaches, UnsupportedCache
from mtplx_kernel.caching.span import Span
from mtplx_kernel.decoding.depth import CostCurve
from mtplx_kernel.heads.base import Head
from mtplx_kernel.models.target import Target

CHECK_IDS = (1, 5, 2, 7, 3, 6)
CHECK_COSINE = 0.98
CURVE_BLOCKS = (1, 2, 4, 8, 17)
CURVE_ROUNDS = 2
STEADY = 1.25
LAUNCHES = 4
HEAD_IDS = (1, 5, 2)
"""As many pairs as a cycle commonly brings."""
HEAD_ROUNDS = 6


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
        return sum(_seconds(target, caches, block) for block in blocks)

    return run


def measure_costs(target: Target, caches: Caches, *, look_ahead: bool) -> tuple[CostCurve, bool]:
    """Time forwards over blocks of different lengths; the least disturbed of a few each.

    Parameters
    ----------
    look_ahead
        Whether decoding without drafts launches ahead: then single tokens are timed that way too.

    Returns
    -------
    tuple
        The curve, and whether it was steady: on a busy machine the rounds differ, and what was
        measured then is not worth keeping.
    """

    def timed(block: int) -> float:
        return _seconds(target, caches, block, LAUNCHES if look_ahead and block == 1 else 1)

    for block in CURVE_BLOCKS:
        timed(block)
    rounds = [[timed(block) for block in CURVE_BLOCKS] for _ in range(CURVE_ROUNDS)]
    blocks = list(zip(*rounds, strict=True))
    steady = all(max(times) <= STEADY * min(times) for times in blocks)
    return CostCurve(CURVE_BLOCKS, tuple(min(times) for times in blocks)), steady


def measure_head(head: Head, caches: SlotCaches, target: Target) -> dict[str, float]:
    """Time the parts of drafting with a head, as `HeadCost` names them, in seconds.

    Parameters
    ----------
    caches
        The head's.
    target
        Has its states tapped for the head.
    """
    hidden = target.forward(mx.array([HEAD_IDS]), None)
    features = target.features(hidden)
    own = mx.zeros_like(head.feed(features, mx.array([HEAD_IDS]), caches.begin(_span(0))))
    mx.eval(features, own)

    def first() -> mx.array:
        states = head.feed(features, mx.array([HEAD_IDS]), caches.begin(_span(0)))
        return mx.argmax(head.logits(states[:, -1]), axis=-1)

    def step() -> mx.array:
        cache = caches.begin(_span(len(HEAD_IDS), 1))
        states = head.recur(own[:, :1], mx.array([HEAD_IDS[:1]]), cache)
        return mx.argmax(head.logits(states[:, -1]), axis=-1)

    def timed(part: Callable[[], mx.array]) -> float:
        start = time.perf_counter()
        mx.eval(part(), caches.arrays)
        return time.perf_counter() - start

    timed(first), timed(step)
    rounds = [(timed(first), timed(step)) for _ in range(HEAD_ROUNDS)]
    return dict(zip(("first", "step"), map(min, zip(*rounds, strict=True)), strict=True))


def _span(start: int, count: int = 0) -> Span:
    return Span(0, [start], [count or len(HEAD_IDS)])


def _seconds(target: Target, caches: Caches, block: int, launches: int = 1) -> float:
    """Seconds of a forward over `block` tokens, launched so many times before the last is read."""
    start = time.perf_counter()
    for n in range(launches):
        # Different ids: experts are chosen by token, and equal ones would read fewer of them.
        ids = [(7 * i + 1) % target.vocabulary for i in range(block)]
        logits = _launch(target, caches, n * block, ids)
        caches.commit([True])
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
    logits = _launch(target, caches, start, ids)
    mx.eval(logits, caches.arrays)
    caches.commit([whole])
    return logits[0]


def _launch(target: Target, caches: Caches, start: int, ids: list[int]) -> mx.array:
    span = Span(0, [start], [len(ids)])
    hidden = target.forward(mx.array([ids]), caches.begin(span))
    logits = target.logits(hidden[0, -1:])
    mx.async_eval(logits, caches.arrays)
    return logits
