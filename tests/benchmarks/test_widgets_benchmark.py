"""The benchmark of views on a tiny model, through its command line, and what breaks it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.widget_kernel import ViewsRun, busiest
from benchmarks.widgets import SIDES, arguments, main, measure, text
from tests import tiny

RUN = ViewsRun(seconds=2.0, tokens=100, tok_s=50.0, ids="a", messages=0, busiest=0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("models") / "llama"
    return tiny.write("llama", place, max_position_embeddings=4096)


def test_a_page_and_then_one_json_object(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--model", str(folder), "--quick", "--json"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    *page, last = out.splitlines()
    report = json.loads(last)
    assert (report["benchmark"], report["model"]) == ("widgets", str(folder))
    assert {*report["ratios"]} == {"all_open_vs_none"}
    none, all_open = report["table"]
    assert (none["side"], all_open["side"]) == ("none", "all_open")
    assert none["messages_a_second"] == 0
    assert none["tokens"] == all_open["tokens"]
    assert report["most_messages_a_second"] <= 10
    assert "Medians of 1 round. Too few rounds to quote: repeat 5." in page


def test_a_model_that_is_not_there_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--model", "/nowhere", "--quick"]) == 1
    assert capsys.readouterr().err.startswith("error: %mtplx load '/nowhere' ")


class Scripted:
    """A kernel that takes a fifth longer while views are open, and maybe says something else."""

    def __init__(self, ids: str) -> None:
        self.ids = ids
        self.served: list[tuple[str, ...]] = []

    def machine(self) -> dict[str, Any]:
        plain = dict.fromkeys(("processor", "cpus", "system", "precision", "blas", "gpu"), "")
        return {**plain, "load_average": 0.0}

    def serve(self, views: tuple[str, ...]) -> ViewsRun:
        self.served.append(views)
        if not views:
            return RUN
        return replace(RUN, seconds=2.5, tok_s=40.0, ids=self.ids, messages=20, busiest=4)


@pytest.mark.parametrize("ids", ["a", "b"])
def test_what_views_cost_is_seen(ids: str) -> None:
    kernel: Any = Scripted(ids)
    report = measure(kernel, "tiny", "mtp_batch", 3)
    assert report.ratios == {"all_open_vs_none": 0.8}
    assert report.ids_equal is (ids == "a")
    assert report.most_messages_a_second == 4
    assert [row["messages_a_second"] for row in report.table] == [0.0, 8.0]
    # After a warm-up of each, they take turns.
    assert [bool(views) for views in kernel.served] == [
        *(False, True),
        *(False, True, True, False, True, False),
    ]
    told = "Every run gave the same ids." if ids == "a" else "The ids of the runs differ: "
    assert told in text(report)


def test_the_busiest_second_is_of_one_sender() -> None:
    assert busiest([]) == 0
    sent = [("a", 0.0), ("a", 0.5), ("b", 0.6), ("a", 1.2), ("b", 1.3)]
    assert busiest(sent) == 2


def test_all_views_are_open() -> None:
    assert SIDES["all_open"] == ("timeline", "acceptance", "request", "controls")
    assert arguments(["--quick"]).repeats == 1
