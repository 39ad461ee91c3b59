"""Are two arms without common seeds compared as two samples that are no pairs?"""

from __future__ import annotations

import numpy as np
import pytest

from esper_core.runs.ranks import mann_whitney
from esper_core.runs.statistics import decided
from esper_core.runs.unpaired import unpaired_comparison, welch_interval

LEVEL = 0.95
A = [0.61, 0.58, 0.66, 0.55, 0.63, 0.6, 0.64, 0.62]
B = [0.51, 0.5, 0.49, 0.55, 0.52, 0.47, 0.53, 0.5, 0.48, 0.54]


def compare(a, b, *, direction="up", margin=0.0):
    return unpaired_comparison(a, b, direction=direction, margin=margin, confidence=LEVEL)


def test_the_interval_equals_scipys():
    stats = pytest.importorskip("scipy.stats")
    theirs = stats.ttest_ind(A, B, equal_var=False).confidence_interval(LEVEL)
    found = welch_interval(A, B, LEVEL)
    assert (found.low, found.high, found.n) == (pytest.approx(theirs.low), pytest.approx(theirs.high), 8)


def test_it_is_told_as_what_it_is():
    found = compare(A, B)
    assert found.verdict == "better"
    assert (found.paired, found.n, found.boot_low) == (False, 8, None)
    assert found.p == found.p_margin == found.ranks.p == mann_whitney(A, B).p
    spread = np.sqrt((np.var(A, ddof=1) + np.var(B, ddof=1)) / 2)
    assert found.effect_size == pytest.approx((np.mean(A) - np.mean(B)) / spread)


def test_turning_the_direction_or_swapping_the_sides_turns_everything():
    up = compare(A, B, margin=0.02)
    for other in (compare(A, B, direction="down", margin=0.02), compare(B, A, margin=0.02)):
        assert (other.difference, other.low) == (pytest.approx(-up.difference), pytest.approx(-up.high))
        assert (other.p, other.p_margin) == (up.p, up.p_margin)
        assert (up.verdict, other.verdict) == ("better", "worse")


def test_the_margin_counts_for_interval_and_p():
    assert compare(A, B, margin=0.2).p_margin == 1.0
    found = compare(A, B, margin=0.05)
    assert found.p_margin == mann_whitney([value - 0.05 for value in A], B).p > found.p
    assert compare(A, B, margin=0.09).verdict == "no difference shown"


def test_seven_of_one_arm_are_too_few_however_many_the_other_has():
    assert compare(A[:7], B).why == "too few seeds"


def test_a_spread_of_nothing_is_none():
    found = compare([1.0] * 8, [0.5] * 8)
    assert (found.low, found.high, found.effect_size, found.verdict) == (0.5, 0.5, None, "better")
    assert (compare([1.0], [0.5]).low, compare([1.0], [0.5]).verdict) == (None, "no difference shown")


def wrong(draw, n, m, repeats):
    found = 0
    for _ in range(repeats):
        a, b = draw(n), draw(m)
        interval = welch_interval(a, b, LEVEL)
        found += decided(interval, mann_whitney(a, b).p, margin=0.0, confidence=LEVEL)[0] != "no difference shown"
    return found / repeats


def test_without_a_difference_one_verdict_of_twenty_is_wrong_at_most():
    random = np.random.RandomState(0)
    assert 0.01 <= wrong(lambda n: random.normal(size=n).tolist(), 8, 8, 300) <= 0.075


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["standard_normal", "standard_exponential", "standard_cauchy"])
@pytest.mark.parametrize(("n", "m"), [(8, 8), (8, 20), (20, 20)])
def test_false_positives_stay_rare(kind, n, m):
    random = np.random.RandomState(n + m)
    assert wrong(lambda size: getattr(random, kind)(size).tolist(), n, m, 2000) <= 0.06
