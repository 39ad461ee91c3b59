"""A blueprint that goes wrong loses its seed, and nothing else: the host goes on, and the author is named."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from esper_core.growth import FaultBook, Variety
from esper_core.leyline import (
    WAIT,
    Action,
    ActionMask,
    BlueprintSpec,
    Observation,
    Op,
    PluginError,
    Site,
    SlotPlace,
    Stage,
)
from esper_core.leyline.events import SeedLost, StageChanged, StepFinished
from esper_core.telemetry import Bus, Clock
from esper_core.trainer.environment import Environment, Recipe
from esper_core.trainer.loop import run_study
from esper_core.trainer.pool import Pool
from esper_core.trainer.progress import StudyProgress
from esper_core.trainer.study import Arm, RunReward, Study

Make = Callable[..., Recipe]
GERMINATE = Action(Op.GERMINATE, "early", "test/bad", speed=1)
ADVANCE, FOSSILISE = Action(Op.ADVANCE, "early"), Action(Op.FOSSILISE, "early")


def read(environment: Environment, step: int) -> Any:
    environment.evaluate("validation")
    return environment.network.conclude_step(step, environment.network.numbers().tolist())


class NanGradient(torch.autograd.Function):
    """Passes numbers on, and no gradient that is one."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor) -> Tensor:
        return hidden.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * math.nan


class RaisingGradient(NanGradient):
    """Passes numbers on, and fails on the way back."""

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        raise ZeroDivisionError("on the way back")


class Bad(nn.Module):
    """A decent block until its ``patience``-th pass in the mode it minds; then it does ``harm``."""

    def __init__(self, site: Site, harm: str, patience: int, mode: str) -> None:
        super().__init__()
        self.conv = nn.Conv1d(site.channels, site.channels, 1)
        nn.init.zeros_(self.conv.weight)
        nn.init.zeros_(self.conv.bias)
        self.harm, self.patience, self.mode = harm, patience, mode

    def forward(self, hidden: Tensor) -> Tensor:
        if self.mode in ("both", "train" if self.training else "eval"):
            self.patience -= 1
        grown = hidden + self.conv(hidden)
        if self.patience >= 0:
            return grown
        if self.harm == "raise":
            raise ValueError("out of patience")
        if self.harm == "shape":
            return grown[:, :, 1:]
        if self.harm == "no gradients":
            torch.set_grad_enabled(False)
            return grown
        if self.harm == "doubles":
            torch.set_default_dtype(torch.float64)
            return grown
        if self.harm == "one more":
            self.more = nn.Parameter(torch.zeros(2))
            return grown
        if self.harm == "nan":
            return grown * math.nan
        if self.harm == "detach":
            return grown.detach()
        return (NanGradient if self.harm == "nan gradient" else RaisingGradient).apply(grown)


def bad(harm: str, patience: int, mode: str = "train") -> Variety:
    spec = BlueprintSpec("sequence", "c*c + c", starts_as_identity=True)
    return Variety("test/bad", spec, lambda site: Bad(site, harm, patience, mode))


HARMS = ["raise", "shape", "nan", "nan gradient", "raise in backward", "no gradients", "doubles", "one more"]


@pytest.mark.parametrize("harm", HARMS)
def test_a_seed_that_goes_wrong_while_it_incubates_is_lost_and_the_host_is_still_its_twin(harm, make_recipe):
    pool = Pool(make_recipe(variety=bad(harm, patience=4)), ["grown", "twin"], 1)
    pool.reset(0, 3)
    lost = []
    for step in range(6):
        pool.train(step)
        pool.evaluate(step)
        pool.synchronise(step)
        mishaps = pool.heal(step)
        signals = pool.latest
        lost += [(step, mishap.ending.was, mishap.ending.now) for _, mishap in mishaps]
        assert all(one.finite for one in signals)
        assert signals[0].validation_loss == signals[1].validation_loss
        pool.apply([GERMINATE if step == 0 else WAIT, WAIT], step)
    assert lost == [(2, Stage.TRAINING, Stage.PRUNED)]
    grown, twin = pool.environments
    assert list(grown.model.state_dict()) == list(twin.model.state_dict())
    assert all(torch.equal(a, b) for a, b in zip(grown.model.parameters(), twin.model.parameters(), strict=True))
    assert grown.keeper.seeds == {}


@pytest.mark.parametrize(
    ("harm", "mode"),
    [
        *((harm, "train") for harm in HARMS),
        *((harm, "eval") for harm in ("raise", "shape", "nan", "no gradients", "doubles")),
    ],
)
def test_a_seed_that_goes_wrong_when_it_is_blended_in_is_lost_and_the_host_goes_on(harm, mode, make_recipe):
    patience = {"train": 3 + 3 + 2, "eval": 2}[mode]
    environment = Environment(make_recipe(variety=bad(harm, patience, mode)), arm="grown", index=0)
    environment.reset(0, 3)
    plan = {0: GERMINATE, 1: ADVANCE}
    mishaps = []
    for step in range(8):
        environment.train()
        signals = read(environment, step)
        if environment.network.heal(signals):
            signals = environment.measure_again(step)
        mishaps += environment.network.lost.take()
        assert signals.finite
        if step in plan:
            environment.network.apply(plan[step], step)
    (mishap,) = mishaps
    assert mishap.ending is not None
    assert mishap.ending.was in (Stage.BLENDING, Stage.HOLDING)
    assert environment.garden.slots["early"].living is None
    assert all(parameter.isfinite().all() for parameter in environment.model.parameters())
    assert environment.keeper.misowned(environment.model) == []


def test_a_seed_that_acts_on_a_frozen_host_and_leaves_no_gradient_is_lost(make_recipe, noisy_host):
    def frozen() -> nn.Module:
        return noisy_host().requires_grad_(False)

    environment = Environment(make_recipe(variety=bad("detach", patience=3 + 3 + 2), host=frozen), arm="a", index=0)
    environment.reset(0, 3)
    lost = []
    for step, action in enumerate([GERMINATE, ADVANCE, WAIT, WAIT]):
        environment.train()
        environment.network.apply(action, step)
        lost += [(step, one.blueprint, one.what) for one in environment.network.lost.take()]
    assert lost == [(3, "test/bad", "left the loss without a gradient")]
    assert environment.garden.blended == ()


class Detached(nn.Module):
    """A host that cuts its outputs off from its parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv1d(1, 4, 1)
        self.head = nn.Linear(48, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(self.stem(inputs).flatten(1)).detach()


def test_without_a_seed_a_loss_that_has_no_gradient_is_the_fault_of_the_host(make_recipe):
    pool = Pool(make_recipe(host=Detached), ["grown"], 1)
    pool.reset(0, 3)
    message = "E231 the host raised RuntimeError in training, step 0: left the loss without a gradient"
    with pytest.raises(PluginError, match=message):
        pool.train(0)


@pytest.mark.parametrize("kind", ["adam", "sgd"])
def test_b1_pt_01_after_a_rollback_the_next_step_is_that_of_a_fresh_optimizer(kind, make_recipe):
    recipe = make_recipe(variety=bad("nan", patience=3 + 3 + 2), optimizer={"kind": kind})
    environment = Environment(recipe, arm="grown", index=0)
    environment.reset(0, 3)
    for step, action in enumerate([GERMINATE, ADVANCE, WAIT]):
        environment.train()
        environment.network.apply(action, step)
    identities = [id(parameter) for parameter in environment.keeper.host.parameters]
    before = {key: value.clone() for key, value in environment.model.state_dict().items() if "_esper" not in key}
    environment.train()
    assert environment.network.heal(read(environment, 3))
    assert [id(parameter) for parameter in environment.keeper.host.parameters] == identities
    assert all(torch.equal(environment.model.state_dict()[key], value) for key, value in before.items())
    gradients = [torch.randn_like(parameter) for parameter in environment.keeper.host.parameters]
    fresh = [parameter.detach().clone().requires_grad_() for parameter in environment.keeper.host.parameters]
    optimizer = type(environment.keeper.host.optimizer)(fresh, **environment.keeper.host.optimizer.defaults)
    for own, other, gradient in zip(environment.keeper.host.parameters, fresh, gradients, strict=True):
        own.grad, other.grad = gradient.clone(), gradient.clone()
    environment.keeper.step(())
    optimizer.step()
    for own, other in zip(environment.keeper.host.parameters, fresh, strict=True):
        assert torch.equal(own, other)


class Stubborn:
    """Plants the same blueprint whenever it may."""

    def act(self, observations: Sequence[Observation], masks: Sequence[ActionMask]) -> list[Action]:
        return [GERMINATE if mask.allows(GERMINATE) else WAIT for mask in masks]


class Recorder:
    def __init__(self) -> None:
        self.events: list[Any] = []

    def hear(self, event: Any) -> None:
        self.events.append(event)

    def settle(self) -> None:
        pass


def test_after_three_faults_a_blueprint_is_withdrawn_from_the_run_and_its_package_was_named(make_recipe):
    recorder, recipe = Recorder(), make_recipe(variety=bad("raise", patience=1), steps=12, embargo=0)
    study = Study(
        pool=Pool(recipe, ["grown"], 1),
        arms=[Arm("grown", Stubborn(), "policy")],
        twin=None,
        reward=RunReward(None, "none"),  # type: ignore[arg-type]
        rounds=1,
        environments=1,
        steps=12,
        first_seed=0,
        bus=Bus([recorder]),
        clock=Clock(),
        packages={"test/bad": "bad-package 0.3"},
    )
    run_study(StudyProgress(study))
    lost = [event for event in recorder.events if isinstance(event, SeedLost)]
    assert [event.withdrawn for event in lost] == [False, False, True]
    assert {event.package for event in lost} == {"bad-package 0.3"}
    assert "raised ValueError: out of patience" in lost[0].what
    germinated = [e for e in recorder.events if isinstance(e, StageChanged) and e.now is Stage.GERMINATED]
    assert len(germinated) == 3
    assert sum(isinstance(event, StepFinished) for event in recorder.events) == 12


def test_a_blueprint_that_cannot_be_built_in_time_is_a_mishap_and_nothing_grows(make_recipe):
    def refuse(site: Site) -> nn.Module:
        raise OSError("no disk")

    variety = Variety("test/bad", BlueprintSpec("sequence", "0", starts_as_identity=True), refuse)
    environment = Environment(make_recipe(variety=variety), arm="grown", index=0)
    environment.reset(0, 0)
    assert environment.network.apply(GERMINATE, 0) == []
    (mishap,) = environment.network.lost.take()
    assert (mishap.slot, mishap.blueprint, mishap.ending) == ("early", "test/bad", None)
    assert "raised OSError: no disk" in mishap.what


def test_a_fossil_is_part_of_the_network_and_cannot_be_taken_out(make_recipe):
    environment = Environment(make_recipe(variety=bad("raise", patience=3 * 5)), arm="grown", index=0)
    environment.reset(0, 0)
    for step, action in enumerate([GERMINATE, ADVANCE, WAIT, FOSSILISE]):
        environment.train()
        environment.network.apply(action, step)
    environment.train()
    environment.train()
    with pytest.raises(PluginError, match=r'E320 .*blueprint "test/bad" raised ValueError'):
        environment.train()


def test_a_fault_book_counts_each_blueprint_for_itself():
    book = FaultBook(limit=2)
    assert [book.record("a"), book.record("b"), book.record("a"), book.record("a")] == [False, False, True, False]
    assert (book.is_withdrawn("a"), book.is_withdrawn("b")) == (True, False)


def test_a_seed_that_learnt_from_a_host_that_another_had_harmed_is_lost_and_not_blamed(make_recipe):
    good = replace(bad("none", 10**6), id="test/good")
    harmful, book = bad("nan", patience=3 + 3 + 2), FaultBook()
    recipe = replace(
        make_recipe(),
        slots={"early": SlotPlace("stem"), "late": SlotPlace("drop")},
        varieties={"early": (harmful,), "late": (good,)},
    )
    environment = Environment(recipe, arm="grown", index=0, faults=book)
    environment.reset(0, 3)
    plan = [GERMINATE, ADVANCE, Action(Op.GERMINATE, "late", "test/good"), WAIT, WAIT]
    mishaps = []
    for step, action in enumerate(plan):
        environment.train()
        environment.network.heal(read(environment, step))
        mishaps += environment.network.lost.take()
        environment.network.apply(action, step)
    assert [(mishap.blueprint, mishap.what) for mishap in mishaps] == [
        ("test/bad", "made the host's loss not finite"),
        ("test/good", "was lost with a host that another seed had harmed"),
    ]
    assert [book.record("test/good") for _ in range(3)] == [False, False, True]  # it had no fault before


def test_a_blueprint_that_is_withdrawn_by_others_in_the_same_step_stops_nobody(make_recipe):
    """All of them decided by masks that allowed it: what cannot be built is a mishap, of the fourth as of the third."""

    def unbuildable(site: Site) -> nn.Module:
        raise ValueError("no")

    pool = Pool(make_recipe(variety=Variety("test/bad", BlueprintSpec("sequence", "c"), unbuildable)), ["grown"], 5)
    pool.reset(0, 3)
    changes, mishaps = pool.apply([GERMINATE] * 5, 0)
    assert changes == []
    assert [mishap.withdrawn for _, mishap in mishaps] == [False, False, True, False, False]
    assert all(not mask.blueprints["early"] for mask in pool.masks())
