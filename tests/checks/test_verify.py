"""%mtplx verify on real engines: exact ones pass, broken ones fail, a near tie is named."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import mlx.core as mx
import pytest

from mtplx_kernel.checks import comparing, margins
from mtplx_kernel.checks.comparing import Result
from mtplx_kernel.checks.verify import verify
from mtplx_kernel.decoding import flight
from mtplx_kernel.decoding.flight import Flight, Verdict
from mtplx_kernel.engine.engine import Engine
from mtplx_kernel.errors import InvalidRequest
from tests.checks.conftest import TWINS

SMALL: dict[str, Any] = {"prompts": 2, "max_tokens": 12, "draws": 20}
Change = Callable[[Verdict], Verdict]


@contextmanager
def changed_verdicts(change: Change) -> Iterator[None]:
    """Change what is read of every cycle that has drafts: those of mode mtp."""
    read = Flight.read

    def changed(self: Flight) -> list[Verdict]:
        return [change(v) if v.drafts else v for v in read(self)]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Flight, "read", changed)
        yield


def test_what_is_exact_is_verified(engine: Engine) -> None:
    report = verify(engine, **SMALL)
    assert report.passed
    assert report.verdict == (
        "verified: 4 of 4 answers equal in modes ar and mtp, 8 of 8 answers under hyper as under "
        "serial, 3 of 3 sampling laws hold"
    )
    assert [(row.prompt, row.sampling.name, row.depth) for row in report.rows] == [
        ("chat-rain", "greedy", 4),
        ("chat-rain", "T = 0.8, seed 1", None),
        ("code-words", "greedy", 4),
        ("code-words", "T = 0.8, seed 2", None),
    ]
    # Every cycle drafted; the tiny model's text is no repetition, so most drafts were wrong.
    assert all(row.drafted >= 12 > row.accepted for row in report.rows)
    assert all(row.tokens == 12 for row in report.rows if row.sampling.temperature == 0)
    assert [law.acceptance for law in report.laws] == ["coupled", "rejection", "block"]
    assert all(law.draws == law.drafted == 20 for law in report.laws)
    assert [law.equal for law in report.laws] == [20, None, None]


def test_options_are_used(engine: Engine) -> None:
    report = verify(engine, prompts=1, max_tokens=5, depth=1, temperature=0)
    (row,) = report.rows
    assert (row.sampling.name, row.depth, row.tokens) == ("greedy", 1, 5)
    assert row.drafted <= 5
    assert report.laws == ()
    report = verify(engine, prompts=1, max_tokens=2, temperature=1.5, draws=0)
    assert [row.sampling.temperature for row in report.rows] == [0, 1.5]
    assert report.laws == ()


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"prompts": 9}, "prompts must be a whole number from 1 to 8, not 9"),
        ({"prompts": "x"}, "prompts must be a whole number from 1 to 8, not 'x'"),
        ({"max_tokens": 0}, "max_tokens must be a whole number at least 1, not 0"),
        ({"draws": -1}, "draws must be a whole number at least 0, not -1"),
        ({"depth": 99}, "depth must be a whole number from 0 to 16, not 99"),
        ({"temperature": -1.0}, "temperature must be a number from 0 to 100, not -1.0"),
    ],
)
def test_bad_options_are_refused(engine: Engine, option: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest, match=f"^{re.escape(message)}$"):
        verify(engine, **option)


def test_a_model_that_cannot_draft_is_refused(engine: Engine) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Engine, "mode_reason", property(lambda self: "it runs in mode ar only"))
        with pytest.raises(InvalidRequest, match="no drafts to verify: it runs in mode ar only"):
            verify(engine)


def test_a_wrong_token_fails(engine: Engine) -> None:
    def other(verdict: Verdict) -> Verdict:
        *kept, last = verdict.tokens
        return replace(verdict, tokens=[*kept, (last + 1) % 250])

    with changed_verdicts(other):
        report = verify(engine, **SMALL)
    assert not report.passed
    assert report.verdict.startswith("FAILED: 4 of 4 comparisons failed and the sampling law of ")
    for row in report.rows:
        assert row.result is Result.FAILED
        assert row.divergence is not None
        assert row.divergence.position == 0
        assert row.divergence.margin > 0.0 == row.divergence.tolerance
    text = str(report)
    assert text.startswith("FAILED: ")
    assert "Divergence:   chat-rain, greedy: token 0: ar " in text
    # What fails everywhere fails in the same way under hyper.
    assert all(row.comparison.result is Result.EQUAL for row in report.hyper.rows)
    coupled = report.laws[0]
    assert (coupled.equal, coupled.unexplained, coupled.result) == (0, 20, Result.FAILED)


def test_drafts_that_are_always_accepted_fail(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def accept_all(rule: str, shaped: mx.array, drafts: mx.array, *rest: Any) -> Any:
        return mx.array(len(drafts)), mx.array(3)

    monkeypatch.setattr(flight, "_agreement", lambda drafts, targets: len(drafts))
    monkeypatch.setattr(flight, "verify", accept_all)
    report = verify(engine, **SMALL)
    assert [row.result for row in report.rows] == [Result.FAILED] * 4
    assert [law.result for law in report.laws] == [Result.FAILED] * 3
    assert "the sampling law of coupled, rejection, block does not hold" in report.verdict


def test_a_text_that_ends_too_early_fails(engine: Engine) -> None:
    end = next(iter(engine.facts.end_ids))

    def ended(verdict: Verdict) -> Verdict:
        return replace(verdict, tokens=[*verdict.tokens[:-1], end])

    with changed_verdicts(ended):
        report = verify(engine, prompts=1, max_tokens=6, temperature=0)
    (row,) = report.rows
    assert row.divergence is not None
    assert (row.divergence.found, row.result) == ("(end)", Result.FAILED)
    assert 0 < row.divergence.margin < float("inf")


@pytest.mark.parametrize(
    ("factor", "rounding", "result"),
    [
        # An exact tie is one on any arithmetic.
        (1.0, 0.0, Result.NEAR_TIE),
        (1 - 1e-5, 2e-3, Result.NEAR_TIE),
        (1 - 1e-5, 0.0, Result.FAILED),
        (0.9, 2e-3, Result.FAILED),
    ],
)
def test_a_near_tie_is_told_from_a_mistake(
    twins: Callable[[float], Engine],
    monkeypatch: pytest.MonkeyPatch,
    factor: float,
    rounding: float,
    result: Result,
) -> None:
    def flipped(verdict: Verdict) -> Verdict:
        swap = {TWINS[0]: TWINS[1], TWINS[1]: TWINS[0]}
        return replace(verdict, tokens=[swap.get(t, t) for t in verdict.tokens])

    engine = twins(factor)
    monkeypatch.setattr(margins, "tolerance", lambda *facts: rounding)
    with changed_verdicts(flipped):
        report = verify(engine, prompts=1, max_tokens=24, temperature=0)
    (row,) = report.rows
    assert row.result is result
    parting = row.divergence
    assert parting is not None
    assert {parting.expected, parting.found} == {engine.tokenizer.decode([t]) for t in TWINS}
    ar = engine.generate(CHAT, mode="ar", max_tokens=24).token_ids
    before = [*_ids(engine, CHAT), *ar[: parting.position]]
    (_, best), (_, second) = engine.inspect(before, top=2)
    assert parting.margin == pytest.approx(best - second, abs=1e-6)
    assert report.passed is (result is Result.NEAR_TIE)
    if report.passed:
        assert report.verdict == (
            "verified: 0 of 1 answers equal in modes ar and mtp, 1 part at a near tie, "
            "2 of 2 answers under hyper as under serial"
        )
        assert f"margin {parting.margin:.2g} <= {rounding:g}" in " ".join(str(report).split())


def test_a_sampled_near_tie_counts_the_noise(
    twins: Callable[[float], Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With noise in between, equal logits are no tie: the margin is that of the draw."""

    def flipped(verdict: Verdict) -> Verdict:
        swap = {TWINS[0]: TWINS[1], TWINS[1]: TWINS[0]}
        return replace(verdict, tokens=[swap.get(t, t) for t in verdict.tokens])

    engine = twins(1.0)
    with changed_verdicts(flipped):
        report = verify(engine, prompts=1, max_tokens=24, temperature=0.1, draws=0)
    greedy, sampled = report.rows
    assert greedy.result is Result.NEAR_TIE
    assert sampled.result is Result.FAILED
    assert sampled.divergence is not None
    assert sampled.divergence.margin > 1e-3


def test_a_request_that_fails_is_a_failure_with_its_cause(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: Flight) -> list[Verdict]:
        raise ValueError("a broken verify")

    monkeypatch.setattr(Flight, "read", broken)
    report = verify(engine, prompts=1, draws=2)
    assert report.verdict == (
        "FAILED: 2 of 2 comparisons failed and the sampling law of coupled, rejection, block does "
        "not hold"
    )
    text = " ".join(str(report).split())
    cause = "the forward failed: ValueError: a broken verify"
    assert f"Problem: chat-rain, greedy: {cause} " in text
    assert f"Problem: acceptance block: {cause} " in text
    assert "Hyper parity: not checked: there is no answer to hold it against" in text


def test_without_a_draft_the_verdict_says_so(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = verify(engine, prompts=1, max_tokens=3, depth=0, temperature=0)
    assert report.verdict == (
        "verified: 1 of 1 answers equal in modes ar and mtp, 2 of 2 answers under hyper as under "
        "serial, but nothing was drafted"
    )
    assert report.hyper.left_out == "no forks: the request drafts nothing"


def test_draws_that_are_too_few_for_the_law_are_not_said_to_follow_it(engine: Engine) -> None:
    report = verify(engine, prompts=1, max_tokens=3, draws=4)
    assert report.passed
    assert report.verdict.endswith(
        "under hyper as under serial, 3 sampling laws not tested, for too few draws"
    )
    assert [law.fit.freedom for law in report.laws] == [0, 0, 0]
    assert "too few draws" in str(report)


def test_the_page_in_html_has_the_same_cells_and_no_markup_of_its_own(engine: Engine) -> None:
    report = verify(engine, prompts=1, max_tokens=3, draws=20)
    broken = replace(report, model="<b>&", rows=(replace(report.rows[0], problem="<i>"),))
    page = broken._repr_html_()
    cells: list[str] = []
    tags: set[str] = set()

    class Reader(HTMLParser):
        def handle_starttag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
            tags.add(tag)

        def handle_data(self, data: str) -> None:
            cells.append(data)

    Reader().feed(page)
    assert cells[0] == broken.verdict
    assert "Model: <b>&" in cells
    assert "Problem: chat-rain, greedy: <i>" in cells
    assert {"chat-rain", "greedy", "coupled", "holds", "not promised"} <= set(cells)
    assert not {"b", "i"} & tags
    assert "Hyper parity: 2 answers alone, 2 with forks of 2 rows (none forked)" in cells
    assert "Answers under hyper against those under serial" in cells


def test_noise_of_a_margin_is_that_of_the_draw() -> None:
    from mtplx_kernel.decoding.sampling import noise

    assert comparing.noise_of(7, 3, 20) == noise(7, 3, 20).tolist()


CHAT = "It has rained all week and my children are bored. What could we do at home today?"


def _ids(engine: Engine, text: str) -> tuple[int, ...]:
    from mtplx_kernel.engine.prompts import PromptEncoder

    return PromptEncoder(engine.tokenizer, engine.facts).encode(text)
