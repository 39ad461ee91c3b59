"""Gates: statistics of paired losses, bounds on the gain, and how often a gate opens over whole episodes."""

import dataclasses
import math
import re
import statistics
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import assume, example, given, strategies as st
from torch import nn

from esper_core.growth import Host
from esper_core.growth.gates import (
    Gate,
    compare_losses,
    lasting_evidence,
    lasting_mean,
    lower_bound,
    paired,
    read_gain,
    seen_correlation,
    students_quantile,
    students_tail,
    upper_bound,
)
from esper_core.growth.prices import Prices
from esper_core.leyline.constants import GATE_ALPHA, MIN_EXAMPLES_FOR_EVIDENCE
from esper_core.leyline.signals import Finding, Gain, Metric
from esper_core.settings import GrowthConfig
from tests.support.core_worlds import slow

GOOD = Gain(800, 0.15, 0.5, -2.0, -5.0, 2.0)
PRICE = 0.04

shares = st.floats(1e-6, 0.05)


gains = st.builds(
    Gain,
    n=st.integers(MIN_EXAMPLES_FOR_EVIDENCE, 5000),
    mean=st.floats(-2, 2),
    deviation=st.floats(1e-3, 3),
    skewness=st.floats(-15, 15),
    worst=st.floats(-12, -1),
    best=st.floats(1, 12),
)


UNUSABLE = [
    (None, "not measured"),
    (dataclasses.replace(GOOD, n=MIN_EXAMPLES_FOR_EVIDENCE - 1), "too few"),
    *[
        (dataclasses.replace(GOOD, **{number: bad}), "not finite")
        for number in ("mean", "deviation", "skewness", "worst", "best")
        for bad in (math.nan, math.inf, -math.inf)
    ],
]


@pytest.mark.parametrize(("gain", "words"), UNUSABLE)
def test_finding_without_a_usable_measurement_is_unknown_with_a_reason(gain, words):
    gate = Gate()
    opinions = [gate.look(measured, PRICE, 0.2) for measured in (GOOD, GOOD, GOOD, gain)]
    assert opinions[-1].finding is Finding.UNKNOWN
    assert words in opinions[-1].reason
    assert opinions[-1].evidence is None
    assert not opinions[-1].opens


def test_a_gate_decides_at_a_few_looks_and_what_it_decided_holds_until_the_next():
    gate = Gate(looks=20)
    gains = [GOOD] * 4 + [dataclasses.replace(GOOD, mean=-0.2, worst=-5.3)] * 5
    opinions = [gate.look(gain, PRICE, 0.2) for gain in gains]
    findings = "unknown unknown shown shown not-shown not-shown not-shown not-shown not-shown"
    assert [opinion.finding.value for opinion in opinions] == findings.split()
    assert "decides from look 3 on; this is look 1" in opinions[0].reason
    evidence = [opinion.evidence for opinion in opinions if opinion.evidence is not None]
    assert [seen.looks for seen in evidence] == [3, 3, 5, 5, 5, 8, 8]
    assert {seen.alpha for seen in evidence} == {GATE_ALPHA / 5}


def test_the_gate_before_a_set_decides_at_its_last_look_too_by_the_level_it_has_reached():
    gates = [Gate(looks=10, decides_last=last) for last in (False, True)]
    for step in range(1, 11):
        rising = dataclasses.replace(GOOD, mean=0.1 * step)
        seed, several = (gate.look(rising, 0.5, 0.2) for gate in gates)
    assert (seed.finding, seed.evidence.looks, seed.evidence.alpha) == (Finding.NOT_SHOWN, 8, GATE_ALPHA / 3)
    assert (several.finding, several.evidence.looks, several.evidence.alpha) == (Finding.SHOWN, 10, GATE_ALPHA / 4 / 2)


def test_a_missing_measurement_uses_up_a_look_but_a_decision_needs_three():
    gate = Gate(looks=20)
    opinions = [gate.look(gain, PRICE, 0.2) for gain in (None, None, GOOD, GOOD, GOOD)]
    assert [opinion.finding.value for opinion in opinions] == ["unknown"] * 4 + ["shown"]


@given(st.lists(st.none() | gains, max_size=12), st.integers(0, 12))
def test_gate_continues_from_its_saved_state(course, cut):
    through, before = Gate(looks=10), Gate(looks=10)
    expected = [through.look(gain, PRICE, 0.7) for gain in course]
    actual = [before.look(gain, PRICE, 0.7) for gain in course[:cut]]
    after = Gate(**{**dataclasses.asdict(before), "decided": before.decided})
    assert actual + [after.look(gain, PRICE, 0.7) for gain in course[cut:]] == expected


def test_a_gate_says_what_it_lacks():
    """Steps where the gain moves from look to look, and examples where it does not; nothing below the price."""
    gates = [Gate(looks=5) for _ in range(3)]
    steady = dataclasses.replace(GOOD, mean=0.07, deviation=0.5)
    moving = [dataclasses.replace(GOOD, mean=mean, deviation=0.1) for mean in (0.1, 0.3, -0.1)]
    for gain in moving:
        gains = (steady, gain, dataclasses.replace(steady, mean=0.01))
        opinions = [gate.look(seen, PRICE, 0.2) for gate, seen in zip(gates, gains, strict=True)]
    assert {opinion.finding for opinion in opinions} == {Finding.NOT_SHOWN}
    examples, steps, nothing = (opinion.lacking for opinion in opinions)
    assert re.fullmatch(r": a mean of 0\.0700 needs about \d,\d00 examples", examples)
    assert re.fullmatch(r": the mean 0\.\d* moves from step to step, and needs more of them", steps)
    assert nothing == ""


@given(st.lists(gains, min_size=3, max_size=9), st.floats(0, 0.2))
def test_a_loss_a_thousand_times_as_large_changes_no_decision(course, share):
    """Prices are shares of the loss, so that both sides of each comparison are in its unit."""
    findings = []
    for unit in (1.0, 1024.0):  # a power of two, in which no digit is lost
        price = Host(nn.Linear(4, 2)).prices(GrowthConfig(), 100).price(20, 300, 0, unit * share)
        gate = Gate(looks=10)
        scaled = [
            Gain(gain.n, unit * gain.mean, unit * gain.deviation, gain.skewness, unit * gain.worst, unit * gain.best)
            for gain in course
        ]
        findings.append([gate.look(gain, price, 0.7).finding for gain in scaled])
    assert findings[0] == findings[1]


@pytest.mark.parametrize("frozen", [False, True])
def test_prices_of_several_seeds_add_up_to_that_of_the_grown_network(frozen):
    """On a frozen host the parameters that growth may add count as a doubling."""
    model = nn.Linear(100, 10, bias=False).requires_grad_(not frozen)
    prices = Host(model).prices(GrowthConfig(parameters=400), None if frozen else 2000)
    base = 400 if frozen else 2000
    first, second = prices.price(50, 300, 0, 2.0), prices.price(50, 900, 300, 2.0)
    assert first + second == pytest.approx(0.01 * 2.0 * (math.log2((base + 1200) / base) + 2 * 0.10))


def test_the_price_of_a_perplexity_is_that_of_its_logarithm_in_which_gains_are():
    metric, model = Metric("perplexity", "down", exponential=True), nn.Linear(4, 2)
    by_metric, by_loss = (Prices(model, GrowthConfig(evidence=of), metric, 100) for of in ("metric", "loss"))
    assert by_metric.price(20, 300, 0, 4.5, math.exp(4.5)) == by_loss.price(20, 300, 0, 4.5, math.exp(4.5))


@given(st.lists(st.floats(-1, 1), min_size=3, max_size=12), st.floats(0.2, 0.95))
def test_the_mean_over_looks_weighs_them_by_their_correlation(means, correlation):
    """Generalised least squares under a correlation of ρ to the power of the distance."""
    size = len(means)
    distances = np.abs(np.subtract.outer(range(size), range(size)))
    precision = np.linalg.inv(correlation**distances)
    expected = float(precision.sum(0) @ means / precision.sum())
    residual = np.array(means) - expected
    error = math.sqrt(max(0.0, residual @ precision @ residual) / (size - 1) / precision.sum())
    mean, between = lasting_mean(means, [0.0] + [correlation] * (size - 1))
    assert mean == pytest.approx(expected, abs=1e-7)
    assert between == pytest.approx(error, abs=1e-6)


def test_gains_that_wander_count_for_as_few_looks_as_they_show():
    """The last half of the looks, on which the gate decides at look 13, has the same gains in either order.

    Of a seed that has begun to learn, gains rise, which looks alike.
    """
    wander = [0.5 + 0.2 * math.sin(look / 2) for look in range(13)]
    jump = wander[:7:2] + wander[1:7:2] + wander[7::2] + wander[8::2]
    for means, learns, opens in ((wander, False, False), (jump, False, True), (wander, True, True)):
        gate = Gate(looks=20, learns=learns)
        for mean in means:
            opinion = gate.look(dataclasses.replace(GOOD, mean=mean), 0.1, 0.2)
        assert opinion.opens is opens
    assert seen_correlation(jump) < seen_correlation(wander)


@given(st.integers(1, 60), shares)
def test_quantiles_of_students_t_invert_its_tail(freedom, alpha):
    value = students_quantile(alpha, freedom)
    assert students_tail(value, freedom) == pytest.approx(alpha, rel=1e-6)
    assert value > statistics.NormalDist().inv_cdf(1 - alpha)


def test_without_movement_a_bound_is_that_of_the_examples():
    evidence = lasting_evidence(GOOD, [0.15] * 5, [0.2] * 5, 0.01, 5)
    bounds = lower_bound(GOOD, 0.01), upper_bound(GOOD, 0.01)
    assert (evidence.lower, evidence.upper) == (pytest.approx(bounds[0]), pytest.approx(bounds[1]))
    assert evidence.between == pytest.approx(0.0, abs=1e-12)


def test_noise_of_the_examples_that_is_new_at_each_look_counts_once():
    """Looks at examples of which half of the variance is new move by it, so that more of them lessen it."""
    half = dataclasses.replace(GOOD, repeats=0.5)
    still = lasting_evidence(half, [0.15] * 5, [0.2] * 5, 0.01, 5)
    assert still.standard_error == pytest.approx(GOOD.standard_error * math.sqrt(0.5))
    assert lower_bound(GOOD, 0.01) < still.lower < still.mean < still.upper < upper_bound(GOOD, 0.01)
    assert lasting_evidence(half, [0.14, 0.16] * 3, [0.2] * 6, 0.01, 6).lower < still.lower


def test_a_gain_tells_how_much_of_its_noise_the_look_before_had():
    shared, new = torch.randn(2, 2000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    host, trial = shared + new, torch.zeros_like(new)
    assert read_gain(paired(host, trial, shared).tolist()).repeats == pytest.approx(math.sqrt(0.5), abs=0.05)
    for unknown in (None, torch.ones_like(new), torch.full_like(new, math.nan)):
        assert read_gain(paired(host, trial, unknown).tolist()).repeats == 1.0
    assert read_gain(paired(host, trial, -shared).tolist()).repeats == 0.0


samples = st.lists(st.floats(-9, 9), min_size=100, max_size=140).filter(lambda values: statistics.stdev(values) > 1e-3)
levels = st.floats(1e-6, 0.5)


def gain_of(differences) -> Gain:
    losses = torch.tensor(differences, dtype=torch.float64)
    return read_gain(paired(losses, torch.zeros_like(losses)).tolist())


def test_gain_has_the_statistics_of_host_less_trial():
    host, trial = torch.tensor([3.0, 1.0, 2.0, 4.0]), torch.tensor([1.0, 1.5, 2.0, 0.5])
    differences = [2.0, -0.5, 0.0, 3.5]
    gain = read_gain(paired(host, trial).tolist())
    mean, population = statistics.fmean(differences), statistics.pstdev(differences)
    assert gain.n == 4
    assert gain.mean == mean
    assert gain.deviation == pytest.approx(statistics.stdev(differences), rel=1e-12)
    assert gain.skewness == pytest.approx(sum((d - mean) ** 3 for d in differences) / 4 / population**3, rel=1e-12)
    assert (gain.worst, gain.best) == (-0.5, 3.5)
    assert gain.standard_error == pytest.approx(statistics.stdev(differences) / 2, rel=1e-12)
    assert gain.finite
    evidence = compare_losses(host, trial, 0.05)
    assert (evidence.mean, evidence.lower, evidence.upper) == (mean, lower_bound(gain, 0.05), upper_bound(gain, 0.05))


def test_one_example_has_no_deviation_and_a_seed_that_changes_nothing_a_gain_of_exactly_zero():
    assert not gain_of([0.3]).finite
    gain = gain_of([0.0] * 200)
    assert gain.finite
    assert (lower_bound(gain, 0.001), upper_bound(gain, 0.001)) == (0.0, 0.0)


@pytest.mark.parametrize("shapes", [((3,), (4,)), ((2, 2), (2, 2)), ((0,), (0,)), ((), ())])
def test_losses_that_do_not_pair_are_refused(shapes):
    with pytest.raises(ValueError, match="Received"):
        paired(torch.zeros(shapes[0]), torch.zeros(shapes[1]))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("side", ["host", "trial", "both"])
def test_one_non_finite_loss_makes_the_gain_non_finite(bad, side):
    host, trial = torch.rand(200), torch.rand(200)
    for losses in {"host": [host], "trial": [trial], "both": [host, trial]}[side]:
        losses[17] = bad
    gain = read_gain(paired(host, trial).tolist())
    assert gain.n == 200
    assert not gain.finite


@given(samples, levels, st.floats(0.01, 100), st.floats(-5, 5))
def test_bounds_follow_the_unit_and_the_origin_of_the_losses(values, alpha, scale, shift):
    plain, moved = gain_of(values), gain_of([scale * value + shift for value in values])
    for bound in (lower_bound, upper_bound):
        assert bound(moved, alpha) == pytest.approx(scale * bound(plain, alpha) + shift, rel=1e-6, abs=1e-6)


@given(gains, levels)
def test_lower_bound_inverts_halls_statistic(gain, alpha):
    skewness = min(gain.skewness, 0.0)
    mean = (gain.n * gain.mean + gain.worst) / (gain.n + 1)
    expected = statistics.NormalDist().inv_cdf(1 - alpha) / math.sqrt(gain.n)
    w = (mean - lower_bound(gain, alpha)) / gain.deviation
    assume(skewness * (expected - skewness / (6 * gain.n)) > -1.125)
    statistic = w + skewness * w**2 / 3 + skewness**2 * w**3 / 27 + skewness / (6 * gain.n)
    assert statistic == pytest.approx(expected, rel=1e-7, abs=1e-9)


@example(gain=Gain(100, 0.0, 1.0, -5.0, -9.0, 2.0), alpha=1e-6, more=10.0)
@given(gain=gains, alpha=levels, more=st.floats(0, 10))
def test_negative_skewness_lowers_the_bound_and_positive_does_not_raise_it(gain, alpha, more):
    def at(skewness: float) -> float:
        return lower_bound(Gain(gain.n, gain.mean, gain.deviation, skewness, gain.worst, gain.best), alpha)

    assert at(gain.skewness - more) <= at(gain.skewness) + 1e-12
    assert at(abs(gain.skewness)) == at(0.0)


# --- over whole episodes of 20 looks, as ``python -m benchmarks.science.gates simulated`` measures in more cells

EPISODES = 400
SURE = 3.0
"""Standard deviations by which a share of episodes may miss its expectation by chance."""


def cell_of(*settings):
    """Return a cell of the benchmark, which needs other members."""
    return pytest.importorskip("benchmarks.science.gates").Cell(*settings)


CELLS = product(("harmful", "normal", "helpful"), (0.2, 0.9), (0.0, 1.3, 6.0))


@pytest.mark.parametrize("of_set", [False, True])
@pytest.mark.parametrize(("shape", "correlation", "tau"), [("harmful", 0.7, 6.0), *(slow(*cell) for cell in CELLS)])
def test_a_seed_whose_lasting_gain_is_its_price_passes_at_most_once_in_twenty_episodes(shape, correlation, tau, of_set):
    cell = cell_of(200, shape, correlation, tau)
    passed = sum(cell.passes(0.0, number, GATE_ALPHA, of_set=of_set) for number in range(EPISODES))
    chance = SURE * math.sqrt(GATE_ALPHA * (1 - GATE_ALPHA) / EPISODES)
    assert passed / EPISODES <= GATE_ALPHA + chance


@pytest.mark.parametrize(("correlation", "excess"), [(0.2, 4.0), slow(0.7, 5.0)])
def test_a_gain_of_some_errors_above_its_price_passes_in_four_episodes_of_five(correlation, excess):
    cell = cell_of(800, "normal", correlation, 1.3)
    passed = sum(cell.passes(excess, number, GATE_ALPHA / 2) for number in range(EPISODES // 2))
    assert passed / (EPISODES // 2) >= 0.8
