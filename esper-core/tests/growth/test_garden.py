"""Lives of seeds: what each transition does, and that one which cannot be leaves everything as it was."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import nn

from esper_core.growth import Garden, Seed, SeedFault, Variety, garden as garden_module
from esper_core.growth.seeds import Alpha
from esper_core.leyline import Action, BlueprintSpec, GrowthError, LifecycleError, Op, SlotPlace, SlotState, Stage
from esper_core.trainer.environment import Environment, Recipe

GERMINATE = Action(Op.GERMINATE, "early", "test/local-conv", speed=2)
ADVANCE, PRUNE, FOSSILISE = (
    Action(Op.ADVANCE, "early"),
    Action(Op.PRUNE, "early", speed=2),
    Action(Op.FOSSILISE, "early"),
)

Make = Callable[..., Recipe]


def begin(recipe: Recipe, seed: int = 5) -> Environment:
    environment = Environment(recipe, arm="grown", index=0)
    environment.reset(0, seed)
    return environment


def live(environment: Environment, plan: dict[int, Action], steps: int) -> list[tuple[int, Stage | None, Stage]]:
    """Train ``steps`` steps, act as planned after each, and tell every transition with its step."""
    told: list[tuple[int, Stage | None, Stage]] = []
    for step in range(steps):
        changes = environment.train()
        if step in plan:
            changes += environment.network.apply(plan[step], step)
        told += [(step, change.was, change.now) for change in changes]
    return told


def snapshot(garden: Garden) -> tuple[object, ...]:
    slot = garden.slots["early"]
    return (
        slot.state,
        slot.embargo,
        list(slot.seeds),
        [seed.stage for seed in slot.stack],
        list(garden.model.state_dict()),
        {name: list(share.parameters) for name, share in garden.keeper.seeds.items()},
        list(garden.keeper.fossils),
        garden.mask(),
        torch.get_rng_state().tolist(),
    )


def test_a_whole_life_from_germination_to_fossil(make_recipe: Make) -> None:
    environment = begin(make_recipe())
    told = live(environment, {0: GERMINATE, 2: ADVANCE, 5: FOSSILISE}, 7)
    assert told == [
        (0, None, Stage.GERMINATED),
        (1, Stage.GERMINATED, Stage.TRAINING),
        (2, Stage.TRAINING, Stage.BLENDING),
        (4, Stage.BLENDING, Stage.HOLDING),
        (5, Stage.HOLDING, Stage.FOSSILISED),
    ]
    slot = environment.garden.slots["early"]
    assert slot.state is SlotState.CLOSED
    assert slot.living is None
    assert [(seed.born, seed.kept, seed.alpha.value) for seed in slot.fossils] == [(0, 5, 1.0)]
    assert environment.garden.mask().ops == {"early": frozenset()}


def test_below_the_limit_a_second_seed_grows_behind_the_first_fossil(make_recipe: Make) -> None:
    environment = begin(make_recipe(place=SlotPlace("stem", stack=2)))
    plan = {0: GERMINATE, 1: ADVANCE, 3: FOSSILISE, 4: GERMINATE, 5: ADVANCE, 8: FOSSILISE}
    live(environment, plan, 9)
    slot = environment.garden.slots["early"]
    assert [seed.number for seed in slot.fossils] == [0, 1]
    assert slot.state is SlotState.CLOSED
    assert environment.keeper.misowned(environment.model) == []


def test_a_prune_before_blending_is_at_once_and_the_slot_rests(make_recipe: Make) -> None:
    environment = begin(make_recipe(embargo=2))
    told = live(environment, {0: GERMINATE, 2: PRUNE}, 3)
    assert told[-1] == (2, Stage.TRAINING, Stage.PRUNED)
    garden = environment.garden
    assert garden.slots["early"].state is SlotState.EMBARGOED
    assert not garden.mask().allows(GERMINATE)
    live(environment, {}, 1)
    assert not garden.mask().allows(GERMINATE)
    live(environment, {}, 1)
    assert garden.mask().allows(GERMINATE)


def test_a_prune_after_blending_drains_first(make_recipe: Make) -> None:
    environment = begin(make_recipe(embargo=0))
    told = live(environment, {0: GERMINATE, 1: ADVANCE, 4: PRUNE}, 7)
    assert told[-2:] == [(4, Stage.HOLDING, Stage.DRAINING), (6, Stage.DRAINING, Stage.PRUNED)]
    assert environment.garden.slots["early"].state is SlotState.FREE
    assert not list(environment.garden.slots["early"].seeds)
    assert environment.keeper.seeds == {}


@pytest.mark.parametrize("action", [ADVANCE, PRUNE, FOSSILISE])
def test_there_must_be_a_seed_for_it(action: Action, make_recipe: Make) -> None:
    environment = begin(make_recipe())
    before = snapshot(environment.garden)
    with pytest.raises(LifecycleError, match=r'slot "early" that is free\n  Possible now: germinate, wait'):
        environment.network.apply(action, 0)
    assert snapshot(environment.garden) == before


@pytest.mark.parametrize(
    ("lived", "action"),
    [
        ({0: GERMINATE}, GERMINATE),
        ({0: GERMINATE}, FOSSILISE),
        ({0: GERMINATE, 1: ADVANCE}, ADVANCE),
        ({0: GERMINATE, 1: ADVANCE}, FOSSILISE),
        ({0: GERMINATE, 1: ADVANCE, 3: PRUNE}, FOSSILISE),
    ],
)
def test_what_the_table_does_not_have_changes_nothing(
    lived: dict[int, Action], action: Action, make_recipe: Make
) -> None:
    environment = begin(make_recipe())
    live(environment, lived, max(lived) + 1)
    before = snapshot(environment.garden)
    assert not environment.mask().allows(action)
    with pytest.raises(LifecycleError):
        environment.network.apply(action, 9)
    assert snapshot(environment.garden) == before


@pytest.mark.parametrize(
    "action", [replace(GERMINATE, slot="erly"), replace(GERMINATE, blueprint="test/lokal-conv"), Action(Op.PRUNE)]
)
def test_an_unknown_name_changes_nothing(action: Action, make_recipe: Make) -> None:
    environment = begin(make_recipe())
    before = snapshot(environment.garden)
    with pytest.raises(GrowthError, match=r"Did you mean|Known"):
        environment.network.apply(action, 0)
    assert snapshot(environment.garden) == before


def test_a_blueprint_that_raises_leaves_no_trace(make_recipe: Make) -> None:
    def broken(site: object) -> nn.Module:
        torch.rand(3)
        msg = "no"
        raise RuntimeError(msg)

    variety = Variety("test/local-conv", BlueprintSpec("sequence", "0", starts_as_identity=True), broken)
    environment = begin(make_recipe(variety=variety))
    before = snapshot(environment.garden)
    with pytest.raises(SeedFault, match=r"raised RuntimeError: no .* when it was built"):
        environment.garden.apply(GERMINATE, 0)
    assert snapshot(environment.garden) == before


def test_an_optimizer_that_cannot_be_made_leaves_no_trace(make_recipe: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    environment = begin(make_recipe())
    before = snapshot(environment.garden)

    def refuse(seed: Seed) -> None:
        msg = "no room"
        raise MemoryError(msg)

    monkeypatch.setattr(environment.keeper, "adopt", refuse)
    with pytest.raises(MemoryError):
        environment.network.apply(GERMINATE, 0)
    assert snapshot(environment.garden) == before


def test_an_orphaned_parameter_is_found_before_the_seed_is_in(
    make_recipe: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = begin(make_recipe())
    before = snapshot(environment.garden)
    adopt = environment.keeper.adopt

    def forgetful(seed: Seed) -> None:
        adopt(seed)
        (share,) = environment.keeper.seeds.values()
        share.optimizer.param_groups[0]["params"].pop()

    monkeypatch.setattr(environment.keeper, "adopt", forgetful)
    with pytest.raises(GrowthError, match="E304"):
        environment.network.apply(GERMINATE, 0)
    assert snapshot(environment.garden) == before


def test_run_03_every_trainable_parameter_has_exactly_one_optimizer_all_life_long(make_recipe: Make) -> None:
    environment = begin(make_recipe())
    for step in range(7):
        environment.train()
        assert environment.keeper.misowned(environment.model) == []
        plan = {0: GERMINATE, 2: ADVANCE, 5: FOSSILISE}
        if step in plan:
            environment.network.apply(plan[step], step)
        assert environment.keeper.misowned(environment.model) == []


def test_b8_drl_02_a_seeds_optimizer_lives_with_it_and_is_handed_over_with_its_state(make_recipe: Make) -> None:
    environment = begin(make_recipe())
    live(environment, {0: GERMINATE}, 2)
    share = environment.keeper.seeds[0]
    moments = {id(parameter): share.optimizer.state[parameter]["exp_avg"] for parameter in share.parameters}
    assert len(moments) == 4
    steps = [float(share.optimizer.state[parameter]["step"]) for parameter in share.parameters]
    for action in (ADVANCE, None, None, FOSSILISE):
        if action is not None:
            environment.network.apply(action, 2)
        held = environment.keeper.seeds.get(0) or environment.keeper.fossils[0]
        assert held.optimizer is share.optimizer
        assert {id(p): share.optimizer.state[p]["exp_avg"] for p in share.parameters}.keys() == moments.keys()
        assert all(share.optimizer.state[p]["exp_avg"] is moments[id(p)] for p in share.parameters)
        environment.train()
        later = [float(share.optimizer.state[parameter]["step"]) for parameter in share.parameters]
        assert all(now > before for now, before in zip(later, steps, strict=True))
        steps = later
    assert environment.keeper.seeds == {}


def test_b8_drl_02_a_pruned_seeds_optimizer_is_released(make_recipe: Make) -> None:
    environment = begin(make_recipe())
    live(environment, {0: GERMINATE, 2: PRUNE}, 3)
    assert environment.keeper.seeds == {}
    assert environment.keeper.fossils == {}


def test_uprooting_ends_every_open_life_and_keeps_fossils(make_recipe: Make) -> None:
    environment = begin(make_recipe(place=SlotPlace("stem", stack=2)))
    live(environment, {0: GERMINATE, 1: ADVANCE, 3: FOSSILISE, 4: GERMINATE, 5: ADVANCE}, 6)
    (change,) = environment.garden.remove("over")
    assert (change.was, change.now, change.reason) == (Stage.BLENDING, Stage.PRUNED, "over")
    assert len(environment.garden.slots["early"].fossils) == 1
    assert environment.garden.remove("over") == []
    assert environment.keeper.misowned(environment.model) == []


def test_seeds_are_clipped_apart_from_the_host(make_recipe: Make) -> None:
    environment = begin(
        make_recipe(optimizer={"kind": "sgd", "clip_norm": 1e-3, "learning_rate": 1.0, "momentum": 0.0})
    )
    live(environment, {0: GERMINATE, 1: ADVANCE}, 3)
    sides = {
        "host": list(environment.keeper.host.parameters),
        "seed": list(environment.keeper.seeds[0].parameters),
    }
    before = {side: [p.detach().clone() for p in parameters] for side, parameters in sides.items()}
    environment.keeper.zero_grad()
    for parameter in sides["host"] + sides["seed"]:
        parameter.grad = torch.ones_like(parameter)
    environment.keeper.step(environment.garden.blended)
    for side, parameters in sides.items():
        moved = torch.stack([(p - b).norm() for p, b in zip(parameters, before[side], strict=True)]).norm()
        assert moved.item() == pytest.approx(1e-3, rel=1e-3)


FAULTY = {
    "germinate": ({}, GERMINATE, ["keeper.adopt", "Shadow"]),
    "advance": ({0: GERMINATE}, ADVANCE, ["Alpha.aim"]),
    "fossilise": ({0: GERMINATE, 1: ADVANCE}, FOSSILISE, ["keeper.settle"]),
    "prune at once": ({0: GERMINATE}, PRUNE, ["keeper.release"]),
    "prune with a drain": ({0: GERMINATE, 1: ADVANCE}, PRUNE, ["Alpha.aim"]),
}


@pytest.mark.parametrize(("op", "call"), [(op, call) for op, (_, _, calls) in FAULTY.items() for call in calls])
@pytest.mark.parametrize("after", [False, True], ids=["before the call", "after it"])
def test_b8_drl_02_a_fault_inside_a_transition_leaves_everything_as_it_was(
    op: str, call: str, after: bool, make_recipe: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failed transition changes nothing: slot, seed, alpha, optimizers, shadows."""
    lived, action, _ = FAULTY[op]
    environment = begin(make_recipe())
    live(environment, lived, 5 if lived else 1)
    garden = environment.garden
    before = (*snapshot(garden), [replace(seed.alpha) for seed in garden.slots["early"].stack], garden.incubating)
    owner, name = {
        "keeper": (environment.keeper, call.partition(".")[2]),
        "Alpha": (Alpha, "aim"),
        "Shadow": (garden_module, "Shadow"),
    }[call.partition(".")[0]]
    real = getattr(owner, name)

    def failing(*arguments: object, **named: object) -> None:
        if after:
            real(*arguments, **named)
        raise MemoryError("in the middle")

    monkeypatch.setattr(owner, name, failing)
    with pytest.raises(MemoryError):
        garden.apply(action, 9)
    monkeypatch.undo()
    now = (*snapshot(garden), [replace(seed.alpha) for seed in garden.slots["early"].stack], garden.incubating)
    assert now == before
    assert environment.keeper.misowned(environment.model) == []
    assert garden.apply(action, 9)  # and nothing hinders the next try


def test_run_03_an_owner_of_nothing_there_is_found_too(make_recipe: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pruned seed that stays with an optimizer is a leak."""
    environment = begin(make_recipe())
    live(environment, {0: GERMINATE}, 2)
    monkeypatch.setattr(environment.keeper, "release", lambda number: None)
    with pytest.raises(GrowthError, match=r"E304 .*a parameter that is not in the model"):
        environment.network.apply(PRUNE, 3)
    assert environment.garden.slots["early"].living is not None


def test_fossils_are_clipped_with_the_host(make_recipe: Make) -> None:
    sgd = {"kind": "sgd", "clip_norm": 1e-3, "learning_rate": 1.0, "momentum": 0.0}
    environment = begin(make_recipe(optimizer=sgd))
    live(environment, {0: GERMINATE, 1: ADVANCE, 4: FOSSILISE}, 5)
    together = [*environment.keeper.host.parameters, *environment.keeper.fossils[0].parameters]
    before = [parameter.detach().clone() for parameter in together]
    environment.keeper.zero_grad()
    for parameter in together:
        parameter.grad = torch.ones_like(parameter)
    environment.keeper.step(())
    moved = torch.stack([(p - b).norm() for p, b in zip(together, before, strict=True)]).norm()
    assert moved.item() == pytest.approx(1e-3, rel=1e-3)


def test_a_frozen_host_can_carry_seeds(make_recipe: Make, noisy_host: Callable[[], nn.Module]) -> None:
    environment = begin(make_recipe(host=lambda: noisy_host().requires_grad_(False), batches=10))
    live(environment, {0: GERMINATE, 2: ADVANCE, 5: FOSSILISE}, 7)
    assert len(environment.garden.slots["early"].fossils) == 1
    assert environment.keeper.misowned(environment.model) == []
