"""Faults of blueprints: the seed is lost, the host goes on, and the package is named."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from esper_core.growth import FaultBook, Variety
from esper_core.leyline import WAIT, Action, BlueprintSpec, PluginError, Site, SlotPlace, Stage
from esper_core.leyline.events import SeedLost, StageChanged, StepFinished
from esper_core.trainer.environment import Environment
from esper_core.trainer.loop import run_study
from esper_core.trainer.pool import Pool
from esper_core.trainer.study_position import StudyPosition
from tests.support import core_worlds
from tests.support.core_worlds import ADVANCE, FOSSILISE, PlannedPolicy, bad, begin, change_recipe, make_recipe
from tests.support.studies import make_study, play

AFTER_BLENDING = 3 + 3 + 2
"""The training passes of a seed that is advanced after the second step, until its third step begins, and two more."""

GERMINATE = replace(core_worlds.GERMINATE, blueprint="test/bad")


class RaisingGradient(core_worlds.NanGradient):
    """Returns its input, and raises in the backward pass."""

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        raise ZeroDivisionError("in backward")


def add_parameter(block: Any, grown: Tensor) -> Tensor:
    block.more = nn.Parameter(torch.zeros(2))
    return grown


def setting(change: Callable[[], Any]) -> Callable[[Any, Tensor], Tensor]:
    """Return a harm that changes a global setting of torch."""

    def harm(block: Any, grown: Tensor) -> Tensor:
        change()
        return grown

    return harm


KEPT: list[Any] = []
HARMS: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "raise": core_worlds.out_of_patience,
    "shape": lambda block, grown: grown[:, :, 1:],
    "nan": lambda block, grown: grown * math.nan,
    "no gradients": setting(lambda: torch.set_grad_enabled(False)),
    "inference": setting(lambda: KEPT.append(torch.inference_mode()) or KEPT[-1].__enter__()),
    "default dtype": setting(lambda: torch.set_default_dtype(torch.float64)),
    "nan gradient": lambda block, grown: core_worlds.NanGradient.apply(grown),
    "raise in backward": lambda block, grown: RaisingGradient.apply(grown),
    "new parameter": add_parameter,
}


@pytest.mark.parametrize("harm", HARMS)
def test_a_seed_that_fails_while_it_incubates_is_lost_and_the_host_is_still_its_twin(harm):
    pool, lost = Pool(make_recipe(variety=bad(HARMS[harm], patience=4)), ["grown", "twin"], 1), []
    heal = pool.heal

    def recorded(step: int) -> Any:
        healed = heal(step)
        lost.extend((step, seed.ending.was, seed.ending.now) for _, seed in healed)
        return healed

    pool.heal = recorded
    for grown, twin in play(pool, 4, {0: GERMINATE}):
        assert grown.finite
        assert grown.validation_loss == twin.validation_loss
    assert lost == [(2, Stage.TRAINING, Stage.PRUNED)]
    grown, twin = pool.environments
    assert list(grown.model.state_dict()) == list(twin.model.state_dict())
    assert core_worlds.same(grown.model.parameters(), twin.model.parameters())
    assert grown.keeper.seeds == {}


def lost_while(environment: Environment, *actions: Action) -> list[tuple[int, Any]]:
    """Play a step before each of these actions; return the seeds that are lost, with the step of each."""
    lost = []
    for step, action in enumerate(actions):
        environment.train()
        signals = core_worlds.read(environment, step)
        if environment.network.heal(signals):
            signals = environment.measure_again(step)
        assert signals.finite
        lost += [(step, seed) for seed in environment.network.lost.take()]
        environment.network.apply(action, step)
    return lost


@pytest.mark.parametrize(
    ("harm", "training"),
    [
        *((harm, True) for harm in HARMS),
        *((harm, False) for harm in ("raise", "shape", "nan", "no gradients", "default dtype")),
    ],
)
def test_a_seed_that_fails_while_it_acts_is_lost_and_the_host_continues(harm, training):
    variety = bad(HARMS[harm], AFTER_BLENDING if training else 2, training=training)
    environment = begin(make_recipe(variety=variety))
    ((_, seed),) = lost_while(environment, GERMINATE, ADVANCE, *[WAIT] * 6)
    assert seed.ending.was in (Stage.BLENDING, Stage.HOLDING)
    assert environment.garden.slots["early"].living is None
    assert all(parameter.isfinite().all() for parameter in environment.model.parameters())
    assert environment.keeper.misowned(environment.model) == []


def test_a_seed_that_acts_on_a_frozen_host_and_leaves_no_gradient_is_lost():
    variety = bad(lambda block, grown: grown.detach(), AFTER_BLENDING)
    environment = begin(make_recipe(variety=variety, host=lambda: core_worlds.NoisyHost().requires_grad_(False)))
    ((step, seed),) = lost_while(environment, GERMINATE, ADVANCE, WAIT, WAIT)
    assert (step, seed.blueprint, seed.what) == (3, "test/bad", "left the loss without a gradient")
    assert environment.garden.blended == ()


def test_without_a_seed_a_loss_without_gradient_is_attributed_to_the_host():
    class Detached(core_worlds.SmoothHost):
        def forward(self, inputs: Tensor) -> Tensor:
            return super().forward(inputs).detach()

    pool = Pool(make_recipe(host=Detached), ["grown"], 1)
    pool.reset(0, 3)
    message = "E231 the host raised RuntimeError in training, step 0: left the loss without a gradient"
    with pytest.raises(PluginError, match=message):
        pool.train(0)


def test_after_three_faults_a_blueprint_is_withdrawn_and_its_package_is_named():
    recipe = make_recipe(variety=bad(patience=1), steps=12, batches=1, embargo=0)
    study, events = make_study(recipe, PlannedPolicy(dict.fromkeys(range(12), GERMINATE)))
    run_study(StudyPosition(replace(study, packages={"test/bad": "bad-package 0.3"})))
    lost = events.of(SeedLost)
    assert [event.withdrawn for event in lost] == [False, False, True]
    assert {event.package for event in lost} == {"bad-package 0.3"}
    assert "raised ValueError: out of patience" in lost[0].what
    assert [event.now for event in events.of(StageChanged)].count(Stage.GERMINATED) == 3
    assert len(events.of(StepFinished)) == 12


def test_blueprints_that_cannot_be_built_are_lost_seeds_even_after_one_of_them_is_withdrawn():
    """All decided by masks that still allowed it, so the fourth seed is lost like the third."""

    def refuse(site: Site) -> nn.Module:
        raise OSError("no disk")

    pool = Pool(make_recipe(variety=Variety("test/bad", BlueprintSpec("sequence"), refuse)), ["grown"], 5)
    pool.reset(0, 3)
    changes, lost = pool.apply([GERMINATE] * 5, 0)
    assert changes == []
    assert [seed.withdrawn for _, seed in lost] == [False, False, True, False, False]
    seed = lost[0][1]
    assert (seed.slot, seed.blueprint, seed.ending) == ("early", "test/bad", None)
    assert "raised OSError: no disk" in seed.what
    assert all(not mask.blueprints["early"] for mask in pool.masks())
    network = pool.environments[0].network
    network.lost.records.append(seed)
    pool.reset(1, 4)
    assert pool.environments[0].network.lost.take() == [], "it belongs to the round before"


def test_a_fossil_that_fails_is_part_of_the_network_and_stops_the_run():
    environment = begin(make_recipe(variety=bad(patience=3 * 5)))
    core_worlds.train_and_act(environment, GERMINATE, ADVANCE, WAIT, FOSSILISE)
    environment.train()
    environment.train()
    with pytest.raises(PluginError, match=r'E320 .*blueprint "test/bad" raised ValueError'):
        environment.train()


def test_a_seed_that_learnt_from_a_host_that_another_harmed_is_lost_and_not_blamed():
    good, book = replace(bad(patience=10**6), id="test/good"), FaultBook()
    recipe = change_recipe(
        make_recipe(),
        slots={"early": SlotPlace("stem"), "late": SlotPlace("drop")},
        varieties={"early": (bad(HARMS["nan"], AFTER_BLENDING),), "late": (good,)},
    )
    later = replace(GERMINATE, slot="late", blueprint="test/good"), WAIT, WAIT
    lost = lost_while(begin(recipe, faults=book), GERMINATE, ADVANCE, *later)
    assert [(seed.blueprint, seed.what) for _, seed in lost] == [
        ("test/bad", "made the host's loss not finite"),
        ("test/good", "was lost with a host that another seed had harmed"),
    ]
    assert [book.record("test/good") for _ in range(3)] == [False, False, True]  # it had no fault before
