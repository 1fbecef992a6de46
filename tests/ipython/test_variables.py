"""Python variables in prompts, where they are asked for, and in what follows a verb."""

from __future__ import annotations

from collections.abc import Callable

from tests.ipython.conftest import Bench
from tests.ipython.scripted import ScriptedEngine
from tests.ipython.test_magics import one_line

Shown = Callable[[], str]


def test_vars_replaces_the_named_ones_only(loaded: Bench) -> None:
    loaded.shell.user_ns.update(a="{b}", b=[1, 2], c="c")
    loaded.run("%%mtplx --vars a,b\n{a} {b} {c} {{a}} {a.x} {a!r} ${b}")
    assert loaded.engine.asked[-1][0] == "{b} [1, 2] {c} {{b}} {a.x} {a!r} $[1, 2]"


def test_vars_of_a_function(loaded: Bench) -> None:
    loaded.run(
        "def f(who):\n    return get_ipython().run_line_magic('mtplx', 'ask --vars who Hi {who}')"
    )
    loaded.run("f('you')")
    assert loaded.engine.asked[-1][0] == "Hi you"


def test_vars_that_are_missing_or_unused_are_refused(loaded: Bench, shown: Shown) -> None:
    loaded.run("%%mtplx --vars nope\n{nope}")
    assert one_line(shown) == "--vars nope: no such variable; define it in a cell above"
    loaded.shell.user_ns["a"] = 1
    loaded.run("%%mtplx --vars a\n{ a }")
    assert one_line(shown) == "--vars a: the prompt has no {a} to replace"
    assert loaded.engine.asked == []


def test_load_takes_variables_and_asks_take_none(loaded: Bench) -> None:
    loaded.loadable["other one"] = ScriptedEngine("other")
    loaded.shell.user_ns.update(model="scripted", folder="other one", limit=4, verb="load")
    loaded.run("%mtplx load {model} --queue-limit $limit")
    assert loaded.loads[-1] == ("scripted", {"queue_limit": 4})
    loaded.run("%mtplx load '{folder}';")
    assert loaded.loads[-1] == ("other one", {})
    loaded.run("%mtplx ask Say {model} and $model")
    assert loaded.engine.asked[-1][0] == "Say {model} and $model"
    loaded.run("%%mtplx --system {model}\n{model} $model")
    prompt, asked = loaded.engine.asked[-1]
    assert (prompt, asked["system"]) == ("{model} $model", "{model}")


def test_the_verbs_take_the_variables_of_a_function(loaded: Bench, shown: Shown) -> None:
    loaded.shell.user_ns["mode"] = "mtp"
    loaded.run("def f(mode):\n    %mtplx mode {mode}")
    loaded.run("f('ar')")
    assert shown() == "Default mode: ar\n"
    # The magic's own names are no variables.
    loaded.run("%mtplx load {line}")
    assert loaded.loads[-1][0] == "{line}"
    loaded.run("%mtplx load {nope}")
    assert loaded.loads[-1][0] == "{nope}"
