"""%mtplx show in a terminal: the same that the views draw, as text."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from IPython.core.error import UsageError

import mtplx_kernel as mk
from mtplx_kernel.completion import MtplxCompletion
from mtplx_kernel.show_options import SHOWN
from tests.ipython.conftest import Bench

Shown = Callable[[], str]


@pytest.fixture
def tiny(bench: Bench, tiny_folder: Path, shown: Shown) -> Bench:
    """A bench on which a tiny model has answered."""
    bench.loadable["tiny"] = mk.load(tiny_folder)
    bench.run("%mtplx load tiny")
    bench.run("%%mtplx --raw --max-tokens 12\nabcabcabc")
    shown()
    return bench


def test_the_timeline_is_a_line_for_each_request(tiny: Bench, shown: Shown) -> None:
    tiny.run("%%mtplx --raw --max-tokens 5\nHi")
    shown()
    assert tiny.run("%mtplx show timeline") is None
    text = shown()
    lines = [line for line in text.splitlines() if line.startswith("req-")]
    assert [line.split()[0] for line in lines] == ["req-1", "req-2"]
    assert "12" in lines[0].split()
    assert "5" in lines[1].split()
    assert "req-2" not in shown()


@pytest.mark.parametrize("what", ["timeline", "acceptance", "request", "controls", "all"])
def test_a_terminal_draws_nothing(
    tiny: Bench, shown: Shown, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def drawn(*_: object, **__: object) -> bytes:
        raise AssertionError("a picture was drawn")

    monkeypatch.setattr("mtplx_kernel.widgets.figures.ShownFigure.png", drawn)
    tiny.run(f"%mtplx show {what}")
    assert shown()


def test_acceptance_counts_what_the_stats_count(tiny: Bench, shown: Shown) -> None:
    stats = tiny.shell.user_ns["_mtplx"].stats
    tiny.run("%mtplx show acceptance")
    text = shown()
    assert str(sum(stats.drafted_by_depth)) in text.split()
    assert str(stats.verify_calls) in text


def test_a_request_is_told_token_by_token(tiny: Bench, shown: Shown) -> None:
    tiny.run("%%mtplx --raw --max-tokens 3 --mode ar\nHi")
    shown()
    tiny.run("%mtplx show request 1")
    first = shown()
    tiny.run("%mtplx show request req-1")
    assert shown() == first
    tiny.run("%mtplx show request")
    newest = shown()
    assert "req-1" in first
    assert "req-2" in newest
    assert "3 tokens" in newest


def test_controls_are_what_is_in_force(tiny: Bench, shown: Shown) -> None:
    tiny.run("%mtplx scheduler cooperative --width 3")
    shown()
    tiny.run("%mtplx show controls")
    assert shown().splitlines()[:4] == [
        "Model:     tiny llama",
        "Mode:      mtp",
        "Scheduler: cooperative (width 3, itl_ms 200, ttft_ms 2000)",
        "Depth:     the engine's choice",
    ]


def test_all_is_everything(tiny: Bench, shown: Shown) -> None:
    parts = []
    for name in ("timeline", "acceptance", "request", "controls"):
        tiny.run(f"%mtplx show {name}")
        parts.append(shown().splitlines()[0])
    tiny.run("%mtplx show")
    lines = shown().splitlines()
    places = [lines.index(part) for part in parts]
    assert places == sorted(places)
    assert len(set(places)) == 4


def test_all_of_an_engine_that_was_asked_nothing(bench: Bench, tiny_folder: Path) -> None:
    bench.loadable["tiny"] = mk.load(tiny_folder)
    bench.run("%mtplx load tiny")
    assert bench.run("%mtplx show all") is None


def test_there_must_be_a_model_but_for_the_controls(bench: Bench, shown: Shown) -> None:
    for what in ("", "timeline", "acceptance", "request", "all"):
        assert isinstance(bench.run(f"%mtplx show {what}"), UsageError)
        assert shown() == "UsageError: no model is loaded; load one: %mtplx load smollm2-135m\n"
    assert bench.run("%mtplx show controls") is None
    assert shown().splitlines()[0] == "Model:    no model is loaded"


def test_off_where_nothing_is_live(tiny: Bench, shown: Shown) -> None:
    tiny.run("%mtplx show timeline")
    shown()
    tiny.run("%mtplx show off")
    assert shown() == "Nothing is shown.\n"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("show timelin", "unknown view 'timelin'; did you mean timeline? allowed: timeline, "),
        ("show timeline 3", "'3' is one word too many; write %mtplx show [WHAT] [options]"),
        ("show request 1 2", "'2' is one word too many; write %mtplx show [WHAT] [options]"),
        ("show --width 3", "unknown option '--width'; "),
        ("show request 99", ""),
    ],
)
def test_a_mistake_is_one_line(tiny: Bench, shown: Shown, line: str, message: str) -> None:
    assert isinstance(tiny.run(f"%mtplx {line}"), UsageError)
    text = shown()
    assert text.startswith(f"UsageError: {message}")
    assert text.count("\n") == 1


def test_completion_offers_what_can_be_shown(bench: Bench) -> None:
    from IPython.core.completer import CompletionContext

    text = "%mtplx show "
    context = CompletionContext(
        token="", full_text=text, cursor_position=len(text), cursor_line=0, limit=None
    )
    found = MtplxCompletion(lambda: []).matcher(context)["completions"]
    assert [one.text for one in found] == [*SHOWN, "--live"]


def test_nothing_that_draws_is_loaded_before_it_is_shown() -> None:
    code = (
        "import sys\n"
        "from IPython.core.interactiveshell import InteractiveShell\n"
        "shell = InteractiveShell()\n"
        "shell.extension_manager.load_extension('mtplx_kernel')\n"
        "shell.run_line_magic('mtplx', 'help')\n"
        "print(sorted({'anywidget', 'ipywidgets', 'matplotlib', 'pandas'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
