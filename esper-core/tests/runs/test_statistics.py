"""Intervals have their nominal coverage, and a verdict is given only where it is justified."""

from __future__ import annotations

import itertools
import math
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from esper_core.leyline import Metric
from esper_core.leyline.constants import EXACT_SIGN_FLIP_BELOW, MIN_SEEDS_FOR_VERDICT
from esper_core.runs.statistics import (
    Comparison,
    Sample,
    compare_arms,
    decide,
    holm,
    judge_together,
    mean_interval,
    paired_comparison,
    paired_p,
    regularised_beta,
    results,
    seeds_needed,
    shared_seeds,
    sign_flip_p,
    t_quantile,
    t_tail,
    t_test_p,
)

LEVEL = 0.95
numbers = st.floats(-1e6, 1e6, allow_nan=False)


def compare(differences, *, direction="up", margin=0.0):
    return paired_comparison(differences, [0.0] * len(differences), direction=direction, margin=margin)


@pytest.mark.parametrize("degrees", [1, 2, 3, 4, 7, 18, 19, 50, 400, 5000])
def test_quantiles_and_tails_equal_scipys(degrees):
    stats = pytest.importorskip("scipy.stats")
    for probability in (0.501, 0.75, 0.9, 0.95, 0.975, 0.995, 0.9995, 0.9999995):
        assert t_quantile(probability, degrees) == pytest.approx(stats.t.ppf(probability, degrees), rel=1e-8)
    for t in (0.0, 1e-3, 0.5, 1.0, 2.0, 5.0, 30.0):
        assert t_tail(t, degrees) == pytest.approx(stats.t.sf(t, degrees), rel=1e-8)


@given(a=st.floats(0.2, 200), b=st.floats(0.2, 200), x=st.floats(0, 1))
def test_the_incomplete_beta_function_equals_scipys(a, b, x):
    special = pytest.importorskip("scipy.special")
    assert regularised_beta(x, 1 - x, a, b) == pytest.approx(special.betainc(a, b, x), rel=1e-8, abs=1e-12)


def test_known_quantiles_where_scipy_is_not_installed():
    assert t_quantile(0.975, 1) == pytest.approx(12.706204736, abs=1e-8)
    assert t_quantile(0.975, 7) == pytest.approx(2.364624252, abs=1e-8)
    assert t_quantile(0.975, 10**6) == pytest.approx(1.959966, abs=1e-6)


def test_an_interval_equals_scipys():
    stats = pytest.importorskip("scipy.stats")
    values = [0.61, 0.58, 0.6, 0.55, 0.63]
    interval = mean_interval(values, 0.9)
    low, high = stats.t.interval(0.9, 4, loc=np.mean(values), scale=stats.sem(values))
    assert (interval.mean, interval.low, interval.high, interval.n) == (
        pytest.approx(0.594),
        pytest.approx(low, abs=1e-10),
        pytest.approx(high, abs=1e-10),
        5,
    )


def test_one_value_says_nothing_about_the_spread():
    assert mean_interval([0.5], LEVEL) == type(mean_interval([0.5], LEVEL))(0.5, None, None, 1)
    alone = compare([0.5])
    assert (alone.difference, alone.low, alone.high, alone.p, alone.n) == (0.5, None, None, 1.0, 1)
    assert (alone.verdict, alone.effect_size) == ("no difference shown", None)


def test_values_that_are_all_the_same_have_no_spread_at_all():
    interval = mean_interval([0.1] * 9, LEVEL)
    assert (interval.mean, interval.low, interval.high) == (0.1, 0.1, 0.1)
    assert compare([0.0] * 30).p == 1.0
    assert compare([0.1] * 30).p == 0.0
    assert compare([0.1] * 30).effect_size is None


@given(st.lists(numbers, min_size=2, max_size=30), st.sampled_from([0.5, 0.9, 0.95, 0.999]))
def test_an_interval_holds_its_mean_in_the_middle(values, confidence):
    interval = mean_interval(values, confidence)
    assert interval.low <= interval.mean <= interval.high
    scale = 1e-9 * (1 + max(abs(value) for value in values))
    assert interval.high - interval.mean == pytest.approx(interval.mean - interval.low, abs=scale)


@pytest.mark.parametrize(
    ("values", "ends"),
    [([0.2, 0.75], (0.0, 1.0)), ([0.9, 0.95], (None, 1.0)), ([0.5, 0.5], (0.5, 0.5)), ([0.7], (None, None))],
)
def test_the_interval_of_a_share_ends_where_shares_do(values, ends):
    free, own = mean_interval(values, 0.95), mean_interval(values, 0.95, share=True)
    assert own.mean == free.mean
    assert (own.low, own.high) == tuple(a if b is None else b for a, b in zip((free.low, free.high), ends, strict=True))


def test_what_is_beyond_zero_and_one_is_no_share():
    assert mean_interval([0.5, 1.2], 0.95, share=True) == mean_interval([0.5, 1.2], 0.95)


def test_what_an_arm_of_two_seeds_came_to_lies_between_nothing_and_all():
    episodes = [
        SimpleNamespace(arm="a", round=0, seed=n, test_metric=x, reward=None) for n, x in enumerate((0.2, 0.75))
    ]
    for one in episodes:
        one.parameters = one.host_parameters = one.fossils = 1
    told = results(Metric("accuracy", "up", "%"), ["a"], episodes, 0.0)["arms"]["a"]["test"]
    assert (told["ci_low"], told["ci_high"]) == (0.0, 1.0)
    told = results(Metric("score"), ["a"], episodes, 0.0)["arms"]["a"]["test"]
    assert told["ci_low"] < 0 < 1 < told["ci_high"]


@given(st.lists(st.sampled_from([-2.0, -0.3, -0.1, 0.0, 0.1, 0.2, 0.7]), min_size=1, max_size=8))
def test_the_sign_flip_test_equals_trying_every_flip(differences):
    sums = [
        abs(math.fsum(s * d for s, d in zip(signs, differences, strict=True)))
        for signs in itertools.product((1, -1), repeat=len(differences))
    ]
    observed = abs(math.fsum(differences))
    assert sign_flip_p(differences) == sum(total >= observed - 1e-9 for total in sums) / len(sums)


def test_the_sign_flip_test_counts_a_flip_of_equal_size_although_rounding_differs():
    # 0.1 + 0.2 − 0.3 is not 0 in binary; in the other order of adding it is.
    assert sign_flip_p([0.1, 0.2, -0.3]) == 1.0


def test_the_sign_flip_test_equals_scipys_permutation_test():
    stats = pytest.importorskip("scipy.stats")
    differences = np.random.RandomState(1).normal(0.4, 1, 10)
    theirs = stats.permutation_test(
        (differences, np.zeros(10)), lambda x, y: np.mean(x - y), permutation_type="samples", n_resamples=np.inf
    )
    assert sign_flip_p(differences.tolist()) == pytest.approx(theirs.pvalue, abs=1e-12)


def test_p_is_exact_below_twenty_pairs_and_that_of_the_t_test_from_there_on():
    stats = pytest.importorskip("scipy.stats")
    differences = np.random.RandomState(2).normal(0.3, 1, EXACT_SIGN_FLIP_BELOW).tolist()
    assert compare(differences).p == pytest.approx(stats.ttest_1samp(differences, 0).pvalue, rel=1e-8)
    fewer = differences[:-1]
    assert compare(fewer).p == sign_flip_p(fewer)
    assert compare(fewer).p != t_test_p(fewer)


def test_the_comparison_is_of_pairs():
    base = [10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0, 80.0]
    better = [value + 1 + 0.01 * i for i, value in enumerate(base)]
    found = paired_comparison(better, base, direction="up", margin=0.5)
    assert found.verdict == "better"
    assert found.difference == pytest.approx(1.035)
    assert found.effect_size == pytest.approx(1.035 / np.std([0.01 * i for i in range(8)], ddof=1))
    assert found.p == 2 / 2**8


@settings(max_examples=30)
@given(st.lists(numbers, min_size=1, max_size=12), st.sampled_from([0.0, 0.1, 1e5]))
def test_turning_the_direction_or_swapping_the_sides_turns_everything(values, margin):
    up = compare(values, margin=margin)
    opposite = {"better": "worse", "worse": "better"}
    for other in (
        compare(values, direction="down", margin=margin),
        paired_comparison([0.0] * len(values), values, direction="up", margin=margin),
    ):
        assert other.difference == pytest.approx(-up.difference, abs=1e-9)
        assert other.p == up.p
        assert other.verdict == opposite.get(up.verdict, up.verdict)


def test_fewer_than_eight_pairs_get_no_verdict():
    differences = [1.0 + 0.001 * i for i in range(MIN_SEEDS_FOR_VERDICT)]
    assert compare(differences).verdict == "better"
    assert compare(differences[:-1]).verdict == "no difference shown"


def test_a_difference_within_the_margin_gets_no_verdict():
    differences = [1.0 + 0.001 * i for i in range(10)]
    assert compare(differences, margin=0.9).verdict == "better"
    assert compare(differences, margin=1.004).verdict == "no difference shown"
    assert compare([-d for d in differences], margin=0.9).verdict == "worse"
    assert compare([-d for d in differences], margin=1.004).verdict == "no difference shown"


def test_a_verdict_takes_a_small_p_as_well_as_an_interval_that_clears_the_margin():
    # Seven of one size and one against them: the interval by Student's t clears 0, and one of 20 flips is as large.
    differences = [1.0, 1.1, 1.2, 1.0, 1.1, 0.9, 1.0, -0.7]
    found = compare(differences)
    assert found.low > 0
    assert found.p <= 0.05
    assert found.verdict == "better"
    interval = mean_interval(differences, LEVEL)
    assert decide(interval, 0.051, margin=0.0) == ("no difference shown", "p")
    assert decide(interval, 0.05, margin=0.0) == ("better", None)
    assert decide(interval, 0.0, margin=interval.low) == ("no difference shown", "interval")


def test_what_is_lacking_is_told():
    clear = [1.0 + 0.001 * i for i in range(8)]
    assert compare(clear).why is None
    assert compare(clear[:-1]).why == "too few seeds"
    assert compare(clear, margin=1.004).why == "interval"
    interval = mean_interval(clear, LEVEL)
    many = decide(interval, 2 / 2**8 * 10, margin=0.0, comparisons=10)
    assert many == ("no difference shown", "too few seeds for so many comparisons")


def test_p_against_the_margin_is_that_of_what_exceeds_it():
    differences = [0.3, 0.5, 0.9, 1.4, 0.2, 0.8, 1.1, 0.6]
    found = compare(differences, margin=0.3)
    assert found.p_margin == sign_flip_p([value - 0.3 for value in differences])
    assert found.p < found.p_margin < 1
    assert compare([-value for value in differences], margin=0.3).p_margin == found.p_margin
    assert compare(differences, margin=2.0).p_margin == 1.0
    assert compare(differences).p_margin == found.p


@pytest.mark.parametrize("comparisons", [1, 2, 6, 7, 12, 13, 500])
def test_with_the_seeds_that_are_needed_a_verdict_can_be_had_and_with_fewer_it_cannot(comparisons):
    needed = seeds_needed(comparisons)

    def verdict(n):
        differences = [1.0] * n
        p = min(1.0, comparisons * paired_p(differences))
        return decide(mean_interval(differences, LEVEL), p, margin=0.0)[0]

    assert verdict(needed) == "better"
    assert verdict(needed - 1) == "no difference shown"


@pytest.mark.parametrize(
    ("call", "received"),
    [
        (lambda: mean_interval([], LEVEL), r"Received: \[\]"),
        (lambda: mean_interval([1.0, math.nan, math.inf], LEVEL), r"Received: \[1.0, nan, inf\]"),
        (lambda: paired_comparison([1.0], [1.0, 2.0], direction="up", margin=0), "longer"),
    ],
)
def test_what_cannot_be_compared_is_refused(call, received):
    with pytest.raises(ValueError, match=received):
        call()


def share_covered(n, repeats, confidence, seed):
    draws = np.random.RandomState(seed).normal(3.0, 2.0, (repeats, n))
    intervals = [mean_interval(row, confidence) for row in draws.tolist()]
    return np.mean([interval.low <= 3.0 <= interval.high for interval in intervals])


def test_nineteen_of_twenty_intervals_hold_the_truth():
    assert share_covered(8, 1500, 0.95, seed=0) == pytest.approx(0.95, abs=0.02)


def told(row):
    """The verdict on paired differences as ``paired_comparison`` has it, without what else it computes."""
    return decide(mean_interval(row, LEVEL), paired_p(row), margin=0.0)[0]


def test_the_short_way_to_a_verdict_is_the_long_one():
    rows = np.random.RandomState(5).normal(0.7, 1.0, (20, 8)).tolist()
    assert {told(row) for row in rows} == {"better", "no difference shown"}
    assert [told(row) for row in rows] == [compare(row).verdict for row in rows]


def test_without_a_difference_one_verdict_of_twenty_is_wrong_at_most():
    draws = np.random.RandomState(1).normal(0.0, 1.0, (1000, 8)).tolist()
    assert np.mean([told(row) != "no difference shown" for row in draws]) == pytest.approx(0.05, abs=0.02)
    assert np.mean([paired_p(row) <= 0.05 for row in draws]) == pytest.approx(0.05, abs=0.02)


@pytest.mark.slow
@pytest.mark.parametrize("n", [2, 3, 8, 19, 20, 40])
@pytest.mark.parametrize("confidence", [0.8, 0.95, 0.99])
def test_coverage_for_other_sizes_and_levels(n, confidence):
    assert share_covered(n, 4000, confidence, seed=n) == pytest.approx(confidence, abs=0.015)


@pytest.mark.slow
@pytest.mark.parametrize("draw", ["normal", "standard_cauchy", "uniform", "laplace"])
@pytest.mark.parametrize("n", [8, 12, 25])
def test_false_positives_stay_rare_for_differences_of_any_symmetric_kind(draw, n):
    generator = np.random.RandomState(n)
    rows = (getattr(generator, draw)(size=(2000, n)) - (0.5 if draw == "uniform" else 0.0)).tolist()
    assert np.mean([told(row) != "no difference shown" for row in rows]) <= 0.065
    assert np.mean([paired_p(row) <= 0.05 for row in rows]) <= 0.065


# --- several comparisons


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
    return Comparison.of(interval, p=p, p_margin=p, spread=None, margin=0.0, paired=True)


def test_verdicts_are_given_anew_by_the_adjusted_p():
    clear = [1.0, 1.1, 0.9, 1.2, 1.0, 0.8, 1.1, 1.0]
    weak = [0.9, 1.0, 1.1, -0.7, 1.0, 0.8, 1.2, 1.0]
    one, two = judge_together([compared(clear), compared(weak)], margin=0.0)
    assert (one.verdict, one.p_holm) == ("better", 2 * one.p)
    assert two.verdict == "better"
    five = judge_together([compared(clear)] + [compared(weak)] * 5, margin=0.0)
    assert [found.verdict for found in five] == ["better"] + ["no difference shown"] * 5
    assert {found.why for found in five[1:]} == {"p"}


def test_what_could_not_be_compared_counts_as_asked():
    clear = [1.0] * 8
    found = judge_together([compared(clear), *[None] * 6], margin=0.0)
    assert found[1:] == [None] * 6
    assert found[0].p_holm == 7 * 2 / 2**8
    assert found[0].why == "too few seeds for so many comparisons"


def share_of_studies_with_a_wrong_verdict(draw, n, arms, repeats):
    wrong = 0
    for _ in range(repeats):
        values = draw((arms, n))
        pairs = [compared((a - b).tolist()) for a, b in itertools.combinations(values, 2)]
        judged = judge_together(pairs, margin=0.0)
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


NOISE = [0.30, 0.10, 0.50, 0.20, 0.40, 0.35, 0.15, 0.45]
BETTER = [value + 0.2 + 0.001 * place for place, value in enumerate(NOISE)]


def test_every_pair_of_arms_is_compared_with_its_p_adjusted_for_all_of_them():
    samples = [Sample(name, dict(enumerate(own))) for name, own in (("a", BETTER), ("b", NOISE), ("c", NOISE))]
    found = {(one["a"], one["b"]): one for one in compare_arms(samples, direction="up", margin=0.0)}
    assert list(found) == [("a", "b"), ("a", "c"), ("b", "c")]
    clear, none = found["a", "b"], found["b", "c"]
    assert (clear["verdict"], clear["why"], clear["p_holm"]) == ("better", None, 3 * 2 / 2**8)
    assert clear["ci_low"] < clear["difference"] < clear["ci_high"]
    assert clear["effect_size"] > 50
    assert (none["verdict"], none["why"], none["p"]) == ("no difference shown", "interval", 1.0)


def test_an_arm_with_a_figure_that_is_not_finite_is_not_compared():
    samples = [Sample("a", {0: math.inf, 1: 0.5}), Sample("b", {0: 0.1, 1: 0.2}), Sample("c", {0: 0.1, 1: 0.3})]
    first, _, other = compare_arms(samples, direction="up", margin=0.0)
    assert (first["why"], first["difference"], first["n"], first["paired"]) == ("not finite", None, 2, True)
    assert first.keys() == other.keys()


def test_samples_are_paired_by_the_same_seeds_or_by_at_least_eight_shared_ones():
    eight = Sample("a", dict.fromkeys(range(8), 0.5))
    assert shared_seeds(eight, Sample("b", dict.fromkeys(range(1, 9), 0.5))) == []
    assert shared_seeds(eight, Sample("b", dict.fromkeys(range(10), 0.5))) == list(range(8))
    assert shared_seeds(Sample("a", {0: 0.1}), Sample("b", {0: 0.3})) == [0]
    assert shared_seeds(eight, Sample("b", eight.by_seed, task="another")) == []


def test_importing_it_imports_neither_torch_nor_scipy():
    code = "import esper_core.runs.statistics, sys; sys.exit(bool({'torch', 'scipy'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
