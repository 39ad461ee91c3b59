"""Are bootstrap intervals as wide as they say, and the same each time?"""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from esper_core.runs import resampling
from esper_core.runs.resampling import BOOTSTRAP_UP_TO, RESAMPLES, bootstrap_interval

numbers = st.floats(-1e3, 1e3, allow_nan=False)


def slowly(values, confidence):
    """The same by the book: one sample after the other, and the percentile by its formula."""
    stats = pytest.importorskip("scipy.stats")
    n = len(values)
    draw = np.random.RandomState(resampling._SEED)
    means = sorted(math.fsum(values[draw.randint(0, n)] for _ in range(n)) / n for _ in range(RESAMPLES))
    outside = stats.norm.cdf(stats.t.ppf((1 - confidence) / 2, n - 1) * math.sqrt(n / (n - 1)))
    place = max(1, round(outside * (RESAMPLES + 1)))
    return means[place - 1], means[RESAMPLES - place]


def test_it_equals_drawing_one_value_after_the_other():
    values = [0.3, -0.1, 0.9, 0.45, -0.73, 0.11]
    assert bootstrap_interval(values, 0.95) == pytest.approx(slowly(values, 0.95), abs=1e-12)


@settings(max_examples=25)
@given(st.lists(numbers, min_size=2, max_size=10))
def test_it_lies_between_the_extremes_and_holds_the_middle_of_the_draws(values):
    low, high = bootstrap_interval(values, 0.95)
    slack = 1e-9 * (1 + max(map(abs, values)))
    assert min(values) - slack <= low <= high <= max(values) + slack
    narrow = bootstrap_interval(values, 0.5)
    assert low <= narrow[0] <= narrow[1] <= high


def test_it_is_the_same_each_time_and_moves_with_the_values():
    values = np.random.RandomState(0).normal(0, 1, 8).tolist()
    first = bootstrap_interval(values, 0.95)
    np.random.seed(1)  # nobody's generator is touched, and none is used
    state = np.random.get_state()[1].tolist()
    assert bootstrap_interval(values, 0.95) == first
    assert np.random.get_state()[1].tolist() == state
    moved = bootstrap_interval([value + 5 for value in values], 0.95)
    assert moved == pytest.approx((first[0] + 5, first[1] + 5), abs=1e-9)


def test_in_pieces_it_is_the_same(monkeypatch):
    values = [0.53, 0.1, -0.3, 0.27, 0.9, -0.61]
    whole = bootstrap_interval(values, 0.95)
    monkeypatch.setattr(resampling, "_DRAWS_AT_ONCE", 1000)
    assert bootstrap_interval(values, 0.95) == whole


def test_one_value_has_none_equal_values_have_no_width_and_very_many_need_none():
    assert bootstrap_interval([1.0], 0.95) is None
    assert bootstrap_interval([0.1] * 7, 0.95) == (0.1, 0.1)
    assert bootstrap_interval([0.0, 1.0] * (BOOTSTRAP_UP_TO // 2), 0.95) is not None
    assert bootstrap_interval([0.0, 1.0] * (BOOTSTRAP_UP_TO // 2) + [0.0], 0.95) is None
    with pytest.raises(ValueError, match=r"Received: \[nan"):
        bootstrap_interval([math.nan, 1.0], 0.95)


def covered(draw, truth, n, repeats):
    rows = draw((repeats, n)).tolist()
    return np.mean([low <= truth <= high for low, high in (bootstrap_interval(row, 0.95) for row in rows)])


def test_nineteen_of_twenty_hold_the_truth_at_eight_values():
    assert covered(np.random.RandomState(0).standard_normal, 0.0, 8, 300) == pytest.approx(0.95, abs=0.03)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "n", "least"),
    [
        ("normal", 8, 0.93), ("normal", 20, 0.94),
        ("exponential", 8, 0.88), ("exponential", 20, 0.92),
        ("heavy", 8, 0.92), ("heavy", 20, 0.935),
    ],
)  # fmt: skip
def test_coverage_for_skewed_and_heavy_tails(kind, n, least):
    random = np.random.RandomState(n)
    draw, truth = {
        "normal": (random.standard_normal, 0.0),
        "exponential": (random.standard_exponential, 1.0),
        "heavy": (lambda size: random.standard_t(3, size=size), 0.0),
    }[kind]
    assert least <= covered(draw, truth, n, 2000) <= 0.97
