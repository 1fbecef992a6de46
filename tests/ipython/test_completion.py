"""Tab: what is offered after %mtplx, through IPython's own completer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from IPython.core.completer import CompletionContext, provisionalcompleter

from mtplx_kernel import options
from mtplx_kernel.completion import MtplxCompletion
from tests.ipython.conftest import Bench

Tab = Callable[[str], list[str]]
FLAGS = [option.flag for option in options.REQUEST_OPTIONS]


@pytest.fixture
def tab(bench: Bench) -> Tab:
    """Press the key at the end of a text: the texts that the offers would make of it."""
    completer = bench.shell.Completer
    completer.custom_matchers[:] = [MtplxCompletion(lambda: ["smollm2-135m", "hub/smol"]).matcher]

    def press(text: str) -> list[str]:
        with provisionalcompleter():
            return [text[: c.start] + c.text for c in completer.completions(text, len(text))]

    return press


def test_verbs(tab: Tab) -> None:
    assert tab("%mtplx ") == [f"%mtplx {verb}" for verb in options.VERBS]
    assert tab("%mtplx mo") == ["%mtplx models", "%mtplx mode"]
    assert tab("for x in y:\n    g = %mtplx st") == [
        f"for x in y:\n    g = %mtplx {verb}" for verb in ("status", "stop")
    ]


def test_options_of_a_cell(tab: Tab) -> None:
    assert tab("%%mtplx ") == [f"%%mtplx {flag}" for flag in FLAGS]
    assert tab("%%mtplx --seed 3 --to") == ["%%mtplx --seed 3 --top-p", "%%mtplx --seed 3 --top-k"]


def test_an_option_is_offered_once_unless_it_repeats(tab: Tab) -> None:
    assert tab("%%mtplx --seed 3 --s") == [
        f"%%mtplx --seed 3 {flag}" for flag in ("--stop", "--system", "--samples")
    ]
    assert "%%mtplx --stop x --stop" in tab("%%mtplx --stop x --s")


def test_options_of_verbs_are_their_own(tab: Tab) -> None:
    assert tab("%mtplx load x --") == [
        f"%mtplx load x {option.flag}" for option in options.LOAD_OPTIONS
    ]
    assert tab("%mtplx scheduler mtp_batch --w") == [
        "%mtplx scheduler mtp_batch --width",
        "%mtplx scheduler mtp_batch --wait-ms",
    ]
    assert tab("%mtplx serve --token x --") == [
        f"%mtplx serve --token x {flag}" for flag in ("--host", "--port", "--no-auth", "--cors")
    ]
    assert tab("%mtplx bench --c") == ["%mtplx bench --clients"]
    assert tab("%mtplx verify --d") == ["%mtplx verify --depth", "%mtplx verify --draws"]
    assert tab("%mtplx tune --no-keep --") == [
        f"%mtplx tune --no-keep {option.flag}"
        for option in options.TUNE_OPTIONS
        if option.flag != "--no-keep"
    ]
    assert tab("%mtplx ask --ma") == ["%mtplx ask --max-tokens", "%mtplx ask --markdown"]


def test_values(tab: Tab) -> None:
    assert tab("%mtplx mode ") == ["%mtplx mode mtp", "%mtplx mode ar"]
    assert tab("%mtplx scheduler mtp_") == [
        "%mtplx scheduler mtp_batch",
        "%mtplx scheduler mtp_cohort_experimental",
    ]
    assert tab("%mtplx load x --scheduler h") == ["%mtplx load x --scheduler hyper"]
    assert tab("%mtplx bench --modes a") == ["%mtplx bench --modes ar_batch"]
    assert tab("%%mtplx --mode a") == ["%%mtplx --mode ar"]
    assert tab("%%mtplx --mode=") == ["%%mtplx --mode=mtp", "%%mtplx --mode=ar"]
    assert tab("%mtplx load x --mode m") == ["%mtplx load x --mode mtp"]
    assert tab("%mtplx load x --head ") == [
        "%mtplx load x --head auto",
        "%mtplx load x --head none",
    ]
    assert tab("%%mtplx --acceptance ") == [
        f"%%mtplx --acceptance {rule}" for rule in ("coupled", "rejection", "block")
    ]


def test_models_and_folders(tab: Tab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("smooth", "models/one", "models/.hidden"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "smile.txt").touch()
    monkeypatch.chdir(tmp_path)
    assert tab("%mtplx load smol") == ["%mtplx load smollm2-135m"]
    assert tab("%mtplx load sm") == ["%mtplx load smollm2-135m", "%mtplx load smooth/"]
    (tmp_path / "models" / "head.safetensors").touch()
    (tmp_path / "models" / "notes.txt").touch()
    heads = ["./models/head.safetensors", "./models/one/"]
    assert tab("%mtplx load x --head ./models/") == [f"%mtplx load x --head {h}" for h in heads]
    assert tab("%mtplx load x --head=./models/o") == ["%mtplx load x --head=./models/one/"]
    assert tab("%mtplx load hub/") == ["%mtplx load hub/smol"]
    assert tab("%mtplx load ./models/") == ["%mtplx load ./models/one/"]
    assert tab(f"%mtplx load {tmp_path}/mo") == [f"%mtplx load {tmp_path}/models/"]


def test_the_catalog_is_offered(bench: Bench) -> None:
    with provisionalcompleter():
        text = "%mtplx load smol"
        found = [c.text for c in bench.shell.Completer.completions(text, len(text))]
    assert "smollm2-135m" in found


@pytest.mark.parametrize(
    "text", ["%%mtplx\nsta", "%%mtplx\n%%mtplx --se", "%timeit --se", "mtplx --se", "%mtplxx lo"]
)
def test_elsewhere_nothing_is_offered(text: str) -> None:
    lines = text.split("\n")
    context = CompletionContext(
        token=lines[-1].split(" ")[-1],
        full_text=text,
        cursor_position=len(lines[-1]),
        cursor_line=len(lines) - 1,
        limit=None,
    )
    matcher = MtplxCompletion(lambda: []).matcher
    assert matcher(context) == {"completions": [], "suppress": False}
