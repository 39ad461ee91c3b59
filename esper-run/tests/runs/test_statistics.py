"""Statistics: intervals have their nominal coverage, and a verdict is given only where it is justified."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings, strategies as st

from esper_core.leyline import Metric
from esper_core.leyline.constants import EXACT_SIGN_FLIP_BELOW, MIN_SEEDS_FOR_VERDICT
from esper_run.runs.statistics import (
    Sample,
    decide,
    holm,
    judge_together,
    mean_interval,
    paired_comparison,
    paired_p,
    results,
    seeds_needed,
    shared_seeds,
    sign_flip_p,
    t_quantile,
    t_tail,
    t_test_p,
)
from tests.support.run_folders import BETTER, NOISE, episodes

LEVEL = 0.95
ACCURACY, PERPLEXITY = Metric("accuracy", "up", "%"), Metric("perplexity", "down")
numbers = st.floats(-1e6, 1e6, allow_nan=False)


def compare(differences, *, direction="up"):
    return paired_comparison(differences, [0.0] * len(differences), direction=direction)


def test_quantiles_and_tails_equal_those_of_scipy():
    stats = pytest.importorskip("scipy.stats")
    for degrees in (1, 2, 3, 4, 7, 18, 19, 50, 400, 5000):
        for probability in (0.501, 0.75, 0.9, 0.95, 0.975, 0.995, 0.9995, 0.9999995):
            assert t_quantile(probability, degrees) == pytest.approx(stats.t.ppf(probability, degrees), rel=1e-8)
        for t in (0.0, 1e-3, 0.5, 1.0, 2.0, 5.0, 30.0):
            assert t_tail(t, degrees) == pytest.approx(stats.t.sf(t, degrees), rel=1e-8)


def test_an_interval_equals_that_of_scipy():
    stats = pytest.importorskip("scipy.stats")
    values = [0.61, 0.58, 0.6, 0.55, 0.63]
    interval = mean_interval(values, 0.9)
    expected = stats.t.interval(0.9, 4, loc=np.mean(values), scale=stats.sem(values))
    assert (interval.low, interval.high) == pytest.approx(expected, abs=1e-10)
    assert (interval.mean, interval.n) == (pytest.approx(0.594), 5)


def test_one_value_has_no_spread_and_equal_values_have_none_either():
    alone = compare([0.5])
    assert (alone.difference, alone.low, alone.high, alone.p, alone.n) == (0.5, None, None, 1.0, 1)
    assert alone.verdict == "no difference shown"
    interval = mean_interval([0.1] * 9, LEVEL)
    assert (interval.mean, interval.low, interval.high) == (0.1, 0.1, 0.1)
    assert [compare([value] * 30).p for value in (0.0, 0.1)] == [1.0, 0.0]


@pytest.mark.parametrize(
    ("values", "ends"),
    [
        ([0.2, 0.75], (0.0, 1.0)),
        ([0.9, 0.95], (None, 1.0)),
        ([0.5, 0.5], (0.5, 0.5)),
        ([0.7], (None, None)),
        ([0.5, 1.2], (None, None)),  # values above 1
    ],
)
def test_the_interval_of_a_share_lies_between_0_and_1(values, ends):
    free, bounded = mean_interval(values, 0.95), mean_interval(values, 0.95, share=True)
    assert bounded.mean == free.mean
    expected = [unbounded if end is None else end for unbounded, end in zip((free.low, free.high), ends, strict=True)]
    assert [bounded.low, bounded.high] == expected


@example([0.1, 0.2, -0.3])  # their sum is not 0 in binary; in the other order of adding it is
@given(st.lists(st.sampled_from([-2.0, -0.3, -0.1, 0.0, 0.1, 0.2, 0.7]), min_size=1, max_size=8))
def test_the_sign_flip_test_equals_trying_every_flip(differences):
    flips = itertools.product(*((difference, -difference) for difference in differences))
    sums = [abs(math.fsum(flip)) for flip in flips]
    observed = abs(math.fsum(differences))
    assert sign_flip_p(differences) == sum(total >= observed - 1e-9 for total in sums) / len(sums)


def test_p_is_exact_below_twenty_pairs_and_that_of_the_t_test_from_there_on():
    stats = pytest.importorskip("scipy.stats")
    differences = np.random.RandomState(2).normal(0.3, 1, EXACT_SIGN_FLIP_BELOW).tolist()
    assert compare(differences).p == pytest.approx(stats.ttest_1samp(differences, 0).pvalue, rel=1e-8)
    fewer = differences[:-1]
    assert compare(fewer).p == sign_flip_p(fewer)
    assert compare(fewer).p != t_test_p(fewer)


@settings(max_examples=30)
@given(st.lists(numbers, min_size=1, max_size=12))
def test_reversing_the_direction_or_the_sides_reverses_the_verdict(values):
    up = compare(values)
    opposite = {"better": "worse", "worse": "better"}
    for other in (compare(values, direction="down"), paired_comparison([0.0] * len(values), values, direction="up")):
        assert other.difference == pytest.approx(-up.difference, abs=1e-9)
        assert other.p == up.p
        assert other.verdict == opposite.get(up.verdict, up.verdict)


def test_a_verdict_takes_eight_pairs_and_an_interval_that_clears_0():
    differences = [1.0 + 0.001 * i for i in range(MIN_SEEDS_FOR_VERDICT)]
    wavering = [difference - 1.004 for difference in differences]
    comparisons = [compare(values) for values in (differences, differences[:-1], wavering)]
    none = "no difference shown"
    judged = [(comparison.verdict, comparison.why) for comparison in comparisons]
    assert judged == [("better", None), (none, "too few seeds"), (none, "interval")]
    many = decide(mean_interval(differences, LEVEL), 2 / 2**8 * 10, comparisons=10)
    assert many == ("no difference shown", "too few seeds for so many comparisons")


def test_a_verdict_takes_a_small_p_as_well_as_an_interval_that_clears_0():
    # Seven equal values and one opposite: Student's interval clears 0, but one in 20 sign flips is as large.
    differences = [1.0, 1.1, 1.2, 1.0, 1.1, 0.9, 1.0, -0.7]
    comparison = compare(differences)
    assert comparison.low > 0
    assert comparison.p <= 0.05
    assert comparison.verdict == "better"
    interval = mean_interval(differences, LEVEL)
    assert decide(interval, 0.051) == ("no difference shown", "p")
    assert decide(interval, 0.05) == ("better", None)
    assert decide(replace(interval, low=0.0), 0.0) == ("no difference shown", "interval")


@pytest.mark.parametrize("comparisons", [1, 2, 6, 7, 12, 13, 500])
def test_a_verdict_is_possible_with_the_seeds_needed_and_not_with_fewer(comparisons):
    needed = seeds_needed(comparisons)

    def verdict(n):
        differences = [1.0] * n
        p = min(1.0, comparisons * paired_p(differences))
        return decide(mean_interval(differences, LEVEL), p)[0]

    assert verdict(needed) == "better"
    assert verdict(needed - 1) == "no difference shown"


@pytest.mark.parametrize(
    ("call", "received"),
    [
        (lambda: mean_interval([], LEVEL), r"Received: \[\]"),
        (lambda: mean_interval([1.0, math.nan, math.inf], LEVEL), r"Received: \[1.0, nan, inf\]"),
        (lambda: paired_comparison([1.0], [1.0, 2.0], direction="up"), "longer"),
    ],
)
def test_values_that_cannot_be_compared_are_refused(call, received):
    with pytest.raises(ValueError, match=received):
        call()


ps = st.lists(st.floats(0, 1), max_size=8)


def slowly(values):
    """Closed testing: a hypothesis is rejected if Bonferroni's rule rejects every intersection with it."""
    places = range(len(values))
    subsets = [set(s) for size in range(1, len(values) + 1) for s in itertools.combinations(places, size)]
    return [
        max(min(1.0, len(subset) * min(values[j] for j in subset)) for subset in subsets if i in subset) for i in places
    ]


@given(ps)
def test_holm_equals_testing_every_intersection(values):
    assert holm(values) == pytest.approx(slowly(values), abs=1e-12)


def test_verdicts_of_several_comparisons_use_the_adjusted_p():
    clear = [1.0, 1.1, 0.9, 1.2, 1.0, 0.8, 1.1, 1.0]
    weak = [0.9, 1.0, 1.1, -0.7, 1.0, 0.8, 1.2, 1.0]
    first, second = judge_together([compare(clear), compare(weak)])
    assert (first.verdict, first.p_holm) == ("better", 2 * first.p)
    assert second.verdict == "better"
    judged = judge_together([compare(clear)] + [compare(weak)] * 5)
    assert [comparison.verdict for comparison in judged] == ["better"] + ["no difference shown"] * 5
    assert {comparison.why for comparison in judged[1:]} == {"p"}


def test_b8_drl_13_at_most_one_in_twenty_studies_without_a_difference_finds_one():
    draw, wrong = np.random.RandomState(1).standard_normal, 0
    for _ in range(400):
        pairs = [compare((a - b).tolist()) for a, b in itertools.combinations(draw((3, 8)), 2)]
        wrong += any(comparison.verdict != "no difference shown" for comparison in judge_together(pairs))
    assert wrong / 400 <= 0.07


def test_samples_are_paired_by_the_same_seeds_or_by_at_least_eight_shared_ones():
    eight = Sample("a", dict.fromkeys(range(8), 0.5))
    assert shared_seeds(eight, Sample("b", dict.fromkeys(range(1, 9), 0.5))) == []
    assert shared_seeds(eight, Sample("b", dict.fromkeys(range(10), 0.5))) == list(range(8))
    assert shared_seeds(Sample("a", {0: 0.1}), Sample("b", {0: 0.3})) == [0]


def results_of(grown, twin, metric=ACCURACY):
    """Return the results of two arms with these figures; episodes are not in the order of their seeds."""
    reverse = reversed(episodes("grown", grown, first=0))
    grown_episodes = [replace(episode, parameters=120, fossils=1) for episode in reverse]
    return results(metric, ["grown", "twin"], [*grown_episodes, *episodes("twin", twin, first=0)])


def test_b8_drl_13_the_arms_of_a_run_are_compared_seed_by_seed():
    summary = results_of(BETTER, NOISE)
    (comparison,) = summary["comparisons"]
    assert (comparison["a"], comparison["b"], comparison["verdict"], comparison["n"]) == ("grown", "twin", "better", 8)
    assert comparison["difference"] == pytest.approx(0.2035)
    assert 0.2 < comparison["ci_low"] < 0.2035 < comparison["ci_high"] < 0.21
    assert comparison["p"] == 2 / 2**8
    assert summary["arms"]["grown"]["params"] == 120
    assert [e["seed"] for e in summary["arms"]["grown"]["episodes"]] == list(range(8))
    assert results_of(NOISE, BETTER, PERPLEXITY)["comparisons"][0]["verdict"] == "better"
    assert results_of(NOISE, BETTER)["comparisons"][0]["verdict"] == "worse"
    assert results_of(BETTER[:7], NOISE[:7])["comparisons"][0]["verdict"] == "no difference shown"


@pytest.mark.parametrize("odd", [[math.inf], [1.7e308, -1.7e308], [1e200, -1e200]])
def test_figures_that_are_infinite_or_overflow_make_their_arm_unknown(odd):
    values = [1.0 + seed for seed in range(8)]
    summary = results_of([*values[:3], *odd, *values[3 + len(odd) :]], values, PERPLEXITY)
    assert math.isnan(summary["arms"]["grown"]["test"]["mean"])
    assert summary["arms"]["twin"]["test"]["mean"] == 4.5
    comparison = summary["comparisons"][0]
    assert (comparison["verdict"], comparison["difference"]) == ("no difference shown", None)
