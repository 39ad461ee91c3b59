"""Does it stay rare that any verdict of a study is wrong, however many it asks for?"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from esper_core.runs.multiplicity import holm, judged_together
from esper_core.runs.ranks import RankTest
from esper_core.runs.statistics import Comparison, mean_interval, paired_p

LEVEL = 0.95
ps = st.lists(st.floats(0, 1), min_size=1, max_size=8)


def slowly(values):
    """By closed testing: a hypothesis falls where every intersection with it falls by Bonferroni's rule."""
    places = range(len(values))
    subsets = [set(s) for size in range(1, len(values) + 1) for s in itertools.combinations(places, size)]
    return [
        max(min(1.0, len(subset) * min(values[j] for j in subset)) for subset in subsets if i in subset) for i in places
    ]


@given(ps)
def test_holm_equals_testing_every_intersection(values):
    assert holm(values) == pytest.approx(slowly(values), abs=1e-12)


@given(ps)
def test_an_adjusted_p_is_no_smaller_and_keeps_its_place(values):
    adjusted = holm(values)
    assert all(p <= q <= 1 for p, q in zip(values, adjusted, strict=True))
    order = sorted(range(len(values)), key=values.__getitem__)
    assert [adjusted[i] for i in order] == sorted(adjusted)
    assert holm(values[:1]) == values[:1]


def test_known_values_and_none():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([]) == []


def compared(differences):
    """A comparison without the figures that no verdict needs: a thousand of them are to be quick."""
    interval = mean_interval(differences, LEVEL)
    p = paired_p(differences)
    return Comparison(
        interval.mean, interval.low, interval.high, p, interval.n, "better", None, p, p, None, RankTest(0, 1, 0)
    )


def test_verdicts_are_given_anew_by_the_adjusted_p():
    clear = [1.0, 1.1, 0.9, 1.2, 1.0, 0.8, 1.1, 1.0]
    weak = [0.9, 1.0, 1.1, -0.7, 1.0, 0.8, 1.2, 1.0]
    one, two = judged_together([compared(clear), compared(weak)], margin=0.0, confidence=LEVEL)
    assert (one.verdict, one.p_holm) == ("better", 2 * one.p)
    assert two.verdict == "better"
    five = judged_together([compared(clear)] + [compared(weak)] * 5, margin=0.0, confidence=LEVEL)
    assert [found.verdict for found in five] == ["better"] + ["no difference shown"] * 5
    assert {found.why for found in five[1:]} == {"p"}


def test_what_could_not_be_compared_counts_as_asked():
    clear = [1.0] * 8
    found = judged_together([compared(clear), *[None] * 6], margin=0.0, confidence=LEVEL)
    assert found[1:] == [None] * 6
    assert found[0].p_holm == 7 * 2 / 2**8
    assert found[0].why == "too few seeds for so many comparisons"


def share_of_studies_with_a_wrong_verdict(draw, n, arms, repeats):
    wrong = 0
    for _ in range(repeats):
        values = draw((arms, n))
        pairs = [compared((a - b).tolist()) for a, b in itertools.combinations(values, 2)]
        judged = judged_together(pairs, margin=0.0, confidence=LEVEL)
        wrong += any(one.verdict != "no difference shown" for one in judged)
    return wrong / repeats


def test_b8_drl_13_of_studies_without_a_difference_one_in_twenty_finds_one_at_most():
    """Whichever of three arms comes out highest, the study says that nothing is shown, in 95 of 100 studies."""
    draw = np.random.RandomState(1).standard_normal
    assert share_of_studies_with_a_wrong_verdict(draw, 8, 3, 400) <= 0.07


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["normal", "skewed", "heavy", "coarse"])
@pytest.mark.parametrize(("n", "arms"), [(8, 3), (9, 5), (20, 3), (20, 5)])
def test_b8_drl_13_so_it_is_for_skewed_heavy_and_coarse_figures(kind, n, arms):
    """Among many arms that are the same, one is rarely said to be better: at most 5 % of studies, and chance."""
    random = np.random.RandomState(n * arms)
    draw = {
        "normal": random.standard_normal,
        "skewed": lambda size: random.lognormal(size=size),
        "heavy": lambda size: random.standard_t(2, size=size),
        "coarse": lambda size: random.binomial(20, 0.5, size=size) / 20,
    }[kind]
    assert share_of_studies_with_a_wrong_verdict(draw, n, arms, 1500) <= 0.065
