"""Optimizer steps without overhead are bitwise those of torch, and gradient health follows its formulas."""

import math
from dataclasses import replace
from itertools import chain, product
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings, strategies as st
from torch import nn

from esper_core.growth.optimizer_steps import FusedAdam, FusedAdamW, GradientCollector, step_optimizer
from esper_core.growth.optimizers import build_optimizer
from esper_core.leyline import WAIT
from esper_core.leyline.constants import EXPLODING_NORM, VANISHING_NORM
from esper_core.leyline.signals import GradientHealth
from esper_core.settings import OptimizerConfig
from tests.support.core_worlds import ADVANCE, GERMINATE, PRUNE, begin, make_recipe, read, same

TORCHS: dict[str, Any] = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}


def parameters() -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(5)
    return [nn.Parameter(torch.randn(size, generator=generator)) for size in ((4, 3), (4,), (2, 3, 5))]


def bits_of(optimizer: torch.optim.Optimizer, parameters: list[nn.Parameter]) -> list[torch.Tensor]:
    memory = [value for parameter in parameters for value in optimizer.state.get(parameter, {}).values()]
    return [parameter.detach() for parameter in parameters] + memory


@settings(max_examples=40, deadline=None)
@given(
    kind=st.sampled_from(["adam", "adamw"]),
    decay=st.sampled_from([0.0, 0.1]),
    steps=st.lists(
        st.tuples(st.floats(0.0, 0.1), st.sets(st.integers(0, 2))),  # the learning rate; parameters without a gradient
        min_size=1,
        max_size=6,
    ),
)
def test_fused_steps_equal_those_of_torch_to_the_last_bit(kind, decay, steps):
    fused_parameters, torch_parameters = parameters(), parameters()
    fused = build_optimizer(OptimizerConfig(kind=kind, weight_decay=decay, implementation="fused"), fused_parameters)  # type: ignore[arg-type]
    of_torch = TORCHS[kind](torch_parameters, OptimizerConfig().learning_rate, weight_decay=decay, fused=True)
    assert isinstance(fused, FusedAdam | FusedAdamW)

    generator = torch.Generator().manual_seed(7)
    for rate, without in steps:
        for index, (parameter, twin) in enumerate(zip(fused_parameters, torch_parameters, strict=True)):
            gradient = torch.randn(parameter.shape, generator=generator)
            parameter.grad, twin.grad = (None, None) if index in without else (gradient, gradient.clone())
        for optimizer in (fused, of_torch):
            optimizer.param_groups[0]["lr"] = rate
        step_optimizer(fused)
        of_torch.step()

    assert same(bits_of(fused, fused_parameters), bits_of(of_torch, torch_parameters))


def test_a_hook_on_a_fused_optimizer_of_ones_own_is_called():
    weights, called = parameters(), []
    optimizer = torch.optim.Adam(weights, 0.1, fused=True)
    optimizer.register_step_post_hook(lambda *_: called.append(1))
    for parameter in weights:
        parameter.grad = torch.ones_like(parameter)
    step_optimizer(optimizer)
    assert called == [1]


numbers = st.one_of(
    st.floats(-1e6, 1e6, width=32),
    st.sampled_from([0.0, -0.0, 1e-9, -3e-8, 99.0, 101.0, -5e4, math.nan, math.inf, -math.inf]),
)
gradients = st.one_of(st.none(), st.lists(numbers, min_size=1, max_size=4))


def slowly(batches: list[list[list[float] | None]]) -> GradientHealth:
    """Compute the documented formulas, one number after the other."""
    norms, global_norms = [], []
    for batch in batches:
        batch_norms = norms_of(batch)
        norms += batch_norms
        global_norms.append(root_of_squares(batch_norms))
    numeric = [norm for norm in norms if math.isfinite(norm)]
    return GradientHealth(
        global_norm=sum(global_norms) / len(global_norms),
        vanishing=sum(norm < VANISHING_NORM for norm in norms) / len(norms),
        exploding=sum(norm > EXPLODING_NORM for norm in numeric) / len(norms),
        non_finite=1 - len(numeric) / len(norms),
    )


def norms_of(batch: list[list[float] | None]) -> list[float]:
    return [0.0 if gradient is None else root_of_squares(gradient) for gradient in batch]


def root_of_squares(values: list[float]) -> float:
    return math.sqrt(sum(value * value for value in values))


def gathered(batches: list[list[list[float] | None]], *, scaled: bool = False) -> GradientHealth:
    collector = GradientCollector()
    for batch in batches:
        collector.collect([None if values is None else torch.tensor(values) for values in batch], scaled=scaled)
    taken = collector.take()
    assert taken is not None
    assert taken.shape == (len(GradientHealth.__slots__),)
    return GradientHealth(*taken.tolist())


@given(
    st.integers(1, 5).flatmap(lambda n: st.lists(st.lists(gradients, min_size=n, max_size=n), min_size=1, max_size=4))
)
def test_the_numbers_are_those_of_the_slow_formulas_and_of_scaled_losses_those_without_overflows(batches):
    # The collector sums in float32: a norm beside a bound, but not on it, may be rounded to the other side.
    pairs = product(chain.from_iterable(map(norms_of, batches)), (VANISHING_NORM, EXPLODING_NORM))
    assume(all(norm == bound or not math.isclose(norm, bound, rel_tol=1e-6) for norm, bound in pairs))
    health, finite = gathered(batches), [batch for batch in batches if all(map(math.isfinite, norms_of(batch)))]
    results = [(health, slowly(batches)), *([(gathered(batches, scaled=True), slowly(finite))] if finite else [])]
    for (actual, expected), name in product(results, GradientHealth.__slots__):
        assert getattr(actual, name) == pytest.approx(getattr(expected, name), rel=1e-4, abs=1e-7, nan_ok=True), name
    assert health.vanishing + health.exploding + health.non_finite <= 1 + 1e-6


def test_sim_low_4_the_global_norm_is_the_global_norm():
    """It is that of all gradients together, not the mean or maximum over parameters, and is averaged over batches."""
    assert gathered([[[3.0, 0.0], [4.0], [12.0], None]]).global_norm == 13.0
    assert gathered([[[3.0], [4.0]], [[1.0], None]]).global_norm == 3.0


def test_numbers_are_on_the_device_of_the_parameters_though_no_gradient_came():
    collector = GradientCollector()
    collector.collect([None, None], device=torch.device("meta"))
    assert collector.take().device.type == "meta"


@pytest.mark.parametrize("once", [iter, lambda gradients: (gradient for gradient in gradients), reversed, enumerate])
def test_sim_low_3_the_gradient_collector_takes_a_sequence_and_refuses_an_exhausted_iterator(once):
    """Iterators are refused, exhausted or not, and so is an empty sequence."""
    collector = GradientCollector()
    full, exhausted = once([torch.ones(2)]), once([torch.ones(2)])
    list(exhausted)
    for given_once in (full, exhausted):
        with pytest.raises(TypeError, match=r"Received: \w+"):
            collector.collect(given_once)
    with pytest.raises(ValueError, match="Received: none"):
        collector.collect([])
    assert collector.take() is None


def test_run_05_every_way_to_train_a_seed_reports_its_gradients():
    """A trained seed always has gradients in the signals; without training they are unknown, not 0."""
    environment = begin(make_recipe(embargo=0))
    plan = {0: replace(GERMINATE, speed=2), 2: ADVANCE, 5: replace(PRUNE, speed=1)}
    for step in range(7):
        environment.train()
        seeds = read(environment, step).seeds
        assert len(seeds) == (0 < step < 6)
        for gradients in [seed.gradients for seed in seeds]:
            assert gradients.global_norm > 0
            assert gradients.health <= 1
            assert gradients.non_finite == 0
        environment.network.apply(plan.get(step, WAIT), step)
