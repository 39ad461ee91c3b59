"""Does the Mann-Whitney test count what it says it counts, with ties too?"""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from esper_core.runs.ranks import EXACT_UP_TO, mann_whitney

few = st.lists(st.sampled_from([-1.0, 0.0, 0.25, 0.5, 2.0]), min_size=1, max_size=5)


def ahead(a, b):
    """Pairs that a wins, one by one."""
    return sum((x > y) + 0.5 * (x == y) for x, y in itertools.product(a, b))


@settings(max_examples=60)
@given(few, few)
def test_u_and_p_equal_counting_every_pair_and_every_deal(a, b):
    everything, places = [*a, *b], range(len(a) + len(b))
    middle = len(a) * len(b) / 2
    observed = abs(ahead(a, b) - middle)
    deals = [
        abs(ahead([everything[i] for i in own], [everything[i] for i in places if i not in own]) - middle)
        for own in itertools.combinations(places, len(a))
    ]
    found = mann_whitney(a, b)
    assert found.u == ahead(a, b)
    assert found.p == pytest.approx(sum(one >= observed for one in deals) / len(deals), abs=1e-12)
    assert found.cliffs_delta == pytest.approx((ahead(a, b) - ahead(b, a)) / (len(a) * len(b)), abs=1e-12)


@pytest.mark.parametrize(("n", "m"), [(1, 1), (3, 4), (8, 8), (5, 20), (20, 20), (8, 50)])
def test_an_exact_p_equals_scipys(n, m):
    stats = pytest.importorskip("scipy.stats")
    draw = np.random.RandomState(n * m)
    a, b = draw.normal(0.5, 1, n), draw.normal(0, 1, m)
    theirs = stats.mannwhitneyu(a, b, method="exact")
    found = mann_whitney(a.tolist(), b.tolist())
    assert (found.u, found.p) == (theirs.statistic, pytest.approx(theirs.pvalue, rel=1e-9))


@pytest.mark.parametrize("digits", [0, 1, 9])
def test_a_normal_p_equals_scipys_with_ties_and_without(digits):
    stats = pytest.importorskip("scipy.stats")
    draw = np.random.RandomState(7)
    a, b = draw.normal(0.3, 1, 30).round(digits), draw.normal(0, 1, 25).round(digits)
    theirs = stats.mannwhitneyu(a, b, method="asymptotic")
    found = mann_whitney(a.tolist(), b.tolist())
    assert (found.u, found.p) == (theirs.statistic, pytest.approx(theirs.pvalue, rel=1e-9))


def test_known_values():
    # Hollander and Wolfe's table: of 5 against 5 the least p is 2 / 252.
    assert mann_whitney([6.0, 7.0, 8.0, 9.0, 10.0], [1.0, 2.0, 3.0, 4.0, 5.0]).p == 2 / 252
    assert mann_whitney([1.0] * 30, [1.0] * 30).p == 1.0
    assert mann_whitney([1.0] * 8, [1.0] * 8).p == 1.0


def test_where_counting_ends_the_normal_distribution_is_close_to_it():
    draw = np.random.RandomState(0)
    a, b = draw.normal(0.6, 1, 20).round(1).tolist(), draw.normal(0, 1, 21).round(1).tolist()
    assert len(a) * len(b) > EXACT_UP_TO
    counted = mann_whitney(a, b[:-1]).p
    assert mann_whitney(a, [*b[:-1], b[-1]]).p == pytest.approx(counted, abs=0.02)


def test_only_the_order_counts():
    a, b = [0.1, 0.4, 0.9, 3.0], [0.2, 0.3, 0.5]
    assert mann_whitney([math.exp(x) for x in a], [math.exp(x) for x in b]) == mann_whitney(a, b)
    turned = mann_whitney(b, a)
    assert (turned.p, turned.cliffs_delta) == (mann_whitney(a, b).p, pytest.approx(-mann_whitney(a, b).cliffs_delta))


def test_without_a_difference_one_p_of_twenty_is_small_at_most():
    draw = np.random.RandomState(4)
    for sample in (draw.normal, draw.standard_cauchy, lambda size: draw.lognormal(size=size).round(1)):
        ps = [mann_whitney(sample(size=8).tolist(), sample(size=8).tolist()).p for _ in range(250)]
        assert np.mean([p <= 0.05 for p in ps]) <= 0.08


@pytest.mark.parametrize(("a", "b"), [([], [1.0]), ([1.0], []), ([math.nan], [1.0]), ([1.0], [math.inf])])
def test_what_has_no_rank_is_refused(a, b):
    with pytest.raises(ValueError, match="Received"):
        mann_whitney(a, b)
