"""Rows served with a store of prefixes, and rows without one to hold them against."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import mlx.core as mx

from mtplx_kernel.caching.prefix import PrefixCache
from mtplx_kernel.caching.slots import SlotCaches
from mtplx_kernel.decoding.combined import CombinedDrafter
from mtplx_kernel.decoding.head_drafting import HeadDrafter
from mtplx_kernel.decoding.lookup import LookupDrafter
from mtplx_kernel.decoding.row import Row
from mtplx_kernel.decoding.step import DecodeStep
from mtplx_kernel.models.target import Target
from tests.decoding.heads import TrueHead
from tests.decoding.rows import as_ar, make_row
from tests.tiny import build

SYSTEM = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3, 8, 4, 6, 2, 6, 4]
FIRST, SECOND = (*SYSTEM, 40, 41, 42), (*SYSTEM, 90, 91)
SAMPLERS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sampled": {"temperature": 0.9, "top_p": 0.95, "seed": 2},
}
CHUNK = 8


@cache
def target(kind: str) -> Target:
    return Target(build(kind))


@dataclass
class Bench:
    """A decode step, what its rows are stored in, and the drafts that its head made."""

    step: DecodeStep
    store: PrefixCache
    head: HeadDrafter | None = None
    drafts: list[Any] = field(default_factory=list)

    @classmethod
    def of(cls, target: Target, head: Any, store: PrefixCache | None = None, **how: bool) -> Bench:
        """New caches, so that nothing but the store knows of what other benches did."""
        caches, store = SlotCaches(target.model), store or PrefixCache(10**9)
        if head is None:
            return cls(DecodeStep(target, caches, None), store)
        drafter = HeadDrafter(head, SlotCaches(head), target.vocabulary)
        mixed = CombinedDrafter(drafter, LookupDrafter()) if how.get("lookup") else drafter
        bench = cls(DecodeStep(target, caches, mixed), store, drafter)
        compute = drafter._compute

        def noting(rows: Sequence[Row], counts: Sequence[int]) -> Any:
            computed = compute(rows, counts)
            bench.drafts.append(computed.tokens.tolist())
            return computed

        drafter._compute = noting  # type: ignore[method-assign]
        return bench

    def begin(self, row: Row, *, stored: bool = True) -> int:
        """Admit a row and prefill it; how many tokens were there."""
        self.step.admit(row)
        had = self.step.restore(row, self.store) if stored else 0
        while row.prefill_left:
            self.step.prefill([row], [min(CHUNK, row.prefill_left)])
            self.step.save(row, self.store)
        return had

    def decode(self, row: Row) -> None:
        """Decode a row alone to its end, and keep it."""
        while True:
            (outcome,) = self.step.cycle([row])
            assert outcome.error is None
            if outcome.ended is not None:
                break
        self.step.save(row, self.store)

    def serve(self, row: Row, *, stored: bool = True) -> int:
        """Run a row from its start to its end."""
        had = self.begin(row, stored=stored)
        self.decode(row)
        self.step.release(row)
        return had


def asked(prompt: Sequence[int], sampler: str = "greedy", **options: Any) -> Row:
    return make_row(
        prompt, **{"max_tokens": 12, "ignore_eos": True, **SAMPLERS[sampler], **options}
    )


@cache
def plain(kind: str, prompt: tuple[int, ...], sampler: str) -> list[int]:
    """The ids without drafts and without a store."""
    row = as_ar(asked(prompt, sampler))
    Bench.of(target(kind), None).serve(row, stored=False)
    return row.ids


def head_for(drafter: str, truth: list[int]) -> TrueHead | None:
    """A head that knows what comes, or is wrong at every third position; or none."""
    wrong_every = {"right": 10**6, "wrong": 3}
    return None if drafter == "none" else TrueHead([truth], wrong_every[drafter])


def pair_of(target: Target, head: Any, store: PrefixCache) -> tuple[Bench, Bench]:
    """One that is to feed all, and one that goes on from a store."""
    return Bench.of(target, head), Bench.of(target, head, store)


def same(fresh: Bench, bench: Bench, rows: list[Row]) -> None:
    """Everything that counts of two rows is equal, bit for bit."""
    assert rows[0].committed == rows[1].committed
    n = rows[0].committed
    equal(fresh.step.caches, bench.step.caches, n)
    states = states_of(fresh, bench, rows)
    # The one that fed all may have been fed more of the prompt, or fewer: the rest is in `seen`.
    fed = min(state.fed for state in states)
    assert fed > 0
    equal(head_of(fresh).caches, head_of(bench).caches, fed)


def head_of(bench: Bench) -> HeadDrafter:
    assert bench.head is not None
    return bench.head


def states_of(fresh: Bench, bench: Bench, rows: list[Row]) -> list[Any]:
    benches = zip((fresh, bench), rows, strict=True)
    return [head_of(b)._states[row.request_id] for b, row in benches]


def equal(a: Any, b: Any, length: int) -> None:
    pairs = zip(a.contents(0, length), b.contents(0, length), strict=True)
    assert all(bool(mx.array_equal(x, y)) for x, y in pairs)
