"""`--quiet` and `;`: what they hide, and what is shown all the same."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.ipython.conftest import Bench

Shown = Callable[[], str]
STATS = "<stop: 3 tokens, mode mtp>"


def test_quiet_shows_nothing_and_still_returns(loaded: Bench, shown: Shown) -> None:
    loaded.run("%%mtplx --quiet --out g\nHi")
    assert shown() == ""
    assert loaded.shell.user_ns["g"].text == "Hello there."
    loaded.run("g")
    assert shown() == f"Out[3]: {STATS}\n"


HIDDEN = (
    "%mtplx ask --quiet Hi",
    "%mtplx ask Hi;",
    "get_ipython().run_line_magic('mtplx', 'ask --quiet Hi')",
    "get_ipython().run_cell_magic('mtplx', '--quiet', 'Hi')",
)


@pytest.mark.parametrize("hidden", HIDDEN)
def test_an_assigned_result_is_shown_by_its_name(loaded: Bench, shown: Shown, hidden: str) -> None:
    loaded.run(f"answer = {hidden}")
    shown()
    loaded.run("answer")
    assert shown() == f"Out[3]: {STATS}\n"
    loaded.run(f"answer = {hidden}\nanswer")
    assert shown().endswith(f"Out[4]: {STATS}\n")
    loaded.run(f"{hidden}\n_mtplx")
    assert shown().endswith(f"Out[5]: {STATS}\n")


@pytest.mark.parametrize("hidden", HIDDEN)
@pytest.mark.parametrize("around", ["{}", "None\n{}", "%time {}", "%%time\nNone\n{}"])
def test_a_hidden_result_shows_no_stats(
    loaded: Bench, shown: Shown, around: str, hidden: str
) -> None:
    loaded.run(around.format(hidden))
    assert STATS not in shown()
    loaded.run("_mtplx")
    assert shown() == f"Out[3]: {STATS}\n"


def test_every_quiet_line_of_a_cell_is_quiet(loaded: Bench, shown: Shown) -> None:
    loaded.shell.ast_node_interactivity = "all"
    loaded.run("%mtplx ask --quiet One\n%mtplx ask --quiet Two\n3")
    assert shown() == "Out[2]: 3\n"


def test_silence_ends_with_the_cell(loaded: Bench, shown: Shown) -> None:
    loaded.run("%mtplx ask --quiet Hi\n1 / 0")
    shown()
    loaded.installation.results(loaded.shell.user_ns["_mtplx"])
    assert STATS in shown()


@pytest.mark.parametrize(
    ("cell", "prompt"),
    [
        ("%%mtplx\nHi;", "Hi"),
        ("%%mtplx\nHi; \n\n", "Hi"),
        ("%%mtplx --quiet\nHi;", "Hi"),
        ("%%mtplx --chat\nHi;", [{"role": "user", "content": "Hi"}]),
        ("%%mtplx\nint a;\nint b;;", "int a;\nint b;"),
        ("%%mtplx --vars x\n{x} ;", "a; "),
        ("%mtplx ask Hi;", "Hi"),
        ("%mtplx ask Hi;;", "Hi;"),
        ("%mtplx ask 'Hi;';", "Hi;"),
        ("%mtplx ask 'Hi' --seed 3;", "Hi"),
    ],
)
@pytest.mark.parametrize("host", ["terminal", "kernel"])
def test_a_semicolon_hides_the_stats_and_is_not_sent(
    loaded: Bench,
    shown: Shown,
    cell: str,
    prompt: object,
    host: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if host == "kernel":
        monkeypatch.setattr(loaded.shell, "kernel", "a kernel", raising=False)
    loaded.shell.user_ns["x"] = "a;"
    loaded.run(cell)
    assert loaded.engine.asked[-1][0] == prompt
    assert shown() == ("" if "--quiet" in cell else "Hello there.\n")


@pytest.mark.parametrize(
    ("cell", "prompt"),
    [
        ("%%mtplx\na; b", "a; b"),
        ("%mtplx ask 'Hi;'", "Hi;"),
        ("%%mtplx --vars x\nsay {x}", "say a;"),
    ],
)
def test_any_other_semicolon_is_a_part_of_the_prompt(
    loaded: Bench, shown: Shown, cell: str, prompt: str
) -> None:
    loaded.shell.user_ns["x"] = "a;"
    loaded.run(cell)
    assert loaded.engine.asked[-1][0] == prompt
    assert shown() == f"Hello there.\nOut[2]: {STATS}\n"
