"""Precision and parts: the same wherever a network runs, and float32 in one part is what it always was."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from esper_core.config import ComputeConfig
from esper_core.governor import Act
from esper_core.growth import Draws
from esper_core.leyline import WAIT, Action, Op, Signals
from esper_core.leyline.actions import Blend
from esper_core.leyline.events import StepFinished
from esper_core.leyline.signals import CALM
from esper_core.telemetry.event_log import decode, encode
from esper_core.trainer.environment import Environment, Recipe
from esper_core.trainer.forward import ForwardPass, half_precision
from esper_core.trainer.measurements import evaluate
from esper_core.trainer.pool import Pool
from esper_core.trainer.study import warn_of_loss_scales

Make = Callable[..., Recipe]
GERMINATE = Action(Op.GERMINATE, "early", "test/local-conv", speed=1)
ADVANCE, FOSSILISE = Action(Op.ADVANCE, "early"), Action(Op.FOSSILISE, "early")


class Smooth(nn.Module):
    """Neither BatchNorm nor dropout: the mean over a batch is that over its parts."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv1d(1, 4, 1), nn.GELU())
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(48, 3))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(self.stem(inputs))


def asked(make_recipe: Make, *, host: Any = Smooth, way: str = "shadow", more: Any = (), **compute: Any) -> Recipe:
    recipe = make_recipe(steps=8, batches=3, host=host, **dict(more))
    growth = recipe.growth.model_copy(update={"incubation": way})
    return replace(recipe, compute=ComputeConfig(**compute), growth=growth)


def live(pool: Pool, steps: int, actions: dict[int, Action] | None = None) -> list[Sequence[Signals]]:
    """What was read in each step, when the first environment does as it is told."""
    if not hasattr(pool.environments[0], "garden"):
        pool.reset(0, 3)
    told = []
    for step in range(steps):
        pool.train(step)
        pool.evaluate(step)
        pool.synchronise(step)
        pool.heal(step)
        signals = pool.latest
        told.append(signals)
        decisions = pool.judge({})
        assert {decision.act for decision in decisions.values()} <= {Act.CONTINUE, Act.WARN}
        rest = [WAIT] * (len(pool.environments) - 1)
        pool.apply([(actions or {}).get(step, WAIT), *rest], step)
    return told


WHOLE_LIFE = {0: GERMINATE, 2: ADVANCE, 5: FOSSILISE}

# --- precision


@pytest.mark.parametrize(
    ("precision", "way"),
    [("bfloat16", "shadow"), ("float16", "shadow"), ("float16", "branch")],
)
def test_a_seed_lives_its_life_in_short_numbers_and_what_is_kept_and_judged_is_float32(precision, way, make_recipe):
    seen: set[torch.dtype] = set()

    class Watched(Smooth):
        def forward(self, inputs: Tensor) -> Tensor:
            outputs = super().forward(inputs)
            seen.add(outputs.dtype)
            return outputs

    pool = Pool(asked(make_recipe, host=Watched, way=way, precision=precision), ["grown", "twin"], 1, twin="twin")
    pool.reset(0, 3)
    seen.clear()  # the slots were looked at before
    told = live(pool, 8, WHOLE_LIFE)
    grown, _ = pool.environments
    assert seen == {getattr(torch, precision)}
    assert len(grown.garden.slots["early"].fossils) == 1
    assert {tensor.dtype for tensor in grown.model.parameters()} == {torch.float32}
    assert grown.network.evaluation.losses.dtype is torch.float32
    assert told[-1][0].train_loss < told[0][0].train_loss
    assert told[-1][0].loss_scale == (65536.0 if precision == "float16" else None)


@pytest.mark.parametrize("blend", list(Blend))
def test_every_operator_goes_in_short_numbers(blend, make_recipe):
    pool = Pool(asked(make_recipe, precision="bfloat16"), ["grown"], 1)
    told = live(pool, 5, {0: replace(GERMINATE, blend=blend), 1: ADVANCE})
    assert told[-1][0].slots[0].living.alpha == 1.0
    assert told[-1][0].finite


def test_what_is_left_out_and_what_is_tried_are_computed_as_what_is_evaluated(make_recipe):
    """To the bit: in another precision a seed would be credited with the difference of two roundings."""
    pool = Pool(asked(make_recipe, precision="bfloat16"), ["grown", "twin"], 1, twin="twin")
    (signals, _) = live(pool, 4, {0: GERMINATE, 1: ADVANCE})[-1]
    grown, _ = pool.environments
    (slot,), split = grown.garden.slots.values(), grown.recipe.data["validation"]
    own = grown.network.evaluation.losses
    with slot.disabled():
        without = evaluate(grown.model, grown.recipe.task, split, grown.forward.outputs).losses
        rounded_otherwise = evaluate(grown.model, grown.recipe.task, split).losses
    assert not torch.equal(without, rounded_otherwise)
    assert signals.slots[0].living.dependence.mean == (without - own).double().mean().item()

    pool = Pool(asked(make_recipe, precision="bfloat16"), ["grown"], 1)
    (signals,) = live(pool, 2, {0: GERMINATE})[-1]
    (grown,) = pool.environments
    with grown.garden.trial(0):
        tried = evaluate(grown.model, grown.recipe.task, split, grown.forward.outputs).losses
    assert signals.slots[0].living.gain.mean == (grown.network.evaluation.losses - tried).double().mean().item()


def test_sim_low_3_auto_is_bfloat16_where_the_device_has_it_else_float16_with_a_scaler_and_nothing_on_a_cpu(
    monkeypatch,
):
    asked_of: list[torch.device] = []

    def capability(device: torch.device) -> tuple[int, int]:
        asked_of.append(device)
        return (8, 0) if device.index == 1 else (7, 5)

    monkeypatch.setattr(torch.cuda, "get_device_capability", capability)
    old, new = torch.device("cuda", 0), torch.device("cuda", 1)
    assert half_precision("auto", old) is torch.float16
    assert half_precision("auto", new) is torch.bfloat16
    assert asked_of == [old, new]
    assert half_precision("auto", torch.device("cpu")) is None
    assert half_precision("float32", new) is None


def test_sim_low_3_a_scaler_is_the_environments_own(make_recipe):
    pool = Pool(asked(make_recipe, precision="float16"), ["a", "b"], 2)
    pool.reset(0, 3)
    assert len({id(environment.keeper.scaler) for environment in pool.environments}) == 4
    first = pool.environments[0].keeper.scaler
    pool.reset(1, 5)
    assert pool.environments[0].keeper.scaler is not first


def test_the_cache_of_shortened_weights_is_not_used_for_it_is_shared_by_all_lanes(make_recipe):
    found: list[bool] = []

    class Asking(Smooth):
        def forward(self, inputs: Tensor) -> Tensor:
            found.append(torch.is_autocast_cache_enabled())
            return super().forward(inputs)

    recipe = asked(make_recipe, host=Asking, precision="bfloat16")
    ForwardPass(recipe.compute, recipe.task, recipe.device).outputs(Asking(), recipe.data["train"].inputs[:2])
    assert found == [False]


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_a_trajectory_in_short_numbers_is_the_same_for_any_number_of_lanes(precision, make_recipe):
    recipe = replace(asked(make_recipe, precision=precision), draws=Draws.NEVER)
    alone = [step[0] for step in live(Pool(recipe, ["grown"], 1), 5, WHOLE_LIFE)]
    side_by_side = Pool(recipe, ["grown", "twin"], 2, lanes=2)
    assert [step[0] for step in live(side_by_side, 5, WHOLE_LIFE)] == alone
    side_by_side.close()


# --- a loss that overflows


def overflowing(make_recipe: Make, scale: float, **more: Any) -> Pool:
    pool = Pool(asked(make_recipe, precision="float16", **more), ["grown", "twin"], 1, twin="twin")
    pool.reset(0, 3)
    for environment in pool.environments:
        environment.keeper.scaler = torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=1000)
    return pool


def test_while_a_scaler_searches_nobody_panics_and_the_factor_is_told(make_recipe):
    pool = overflowing(make_recipe, 2.0**60)
    before = [parameter.detach().clone() for parameter in pool.environments[0].model.parameters()]
    told = live(pool, 6)
    scales = [step[0].loss_scale for step in told]
    assert scales[0] == 2.0**57, "three batches were left out, and each halved it"
    assert scales == sorted(scales, reverse=True)
    now = pool.environments[0].model.parameters()
    assert all(torch.equal(a, b) for a, b in zip(before, now, strict=True)), "nothing was learnt from infinities"


def test_gradients_of_a_seed_that_overflowed_are_unknown_and_not_sick(make_recipe):
    """Blended in, so that a sick gradient would be a panic: two of three batches, and then all of them."""
    pool = overflowing(make_recipe, 2.0**10)
    live(pool, 4, {0: GERMINATE, 1: ADVANCE})
    grown = pool.environments[0]
    grown.keeper.scaler.load_state_dict({**grown.keeper.scaler.state_dict(), "scale": 2.0**100})
    (signals, _), *_ = live(pool, 1)
    assert signals.slots[0].living.gradients is None
    assert grown.network.measured.host_finite
    grown.keeper.scaler.load_state_dict({**grown.keeper.scaler.state_dict(), "scale": 2.0**8})
    (signals, _), *_ = live(pool, 1)
    assert signals.slots[0].living.gradients.non_finite == 0.0
    assert signals.slots[0].living.gradients.global_norm > 0.0


def test_what_no_factor_can_mend_is_a_panic(make_recipe):
    """Below 1 the loss is not scaled up any more; and a parameter that is no number is none in any precision."""
    for scale, spoilt, finite in ((2.0, False, True), (0.5, False, False), (2.0, True, False)):
        pool = overflowing(make_recipe, scale)
        live(pool, 1)
        grown = pool.environments[0]
        first = next(iter(grown.keeper.host.parameters))
        (first.data if spoilt else first.grad).fill_(torch.inf)
        grown.evaluate("validation")
        signals = grown.network.signals(1, grown.network.numbers().tolist())
        assert grown.network.measured.host_finite is finite
        assert (grown.network.judge(replace(signals, validation_loss=1.0), CALM).act is Act.ROLL_BACK) is not finite


def test_host_and_fossils_leave_a_step_out_together(make_recipe):
    """They are clipped together: one gradient that is no number would make all of the others' the same."""
    pool = overflowing(make_recipe, 4.0, more={"optimizer": {"clip_norm": 0.5}}.items())
    live(pool, 7, {0: GERMINATE, 1: ADVANCE, 4: FOSSILISE})
    keeper = pool.environments[0].keeper
    (fossil,) = keeper.fossils.values()
    before = [parameter.detach().clone() for parameter in (*keeper.host.parameters, *fossil.parameters)]
    for parameter in keeper.host.parameters:
        parameter.grad = torch.full_like(parameter, torch.nan)
    for parameter in fossil.parameters:
        parameter.grad = torch.ones_like(parameter)
    keeper.step([])
    after = (*keeper.host.parameters, *fossil.parameters)
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    assert keeper.scaler.state_dict()["scale"] == 2.0


def test_a_share_without_gradients_does_not_trouble_the_scaler(make_recipe):
    """A host that is frozen but for what nothing leads to, say."""
    pool = overflowing(make_recipe, 4.0)
    keeper = pool.environments[0].keeper
    keeper.zero_grad()
    keeper.step([])
    assert keeper.scaler.state_dict()["scale"] == 4.0


def test_b8_drl_05_each_environments_factor_is_told_and_arms_that_drifted_apart_are_warned_of(make_recipe, caplog):
    """The factor stands in the events; at the end of a round a seed whose arms ended with others is named, once."""
    pool = Pool(asked(make_recipe, precision="float16"), ["a", "b"], 2)
    signals = live(pool, 1)[-1]
    event = StepFinished(round=0, arm="a", seed=3, step=0, signals=signals[0])
    assert decode(encode(event)).signals.loss_scale == 65536.0
    warn_of_loss_scales(pool.environments, signals)
    assert not caplog.records
    apart = [replace(one, loss_scale=1024.0) if place == 3 else one for place, one in enumerate(signals)]
    warn_of_loss_scales(pool.environments, apart)
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert "seed 4: a 65536, b 1024" in record.getMessage()


# --- parts


def states(environment: Environment) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in environment.model.parameters()]


@pytest.mark.parametrize(("way", "parts"), [("shadow", 2), ("shadow", 3), ("shadow", 20), ("branch", 3)])
def test_without_batch_norm_parts_come_to_the_same_as_one_batch(way, parts, make_recipe):
    """Within 1e-6 after a step of each kind, with plain SGD: Adam would divide what differs in its last bits."""
    sgd = {"optimizer": {"kind": "sgd", "momentum": 0.0}}.items()
    found = []
    for micro_batches in (1, parts):
        recipe = asked(make_recipe, way=way, more=sgd, micro_batches=micro_batches)
        pool = Pool(recipe, ["grown"], 1)
        told = live(pool, 4, {0: GERMINATE, 2: ADVANCE})
        losses = [value for (one,) in told for value in (one.train_loss, one.validation_loss)]
        losses += [seed.incubation_loss for (one,) in told for seed in one.seeds if seed.incubation_loss is not None]
        found.append((states(pool.environments[0]), losses))
    (whole, whole_losses), (parted, parted_losses) = found
    for one, other in zip(whole, parted, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-6)
    assert parted_losses == pytest.approx(whole_losses, abs=1e-6)


def test_uneven_parts_are_weighted_by_their_examples(make_recipe):
    recipe = asked(make_recipe, micro_batches=3)
    passes, model = ForwardPass(recipe.compute, recipe.task, recipe.device), Smooth()
    inputs, targets = recipe.data["train"].inputs[:20], recipe.data["train"].targets[:20]
    seen: list[int] = []
    model.register_forward_hook(lambda module, args, output: seen.append(len(output)))
    whole = sum(part(model) for part in passes.losses(inputs, targets))
    assert seen == [7, 7, 6]
    torch.testing.assert_close(whole, recipe.task.losses(model(inputs), targets).mean())


def test_random_numbers_are_drawn_part_by_part(make_recipe, noisy_host):
    """The masks of a batch in two parts are those of two batches of half the size."""
    masks: list[Tensor] = []

    class Peeking(nn.Dropout):
        def forward(self, hidden: Tensor) -> Tensor:
            dropped = super().forward(hidden)
            if self.training and len(hidden) > 2:
                masks.append(dropped == 0)
            return dropped

    def host() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(12, 8), Peeking(0.5), nn.Linear(8, 3))

    from esper_core.leyline import SlotPlace

    def drawn(size: int, batches: int, micro_batches: int) -> Tensor:
        masks.clear()
        recipe = asked(make_recipe, host=host, micro_batches=micro_batches, more={"place": SlotPlace("1")}.items())
        episode = recipe.episode.model_copy(update={"batch_size": size, "batches": batches})
        environment = Environment(replace(recipe, episode=episode, draws=Draws.FORWARD), arm="a", index=0)
        environment.reset(0, 3)
        environment.train()
        return torch.cat(masks)

    halves = drawn(10, 2, 1)
    assert halves.any()
    assert torch.equal(drawn(20, 1, 2), halves)
    assert torch.equal(drawn(20, 1, 1), halves)


# --- what is read


def test_sim_low_2_nothing_is_read_in_a_step_before_the_one_place_where_it_is(make_recipe, monkeypatch):
    """Training, evaluation and weighing, with a seed in the shadow and then with one that acts: no tensor is read."""
    pool = Pool(asked(make_recipe, more={"optimizer": {"clip_norm": 1.0}}.items()), ["grown", "twin"], 1, twin="twin")
    pool.reset(0, 3)
    for step, action in enumerate([GERMINATE, ADVANCE, WAIT, WAIT]):
        with monkeypatch.context() as patch:
            for reads in ("item", "tolist", "numpy", "__float__", "__int__", "__bool__", "__index__"):
                patch.setattr(Tensor, reads, _refuse)
            pool.train(step)
            pool.evaluate(step)
        pool.synchronise(step)
        pool.apply([action, WAIT], step)


def _refuse(self: Tensor, *_: Any) -> None:
    raise AssertionError("the host read a number")
