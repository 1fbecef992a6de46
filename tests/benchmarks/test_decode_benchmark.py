"""The decode benchmark on a tiny model, through its command line, and its arithmetic by hand."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks import page, summary
from benchmarks.decode import FEWEST_TOKENS, Bench, arguments
from benchmarks.measure import BenchmarkFailed, EncodedPrompt, Run, Side, in_turn, run_round
from benchmarks.peers import ProcessPeer
from benchmarks.prompts import PROMPTS
from benchmarks.weights import weight_bytes
from mtplx_kernel.training.heldout import DOMAINS
from tests import tiny

ROOT = Path(__file__).resolve().parents[2]
SIDES = ["mlx_lm", "mlx_lm_stock", "ar", "mtp"]
DOMAIN_RATIOS = {"mtp_vs_ar_domains", "mtp_vs_mlx_lm_domains"}
RATIOS = DOMAIN_RATIOS | {
    "ar_vs_mlx_lm",
    "ar_vs_mlx_lm_stock",
    "mtp_vs_ar",
    "mtp_vs_ar_worst",
    "mtp_vs_mlx_lm",
    "bandwidth_share",
}
ROW_KEYS = {
    "prompt",
    "domain",
    "side",
    "rounds",
    "prompt_tokens",
    "tokens",
    "tok_s",
    "tok_s_low",
    "tok_s_high",
    "ttft_s",
    "tokens_per_cycle",
    "differing_runs",
    "diverges_at",
    "top2_margin",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny llama with room for the real prompts, at a token a byte."""
    place = tmp_path_factory.mktemp("models") / "llama"
    return tiny.write("llama", place, max_position_embeddings=2048)


def decode(*options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "benchmarks.decode", *options],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "MTPLX_KERNEL_BLAS": "stock"},
    )


def test_one_json_object_says_everything(folder: Path) -> None:
    options = ("--prompts", "2", "--max-tokens", "24", "--repeats", "2", "--json")
    done = decode("--model", str(folder), *options)
    assert (done.returncode, done.stderr) == (0, "")
    report = json.loads(done.stdout.splitlines()[-1])
    assert [*report] == [
        *("benchmark", "model", "machine", "ratios", "ids_equal", "table", "domains")
    ]
    assert report["benchmark"] == "decode"
    assert report["model"] == folder.name
    assert report["ids_equal"] is True
    assert set(report["ratios"]) == RATIOS
    assert all(math.isfinite(v) and v > 0 for v in report["ratios"].values())
    assert set(report["domains"]) == DOMAIN_RATIOS
    for name, found in report["domains"].items():
        assert [*found] == [p.domain for p in PROMPTS[:2]]
        assert report["ratios"][name] == pytest.approx(sum(found.values()) / 2)
    expected = [(p.name, p.domain, side) for p in PROMPTS[:2] for side in SIDES]
    assert [(r["prompt"], r["domain"], r["side"]) for r in report["table"]] == expected
    for row in report["table"]:
        assert set(row) == ROW_KEYS
        assert (row["rounds"], row["tokens"], row["differing_runs"]) == (2, 24, 0)
        assert row["tok_s_low"] <= row["tok_s"] <= row["tok_s_high"]
        assert row["tokens_per_cycle"] == 1.0 or row["side"] == "mtp"
    assert report["machine"]["blas"] == "MLX's own reference BLAS, 1 thread"
    assert report["machine"]["precision"] == "float32"


class OneWrongToken:
    """A side whose fourth token is another on one prompt."""

    def __init__(self, side: Side, prompt: EncodedPrompt) -> None:
        self.name = side.name
        self._side, self._prompt = side, prompt

    def run(self, prompt_ids: Sequence[int], max_tokens: int) -> Run:
        run = self._side.run(prompt_ids, max_tokens)
        if tuple(prompt_ids) != self._prompt.ids:
            return run
        ids = list(run.ids)
        ids[3] = (ids[3] + 1) % tiny.VOCABULARY
        return dataclasses.replace(run, ids=tuple(ids))


def test_a_wrong_side_is_reported(folder: Path) -> None:
    with Bench(str(folder)) as bench:
        prompts = bench.encode(PROMPTS[:2], 20)
        right = bench.measure(prompts, 20, 1)
        bench.sides[3] = OneWrongToken(bench.sides[3], prompts[1])
        wrong = bench.measure(prompts, 20, 2)
        margin = bench.peer.margin([*prompts[1].ids, *bench.peer.run(prompts[1].ids, 20).ids[:3]])
    assert right.ids_equal
    assert "All sides gave the same tokens in all runs." in page.text(right)
    lines = [line.split() for line in page.text(right).splitlines()]
    (average,) = [line for line in lines if line[:1] == ["average"]]
    names = ("mtp_vs_ar_domains", "mtp_vs_mlx_lm_domains")
    assert average[1:] == [f"{right.ratios[name]:.3f}" for name in names]
    for domain in ("rewriting", "stories"):
        (line,) = [line for line in lines if line[:1] == [domain]]
        assert line[5:7] == [f"{right.domains[name][domain]:.3f}" for name in names]
    assert not wrong.ids_equal
    (row,) = [row for row in wrong.table if row["differing_runs"]]
    assert (row["prompt"], row["side"]) == (prompts[1].name, "mtp")
    assert (row["differing_runs"], row["diverges_at"], row["top2_margin"]) == (2, 3, margin)
    assert margin > 0
    line = page.text(wrong).splitlines()[-1].split()
    assert line[:6] == [prompts[1].name, "mtp", "2", "of", "2", "3"]
    assert max(len(line) for line in page.text(wrong).splitlines()) < 80


def test_the_slowest_side_can_be_left_out(folder: Path) -> None:
    with Bench(str(folder), stock=False) as bench:
        assert [side.name for side in bench.sides] == ["mlx_lm", "ar", "mtp"]
    assert arguments(["--skip-stock"]).skip_stock
    assert not arguments([]).skip_stock


def test_a_context_too_small_is_refused(tmp_path: Path) -> None:
    small = tiny.write("llama", tmp_path / "small", max_position_embeddings=200)
    done = decode("--model", str(small), "--prompts", "2", "--max-tokens", "100")
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("error: ")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("option", "value", "allowed"),
    [
        ("--max-tokens", "5", f"'5' is not a whole number, {FEWEST_TOKENS} or more"),
        ("--prompts", "0", f"'0' is not a whole number from 1 to {len(PROMPTS)}"),
        ("--repeats", "many", "'many' is not a whole number, 1 or more"),
    ],
)
def test_wrong_options_are_refused(
    option: str, value: str, allowed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        arguments([option, value])
    assert ended.value.code == 2
    assert capsys.readouterr().err.splitlines()[-1].endswith(f"argument {option}: {allowed}")


def test_a_peer_that_dies_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(BenchmarkFailed, match="ended with code 1"):
        ProcessPeer(tmp_path / "nothing")


def test_prompts_are_many_and_various() -> None:
    assert len({p.name for p in PROMPTS}) == len(PROMPTS) >= 8
    assert {p.domain for p in PROMPTS} == {*DOMAINS, "code edit"}
    assert [p.domain for p in PROMPTS[:2]] == ["rewriting", "stories"]


class Scripted:
    """A side that notes when it was run and gives a fixed number of tokens."""

    def __init__(self, name: str, tokens: int, log: list[str]) -> None:
        self.name, self._tokens, self._log = name, tokens, log

    def run(self, prompt_ids: Sequence[int], max_tokens: int) -> Run:
        self._log.append(self.name)
        return Run(tuple(range(self._tokens)), 0.1, 1.0)


def test_sides_take_turns_at_going_first() -> None:
    log: list[str] = []
    sides = [Scripted(name, 4, log) for name in "abc"]
    prompts = [EncodedPrompt(name, "chat", (1,)) for name in "pq"]
    run_round(sides, prompts, 4, turn=0)
    run_round(sides, prompts, 4, turn=2)
    assert log == [*"abc", *"cba", *"bca", *"acb"]
    first = [in_turn(sides, place)[0].name for place in range(6)]
    assert sorted(first) == ["a", "a", "b", "b", "c", "c"]


def test_a_side_that_stops_early_is_an_error() -> None:
    with pytest.raises(BenchmarkFailed, match="a gave 3 of 4 tokens on p"):
        run_round([Scripted("a", 3, [])], [EncodedPrompt("p", "chat", (1,))], 4, turn=0)


def run(seconds: float, ids: Sequence[int] = range(11), block: int = 1) -> Run:
    return Run(tuple(ids), 0.5, seconds, block)


def test_tokens_that_came_with_the_first_do_not_count_as_decoded() -> None:
    assert run(2.0).tok_s == 5.0
    assert run(2.0, block=5).tok_s == 3.0


def test_ratios_are_medians_of_the_rounds() -> None:
    runs = {
        ("p", "mlx_lm"): [run(1.0), run(1.0), run(1.0)],
        ("q", "mlx_lm"): [run(3.0), run(1.0), run(1.0)],
        ("p", "ar"): [run(1.0), run(1.0), run(2.0)],
        ("q", "ar"): [run(1.0), run(3.0), run(2.0)],
        ("p", "mtp"): [run(0.5), run(0.5), run(0.5)],
        ("q", "mtp"): [run(2.0), run(2.0), run(2.0)],
    }
    assert summary.rates(runs, "mlx_lm") == [5.0, 10.0, 10.0]
    assert summary.rates(runs, "ar") == [10.0, 5.0, 5.0]
    assert summary.ratios(runs, [2000.0, 1000.0, 500.0], 100, ["mlx_lm", "ar", "mtp"]) == {
        "ar_vs_mlx_lm": 0.5,  # of 2, 0.5 and 0.5
        "mtp_vs_ar": 1.6,  # of 0.8, 1.6 and 1.6
        "mtp_vs_mlx_lm": 0.8,  # of 1.6, 0.8 and 0.8
        "mtp_vs_ar_worst": 1.0,  # q: of 0.5, 1.5 and 1
        "bandwidth_share": 0.5,  # of 0.5, 0.5 and 1
    }


def test_ratios_within_domains() -> None:
    prompts = [EncodedPrompt(*p, (1,)) for p in (("p", "code"), ("q", "chat"), ("r", "code"))]
    runs = {
        ("p", "mlx_lm"): [run(2.0), run(4.0), run(1.0)],
        ("q", "mlx_lm"): [run(3.0), run(3.0), run(3.0)],
        ("r", "mlx_lm"): [run(2.0), run(4.0), run(1.0)],
        ("p", "ar"): [run(1.0), run(1.0), run(2.0)],
        ("q", "ar"): [run(1.0), run(2.0), run(6.0)],
        ("r", "ar"): [run(1.0), run(3.0), run(2.0)],
        ("p", "mtp"): [run(0.5), run(0.5), run(0.5)],
        ("q", "mtp"): [run(2.0), run(2.0), run(2.0)],
        ("r", "mtp"): [run(0.5), run(1.5), run(1.5)],
    }
    assert summary.domain_ratios(runs, prompts, ["mlx_lm", "ar", "mtp"]) == {
        # Both prompts' tokens over both prompts' seconds: of 2 / 1, 4 / 2 and 4 / 2.
        "mtp_vs_ar_domains": {"code": 2.0, "chat": 1.0},  # chat: of 0.5, 1 and 3
        "mtp_vs_mlx_lm_domains": {"code": 4.0, "chat": 1.5},  # code: of 4, 4 and 1
    }
    assert summary.domain_ratios(runs, prompts, ["mlx_lm", "ar"]) == {}


def test_the_first_difference_is_found_in_any_round() -> None:
    prompts = [EncodedPrompt("p", "chat", (7, 8))]
    runs = {
        ("p", "mlx_lm"): [run(1.0, [1, 2, 3]), run(1.0, [1, 2, 4])],
        ("p", "ar"): [run(1.0, [1, 2, 3]), run(1.0, [1, 2, 3])],
        ("p", "mtp"): [run(1.0, [1, 5, 3]), run(1.0, [1, 2, 3])],
    }
    asked: list[list[int]] = []

    def margin(ids: Sequence[int]) -> float:
        asked.append(list(ids))
        return 0.25

    assert summary.divergences(runs, prompts, "mlx_lm", margin) == [
        summary.Divergence("p", "mlx_lm", runs=1, at=2, margin=0.25),
        summary.Divergence("p", "mtp", runs=1, at=1, margin=0.25),
    ]
    assert asked == [[7, 8, 1, 2], [7, 8, 1]]


def layer_bytes(config: dict[str, Any]) -> int:
    """Weights of the tiny llama's layers and last norm, float32."""
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    kv = config["num_key_value_heads"] * config["head_dim"]
    a_layer = 2 * hidden * hidden + 2 * hidden * kv + 3 * hidden * inner + 2 * hidden
    return 4 * (config["num_hidden_layers"] * a_layer + hidden)


def test_an_embedding_counts_where_it_is_the_head() -> None:
    from mlx_lm.models import llama

    head = 4 * tiny.VOCABULARY * tiny.COMMON["hidden_size"]
    for tied in (False, True):
        config = {**tiny.COMMON, "model_type": "llama", "tie_word_embeddings": tied}
        model = llama.Model(llama.ModelArgs.from_dict(config))
        assert weight_bytes(model, config) == layer_bytes(config) + head


def test_only_the_experts_of_a_token_count() -> None:
    model = tiny.build("qwen3_next")
    config = {**tiny.COMMON, **tiny.CONFIGS["qwen3_next"]}
    two = weight_bytes(model, config)
    four = weight_bytes(model, {**config, "num_experts_per_tok": 4})
    expert = 4 * 3 * config["hidden_size"] * config["moe_intermediate_size"]
    assert four - two == 2 * expert * config["num_hidden_layers"]
