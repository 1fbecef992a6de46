"""The concurrency benchmark on a tiny model, through its command line."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks import concurrency_page
from benchmarks.arrivals import Ask, Chain, Plan
from benchmarks.concurrency import arguments, main
from benchmarks.concurrency_bench import Bench, Scale
from benchmarks.loads import LOADS
from benchmarks.measure import EncodedPrompt
from benchmarks.scheduler_side import SchedulerSide, settings
from benchmarks.served import PlanRun, PlanSide
from tests import tiny

REPORT_KEYS = [
    *("benchmark", "model", "machine", "ratios", "ids_equal", "table", "gaps", "differences")
]
SCALE = Scale(clients=(2,), max_tokens=16, requests=1, rounds=1, itl_ms=200, long_prompt=100)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny llama with room for the real prompts, at a token a byte."""
    place = tmp_path_factory.mktemp("models") / "llama"
    return tiny.write("llama", place, max_position_embeddings=4096)


@pytest.fixture(scope="module")
def bench(folder: Path) -> Iterator[Bench]:
    """Its sides, for two modes."""
    with Bench(str(folder), "auto", ["serial", "mtp_batch"], SCALE) as loaded:
        yield loaded


def test_a_page_and_then_one_json_object(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    modes = ("--modes", "serial,ar_batch,hyper", "--parts", "table,solo,gap")
    assert main(["--model", str(folder), "--quick", *modes, "--json"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    report = json.loads(out.splitlines()[-1])
    assert [*report] == REPORT_KEYS
    assert (report["benchmark"], report["model"]) == ("concurrency", folder.name)
    assert report["ids_equal"] is True
    assert report["differences"] == []
    sides = ["batchgen", "serial", "ar_batch", "hyper"]
    chat = [row for row in report["table"] if row["load"] == "chat"]
    assert [(row["clients"], row["side"]) for row in chat] == [
        (n, s) for n in (1, 2) for s in sides
    ]
    for row in chat:
        assert (row["rounds"], row["requests"], row["differing"]) == (1, row["clients"], 0)
        assert row["tok_s_low"] <= row["tok_s"] <= row["tok_s_high"]
        assert row["stream_tok_s_p95"] <= row["stream_tok_s_p50"] <= row["tok_s"] * 1.001
        assert 0 <= row["queue_wait_s_p50"] <= row["ttft_s_p50"] <= row["ttft_s_p95"]
        assert 1 / row["clients"] <= row["jain"] <= 1
    expected = {f"{mode}_vs_batchgen@{n}" for mode in sides[1:] for n in (1, 2)}
    expected |= {"hyper_vs_serial", "fork_vs_serial"}
    assert set(report["ratios"]) == expected
    assert all(math.isfinite(v) and v > 0 for v in report["ratios"].values())
    assert [row["side"] for row in report["gaps"]] == sides
    assert all(row["target_ms"] == 200 for row in report["gaps"])
    page = out.splitlines()[:-1]
    assert page[0] == f"# concurrency: {folder.name}"
    assert "- Head: none" in page
    assert f"- Drafters: {', '.join(report['machine']['drafters'])}" in page
    assert "All answers of the engine's modes are the serial ones, token for token." in page
    assert "## A 100-token prompt beside a running stream" in page


def test_the_headline_needs_both_cohort_modes(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.loads.GARDEN", "The gate is open from seven to nine.")
    modes = ["mtp_batch", "mtp_cohort_experimental"]
    small = dataclasses.replace(SCALE, max_tokens=4)
    with Bench(str(folder), "none", modes, small) as bench:
        report = bench.measure(["headline"], [])
    where = ("samples", "document", "headline")
    assert set(report.ratios) == {f"cohort_vs_mtp_batch@{name}" for name in where}
    assert [(r["load"], r["side"], r["requests"], r["tokens"]) for r in report.table] == [
        (load, mode, 2, 8) for load in where[:2] for mode in modes
    ]
    assert report.ids_equal


class OneWrongToken:
    """A side whose third token of every answer is another."""

    def __init__(self, side: PlanSide) -> None:
        self.name = side.name
        self._side = side

    def serve(self, plan: Plan) -> PlanRun:
        def spoilt(ids: tuple[int, ...]) -> tuple[int, ...]:
            return (*ids[:2], (ids[2] + 1) % tiny.VOCABULARY, *ids[3:])

        run = self._side.serve(plan)
        return PlanRun(tuple(dataclasses.replace(s, ids=spoilt(s.ids)) for s in run.served))


def test_a_wrong_side_is_reported(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = OneWrongToken(bench.sides["mtp_batch"])
    monkeypatch.setitem(bench.sides, "mtp_batch", wrong)
    report = bench.measure(["table"], [LOADS["chat"]])
    assert not report.ids_equal
    rows = {row["side"]: row for row in report.table}
    assert {side: row["differing"] for side, row in rows.items()} == {
        "batchgen": 0,
        "serial": 0,
        "mtp_batch": 2,
    }
    assert [(d["side"], d["at"], d["beyond_rounding"]) for d in report.differences] == [
        ("mtp_batch", 2, True)
    ] * 2
    page = concurrency_page.text(report)
    assert "2 of 2 differ, margin" in page
    assert "2 of the differing answers are beyond that" in page
    (line,) = [
        text for text in page.splitlines() if text.startswith("| chat@2 | mtp_batch | chat-")
    ]
    assert line.split(" | ")[3:5] == ["1", "2"]


class WrongPeer(OneWrongToken):
    """mlx-lm, with a wrong token."""


def test_mlx_lm_s_own_differences_are_shown_but_do_not_count(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench, "peer", WrongPeer(bench.peer))
    report = bench.measure(["table"], [LOADS["chat"]])
    assert report.ids_equal
    assert {d["side"] for d in report.differences} == {"batchgen"}


def test_users_of_the_engine_are_served_as_planned(bench: Bench) -> None:
    prompts = [EncodedPrompt(name, "chat", tuple(name.encode() * 9)) for name in ("ab", "cd", "ef")]
    asks = [Ask(prompt, 6) for prompt in prompts]
    side = SchedulerSide(bench.engine, "serial", {"scheduler": "serial"})
    run = side.serve((Chain(0.0, tuple(asks[:2])), Chain(0.05, (asks[2],))))
    assert [s.ask.prompt.name for s in run.served] == ["ab", "cd", "ef"]
    first, second, third = run.served
    for s in run.served:
        alone = bench.engine.generate(list(s.ask.prompt.ids), max_tokens=6, ignore_eos=True)
        assert s.ids == alone.token_ids
        assert len(s.arrivals) == len(s.cycles) == 6
        assert list(s.arrivals) == sorted(s.arrivals)
        assert 0 <= s.queue_wait_s <= s.ttft_s
    assert second.asked == first.arrivals[-1]  # as soon as the first was answered
    assert third.asked - first.asked == pytest.approx(0.05)


def test_the_fork_side_has_an_executor_and_hyper_none(folder: Path) -> None:
    with Bench(str(folder), "none", ["serial", "hyper"], SCALE) as bench:
        plan = (Chain(0.0, (Ask(EncodedPrompt("ab", "chat", tuple(b"abcabcabc")), 8),)),)
        gates = []
        for name in ("hyper", "fork"):
            bench.sides[name].serve(plan)
            gates.append(bench.engine.gate.snapshot()["width_executor_installed"])
    assert gates == [False, True]


def test_a_plan_finds_only_its_own_prefixes(bench: Bench) -> None:
    prompt = EncodedPrompt("long", "shared", tuple(range(60, 160)))
    side = bench.sides["serial"]
    twice = (Chain(0.0, (Ask(prompt, 4), Ask(prompt, 4))),)
    for _ in range(2):
        first, again = side.serve(twice).served
        assert first.cached_tokens == 0
        assert again.cached_tokens > 50


def test_modes_are_told_what_they_take() -> None:
    assert settings("serial", 4, 100) == {"scheduler": "serial"}
    assert settings("hyper", 4, 100) == {"scheduler": "hyper"}
    assert settings("mtp_cohort_experimental", 4, 100) == {
        "scheduler": "mtp_cohort_experimental",
        "width": 4,
        "itl_ms": 100,
        "experimental": True,
    }


def test_a_context_too_small_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = tiny.write("llama", tmp_path / "small", max_position_embeddings=400)
    options = ("--modes", "serial", "--clients", "2", "--max-tokens", "400")
    assert main(["--model", str(small), *options]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: small has room for ")
    assert len(err.splitlines()) == 1


def test_quick_changes_defaults_only() -> None:
    quick = arguments(["--quick", "--repeats", "3"])
    assert (quick.clients, quick.repeats, quick.long_prompt) == ((1, 2), 3, 100)
    assert arguments([]).clients == (1, 2, 4, 8, 16)
    assert arguments(["--clients", "4,1"]).clients == (4, 1)


@pytest.mark.parametrize(
    ("option", "value", "allowed"),
    [
        ("--clients", "0", "a list of different whole numbers from 1 to 64, such as 1,64"),
        ("--clients", "2,2", "a list of different whole numbers from 1 to 64, such as 1,64"),
        ("--loads", "tea", f"a list of some of {', '.join(LOADS)}"),
        ("--parts", "gap,gap", "a list of some of table, headline, solo, gap"),
        ("--repeats", "many", "a whole number, 1 or more"),
    ],
)
def test_wrong_options_are_refused(
    option: str, value: str, allowed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        arguments([option, value])
    assert ended.value.code == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.endswith(f"argument {option}: {value!r} is not {allowed}")


def test_the_page_is_markdown() -> None:
    row: dict[str, Any] = {"side": "serial", "clients": 1}
    columns = (("side", lambda r: r["side"]), ("clients", lambda r: str(r["clients"])))
    assert (
        concurrency_page.table(columns, [row])
        == "| side | clients |\n| --- | --- |\n| serial | 1 |"
    )
