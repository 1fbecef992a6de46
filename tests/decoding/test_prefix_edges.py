"""What is stored of a row, and what is not: stops, failures, other drafters, bytes."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import pytest

from mtplx_kernel.caching.prefix import PrefixCache
from mtplx_kernel.caching.slots import SlotCaches, StockCaches
from mtplx_kernel.decoding.step import DecodeStep
from tests.decoding.heads import TrueHead
from tests.decoding.rows import as_ar
from tests.decoding.stored import FIRST, Bench, asked, head_of, plain, target


def test_a_head_that_lacks_a_state_is_not_kept() -> None:
    bench = Bench.of(target("llama"), TrueHead([list(FIRST)]))
    row = asked((*FIRST, *FIRST))
    bench.begin(row)
    drafter = head_of(bench)
    state = drafter._state(row)
    assert drafter.save(row, row.committed) is not None
    state.last = mx.zeros((1, 1, 4))
    assert drafter.save(row, state.fed - 1) is None, "the last states are those of a later pair"
    state.seen.clear()
    assert drafter.save(row, row.committed) is None


@pytest.mark.parametrize("kind", ["llama", "qwen3_next", "nemotron_h"])
def test_a_row_that_stops_while_the_next_forward_is_in_flight(kind: str) -> None:
    truth = plain(kind, FIRST, "sampled")
    stop = next(i for i in truth[len(FIRST) + 3 :] if i not in truth[len(FIRST) : len(FIRST) + 3])
    bench = Bench.of(target(kind), None)
    row = as_ar(asked(FIRST, "sampled", stop_token_ids=(stop,)))
    bench.begin(row)
    bench.decode(row)
    assert bench.step._ahead is not None
    bench.step.release(row)
    assert row.ids == truth[: len(row.ids)]
    again = as_ar(asked((*row.ids, 70, 71), "sampled"))
    assert bench.serve(again) == len(row.ids)
    assert again.ids == plain(kind, (*row.ids, 70, 71), "sampled")


@pytest.mark.parametrize("kind", ["llama", "qwen3_next"])
def test_a_stop_inside_a_block(kind: str) -> None:
    """Keys are cut where the row ends; a recurrent state stays as it was before the block."""
    truth = plain(kind, FIRST, "sampled")
    ends = len(FIRST) + 4
    assert truth[ends] not in truth[len(FIRST) : ends]
    bench = Bench.of(target(kind), TrueHead([truth]))
    row = asked(FIRST, "sampled", depth=3, stop_token_ids=(truth[ends],))
    bench.serve(row)
    assert row.ids == truth[:ends]
    # Two blocks of four: three drafts, and the token after them.
    assert row.committed == len(FIRST) + (7 if kind == "llama" else 3)
    held = min(row.committed, ends)
    found = bench.store.find([*row.ids, 0])
    assert found is not None
    assert found.buffers[-1][0].shape[2] == held
    then = (*row.ids, 70, 71)
    last = plain(kind, then, "sampled")
    bench = Bench.of(target(kind), TrueHead([last]), bench.store)
    turn = asked(then, "sampled", depth=3)
    assert bench.serve(turn) == held
    assert turn.ids == last


def test_a_stop_string_inside_a_block() -> None:
    """It is found too late for the state to stay: only what was there at the prefill is kept."""
    truth = plain("qwen3_next", FIRST, "greedy")
    bench = Bench.of(target("qwen3_next"), TrueHead([truth]))
    row = asked(FIRST, depth=3, stop=(chr(0x4E00 + truth[len(FIRST) + 1]),))
    bench.serve(row)
    assert len(row.ids) < row.committed
    found = bench.store.find([*row.ids, 0])
    assert found is not None
    assert found.length == len(FIRST) - 1


def test_what_is_stored_does_not_change_with_the_row() -> None:
    bench = Bench.of(target("llama"), None)
    row = as_ar(asked(FIRST))
    bench.begin(row)
    found = bench.store.find([*FIRST, 0])
    assert found is not None
    assert found.buffers[0][0].shape[2] == len(FIRST) - 1
    before = [a.tolist() for layer in found.buffers for a in layer]
    bench.decode(row)
    bench.step.release(row)
    other = as_ar(asked(range(100, 140)))
    bench.serve(other)
    assert [a.tolist() for layer in found.buffers for a in layer] == before


def test_bytes_are_those_of_the_tokens() -> None:
    """Four layers of keys and values, 2 heads of 16 numbers each, 4 bytes a number."""
    bench = Bench.of(target("llama"), None)
    row = as_ar(asked(FIRST))
    bench.serve(row)
    assert bench.store.nbytes == row.committed * 4 * 2 * 2 * 16 * 4
    before = bench.store.snapshot()
    bench.serve(as_ar(asked(FIRST)))
    assert bench.store.snapshot() == {
        **before, "hits": 1, "tokens_saved": len(FIRST) - 1
    }, "the same again is not stored twice"  # fmt: skip


def test_a_row_without_drafts_and_one_with_them() -> None:
    """A head's part cannot be made up: a row that drafts takes only what has one."""
    truth = plain("llama", FIRST, "greedy")
    bench = Bench.of(target("llama"), TrueHead([truth]))
    assert bench.serve(as_ar(asked(FIRST))) == 0
    drafting = asked(FIRST, depth=3)
    assert bench.serve(drafting) == 0
    assert drafting.draft_error is None
    assert bench.serve(as_ar(asked(FIRST))) == len(FIRST) - 1
    assert bench.serve(asked(FIRST, depth=3)) == len(FIRST) - 2


@pytest.mark.parametrize("when", ["prefill", "end"])
def test_what_is_not_finite_is_not_stored(when: str) -> None:
    bench = Bench.of(target("llama"), None)
    row = as_ar(asked(FIRST))
    if when == "end":
        bench.begin(row, stored=False)
        bench.step.cycle([row])
        bench.store.limit(0)
        bench.store.limit(10**9)
    else:
        bench.step.admit(row)
        bench.step.prefill([row], [row.prefill_left])
    caches = bench.step.caches
    assert isinstance(caches, SlotCaches)
    caches.layers[2].values[:, :, row.committed - 1] = mx.array(mx.nan)
    bench.step.save(row, bench.store)
    assert bench.store.snapshot()["entries"] == 0


def test_what_a_failed_row_stored_or_used_goes_with_it() -> None:
    bench = Bench.of(target("llama"), None)
    row = as_ar(asked(FIRST))
    bench.begin(row)
    bench.step.release(row)
    assert bench.store.snapshot()["entries"] == 1
    failed = as_ar(asked((*FIRST, 7, 7, 7)))
    assert bench.begin(failed) == len(FIRST) - 1
    bench.step.release(failed, wipe=True)
    assert bench.store.snapshot()["entries"] == 0
    assert bench.step._prefixes._marks == bench.step._prefixes._keys == {}


@pytest.mark.parametrize("method", ["restore", "save_states"])
def test_what_cannot_be_copied_costs_speed_only(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    truth = plain("qwen3_next", FIRST, "greedy")
    bench = Bench.of(target("qwen3_next"), TrueHead([truth]))
    bench.begin(asked(FIRST, depth=2))

    def failing(*_: Any) -> None:
        raise MemoryError("no room")

    monkeypatch.setattr(SlotCaches, method, failing)
    row = asked(FIRST, depth=2)
    assert bench.serve(row) == (0 if method == "restore" else len(FIRST) - 1)
    assert row.ids == truth
    assert row.draft_error is None
    assert bench.store.snapshot()["last_error"] == "MemoryError: no room"


def test_caches_that_take_nothing_back_are_not_stored() -> None:
    model = target("llama")
    bench = Bench(DecodeStep(model, StockCaches(model.model), None), PrefixCache(10**9))
    for _ in range(2):
        row = as_ar(asked(FIRST))
        assert bench.serve(row) == 0
        assert row.ids == plain("llama", FIRST, "greedy")
    assert bench.store.snapshot()["entries"] == 0
