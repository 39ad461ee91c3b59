"""Statistics on scipy: what is added to it, and that verdicts without pairs are rarely wrong."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from scipy import stats

from esper_run.runs.statistics import decide
from esper_watch.statistics import MAX_BOOTSTRAP, bootstrap_interval, mann_whitney, unpaired_comparison, welch_interval

LEVEL = 0.95
A = [0.61, 0.58, 0.66, 0.55, 0.63, 0.6, 0.64, 0.62]
B = [0.51, 0.5, 0.49, 0.55, 0.52, 0.47, 0.53, 0.5, 0.48, 0.54]

few = st.lists(st.sampled_from([-1.0, 0.0, 0.25, 0.5, 2.0]), min_size=1, max_size=5)
numbers = st.floats(-1e3, 1e3, allow_nan=False)


def compare(a, b, *, direction="up", margin=0.0):
    return unpaired_comparison(a, b, direction=direction, margin=margin)


@settings(max_examples=60)
@given(few, few)
def test_u_and_cliffs_delta_count_every_pair(a, b):
    ahead = sum((x > y) + 0.5 * (x == y) for x, y in itertools.product(a, b))
    ranks = mann_whitney(a, b)
    assert ranks.u == ahead
    assert ranks.cliffs_delta == pytest.approx(2 * ahead / (len(a) * len(b)) - 1)
    assert 0 < ranks.p <= 1


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


@settings(max_examples=25, deadline=None)
@given(st.lists(numbers, min_size=2, max_size=10))
def test_a_bootstrap_interval_lies_between_the_extremes_and_grows_with_its_level(values):
    low, high = bootstrap_interval(values, LEVEL)
    slack = 1e-9 * (1 + max(map(abs, values)))
    assert min(values) - slack <= low <= high <= max(values) + slack
    narrow = bootstrap_interval(values, 0.5)
    assert low - slack <= narrow[0] <= narrow[1] <= high + slack


def test_a_bootstrap_interval_is_reproducible_and_leaves_the_global_generator_alone():
    values = np.random.RandomState(0).normal(0, 1, 8).tolist()
    first = bootstrap_interval(values, LEVEL)
    np.random.seed(1)
    state = np.random.get_state()[1].tolist()
    assert bootstrap_interval(values, LEVEL) == first
    assert np.random.get_state()[1].tolist() == state
    assert bootstrap_interval([value + 5 for value in values], LEVEL) == pytest.approx(
        (first[0] + 5, first[1] + 5), abs=1e-9
    )


def test_one_value_has_no_bootstrap_interval_and_equal_values_one_without_width():
    assert bootstrap_interval([1.0], LEVEL) is None
    assert bootstrap_interval([0.1] * 7, LEVEL) == (0.1, 0.1)
    assert bootstrap_interval([0.0, 1.0] * (MAX_BOOTSTRAP // 2) + [0.0], LEVEL) is None


def test_an_unpaired_comparison_has_welchs_interval_and_the_mann_whitney_p():
    comparison = compare(A, B)
    assert comparison.verdict == "better"
    assert (comparison.paired, comparison.n) == (False, 8)
    assert comparison.p == comparison.p_margin == mann_whitney(A, B).p
    spread = np.sqrt((np.var(A, ddof=1) + np.var(B, ddof=1)) / 2)
    assert comparison.effect_size == pytest.approx((np.mean(A) - np.mean(B)) / spread)
    assert compare([1.0] * 8, [0.5] * 8).effect_size is None
    assert compare(A[:7], B).why == "too few seeds"


def test_swapping_the_direction_or_the_sides_swaps_the_verdict():
    up = compare(A, B, margin=0.02)
    for other in (compare(A, B, direction="down", margin=0.02), compare(B, A, margin=0.02)):
        assert (other.difference, other.low) == (pytest.approx(-up.difference), pytest.approx(-up.high))
        assert (other.p, other.p_margin) == (up.p, up.p_margin)
        assert (up.verdict, other.verdict) == ("better", "worse")


def test_the_margin_counts_for_interval_and_p():
    assert compare(A, B, margin=0.2).p_margin == 1.0
    comparison = compare(A, B, margin=0.05)
    assert comparison.p_margin == mann_whitney([value - 0.05 for value in A], B).p > comparison.p
    assert compare(A, B, margin=0.09).verdict == "no difference shown"


def test_at_most_one_in_twenty_comparisons_of_equal_arms_gets_a_verdict():
    verdicts = []
    for a, b in np.random.RandomState(0).normal(size=(300, 2, 8)).tolist():
        verdict, _ = decide(welch_interval(a, b, LEVEL), mann_whitney(a, b).p, margin=0.0)
        verdicts.append(verdict)
    assert 0.01 <= 1 - verdicts.count("no difference shown") / 300 <= 0.075
