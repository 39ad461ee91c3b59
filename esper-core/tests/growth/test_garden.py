"""Garden: failed actions change nothing, parameters have one owner, and nurseries hold several seeds."""

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector

from esper_core.growth import Garden, Gates, Seed, SeedFault, Transition, Variety, graft
from esper_core.leyline import WAIT, Action, Blend, BlueprintSpec, GrowthError, LifecycleError, Op, Site, Stage
from esper_core.leyline.constants import BLENDING_ALPHA, GATE_ALPHA
from esper_core.leyline.signals import Cause, Gain
from esper_core.settings import GrowthConfig
from esper_core.trainer.environment import Environment, Recipe
from esper_core.trainer.pool import Pool
from tests.support import core_worlds
from tests.support.core_worlds import ADVANCE, FOSSILISE, GERMINATE, PRUNE, begin, make_recipe, numbers, same
from tests.support.studies import play


def snapshot(garden: Garden) -> tuple[object, ...]:
    slot, keeper = garden.slots["early"], garden.keeper
    owners = {name: list(owner.parameters) for name, owner in keeper.seeds.items()}, list(keeper.fossils)
    seeds = list(slot.seeds), [seed.stage for seed in slot.seeds], list(garden.model.state_dict())
    return slot.state, slot.embargo, *seeds, *owners, garden.mask(), torch.get_rng_state().tolist()


def unbuildable(site: Site) -> nn.Module:
    torch.rand(3)
    raise KeyError("no")


@pytest.mark.parametrize(
    ("action", "error", "message"),
    [
        *(
            (op, LifecycleError, r'slot "early" that is free\n  Possible now: germ')
            for op in (ADVANCE, PRUNE, FOSSILISE)
        ),
        (replace(GERMINATE, slot="erly"), GrowthError, 'no slot "erly"\n  Did you mean "early"'),
        (replace(GERMINATE, blueprint="test/lokal-conv"), GrowthError, 'Did you mean "test/local-conv"'),
        (Action(Op.PRUNE), GrowthError, 'no slot "None"'),
        (replace(GERMINATE, blueprint="test/broken"), SeedFault, 'E320 .* "test/broken" raised KeyError: .* was built'),
    ],
)
def test_action_that_cannot_be_carried_out_is_refused_and_changes_nothing(action, error, message):
    recipe = make_recipe()
    (variety,) = recipe.network.varieties["early"]
    broken = replace(variety, id="test/broken", factory=unbuildable)
    environment = begin(core_worlds.change_recipe(recipe, varieties={"early": (variety, broken)}))
    before = snapshot(environment.garden)
    with pytest.raises(error, match=message):
        environment.garden.apply(action, 0)
    assert snapshot(environment.garden) == before


@pytest.mark.parametrize(
    ("change", "message"),
    [
        *(({"speed": speed}, "a speed must be a whole number") for speed in (0.5, float("nan"), True, -1, "1")),
        ({"blend": "mix"}, "there is no such blend"),
        ({"op": "frob"}, "there is no such op"),
    ],
)
def test_action_with_an_invalid_argument_cannot_be_made(change, message):
    with pytest.raises(GrowthError, match=f"E307 {message}"):
        replace(GERMINATE, **change)


def test_run_03_parameter_without_an_optimizer_and_optimizer_without_its_parameter_are_found(monkeypatch):
    """A pruned seed whose optimizer remains is a leak."""
    environment = begin(make_recipe())
    before, keeper = snapshot(environment.garden), environment.keeper
    adopt = keeper.adopt

    def forgetful(seed: Seed) -> None:
        adopt(seed)
        keeper.seeds[0].optimizer.param_groups[0]["params"].pop()

    with monkeypatch.context() as patch:
        patch.setattr(keeper, "adopt", forgetful)
        with pytest.raises(GrowthError, match="E304"):
            environment.network.apply(GERMINATE, 0)
    assert snapshot(environment.garden) == before
    core_worlds.train_and_act(environment, GERMINATE, WAIT)
    monkeypatch.setattr(keeper, "release", lambda number: None)
    with pytest.raises(GrowthError, match=r"E304 .*a parameter that is not in the model"):
        environment.network.apply(PRUNE, 3)
    assert environment.garden.slots["early"].living is not None


@pytest.mark.parametrize("kept", [False, True])
def test_seeds_are_clipped_apart_from_the_host_and_fossils_with_it(kept):
    sgd = {"kind": "sgd", "clip_norm": 1e-3, "learning_rate": 1.0, "momentum": 0.0}
    environment = begin(make_recipe(optimizer=sgd))
    core_worlds.train_and_act(environment, GERMINATE, ADVANCE, WAIT, WAIT, FOSSILISE if kept else WAIT)
    keeper = environment.keeper
    sides = [list(owner.parameters) for owner in keeper.owners()]
    assert len(sides) == 2
    before = [[parameter.detach().clone() for parameter in side] for side in sides]
    for parameter in sides[0] + sides[1]:
        parameter.grad = torch.ones_like(parameter)
    keeper.step(environment.garden.blended)
    moved = [parameters_to_vector(side) - parameters_to_vector(was) for side, was in zip(sides, before, strict=True)]
    for norm in [torch.cat(moved).norm()] if kept else [side.norm() for side in moved]:
        assert norm.item() == pytest.approx(1e-3, rel=1e-3)


def test_informed_birth_gets_the_gradient_in_a_host_that_writes_in_place():
    seen, inputs = [], torch.randn(5, 1, 8, generator=torch.Generator().manual_seed(2))

    def compute(net: Any, inputs: Tensor) -> Tensor:
        hidden = net.stem(inputs)
        hidden += 1.0
        net.passes += 1.0
        return net.head(torch.relu_(hidden).flatten(1))

    def informed(site: Site) -> nn.Module:
        block = core_worlds.local_conv(site)
        block.inform = lambda inputs, gradients: seen.append(gradients.clone())
        return block

    host = core_worlds.Net(compute, passes=torch.zeros(()), stem=nn.Conv1d(1, 4, 1), head=nn.Linear(32, 2))
    model = graft(host, ["stem"], example=inputs)
    variety = Variety("test/informed", core_worlds.LOCAL_CONV.spec, informed)
    garden = core_worlds.make_garden(model, variety, probe=lambda m: m(inputs).square().mean())
    garden.apply(Action(Op.GERMINATE, "stem", "test/informed"), 0)
    assert model.passes == 0.0
    hidden = model.stem(inputs).detach().requires_grad_()
    (expected,) = torch.autograd.grad(model.head(torch.relu(hidden + 1.0).flatten(1)).square().mean(), hidden)
    (gradients,) = seen
    assert torch.allclose(gradients, expected)


@pytest.mark.parametrize("blend", list(Blend))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_slot_keeps_the_dtype_of_the_host_under_autocast(dtype, blend):
    """A block may compute in half precision, or, as normalisation does, in full precision after a host in half."""
    for block in (nn.Conv1d(4, 4, 1), nn.GroupNorm(1, 4)):
        spec = BlueprintSpec("sequence")
        seed = Seed(block, blueprint="x", spec=spec, site=Site("sequence", 4, (8,)), number=0, blend=blend)
        hidden = torch.randn(3, 4, 8).to(dtype).requires_grad_()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            grown = seed(hidden, 0.5)
        assert grown.dtype is dtype
        grown.float().sum().backward()


@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize("incubation", ["shadow", "branch"])
def test_only_a_trained_seed_is_kept_and_an_error_undoes_it(incubation, trained, monkeypatch):
    model = graft(core_worlds.NoisyHost(), {"early": "stem"}, example=torch.randn(4, 1, 12))
    garden = core_worlds.make_garden(model, core_worlds.LOCAL_CONV, growth={"incubation": incubation})
    garden.apply(replace(GERMINATE, speed=0), 0)
    garden.open_step()
    if trained:
        garden.incubate(0, lambda model: model(torch.randn(4, 1, 12)).square().mean())
    assert list(garden.take_incubation_losses()) == [0] * trained
    garden.apply(ADVANCE, 0)
    garden.close_step()
    (seed,), before = garden.living_seeds(), numbers(model)
    presence = seed.presence
    if trained:
        for place, name in ((garden.keeper, "settle"), (Transition, "of")):
            with monkeypatch.context() as patch:
                patch.setattr(place, name, None)
                with pytest.raises(TypeError):
                    garden.apply(FOSSILISE, 0)
            assert seed.presence is presence
            assert list(garden.incubating) == ([0] if incubation == "branch" else [])
            assert same(numbers(model), before)
        assert garden.apply(FOSSILISE, 0)
        assert same(numbers(model), before) is (incubation == "shadow")
    else:
        with pytest.raises(GrowthError, match=r"E309 seed 0, .* was never trained(?s:.)*garden\.incubate"):
            garden.apply(FOSSILISE, 0)


NAMES = ("test/local-conv", "test/second", "test/third")
GERMINATE_EACH = [Action(Op.GERMINATE, "early", name, speed=2) for name in NAMES]


def nursery(way: str = "shadow") -> Recipe:
    """Return a recipe whose slot holds three seeds at once, of three blueprints."""
    varieties = tuple(replace(core_worlds.LOCAL_CONV, id=name) for name in NAMES)
    growth = core_worlds.plain_growth(embargo=1, nursery=3, incubation=way)
    return core_worlds.change_recipe(make_recipe(), varieties={"early": varieties}, growth=growth)


def fill(recipe: Recipe, plan: dict[int, Action]) -> Sequence[Environment]:
    """Return a grown environment and its twin after six steps."""
    pool = Pool(recipe, ["grown", "twin"], 1, twin="twin")
    play(pool, 6, plan)
    return pool.environments


@pytest.mark.parametrize("way", ["shadow", "branch"])
def test_seed_learns_the_same_alone_and_beside_others_and_the_host_stays_its_twin(way):
    alone, _ = fill(nursery(way=way), {0: GERMINATE_EACH[0]})
    crowded, twin = fill(nursery(way=way), dict(enumerate(GERMINATE_EACH)))
    (lone_seed,), crowd = alone.garden.living_seeds(), crowded.garden.living_seeds()
    assert [(seed.blueprint, seed.stage) for seed in crowd] == [(name, Stage.TRAINING) for name in NAMES]
    crowded_seed = crowd[0]
    assert same([*lone_seed.parameters()], [*crowded_seed.parameters()])
    with alone.garden.incubating[0].trial(), crowded.garden.incubating[0].trial():
        assert torch.equal(alone.evaluate("validation"), crowded.evaluate("validation"))
    assert same(numbers(crowded.model), numbers(twin.model))
    assert crowded.keeper.misowned(crowded.model) == []


def test_advance_without_a_name_takes_the_seed_with_the_largest_gain_and_prunes_the_others():
    environment, _ = fill(nursery(), dict(enumerate(GERMINATE_EACH)))
    gates = environment.garden.gates
    ranked = sorted(environment.garden.living_seeds(), key=gates.lead, reverse=True)
    assert len({gates.lead(seed) for seed in ranked}) == 3
    assert environment.mask().allows(ADVANCE)
    advanced, *pruned = environment.network.apply(ADVANCE, 6)
    assert (advanced.seed, advanced.now) == (ranked[0].number, Stage.BLENDING)
    assert {change.now for change in pruned} == {Stage.PRUNED}
    assert (pruned[0].reason.cause, pruned[0].reason.detail) == (Cause.NURSERY, ranked[0].blueprint)
    assert environment.garden.living_seeds() == ranked[:1]


def test_seeds_that_may_be_kept_share_one_alpha_and_those_that_may_be_blended_in_have_their_own():
    """However many worthless seeds come to the gate before keeping, one passes no more often than a single one."""
    gates, gain, alphas = Gates(GrowthConfig(), looks=10), Gain(800, 0.1, 0.5, 0.0, -1.0, 1.0), {}
    for stage in (Stage.TRAINING, Stage.HOLDING):
        seeds: Any = [SimpleNamespace(number=number, stage=stage, is_set=False) for number in range(4)]
        for _ in range(3):
            gates.look(seeds, dict.fromkeys(range(4), gain), dict.fromkeys(range(4), 0.0), 0.2)
        opinions = [gates.opinion(seed) for seed in seeds]
        alphas[stage] = [3 * opinion.evidence.alpha for opinion in opinions if opinion and opinion.evidence]
    assert alphas[Stage.TRAINING] == pytest.approx([BLENDING_ALPHA] * 4)  # of decisions at looks 3, 5 and 8
    assert alphas[Stage.HOLDING] == pytest.approx([GATE_ALPHA / 2, GATE_ALPHA / 6, GATE_ALPHA / 12, GATE_ALPHA / 20])
