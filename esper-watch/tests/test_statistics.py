"""Statistics on scipy: what is added to it, and that verdicts without pairs are rarely wrong."""

import math

import numpy as np
import pytest
from scipy import stats

from esper_run.runs.statistics import decide
from esper_watch.statistics import mann_whitney, unpaired_comparison, welch_interval

LEVEL = 0.95
A = [0.61, 0.58, 0.66, 0.55, 0.63, 0.6, 0.64, 0.62]
B = [0.51, 0.5, 0.49, 0.55, 0.52, 0.47, 0.53, 0.5, 0.48, 0.54]


def compare(a, b, *, direction="up"):
    return unpaired_comparison(a, b, direction=direction)


@pytest.mark.parametrize("call", [mann_whitney, lambda a, b: welch_interval(a, b, LEVEL)])
@pytest.mark.parametrize(("a", "b"), [([math.nan, 1.0], [1.0, 2.0]), ([1.0, 2.0], [math.inf, 1.0])])
def test_figures_that_are_not_finite_are_refused(call, a, b):
    with pytest.raises(ValueError, match="Received"):
        call(a, b)


def test_the_welch_interval_equals_scipys():
    expected = stats.ttest_ind(A, B, equal_var=False).confidence_interval(LEVEL)
    interval = welch_interval(A, B, LEVEL)
    assert (interval.low, interval.high, interval.n) == (pytest.approx(expected.low), pytest.approx(expected.high), 8)
    assert welch_interval([1.0] * 8, [0.5] * 8, LEVEL).low == 0.5
    assert welch_interval([1.0], [0.5, 0.6], LEVEL).low is None


def test_an_unpaired_comparison_has_welchs_interval_and_the_mann_whitney_p():
    comparison = compare(A, B)
    assert comparison.verdict == "better"
    assert (comparison.paired, comparison.n) == (False, 8)
    assert comparison.p == mann_whitney(A, B) == stats.mannwhitneyu(A, B).pvalue
    spread = np.sqrt((np.var(A, ddof=1) + np.var(B, ddof=1)) / 2)
    assert comparison.effect_size == pytest.approx((np.mean(A) - np.mean(B)) / spread)
    assert compare([1.0] * 8, [0.5] * 8).effect_size is None
    assert compare(A[:7], B).why == "too few seeds"


def test_swapping_the_direction_or_the_sides_swaps_the_verdict():
    up = compare(A, B)
    for other in (compare(A, B, direction="down"), compare(B, A)):
        assert (other.difference, other.low) == (pytest.approx(-up.difference), pytest.approx(-up.high))
        assert other.p == up.p
        assert (up.verdict, other.verdict) == ("better", "worse")


def test_at_most_one_in_twenty_comparisons_of_equal_arms_gets_a_verdict():
    verdicts = []
    for a, b in np.random.RandomState(0).normal(size=(300, 2, 8)).tolist():
        verdict, _ = decide(welch_interval(a, b, LEVEL), mann_whitney(a, b))
        verdicts.append(verdict)
    assert 0.01 <= 1 - verdicts.count("no difference shown") / 300 <= 0.075
