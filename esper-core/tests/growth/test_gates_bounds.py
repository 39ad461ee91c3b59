"""What is read of paired losses is exact, and the bounds on their mean move the way they must."""

from __future__ import annotations

import math
import statistics

import pytest
import torch
from hypothesis import assume, example, given, strategies as st

from esper_core.growth.gates import NUMBERS, lower_bound, paired, read_gain, upper_bound
from esper_core.leyline.signals import Gain

levels = st.floats(1e-6, 0.5)
samples = st.lists(st.floats(-9, 9), min_size=100, max_size=140).filter(lambda values: statistics.stdev(values) > 1e-3)
gains = st.builds(
    Gain,
    n=st.integers(100, 5000),
    mean=st.floats(-2, 2),
    deviation=st.floats(1e-3, 3),
    skewness=st.floats(-15, 15),
    worst=st.floats(-12, -2),
    best=st.floats(2, 12),
)


def gain_of(differences) -> Gain:
    losses = torch.tensor(differences, dtype=torch.float64)
    return read_gain(paired(losses, torch.zeros_like(losses)).tolist())


def test_the_numbers_are_those_of_the_differences_host_less_trial() -> None:
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


def test_what_is_left_to_be_read_is_six_numbers_without_a_gradient() -> None:
    host = torch.rand(5, requires_grad=True)
    numbers = paired(host, torch.rand(5, dtype=torch.bfloat16))
    assert numbers.shape == (NUMBERS,)
    assert numbers.dtype == torch.float64
    assert not numbers.requires_grad


def test_nothing_is_read_on_the_way() -> None:
    assert paired(torch.empty(7, device="meta"), torch.empty(7, device="meta")).device.type == "meta"


@pytest.mark.parametrize("shapes", [((3,), (4,)), ((2, 2), (2, 2)), ((0,), (0,)), ((), ())])
def test_losses_that_do_not_pair_are_refused(shapes) -> None:
    with pytest.raises(ValueError, match="Received"):
        paired(torch.zeros(shapes[0]), torch.zeros(shapes[1]))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("side", ["host", "trial", "both"])
def test_one_loss_that_is_no_number_shows_in_the_gain(bad: float, side: str) -> None:
    host, trial = torch.rand(200), torch.rand(200)
    for losses in {"host": [host], "trial": [trial], "both": [host, trial]}[side]:
        losses[17] = bad
    gain = read_gain(paired(host, trial).tolist())
    assert gain.n == 200
    assert not gain.finite


def test_one_example_has_no_deviation() -> None:
    assert not gain_of([0.3]).finite


@given(samples, st.randoms(use_true_random=False))
def test_the_order_of_the_examples_does_not_matter(values, random) -> None:
    shuffled = list(values)
    random.shuffle(shuffled)
    one, other = gain_of(values), gain_of(shuffled)
    assert lower_bound(one, 0.01) == pytest.approx(lower_bound(other, 0.01), rel=1e-9, abs=1e-9)


@given(samples, levels, st.floats(0.01, 100), st.floats(-5, 5))
def test_bounds_follow_the_unit_and_the_origin_of_the_losses(values, alpha, scale, shift) -> None:
    plain, moved = gain_of(values), gain_of([scale * value + shift for value in values])
    for bound in (lower_bound, upper_bound):
        assert bound(moved, alpha) == pytest.approx(scale * bound(plain, alpha) + shift, rel=1e-6, abs=1e-6)


@given(gains, levels, levels)
def test_bounds_hold_the_mean_between_them_and_widen_as_they_must_be_surer(gain, one, other) -> None:
    surer, looser = min(one, other), max(one, other)
    assert lower_bound(gain, surer) <= lower_bound(gain, looser) <= gain.mean
    assert gain.mean <= upper_bound(gain, looser) <= upper_bound(gain, surer)


@given(gains, levels)
def test_bounds_are_the_plain_ones_and_one_worst_example_more_where_there_is_no_skewness(gain, alpha) -> None:
    gain = Gain(gain.n, gain.mean, gain.deviation, 0.0, gain.worst, gain.best)
    half = statistics.NormalDist().inv_cdf(1 - alpha) * gain.standard_error
    missed = (gain.mean - gain.worst) / (gain.n + 1)
    assert lower_bound(gain, alpha) == pytest.approx(gain.mean - missed - half, rel=1e-9, abs=1e-12)


@given(gains, levels)
def test_the_bound_is_where_halls_statistic_has_its_normal_quantile(gain, alpha) -> None:
    skewness = min(gain.skewness, 0.0)
    mean = (gain.n * gain.mean + gain.worst) / (gain.n + 1)
    expected = statistics.NormalDist().inv_cdf(1 - alpha) / math.sqrt(gain.n)
    w = (mean - lower_bound(gain, alpha)) / gain.deviation
    assume(skewness * (expected - skewness / (6 * gain.n)) > -1.125)
    statistic = w + skewness * w**2 / 3 + skewness**2 * w**3 / 27 + skewness / (6 * gain.n)
    assert statistic == pytest.approx(expected, rel=1e-7, abs=1e-9)


@example(gain=Gain(100, 0.0, 1.0, -5.0, -9.0, 2.0), alpha=1e-6, more=10.0)
@given(gain=gains, alpha=levels, more=st.floats(0, 10))
def test_a_tail_of_losses_lowers_the_bound_and_a_tail_of_wins_does_not_raise_it(gain, alpha, more) -> None:
    def at(skewness: float) -> float:
        return lower_bound(Gain(gain.n, gain.mean, gain.deviation, skewness, gain.worst, gain.best), alpha)

    assert at(gain.skewness - more) <= at(gain.skewness) + 1e-12
    assert at(abs(gain.skewness)) == at(0.0)


@given(gains, levels)
def test_the_upper_bound_mirrors_the_lower(gain, alpha) -> None:
    mirror = Gain(gain.n, -gain.mean, gain.deviation, -gain.skewness, -gain.best, -gain.worst)
    assert upper_bound(gain, alpha) == -lower_bound(mirror, alpha)


def test_a_newborn_that_changes_nothing_has_a_gain_of_exactly_nothing() -> None:
    gain = gain_of([0.0] * 200)
    assert gain.finite
    assert (lower_bound(gain, 0.001), upper_bound(gain, 0.001)) == (0.0, 0.0)
