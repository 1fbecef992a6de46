"""Training: it learns, it stops and goes on, and it does not mix two runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from mtplx_kernel.errors import InvalidRequest, ModelUnusable
from mtplx_kernel.heads.distilled import DistilledHead
from mtplx_kernel.training.base import Base, new_head
from mtplx_kernel.training.distill import Options, distill
from mtplx_kernel.training.features import Features, pack, unpack
from mtplx_kernel.training.optimiser import Rates, fresh, orthogonal, update
from mtplx_kernel.training.rollout import Start, roll
from mtplx_kernel.training.step import Step
from mtplx_kernel.training.text import Text, covered, frequent
from mtplx_kernel.training.train import Interrupted, Plan, flatten, heat, train
from tests import tiny
from tests.training.conftest import COLUMNS


@pytest.fixture(scope="module")
def text(base: Base) -> Text:
    starts = [Start([n, 2 * n], True, 0.5) for n in range(12)]
    rolled = roll(base.target, starts, 40, roles=None, key=mx.random.key(0))
    return Text(np.array(rolled.tokens), np.array(rolled.sampled), {})


def features(base: Base, text: Text, budget: int = 2**30) -> Features:
    return Features(base, text.tokens, text.sampled, 4, budget)


def make(base: Base) -> DistilledHead:
    return new_head(base, mx.arange(COLUMNS, dtype=mx.int32), seed=1)


def run(base: Base, text: Text, path: Path, steps: int, **options: Any) -> Any:
    head = make(base)
    plan = Plan(depth=2, minutes=1, steps=steps, seed=3)
    figures = train(base, head, features(base, text), plan, path, **options)
    return flatten(head), figures


def test_a_head_learns(base: Base, text: Text, tmp_path: Path) -> None:
    _, first = run(base, text, tmp_path / "a.safetensors", 1)
    _, last = run(base, text, tmp_path / "b.safetensors", 60)
    assert last["steps"] == 60
    assert last["alpha"][0] > first["alpha"][0] + 0.2
    assert last["kl"][0] < 0.6 * first["kl"][0]


def after(calls: int) -> Callable[[], bool]:
    left = iter([False] * calls)
    return lambda: next(left, True)


def test_a_run_that_was_stopped_ends_with_the_same_weights(
    base: Base, text: Text, tmp_path: Path
) -> None:
    whole, _ = run(base, text, tmp_path / "whole.safetensors", 8)
    with pytest.raises(Interrupted):
        run(base, text, tmp_path / "parts.safetensors", 8, stopped=after(5))
    resumed, figures = run(base, text, tmp_path / "parts.safetensors", 8)
    assert figures["steps"] == 8
    for name, array in whole.items():
        # Not to the bit: arrays from a file lie in memory in another order.
        assert mx.allclose(resumed[name], array, rtol=1e-4, atol=1e-6), name


class SlowToBegin:
    """A clock of which a first step takes 1000 seconds, as where kernels are compiled."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self._compiled, step = 0.0, False, Step.__call__

        def timed(*given: Any) -> Any:
            self.now += 1.0 if self._compiled else 1000.0
            self._compiled = True
            return step(*given)

        monkeypatch.setattr(Step, "__call__", timed)

    def __call__(self) -> float:
        return self.now


def test_the_time_of_the_first_step_is_no_training(
    base: Base, text: Text, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.safetensors"
    _, figures = run(base, text, path, 4, clock=SlowToBegin(monkeypatch))
    assert (figures["steps"], figures["seconds"]) == (4, 3.0)
    # Nor is that of a run that goes on: two more steps are one second more.
    _, figures = run(base, text, path, 6, clock=SlowToBegin(monkeypatch))
    assert (figures["steps"], figures["seconds"]) == (6, 4.0)


def test_minutes_are_minutes_of_training(
    base: Base, text: Text, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = Plan(depth=1, minutes=3 / 60, steps=None, seed=3)
    clock, path = SlowToBegin(monkeypatch), tmp_path / "a.safetensors"
    figures = train(base, make(base), features(base, text), plan, path, clock=clock)
    assert (figures["steps"], figures["seconds"], clock.now) == (4, 3.0, 1003.0)


def test_states_beyond_the_budget_are_computed_anew(base: Base, text: Text, tmp_path: Path) -> None:
    kept, bare = features(base, text), features(base, text, budget=0)
    for n in range(len(kept)):
        one, two, again = kept.batch(n), bare.batch(n), kept.batch(n)
        for name in ("tokens", "sampled", "lower", "final", "normaliser"):
            assert mx.array_equal(getattr(one, name), getattr(two, name))
            assert mx.array_equal(getattr(one, name), getattr(again, name))
    assert bare.kept_bytes == 0 < kept.kept_bytes


def test_states_are_the_targets(base: Base, text: Text) -> None:
    batch = features(base, text).batch(1)
    tokens = mx.array(text.tokens[4:8])
    states = base.target.features(base.target.forward(tokens, None))
    assert mx.array_equal(batch.tokens, tokens)
    assert mx.allclose(batch.final, states[..., 128:], atol=1e-5)
    assert mx.abs(batch.lower - states[..., :128]).max() < mx.abs(states).max() / 200
    logits = base.target.logits(states[0, :, 128:])
    assert mx.allclose(batch.normaliser[0], mx.logsumexp(logits, axis=-1), atol=1e-4)


def test_eight_bits_keep_small_numbers_beside_a_large_one() -> None:
    states = mx.concatenate([mx.full((1, 64), 500.0), mx.linspace(-1, 1, 64)[None]], axis=1)
    back = unpack(*pack(states), mx.float32)
    assert mx.abs(back - states)[:, 64:].max() < 0.005
    assert mx.abs(back - states)[:, :64].max() < 1e-3


def test_gradients_reach_every_parameter(base: Base, head: DistilledHead, text: Text) -> None:
    parameters, batch = flatten(head), features(base, text).batch(0)
    step = Step(base, head, 2, Rates())
    after_one, _, _ = step(parameters, fresh(parameters), batch, 1.0, True, True)
    for name, array in after_one.items():
        assert mx.abs(array - parameters[name]).max() > 0, name


def test_muon_makes_directions_orthogonal() -> None:
    matrices = {"wide": mx.random.normal((8, 20)), "tall": mx.random.normal((20, 8))}
    for name, found in orthogonal(matrices, mx.float32).items():
        assert found.shape == matrices[name].shape
        values = np.linalg.svd(np.array(found), compute_uv=False)
        assert 0.6 < values.min() <= values.max() < 1.3


def test_one_step_of_the_vectors_is_adams() -> None:
    parameters = {"w": mx.array([1.0, 2.0])}
    gradients = {"w": mx.array([0.1, -0.2])}
    made, _ = update(
        parameters, gradients, fresh(parameters), mx.array(0.5), Rates(vectors=0.01), mx.float32
    )
    # The first step of Adam is the learning rate against the sign.
    assert np.allclose(made["w"], [1 - 0.005, 2 + 0.005], atol=1e-6)


def test_the_schedule() -> None:
    assert heat(0.0) < 0.01
    assert heat(0.03) == pytest.approx(1.0, abs=0.01)
    assert heat(0.5) == pytest.approx(0.5)
    assert heat(1.0) == pytest.approx(0.0)


def test_the_most_frequent_ids_of_answers_come_first() -> None:
    tokens = np.array([[5, 5, 5, 2, 2, 9, 9, 9, 9]], np.int32)
    sampled = np.array([[1, 1, 1, 1, 1, 1, 0, 0, 0]], np.uint8)
    text = Text(tokens, sampled, {})
    assert frequent(text, 12, 2).tolist() == [5, 2]
    assert covered(text, 12, [2, 5]) == pytest.approx(5 / 6)
    assert covered(text, 12, [9]) == pytest.approx(1 / 6)


OPTIONS = Options(
    tokens=1600, length=160, writing_rows=10, rows=4, depth=2, steps=3, draft_vocab=100, judged=0
)


def test_from_a_model_folder_to_a_head(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    model, out = tiny.write("llama", tmp_path / "model"), tmp_path / "out"
    said: list[str] = []
    figures = distill(model, out, OPTIONS, say=said.append)
    assert capfd.readouterr() == ("", "")
    assert said[0].startswith("wrote {'rows_written': 10,")
    assert said[-1].startswith("train 100.0%: step 3, ")
    files = {p.name for p in out.iterdir()}
    assert {"head.safetensors", "README.md", "metrics.json"} <= files
    assert not any(name.startswith("writing-") for name in files)
    assert figures["training"]["steps"] == 3
    assert figures["evaluation"] == []
    assert "## Acceptance\nIt was not judged.\n" in (out / "README.md").read_text()
    written = (out / "data.safetensors").stat().st_mtime_ns
    # What is finished is not done again; judging is free to change.
    again = distill(model, out, replace(OPTIONS, judged=1, temperatures=(0.8,)))
    assert [(e["temperature"], e["columns"]) for e in again["evaluation"]] == [(0.8, 100)]
    assert (out / "data.safetensors").stat().st_mtime_ns == written
    assert "| 0.8 | 100 |" in (out / "README.md").read_text()
    assert again["training"] == figures["training"]


def test_a_head_is_trained_on(tmp_path: Path) -> None:
    model, first, second = tiny.write("llama", tmp_path / "model"), tmp_path / "a", tmp_path / "b"
    other = replace(OPTIONS, seed=5, draft_vocab=50, steps=1, begin=str(first))
    known = distill(model, first, OPTIONS)
    figures = distill(model, second, other)
    assert known["before"] == []
    (run,) = figures["before"]
    assert (run["training"], run["text"]) == (known["training"], known["text"])
    told = " ".join((second / "README.md").read_text().split())
    assert f"Before that: {known['training']['steps']:,} steps of 4 rows" in told
    assert "Before that" not in (first / "README.md").read_text()
    before, after = (mx.load(str(out / "head.safetensors")) for out in (first, second))
    assert isinstance(before, dict)
    assert isinstance(after, dict)
    assert figures["draft_vocabulary"]["ids"] == 100
    assert after["vocabulary"].tolist() == before["vocabulary"].tolist()
    # One small step away from where it began; a fresh head is further off.
    fresh = mx.load(str(_distilled(model, tmp_path / "c", replace(other, begin=None))))
    assert isinstance(fresh, dict)
    name = "fc.weight"
    assert 0 < _distance(before[name], after[name]) < 0.5 * _distance(before[name], fresh[name])


def test_a_head_to_begin_with_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"no head to begin with at .*nowhere"):
        distill(tmp_path / "model", tmp_path / "out", replace(OPTIONS, begin="nowhere"))
    assert not (tmp_path / "out").exists()


def test_what_is_no_head_of_the_model_is_refused_before_the_model_writes(tmp_path: Path) -> None:
    model, bad = tiny.write("llama", tmp_path / "model"), tmp_path / "head.safetensors"
    mx.save_safetensors(str(bad), {"weight": mx.zeros((2,))})
    with pytest.raises(ModelUnusable, match=r"head\.safetensors"):
        distill(model, tmp_path / "out", replace(OPTIONS, begin=str(bad)))
    assert not (tmp_path / "out").exists()  # so that the folder is free for the right head


def _distilled(model: Path, out: Path, options: Options) -> Path:
    distill(model, out, options)
    return out / "head.safetensors"


def _distance(one: mx.array, other: mx.array) -> float:
    return float(mx.linalg.norm((one - other).astype(mx.float32)))


def test_a_folder_of_other_settings_is_refused(tmp_path: Path) -> None:
    (tmp_path / "settings.json").write_text('{"model": "other", "tokens": 1600}')
    with pytest.raises(InvalidRequest, match="holds a run with model other"):
        distill(tmp_path / "model", tmp_path, OPTIONS)
