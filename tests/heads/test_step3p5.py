"""The heads of Step 3.5 against their formulas: one that is looped, three that follow another."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

import mtplx_kernel as mk
from mtplx_kernel.caching.slots import SlotCaches
from mtplx_kernel.caching.span import Span
from mtplx_kernel.decoding.head_drafting import HeadDrafter
from mtplx_kernel.decoding.step import DecodeStep
from mtplx_kernel.heads.chained import ChainedHead
from mtplx_kernel.heads.native import NativeHead
from tests.decoding.rows import make_row, run
from tests.heads.agreement import LENGTH, assert_follows, prompt
from tests.heads.oracle import step3p5
from tests.heads.published import HIDDEN, VOCABULARY, Published, open_head
from tests.models.original import write_texts

SHORT: dict[str, Any] = {
    "layer_types": step3p5.CONFIG["layer_types"][: step3p5.LAYERS],
    "rope_theta": step3p5.CONFIG["rope_theta"][: step3p5.LAYERS],
}
WIDE = 64
"""A window that holds the whole prompt: there the places without a pair could be seen."""
DRAFTED = (17, 99)


def first_alone(published: Published) -> Published:
    head = {n: a for n, a in published.head.items() if n.startswith(f"{step3p5.LAYER}.")}
    return dataclasses.replace(published, head=head)


@pytest.mark.parametrize("inside", ["", "transformer."])
@pytest.mark.parametrize("changes", [{}, SHORT], ids=["long", "short"])
def test_one_head_is_looped(tmp_path: Path, inside: str, changes: dict[str, Any]) -> None:
    published = first_alone(step3p5.published(inside=inside, **changes))
    _, head = open_head(published.write(tmp_path))
    assert isinstance(head, NativeHead)
    assert (head.taps, head.stages) == ((-1,), 1)
    t = step3p5.tensors(published.head)
    embedding = published.base["model.embed_tokens.weight"].astype(float)
    assert_follows(head, embedding, step3p5.states(t), step3p5.logits(t))


def open_chain(folder: Path, published: Published) -> ChainedHead:
    _, head = open_head(published.write(folder))
    assert isinstance(head, ChainedHead)
    assert (head.taps, head.stages) == ((-1,), 3)
    return head


def feed(
    head: ChainedHead, caches: SlotCaches, rows: list[int], parts: list[list[int]]
) -> list[list[mx.array]]:
    """Feed prompts in parts of so many pairs, row by row; each row's states, part after part."""
    starts, made = [0] * len(rows), [[] for _ in rows]  # type: ignore[var-annotated]
    before = None
    for counts in parts:
        width = max(counts)
        states = np.zeros((len(rows), width, HIDDEN), np.float32)
        tokens = np.zeros((len(rows), width), np.int64)
        for place, (seed, start, count) in enumerate(zip(rows, starts, counts, strict=True)):
            features, ids = prompt(sum(part[place] for part in parts), seed)
            states[place, :count] = features[start : start + count]
            tokens[place, :count] = ids[start : start + count]
        layers = caches.begin(Span(0, starts, counts))
        own = head.feed_after(mx.array(states), mx.array(tokens), layers, before)
        for place, count in enumerate(counts):
            made[place].append(own[place, :count])
        before = mx.stack([states[-1][-1:] for states in made])
        starts = [start + count for start, count in zip(starts, counts, strict=True)]
    return made


@pytest.mark.parametrize("parts", [[11], [4, 1, 6], [1] * 11], ids=str)
@pytest.mark.parametrize("window", [step3p5.WINDOW, WIDE])
@pytest.mark.parametrize("changes", [{}, SHORT], ids=["long", "short"])
def test_three_heads_follow_one_another(
    tmp_path: Path, parts: list[int], window: int, changes: dict[str, Any]
) -> None:
    published = step3p5.published(sliding_window=window, **changes)
    head = open_chain(tmp_path, published)
    caches = SlotCaches(head)
    own = mx.concatenate(feed(head, caches, [7], [[n] for n in parts])[0])
    features, tokens = prompt(LENGTH, seed=7)
    t = step3p5.tensors(published.head)
    embedding = published.base["model.embed_tokens.weight"].astype(float)
    known = np.concatenate([tokens, DRAFTED])
    bases = step3p5.BASES if changes == {} else 3 * step3p5.BASES[:1]
    expected = step3p5.chained(t, features, embedding[known], window, bases)
    for stage, states in enumerate(expected):
        found = own[stage:, stage * HIDDEN : (stage + 1) * HIDDEN]
        close(found, states[: LENGTH - stage])
    hidden = own[None, -1:]
    close(head.at(0).logits(hidden)[0], step3p5.logits(t)(expected[0][LENGTH - 1 : LENGTH]))
    for depth, token in enumerate(DRAFTED, 1):
        layers = caches.begin(Span(0, [LENGTH - 1 + depth], [1]))
        hidden = head.at(depth).recur(hidden, mx.array([[token]]), layers)
        wanted = step3p5.logits(t, depth)(expected[depth][LENGTH - 1 : LENGTH])
        close(head.at(depth).logits(hidden)[0], wanted)


def close(found: mx.array, expected: Any) -> None:
    assert np.abs(expected).max() > 0.5, "an oracle of zeros would prove nothing"
    np.testing.assert_allclose(np.array(found), expected, rtol=5e-4, atol=5e-4)


@pytest.mark.parametrize("window", [step3p5.WINDOW, WIDE])
def test_rows_of_unlike_lengths_get_what_each_gets_alone(tmp_path: Path, window: int) -> None:
    head = open_chain(tmp_path, step3p5.published(sliding_window=window))
    parts = [[5, 2, 9], [3, 6, 1]]
    together = feed(head, SlotCaches(head, 3), [1, 2, 3], parts)
    for place, seed in enumerate((1, 2, 3)):
        (alone,) = feed(head, SlotCaches(head), [seed], [[part[place]] for part in parts])
        for stage in range(3):
            ours, theirs = (
                mx.concatenate(made)[stage:, stage * HIDDEN : (stage + 1) * HIDDEN]
                for made in (together[place], alone)
            )
            np.testing.assert_allclose(np.array(ours), np.array(theirs), atol=1e-5)


def test_a_drafters_caches_hold_every_committed_pair(tmp_path: Path) -> None:
    """After drafts that were right and wrong they are those of the whole text fed at once."""
    published = step3p5.published(sliding_window=WIDE)
    target, head = open_head(published.write(tmp_path))
    assert isinstance(head, ChainedHead)
    target.tap(head.taps)
    drafter = HeadDrafter(head, SlotCaches(head, 2), VOCABULARY)
    rows = [
        make_row(ids, slot, max_tokens=24, ignore_eos=True, depth=5, seed=slot, temperature=0.3)
        for slot, ids in enumerate([list(range(30, 52)), [3, 1, 4]])
    ]
    drafted: list[int] = []
    observe = drafter.observe

    def counting(row: Any, count: int, tokens: list[int]) -> None:
        drafted.append(count)
        observe(row, count, tokens)

    drafter.observe = counting  # type: ignore[assignment,method-assign]
    run(DecodeStep(target, SlotCaches(target.model, 2), drafter), rows)
    assert [row.draft_error for row in rows] == [None, None]
    assert max(drafted) == 3, "as many as there are heads"
    assert len(drafted) > 10
    for row in rows:
        fed = drafter._states[row.request_id].fed
        assert fed >= len(row.ids) - 5
        ids = mx.array([row.ids[: fed + 1]])
        features = target.features(target.forward(ids, None))[:, :fed]
        whole = SlotCaches(head)
        head.feed(features, ids[:, 1:], whole.begin(Span(0, [0], [fed])))
        found, expected = drafter.caches.contents(row.slot, fed), whole.contents(0, fed)
        assert len(found) == 6
        for place, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
            first = place // 2  # places that hold no pair yet
            ours, theirs = np.array(ours)[:, first:], np.array(theirs)[:, first:]
            assert np.abs(theirs).min(axis=-1).size > fed
            np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-3)


def test_the_engine_drafts_with_the_chain(tmp_path: Path) -> None:
    folder = step3p5.published().write(tmp_path / "step")
    write_texts(folder)
    with mk.load(str(folder)) as engine:
        head = engine.status()["head"]
        assert (head["name"], head["draft_vocabulary"]) == ("step3p5", VOCABULARY)
        found = [
            engine.generate([30, 31, 32, 33], max_tokens=20, mode=mode).token_ids
            for mode in ("mtp", "ar")
        ]
    assert found[0] == found[1]
