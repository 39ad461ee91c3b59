"""Half precision, loss scaling and micro-batches: results that do not depend on where a network runs."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from esper_core.governor import Act
from esper_core.leyline import Action
from esper_core.leyline.signals import CALM
from esper_core.settings import ComputeConfig
from esper_core.trainer.environment import Environment, Recipe
from esper_core.trainer.forward import half_precision
from esper_core.trainer.measurements import evaluate
from esper_core.trainer.pool import Pool
from tests.support.core_worlds import ADVANCE, FOSSILISE, GERMINATE, SmoothHost, begin_pool, change_recipe, make_recipe
from tests.support.studies import play

WHOLE_LIFE = {0: GERMINATE, 2: ADVANCE, 5: FOSSILISE}


def computed(*, way: str = "shadow", more: dict[str, Any] | None = None, **compute: Any) -> Recipe:
    """Return a recipe with these compute settings."""
    recipe = make_recipe(**{"steps": 8, "host": SmoothHost, **(more or {})})
    growth = recipe.network.growth.model_copy(update={"incubation": way})
    return change_recipe(recipe, compute=ComputeConfig(**compute), growth=growth)


def parameters(environment: Environment) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in environment.model.parameters()]


@pytest.mark.parametrize(
    ("precision", "way"),
    [("bfloat16", "shadow"), pytest.param("float16", "shadow", marks=pytest.mark.slow), ("float16", "branch")],
)
def test_a_whole_life_in_half_precision_leaves_parameters_and_losses_in_float32(precision, way):
    seen: set[torch.dtype] = set()
    cached: set[bool] = set()

    class Watched(SmoothHost):
        def forward(self, inputs: Tensor) -> Tensor:
            outputs = super().forward(inputs)
            seen.add(outputs.dtype)
            cached.add(torch.is_autocast_cache_enabled())
            return outputs

    pool = begin_pool(computed(way=way, precision=precision, more={"host": Watched}))
    seen.clear()  # the slots were observed before
    cached.clear()
    reports = play(pool, range(8), WHOLE_LIFE)
    grown, _ = pool.environments
    assert seen == {getattr(torch, precision)}
    assert cached == {False}, "the cache of shortened weights is shared by all lanes"
    assert len(grown.garden.slots["early"].fossils) == 1
    assert {tensor.dtype for tensor in grown.model.parameters()} == {torch.float32}
    assert grown.network.evaluation.losses.dtype is torch.float32
    assert reports[-1][0].train_loss < reports[0][0].train_loss
    assert reports[-1][0].loss_scale == (65536.0 if precision == "float16" else None)


def test_gains_are_computed_in_the_precision_of_the_evaluation():
    """Bitwise, since otherwise a difference in rounding would count as a gain."""
    pool = begin_pool(computed(precision="bfloat16"))
    grown, _ = pool.environments
    split, task = grown.recipe.data["validation"], grown.recipe.task

    def evaluated(*outputs: Any) -> Tensor:
        return evaluate(grown.model, task, split, *outputs).losses

    signals = play(pool, range(2), {0: GERMINATE})[-1][0]
    with grown.garden.incubating[0].trial():
        tried = evaluated(grown.forward.outputs)
        in_float32 = evaluated()
    assert not torch.equal(tried, in_float32)
    assert signals.slots[0].living.gain.mean == (grown.network.evaluation.losses - tried).double().mean().item()


def test_sim_low_3_auto_precision_is_bfloat16_or_float16_on_a_gpu_and_float32_on_a_cpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0) if device.index == 1 else (7, 5))
    old, new = torch.device("cuda", 0), torch.device("cuda", 1)
    assert half_precision("auto", old) is torch.float16
    assert half_precision("auto", new) is torch.bfloat16
    assert half_precision("auto", torch.device("cpu")) is None
    assert half_precision("float32", new) is None


def test_sim_low_3_every_environment_has_scalers_of_its_own_in_each_round():
    pool, scalers = Pool(computed(precision="float16"), ["a", "b"], 2), []
    for number in range(2):
        pool.reset(number, 3)
        scalers += [environment.keeper.scaler for environment in pool.environments]
    assert len({id(scaler) for scaler in scalers}) == 8


def test_while_a_scaler_searches_its_factor_nothing_is_learnt_and_nothing_rolled_back():
    pool = begin_pool(computed(precision="float16"), scale=2.0**60)
    before = parameters(pool.environments[0])
    scales = [step[0].loss_scale for step in play(pool, range(4))]
    assert scales == [2.0**57, 2.0**54, 2.0**51, 2.0**48], "each of three batches was skipped, and halved it"
    assert all(map(torch.equal, before, parameters(pool.environments[0])))
    assert pool.environments[0].network.governor.state_dict().plain["rollbacks"] == 0


def test_gradients_of_an_acting_seed_that_overflowed_are_unknown():
    pool = begin_pool(computed(precision="float16"), scale=2.0**10)
    play(pool, range(4), {0: GERMINATE, 1: ADVANCE})
    network, scaler = pool.environments[0].network, pool.environments[0].keeper.scaler
    for step, scale in ((4, 2.0**100), (5, 2.0**8)):
        scaler.load_state_dict({**scaler.state_dict(), "scale": scale})
        ((signals, _),) = play(pool, range(step, step + 1))
        gradients = signals.slots[0].living.gradients
        assert network.measured.host_finite
        assert (gradients is None) is (step == 4)
    assert gradients.non_finite == 0.0
    assert gradients.global_norm > 0.0


@pytest.mark.parametrize(("scale", "spoilt", "finite"), [(2.0, False, True), (0.5, False, False), (2.0, True, False)])
def test_infinite_gradients_below_scale_1_and_infinite_parameters_are_a_panic(scale, spoilt, finite):
    pool = begin_pool(computed(precision="float16"), scale=scale)
    play(pool, range(1))
    grown = pool.environments[0]
    first = next(iter(grown.keeper.host.parameters))
    (first.data if spoilt else first.grad).fill_(torch.inf)
    grown.evaluate("validation")
    signals = grown.network.signals(1, grown.network.numbers().tolist())
    assert grown.network.measured.host_finite is finite
    assert (grown.network.judge(replace(signals, validation_loss=1.0), CALM).act is Act.ROLL_BACK) is not finite


def test_host_and_fossils_skip_an_overflowed_step_together():
    """They are clipped together: one gradient of NaN would make all others NaN."""
    pool = begin_pool(computed(precision="float16", more={"optimizer": {"clip_norm": 0.5}, "batches": 1}), scale=4.0)
    play(pool, range(7), {0: GERMINATE, 1: ADVANCE, 5: FOSSILISE})
    keeper = pool.environments[0].keeper
    (fossil,) = keeper.fossils.values()
    host_and_fossil = (*keeper.host.parameters, *fossil.parameters)
    before = [parameter.detach().clone() for parameter in host_and_fossil]
    for parameter in host_and_fossil:
        parameter.grad = torch.ones_like(parameter)
    for parameter in keeper.host.parameters:
        parameter.grad.fill_(torch.nan)
    keeper.step([])
    assert all(map(torch.equal, before, host_and_fossil))
    assert keeper.scaler.state_dict()["scale"] == 2.0
    keeper.zero_grad()
    keeper.step([])  # without gradients, as if everything were frozen
    assert keeper.scaler.state_dict()["scale"] == 2.0


@pytest.mark.parametrize(
    ("way", "parts"),
    [("shadow", 3), ("branch", 20), *(pytest.param("shadow", parts, marks=pytest.mark.slow) for parts in (2, 20))],
)
def test_without_batch_norm_micro_batches_equal_one_batch(way, parts):
    """Within 1e-6 after a step of each kind, with plain SGD: Adam would divide what differs in its last bits."""
    results = []
    for micro_batches in (1, parts):
        sgd = {"optimizer": {"kind": "sgd", "momentum": 0.0}}
        pool = begin_pool(computed(way=way, more=sgd, micro_batches=micro_batches))
        reports = [signals for signals, _ in play(pool, range(4), {0: GERMINATE, 2: ADVANCE})]
        losses = [value for signals in reports for value in (signals.train_loss, signals.validation_loss)]
        losses += [
            seed.incubation_loss for signals in reports for seed in signals.seeds if seed.incubation_loss is not None
        ]
        results.append((parameters(pool.environments[0]), losses))
    (undivided, undivided_losses), (parted, parted_losses) = results
    torch.testing.assert_close(undivided, parted, rtol=0, atol=1e-6)
    assert parted_losses == pytest.approx(undivided_losses, abs=1e-6)


def test_sim_low_2_no_tensor_is_read_while_a_step_is_trained_and_measured(monkeypatch):
    """With a seed that incubates, and then with one that acts."""

    def refuse(self: Tensor, *_: Any) -> None:
        raise AssertionError("the host read a number")

    pool = begin_pool(computed(more={"optimizer": {"clip_norm": 1.0}}))
    for step, action in enumerate([GERMINATE, ADVANCE, Action(), Action()]):
        with monkeypatch.context() as patch:
            for reads in ("item", "tolist", "numpy", "__float__", "__int__", "__bool__", "__index__"):
                patch.setattr(Tensor, reads, refuse)
            pool.train(step)
            pool.evaluate(step)
        pool.synchronise(step)
        pool.apply([action, Action()], step)
