"""The endpoint benchmark on a tiny model, through its command line, and what breaks it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.arrivals import Plan, closed
from benchmarks.endpoint import Bench, main, text
from benchmarks.endpoint_sides import EndpointUsers, UsersRun
from benchmarks.measure import BenchmarkFailed
from tests import tiny
from tests.benchmarks.served import ASKS


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("models") / "llama"
    return tiny.write("llama", place, max_position_embeddings=4096)


@pytest.fixture(scope="module")
def bench(folder: Path) -> Iterator[Bench]:
    with Bench(str(folder), "auto", "mtp_batch", (1, 2)) as loaded:
        yield loaded


def test_a_page_and_then_one_json_object(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--model", str(folder), "--quick", "--json"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    *page, last = out.splitlines()
    report = json.loads(last)
    assert (report["benchmark"], report["model"]) == ("endpoint", folder.name)
    assert report["texts_equal"] is True
    assert {*report["ratios"]} == {
        *("tok_s_at_1", "first_text_at_1", "tok_s_at_2", "first_text_at_2")
    }
    assert [(row["clients"], row["side"]) for row in report["table"]] == [
        *((1, "engine"), (1, "endpoint"), (2, "engine"), (2, "endpoint"))
    ]
    for row in report["table"]:
        assert (row["requests"], row["rounds"]) == (row["clients"], 1)
        # Answers have 4 to 8 tokens.
        assert 4 * row["requests"] <= row["tokens"] <= 8 * row["requests"]
        assert 0 < row["first_byte_s"] <= row["first_text_s"]
    assert "Medians of 1 round. Too few rounds to quote: repeat 5." in page
    assert page[-1] == "Both sides gave the same texts, of the same numbers of tokens."


class Slow:
    """A side that takes twice the time of another, and may change what it says."""

    def __init__(self, side: Any, ending: str) -> None:
        self.name = side.name
        self._side, self._ending = side, ending

    def serve(self, plan: Plan) -> UsersRun:
        run = self._side.serve(plan)
        answers = tuple(replace(each, text=each.text + self._ending) for each in run.answers)
        return replace(run, seconds=run.seconds * 1000, answers=answers)


@pytest.mark.parametrize("ending", ["", "!"])
def test_another_text_and_a_slow_side_are_seen(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    engine, endpoint = bench.sides
    monkeypatch.setattr(bench, "sides", [engine, Slow(endpoint, ending)])
    report = bench.measure(max_tokens=6, requests=1, rounds=2)
    assert report.texts_equal is (not ending)
    assert report.ratios["tok_s_at_1"] < 0.1
    assert report.ratios["tok_s_at_2"] < 0.1
    told = "The texts of the two sides differ." if ending else "Both sides gave the same texts"
    assert told in text(report)


def test_users_that_are_refused_end_the_benchmark(
    bench: Bench, capfd: pytest.CaptureFixture[str]
) -> None:
    with (
        bench.engine.serve() as endpoint,
        pytest.raises(BenchmarkFailed, match="users ended with code 1"),
        EndpointUsers(endpoint, "another") as users,
    ):
        users.serve(closed(ASKS[:1], 1))
    assert "the model 'another' is not served here" in capfd.readouterr().err
