"""The chi-square test against scipy, and against draws whose law is known."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from scipy import stats

from mtplx_kernel.checks.chi_square import fit, survival


@pytest.mark.parametrize("freedom", [1, 2, 5, 30, 200])
@pytest.mark.parametrize("share", [0.0, 0.01, 0.3, 0.9, 1.0, 1.2, 2.0, 5.0])
def test_survival_is_scipys(freedom: int, share: float) -> None:
    x = share * freedom
    assert survival(x, freedom) == pytest.approx(stats.chi2.sf(x, freedom), rel=1e-9, abs=1e-14)


def test_the_statistic_is_pearsons() -> None:
    found = fit({0: 18, 1: 55, 2: 27}, {0: 0.25, 1: 0.5, 2: 0.25})
    expected = stats.chisquare([18, 55, 27], [25, 50, 25])
    assert (found.statistic, found.freedom) == (pytest.approx(expected.statistic), 2)
    assert found.p_value == pytest.approx(expected.pvalue)


def test_rare_outcomes_are_put_together() -> None:
    law = {0: 0.5, 1: 0.4, **dict.fromkeys(range(2, 12), 0.01)}
    found = fit({0: 50, 1: 38, 5: 7, 9: 5}, law)
    expected = stats.chisquare([50, 38, 12], [50, 40, 10])
    assert (found.statistic, found.freedom) == (pytest.approx(expected.statistic), 2)
    # A rest that is too rare even together joins the rarest of the others.
    found = fit({0: 60, 1: 38, 2: 2}, {0: 0.6, 1: 0.39, 2: 0.01})
    assert (found.statistic, found.freedom) == (pytest.approx(0.0), 1)


def test_a_law_with_one_outcome_tests_nothing() -> None:
    assert fit({3: 40}, {3: 1.0}).p_value == 1.0
    assert fit({3: 2, 4: 1}, {3: 0.5, 4: 0.5}).freedom == 0


def test_an_impossible_outcome_fits_no_law() -> None:
    assert fit({0: 99, 7: 1}, {0: 1.0, 7: 0.0}).p_value == 0.0
    assert fit({0: 99, 8: 1}, {0: 1.0}).p_value == 0.0


def test_draws_from_the_law_fit_and_others_do_not() -> None:
    law = {0: 0.5, 1: 0.3, 2: 0.2}
    values = [
        fit(Counter(random.Random(n).choices(list(law), law.values(), k=200)), law).p_value
        for n in range(200)
    ]
    # The chance of a value is itself, so that half of them are below a half.
    assert 70 <= sum(value < 0.5 for value in values) <= 130
    assert min(values) > 1e-4
    drawn = Counter(random.Random(0).choices([0, 1, 2], [0.3, 0.5, 0.2], k=200))
    assert fit(drawn, law).p_value < 1e-6
