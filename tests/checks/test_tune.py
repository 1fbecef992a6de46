"""%mtplx tune on a real engine: what is measured, chosen, kept and forgotten."""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import mtplx_kernel as mk
from mtplx_kernel.checks import picture, tune_report
from mtplx_kernel.checks import tune as tuning
from mtplx_kernel.checks.prompts import PROMPTS
from mtplx_kernel.checks.tune import ROUNDS, Run, forget, tune
from mtplx_kernel.checks.tune_report import Setting, TuneReport, TuneRow, best_of
from mtplx_kernel.engine.engine import Engine
from mtplx_kernel.errors import InvalidRequest, RequestFailed
from mtplx_kernel.models import measured

AR, OWN = Setting("ar", 0), Setting("mtp", None)
SMALL: dict[str, Any] = {"max_depth": 2, "prompts": 1, "max_tokens": 18}


def row(setting: Setting, ratio: float, **changes: Any) -> TuneRow:
    made = TuneRow(setting, 20 * ratio, ratio, ratio - 0.1, 1 + ratio, 40, 30)
    return replace(made, **changes)


ROWS = (
    row(AR, 1.0, drafted=0, accepted=0, worst=1.0),
    row(Setting("mtp", 1), 1.5),
    row(Setting("mtp", 2), 1.8),
    row(OWN, 1.7),
)
REPORT = TuneReport("a <model>", "float32", ROWS, Setting("mtp", 2), 12, 0, "from now on", 60.4)


@pytest.fixture(autouse=True)
def untuned(engine: Engine) -> Any:
    yield
    forget(engine)


def test_every_setting_is_measured_and_the_best_is_put_in_force(engine: Engine) -> None:
    report = tune(engine, **SMALL)
    assert [r.setting.name for r in report.rows] == [
        "ar",
        "mtp, depth 1",
        "mtp, depth 2",
        "mtp, adaptive",
    ]
    ar, one, two, own = report.rows
    assert (ar.ratio, ar.worst, ar.tokens_per_cycle, ar.drafted) == (1.0, 1.0, 1.0, 0)
    # A cycle of k drafts until the last tokens, which need fewer: at most 18 cycles an answer.
    assert 17 * ROUNDS >= one.drafted > 0
    assert two.drafted > one.drafted
    assert own.drafted > two.drafted
    assert all(r.tok_s > 0 for r in report.rows)
    assert (report.answers, report.differing) == (3 * ROUNDS, 0)
    assert report.best == best_of(report.rows, 1.02)
    assert report.kept == "from now on, whenever this model is loaded here; tune --forget undoes it"
    assert engine.default_depth == report.best.depth
    kept = measured.recall_tuned(engine.measured_key)
    assert kept is not None
    assert kept.depth == report.best.depth


def test_a_later_load_uses_it_until_it_is_forgotten(
    engine: Engine, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning, "best_of", lambda rows, lead: Setting("mtp", 2))
    tune(engine, **SMALL)
    assert engine.default_depth == 2
    with mk.load(str(tiny_folder)) as later:
        assert later.default_depth == 2
        assert forget(later) == "The tuning is forgotten: the engine chooses the depth itself."
        assert later.default_depth is None
    with mk.load(str(tiny_folder)) as again:
        assert again.default_depth is None


def test_the_settings_take_turns_and_the_engine_chooses_for_adaptive(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, int | None, int | None]] = []
    submit = Engine.submit

    def spied(self: Engine, prompt: Any, **options: Any) -> mk.Handle:
        asked.append((options["mode"], options["depth"], self.default_depth))
        return submit(self, prompt, **options)

    monkeypatch.setattr(Engine, "submit", spied)
    engine.set_default_depth(7)
    tune(engine, keep=False, **SMALL)
    once = [("ar", 0, None), ("mtp", 1, None), ("mtp", 2, None), ("mtp", None, None)]
    assert asked == [*once, *once, *once[::-1]]
    assert engine.default_depth == 7


def test_no_keep_keeps_nothing(engine: Engine) -> None:
    report = tune(engine, keep=False, **SMALL)
    assert report.kept == "as before: nothing was kept (--no-keep)"
    assert measured.recall_tuned(engine.measured_key) is None


def test_a_failure_or_an_interrupt_leaves_the_depth(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.set_default_depth(3)

    def interrupted(self: Engine, prompt: Any, **options: Any) -> mk.Handle:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Engine, "submit", interrupted)
        with pytest.raises(KeyboardInterrupt):
            tune(engine, **SMALL)
    runner = engine._owner.runner
    assert runner is not None

    def broken(*rows: Any, **options: Any) -> Any:
        raise ValueError("a broken step")

    with monkeypatch.context() as patch:
        patch.setattr(runner.step, "cycle", broken)
        with pytest.raises(RequestFailed, match="a broken step"):
            tune(engine, **SMALL)
    assert engine.default_depth == 3


def test_what_cannot_be_kept_holds_for_this_engine(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    place = tmp_path / "measured"
    place.write_text("a file in the folder's place")
    monkeypatch.setattr(measured, "_folder", lambda: place)
    report = tune(engine, **SMALL)
    assert report.kept.startswith("in this engine only, as it cannot be kept (FileExistsError: ")
    assert report.kept.endswith("; tune --forget undoes it")
    assert forget(engine).startswith(
        "The tuning is forgotten: the engine chooses the depth itself, until the next load: "
        "it cannot be removed (NotADirectoryError: "
    )
    assert engine.default_depth is None


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"max_depth": 0}, "max_depth must be a whole number from 1 to 16, not 0"),
        ({"max_depth": "x"}, "max_depth must be a whole number from 1 to 16, not 'x'"),
        ({"max_tokens": 17}, "max_tokens must be a whole number at least 18, not 17"),
        ({"prompts": True}, "prompts must be a whole number from 1 to 8, not True"),
    ],
)
def test_bad_options_are_refused(engine: Engine, option: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest, match=f"^{re.escape(message)}$"):
        tune(engine, **option)


def test_answers_that_do_not_fit_are_refused(engine: Engine) -> None:
    with pytest.raises(
        InvalidRequest, match=r"^max_tokens must be at most 17\d\d, what tiny-llama"
    ):
        tune(engine, max_tokens=1990)


def test_the_fastest_wins_and_the_adaptive_one_of_near_equals() -> None:
    assert best_of(ROWS, 1.02) == Setting("mtp", 2)
    assert best_of([*ROWS[:3], row(OWN, 1.77)], 1.02) == OWN
    assert best_of([row(AR, 1.0), row(Setting("mtp", 1), 0.8), row(OWN, 0.97)], 1.02) == AR
    assert best_of([row(AR, 1.0), row(Setting("mtp", 1), 0.8), row(OWN, 0.99)], 1.02) == OWN


def test_a_row_is_of_medians_and_the_worst_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    def runs(speeds: Sequence[Sequence[float]], drafted: int) -> list[list[Run]]:
        return [[Run(s, 2.0, drafted, 3, (1, 2)) for s in of] for of in speeds]

    two = Setting("mtp", 2)
    found = tuning._row(
        two,
        {AR: runs([[10, 10, 10], [20, 20, 10]], 0), two: runs([[30, 20, 25], [20, 22, 12]], 4)},
    )
    # Ratios 3, 2, 2.5 on the first prompt and 1, 1.1, 1.2 on the second.
    assert found.tok_s == 21.0
    assert found.ratio == pytest.approx(1.6)
    assert found.worst == pytest.approx(1.1)
    assert (found.tokens_per_cycle, found.drafted, found.accepted) == (2.0, 24, 18)


def test_the_page_says_all_of_it() -> None:
    assert str(REPORT) == (
        "best: mtp, depth 2, 1.80 x ar (36.0 tokens a second)\n"
        "Model:        a <model>\n"
        "Arithmetic:   float32\n"
        "Answers:      12 of 12 equal to those of mode ar\n"
        "In force:     from now on\n"
        "Took:         60 s\n"
        "\n"
        "Decoding, medians over prompts and rounds:\n"
        "SETTING        TOKENS/S  TO AR  WORST PROMPT  TOKENS/CYCLE  ACCEPTED\n"
        "ar             20.0      1.00   1.00          2.00\n"
        "mtp, depth 1   30.0      1.50   1.40          2.50          75% of 40\n"
        "mtp, depth 2   36.0      1.80   1.70          2.80          75% of 40  best\n"
        "mtp, adaptive  34.0      1.70   1.60          2.70          75% of 40"
    )
    assert replace(REPORT, best=AR).verdict == (
        "best: ar (20.0 tokens a second); drafts do not pay here"
    )


def test_the_picture_is_a_png_with_its_description() -> None:
    drawn = REPORT._repr_png_()
    assert drawn is not None
    assert drawn.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", drawn[16:24])
    assert (width, height) == (840, 304)
    page = REPORT._repr_html_()
    assert page.count("<img ") == 1
    assert (
        'alt="Bar chart of a &lt;model&gt;, times the speed of mode ar. ar: 1.00; '
        "mtp, depth 1: 1.50; mtp, depth 2: 1.80; mtp, adaptive: 1.70. best: mtp, depth 2, 1.80 x ar"
    ) in page
    assert "<model>" not in page


def test_the_best_bar_stands_out(monkeypatch: pytest.MonkeyPatch) -> None:
    from matplotlib.colors import to_rgb
    from matplotlib.figure import Figure

    figures: list[Figure] = []
    save = Figure.savefig

    def saved(self: Figure, *args: Any, **options: Any) -> None:
        figures.append(self)
        save(self, *args, **options)

    monkeypatch.setattr(Figure, "savefig", saved)
    picture.picture.cache_clear()
    REPORT._repr_png_()
    (axes,) = figures[0].axes
    assert [bar.get_width() for bar in axes.patches] == [1.0, 1.5, 1.8, 1.7]
    colours = [bar.get_facecolor()[:3] for bar in axes.patches]
    assert colours[2] == to_rgb(picture.BEST)
    assert {colours[0], colours[1], colours[3]} == {to_rgb(picture.BAR)}
    labels = {text.get_text() for text in axes.texts}
    assert "1.80 (36.0 tokens/s), best" in labels
    # One ground, dark ink on it: readable whatever the theme around it.
    assert figures[0].get_facecolor()[:3] == to_rgb(picture.GROUND)
    assert contrast(picture.INK, picture.GROUND) > 12


def contrast(first: str, second: str) -> float:
    """The contrast ratio of WCAG 2."""
    from matplotlib.colors import to_rgb

    def luminance(colour: str) -> float:
        parts = [
            c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(colour)
        ]
        return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]

    low, high = sorted([luminance(first), luminance(second)])
    return (high + 0.05) / (low + 0.05)


def test_without_matplotlib_there_is_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tune_report, "picture", lambda *rows: None)
    assert REPORT._repr_png_() is None
    assert "<img" not in REPORT._repr_html_()
    assert "mtp, depth 2" in REPORT._repr_html_()


def test_the_prompts_are_of_different_kinds() -> None:
    assert len({prompt.domain for prompt in PROMPTS}) == len(PROMPTS) == 8
    assert len({prompt.name for prompt in PROMPTS}) == 8
