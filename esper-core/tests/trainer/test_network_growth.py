"""Where growth, gates and the governor meet: what is unknown stays unknown, and whoever did it answers for it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from esper_core.governor import Act, MutationWatch
from esper_core.growth import Garden, OptimizerKeeper, Presence, Transition, Variety, host_parameters
from esper_core.leyline import WAIT, Action, ActionMask, BlueprintSpec, Op, SlotPlace, Stage
from esper_core.leyline.signals import Level, Verdict
from esper_core.trainer.environment import Recipe
from esper_core.trainer.pool import Pool

Make = Callable[..., Recipe]
GERMINATE = Action(Op.GERMINATE, "early", "test/local-conv", speed=1)
ADVANCE, FOSSILISE = Action(Op.ADVANCE, "early"), Action(Op.FOSSILISE, "early")


def growing(recipe: Recipe, **growth: Any) -> Recipe:
    return replace(recipe, growth=recipe.growth.model_copy(update=growth))


def lived(pool: Pool, plan: dict[int, Action], steps: int, first: int = 0) -> list[Any]:
    """What is told of the grown environment, step by step; seeds that go wrong are taken out, nobody judges."""
    told = []
    for step in range(first, first + steps):
        pool.train(step)
        pool.evaluate(step)
        pool.synchronise(step)
        pool.heal(step)
        signals = pool.latest
        told.append(signals[0])
        pool.apply([plan.get(step, WAIT), *[WAIT] * (len(signals) - 1)], step)
    return told


def begun(recipe: Recipe, twin: bool = True) -> Pool:
    pool = Pool(recipe, ["grown", "twin"] if twin else ["grown"], 1, twin="twin" if twin else None)
    pool.reset(0, 3)
    return pool


def two_slots(make_recipe: Make, **growth: Any) -> Recipe:
    recipe = make_recipe(embargo=0)
    (variety,) = recipe.varieties["early"]
    slots = {"early": SlotPlace("stem", stack=2), "late": SlotPlace("stem")}
    return growing(replace(recipe, slots=slots, varieties={"early": (variety,), "late": (variety,)}), **growth)


def test_where_two_act_or_another_was_kept_since_a_gain_is_unknown_until_none_acts(make_recipe):
    """A seed was once credited with what another had gained that was kept beside it."""
    late = replace(GERMINATE, slot="late")
    plan = {0: GERMINATE, 1: late, 3: ADVANCE, 6: replace(ADVANCE, slot="late"), 9: FOSSILISE}
    recipe = two_slots(make_recipe)
    told = lived(begun(replace(recipe, slots={"early": SlotPlace("stem"), "late": SlotPlace("stem.0")})), plan, 13)
    gains = [{slot.name: slot.living and slot.living.gain for slot in one.slots} for one in told]
    assert gains[5]["early"] is not None
    assert gains[8] == {"early": None, "late": None}
    assert gains[12]["late"] is None


def test_at_no_strength_a_seed_gained_nothing_yet(make_recipe):
    """It was advanced at the end of the step and is measured before alpha moved: whatever is gained is another's."""
    pool = begun(make_recipe())
    lived(pool, {0: GERMINATE}, 3)
    gates: Any = pool.environments[0].garden.gates
    gates.ready = lambda seed: True
    at_once, later = (told.seeds[0] for told in lived(pool, {}, 2, first=3))
    assert (at_once.stage, at_once.alpha, at_once.gain) == (Stage.BLENDING, 0.0, None)
    assert later.alpha > 0.0
    assert later.gain is not None


def test_after_a_rollback_of_the_twin_gains_are_unknown_until_none_acts(make_recipe):
    pool = begun(make_recipe())
    lived(pool, {0: GERMINATE, 2: ADVANCE}, 4)
    pool.train(4)
    pool.evaluate(4)
    signals = pool.synchronise(4)
    assert signals[0].seeds[0].gain is not None
    decisions = pool.judge({1: Verdict(Level.PANIC, "too hot")})
    assert decisions[1].act is Act.ROLL_BACK
    pool.carry_out(decisions, 4)
    assert lived(pool, {}, 2, first=5)[-1].seeds[0].gain is None


def test_after_a_step_that_was_not_calm_nothing_is_kept(make_recipe):
    pool = begun(make_recipe())
    lived(pool, {0: GERMINATE, 2: ADVANCE}, 5)
    assert pool.masks()[0].allows(FOSSILISE)
    pool.synchronise(4)
    pool.judge({0: Verdict(Level.WARNING, "hm")})
    assert not pool.masks()[0].allows(FOSSILISE)
    pool.judge({})
    assert pool.masks()[0].allows(FOSSILISE)


def test_a_branch_whose_numbers_went_wild_is_dropped_before_it_can_be_kept(make_recipe):
    pool = begun(growing(make_recipe(), incubation="branch"))
    lived(pool, {0: GERMINATE, 2: ADVANCE}, 4)
    (branch,) = pool.environments[0].garden._incubations.values()
    branch._numbers[0].fill_(math.nan)  # as a last batch leaves them
    pool.evaluate(4)
    pool.synchronise(4)
    mishaps = pool.heal(4)
    signals = pool.latest
    assert [mishap.blueprint for _, mishap in mishaps] == ["test/local-conv"]
    assert signals[0].seeds == ()
    assert math.isfinite(signals[0].validation_loss)


def test_who_was_dropped_from_a_nursery_hides_nobody_from_blame():
    def change(seed: int, was: Stage | None, now: Stage) -> Transition:
        return Transition("early", seed, f"test/{seed}", was, now, 10, "so")

    watch = MutationWatch(8)
    watch.record([change(1, Stage.TRAINING, Stage.BLENDING), change(0, Stage.TRAINING, Stage.PRUNED)], 4)
    culprit = watch.culprit(["early"])
    assert culprit is not None
    assert (culprit.mutation.blueprint, culprit.blamed) == ("test/1", True)


def test_a_seed_from_a_branch_lives_on_in_a_garden_that_takes_it_in(make_recipe):
    """As one does that was saved and loaded; it once became a fossil that did nothing."""
    pool = begun(growing(make_recipe(), incubation="branch"))
    lived(pool, {0: GERMINATE, 2: ADVANCE}, 5)
    recipe, model = pool.environments[0].recipe, pool.environments[0].model
    settings = {"host_settings": recipe.optimizers.host, "seed_settings": recipe.optimizers.seed}
    garden = Garden(model, OptimizerKeeper(host_parameters(model), **settings), {}, seed=0, batches=1)
    (seed,) = garden.living_seeds()
    assert seed.presence is Presence.BRANCHED
    garden.apply(FOSSILISE, 0)
    inputs = recipe.data["test"].inputs
    before = model.eval()(inputs)
    with torch.no_grad():
        for parameter in seed.parameters():
            parameter.add_(1.0)
    assert not torch.equal(model(inputs), before)


class Sparse(nn.Module):
    """A host whose embedding has sparse gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(4, 4, sparse=True)
        self.stem = nn.Conv1d(1, 4, 1)
        self.head = nn.Linear(48, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        which = inputs.flatten(1)[:, :1].gt(0).long()
        hidden: Tensor = self.head((self.stem(inputs) + self.table(which).transpose(1, 2)).flatten(1))
        return hidden


def test_a_host_with_sparse_gradients_is_read_like_any_other(make_recipe):
    recipe = make_recipe(host=Sparse, optimizer={"kind": "sgd", "momentum": 0.0, "implementation": "plain"})
    pool = begun(recipe)
    lived(pool, {}, 2)
    assert pool.environments[0].network.measured.host_finite


def test_a_gradient_that_is_large_is_a_number(make_recipe):
    pool = begun(make_recipe())
    lived(pool, {}, 1)
    next(iter(pool.environments[0].keeper.host.parameters)).grad.fill_(1e30)  # type: ignore[union-attr]
    pool.evaluate(1)
    pool.synchronise(1)
    assert pool.environments[0].network.measured.host_finite


class Harmful(nn.Module):
    """The identity, until it is told to do harm in evaluation or on the way back."""

    def __init__(self, harm: str) -> None:
        super().__init__()
        self.harm, self.mix = harm, nn.Conv1d(4, 4, 1)
        nn.init.zeros_(self.mix.weight)

    def forward(self, hidden: Tensor) -> Tensor:
        if self.harm == "evaluation" and not self.training:
            torch.set_default_dtype(torch.float64)
        grown: Tensor = hidden + self.mix(hidden)
        return Raising.apply(grown) if self.harm == "backward" and torch.is_grad_enabled() else grown


class Raising(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor) -> Tensor:
        return hidden.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        raise ZeroDivisionError("on the way back")


@pytest.mark.parametrize(("way", "harm"), [("shadow", "backward"), ("shadow", "evaluation")])
def test_the_seed_that_does_it_is_lost_and_the_run_goes_on(way, harm, make_recipe):
    spec = BlueprintSpec("sequence", "c*c + c", starts_as_identity=True)
    variety = Variety("test/local-conv", spec, lambda site: Harmful(harm))
    pool = begun(growing(make_recipe(variety=variety), incubation=way))
    told = lived(pool, {0: GERMINATE}, 4)
    assert told[-1].seeds == ()
    assert torch.get_default_dtype() is torch.float32


def test_a_branch_is_reckoned_with_before_it_is_opened(make_recipe):
    pools = [begun(growing(make_recipe(), incubation=way)) for way in ("shadow", "branch")]
    needed = [pool.environments[0]._budget.mebibytes(pool.environments[0].garden, 10) for pool in pools]
    assert needed[1] > needed[0]
    lived(pools[1], {0: GERMINATE}, 3)
    environment = pools[1].environments[0]
    assert environment._budget.mebibytes(environment.garden) > needed[0]


def test_what_could_not_be_built_is_told_in_its_own_step_and_round(make_recipe):
    def unbuilt(site: Any) -> nn.Module:
        raise ValueError("no")

    (variety,) = make_recipe().varieties["early"]
    pool = begun(make_recipe(variety=replace(variety, factory=unbuilt)))
    lived(pool, {}, 1)
    _, mishaps = pool.apply([GERMINATE, WAIT], 0)
    assert [mishap.blueprint for _, mishap in mishaps] == ["test/local-conv"]
    pool.environments[0].network.lost.records.append(mishaps[0][1])
    pool.reset(1, 4)
    assert pool.environments[0].network.lost.take() == []


class Shared(nn.Module):
    """A host in which two modules share one buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = nn.Sequential(nn.Conv1d(1, 4, 1)), nn.Linear(48, 3)
        self.stem.register_buffer("scale", torch.ones(()))
        self.head.register_buffer("scale", self.stem.scale)

    def forward(self, inputs: Tensor) -> Tensor:
        if self.training:
            self.stem.scale.mul_(1.5)
        hidden: Tensor = self.head(self.stem(inputs).flatten(1))
        return hidden / self.stem.scale


def test_on_a_branch_a_buffer_that_two_modules_share_is_one(make_recipe):
    pool = begun(growing(make_recipe(host=Shared), incubation="branch"))
    lived(pool, {0: GERMINATE, 2: ADVANCE, 4: FOSSILISE}, 6)
    model: Any = pool.environments[0].model
    assert model.stem.scale is model.head.scale


def test_a_mask_that_is_shut_names_what_the_open_one_names():
    mask = ActionMask({"early": frozenset(Op)}, {"early": ("a/b",)}, {"early": {"a/b": frozenset(Op)}})
    shut = mask.shut()
    assert (shut.ops, shut.blueprints, shut.seeds) == (
        {"early": frozenset()},
        {"early": ()},
        {"early": {"a/b": frozenset()}},
    )
    assert not any(shut.allows(Action(op, "early", "a/b")) for op in Op if op is not Op.WAIT)
