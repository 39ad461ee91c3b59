"""What a seed's gradients are said to be: by the slow formula, without waiting for the device, and never made up."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, strategies as st

from esper_core.growth.optimizer_steps import WIDTH, GradientCollector
from esper_core.leyline import Action, Op
from esper_core.leyline.constants import EXPLODING_NORM, VANISHING_NORM
from esper_core.leyline.signals import GradientHealth
from esper_core.trainer.environment import Environment, Recipe

Make = Callable[..., Recipe]
numbers = st.one_of(
    st.floats(-1e6, 1e6, width=32),
    st.sampled_from([0.0, -0.0, 1e-9, -3e-8, 99.0, 101.0, -5e4, math.nan, math.inf, -math.inf]),
)
gradients = st.one_of(st.none(), st.lists(numbers, min_size=1, max_size=4))


def slowly(batches: list[list[list[float] | None]]) -> GradientHealth:
    """The formulas as their documentation has them, one number after the other."""
    norms, whole = [], []
    for batch in batches:
        own = [0.0 if gradient is None else root_of_squares(gradient) for gradient in batch]
        norms += own
        whole.append(root_of_squares(own))
    numeric = [norm for norm in norms if math.isfinite(norm)]
    return GradientHealth(
        global_norm=sum(whole) / len(whole),
        mean_parameter_norm=sum(norms) / len(norms),
        largest_parameter_norm=math.nan if any(map(math.isnan, norms)) else max(norms),
        vanishing=sum(norm < VANISHING_NORM for norm in norms) / len(norms),
        exploding=sum(norm > EXPLODING_NORM for norm in numeric) / len(norms),
        non_finite=1 - len(numeric) / len(norms),
    )


def root_of_squares(values: list[float]) -> float:
    return math.sqrt(sum(value * value for value in values))


def gathered(batches: list[list[list[float] | None]]) -> GradientHealth:
    collector = GradientCollector()
    for batch in batches:
        collector.collect([None if values is None else torch.tensor(values) for values in batch])
    taken = collector.take()
    assert taken is not None
    assert taken.shape == (WIDTH,)
    return GradientHealth(*taken.tolist())


@given(
    st.integers(1, 5).flatmap(lambda n: st.lists(st.lists(gradients, min_size=n, max_size=n), min_size=1, max_size=4))
)
def test_the_numbers_are_those_of_the_slow_formulas(batches) -> None:
    found, expected = gathered(batches), slowly(batches)
    for name in GradientHealth.__slots__:
        assert getattr(found, name) == pytest.approx(getattr(expected, name), rel=1e-4, abs=1e-7, nan_ok=True), name
    assert found.vanishing + found.exploding + found.non_finite <= 1 + 1e-6


def test_sim_low_4_the_global_norm_is_the_global_norm() -> None:
    """The global norm is that of all gradients together; the mean and the largest of the parameters' are apart."""
    found = gathered([[[3.0, 0.0], [4.0], [12.0], None]])
    assert (found.global_norm, found.mean_parameter_norm, found.largest_parameter_norm) == (13.0, 4.75, 12.0)


def test_sim_low_4_over_batches_the_global_norm_is_a_mean_of_global_norms() -> None:
    """Two batches, norms 5 and 1."""
    assert gathered([[[3.0], [4.0]], [[1.0], None]]).global_norm == 3.0


@pytest.mark.parametrize("once", [iter, lambda gradients: (each for each in gradients), reversed, enumerate])
def test_sim_low_3_the_gradient_collector_takes_a_sequence_and_refuses_an_exhausted_iterator(once) -> None:
    """What can be gone through once is refused, full or empty; and so is an empty sequence."""
    collector = GradientCollector()
    full = once([torch.ones(2)])
    with pytest.raises(TypeError, match=r"Received: \w+"):
        collector.collect(full)
    exhausted = once([torch.ones(2)])
    list(exhausted)
    with pytest.raises(TypeError, match=r"Received: \w+"):
        collector.collect(exhausted)
    with pytest.raises(ValueError, match="Received: none"):
        collector.collect([])
    assert collector.take() is None


def test_what_was_taken_is_gone_and_nothing_is_not_zero() -> None:
    collector = GradientCollector()
    assert collector.take() is None
    collector.collect([None, None])
    taken = collector.take()
    assert taken is not None
    assert GradientHealth(*taken.tolist()) == GradientHealth(0.0, 0.0, 0.0, 1.0, 0.0, 0.0)
    assert collector.take() is None


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_kinds_of_numbers_give_norms_in_floats(dtype: torch.dtype) -> None:
    collector = GradientCollector()
    collector.collect([torch.full((1000,), 100.0, dtype=dtype)])
    taken = collector.take()
    assert taken is not None
    assert taken.dtype is torch.float32
    assert taken[0].item() == pytest.approx(100 * math.sqrt(1000), rel=1e-3)


def test_nothing_is_read_so_that_no_device_waits() -> None:
    """On the meta device there is nothing to be read: who tries, raises."""
    with pytest.raises(RuntimeError):
        torch.ones(1, device="meta").item()
    collector = GradientCollector()
    for _ in range(3):
        collector.collect([torch.ones(2, 3, device="meta"), None, torch.ones((), device="meta")])
    taken = collector.take()
    assert taken is not None
    assert (taken.device.type, taken.shape) == ("meta", (WIDTH,))


GERMINATE = Action(Op.GERMINATE, "early", "test/local-conv", speed=2)


def gradients_of(environment: Environment, step: int) -> GradientHealth | None:
    environment.train()
    environment.evaluate("validation")
    signals = environment.network.conclude_step(step, environment.network.numbers().tolist())
    return next((seed.gradients for seed in signals.seeds), None)


def test_run_05_whoever_trains_a_seed_tells_how_its_gradients_are(make_recipe: Make) -> None:
    """A seed that learns always has gradients in the signals; where none learns they are unknown, and not 0."""
    environment = Environment(make_recipe(embargo=0), arm="grown", index=0)
    environment.reset(0, 5)
    assert gradients_of(environment, 0) is None
    environment.network.apply(GERMINATE, 0)
    plan = {2: Action(Op.ADVANCE, "early"), 5: Action(Op.PRUNE, "early", speed=1)}
    for step in range(1, 6):
        gradients = gradients_of(environment, step)
        assert gradients is not None
        assert gradients.global_norm > gradients.mean_parameter_norm > 0
        assert gradients.largest_parameter_norm > gradients.mean_parameter_norm
        assert gradients.health <= 1
        assert gradients.non_finite == 0
        if step in plan:
            environment.network.apply(plan[step], step)
    assert gradients_of(environment, 6) is None
    assert environment.garden.living_seeds() == []
