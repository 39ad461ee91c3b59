"""Growth, gates and the governor together: gains, harmed hosts, branches, and what may pass."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from esper_core.governor import Act
from esper_core.growth import gates
from esper_core.leyline import WAIT, Action, ActionMask, Finding, LifecycleError, Op, SlotPlace, Stage
from esper_core.leyline.signals import Cause, Gain, Level, Reason, Verdict
from esper_core.trainer.pool import Pool
from tests.support import core_worlds
from tests.support.core_worlds import ADVANCE, FOSSILISE, GERMINATE, PRUNE, Net, begin_pool, change_recipe, make_recipe
from tests.support.studies import play


def test_gains_are_unknown_while_two_seeds_act_and_after_one_of_them_is_kept():
    """Otherwise one seed could be credited with the gain of another that was kept beside it."""
    recipe = make_recipe(embargo=0)
    slots = {"early": SlotPlace("stem"), "late": SlotPlace("stem.0")}
    pool = begin_pool(
        change_recipe(recipe, slots=slots, varieties=dict.fromkeys(slots, recipe.network.varieties["early"]))
    )
    late = {1: replace(GERMINATE, slot="late"), 6: replace(ADVANCE, slot="late")}
    reports = play(pool, range(13), {0: GERMINATE, 3: ADVANCE, 9: FOSSILISE, **late})
    gains = [{slot.name: slot.living and slot.living.gain for slot in signals.slots} for signals, _ in reports]
    assert gains[5]["early"] is not None
    assert gains[8] == {"early": None, "late": None}
    assert gains[12]["late"] is None


def test_a_seed_at_alpha_0_has_no_gain_yet():
    """It is advanced at the end of a step and measured before alpha moves: any difference is not its own."""
    pool = begin_pool(make_recipe())
    play(pool, range(3), {0: GERMINATE})
    gates: Any = pool.environments[0].garden.gates
    gates.ready = lambda seed: True
    at_once, later = (report[0].seeds[0] for report in play(pool, range(3, 5)))
    assert (at_once.stage, at_once.alpha, at_once.gain) == (Stage.BLENDING, 0.0, None)
    assert later.alpha > 0.0
    assert later.gain is not None


def test_gains_are_unknown_after_a_rollback_of_the_twin():
    pool = begin_pool(make_recipe())
    reports = play(pool, range(4), {0: GERMINATE, 2: ADVANCE})
    assert reports[-1][0].seeds[0].gain is not None
    decisions = pool.judge({1: Verdict(Level.PANIC, "too hot")})
    assert decisions[1].act is Act.ROLL_BACK
    pool.carry_out(decisions, 3)
    assert play(pool, range(4, 6))[-1][0].seeds[0].gain is None


def test_nothing_can_be_fossilised_after_a_step_with_a_warning():
    pool = begin_pool(make_recipe())
    play(pool, range(5), {0: GERMINATE, 2: ADVANCE})
    for opinions in ({}, {0: Verdict(Level.WARNING, "hm")}, {}):
        pool.judge(opinions)
        assert pool.masks()[0].allows(FOSSILISE) is (not opinions)


def test_a_branch_with_nan_is_dropped_before_it_can_be_kept():
    pool = begin_pool(make_recipe(), incubation="branch")
    play(pool, range(4), {0: GERMINATE, 2: ADVANCE})
    (branch,) = pool.environments[0].garden.incubating.values()
    next(iter(branch._numbers.values())).fill_(math.nan)  # as after a last batch
    pool.evaluate(4)
    pool.synchronise(4)
    lost = pool.heal(4)
    assert [seed.blueprint for _, seed in lost] == ["test/local-conv"]
    assert pool.latest[0].seeds == ()
    assert math.isfinite(pool.latest[0].validation_loss)


def test_a_buffer_that_two_modules_share_stays_shared_after_a_branch_is_kept():
    def sharing() -> nn.Module:
        def compute(net: Any, inputs: Tensor) -> Tensor:
            if net.training:
                net.stem.scale.mul_(1.5)
            return net.head(net.stem(inputs).flatten(1)) / net.stem.scale

        parts = {"stem": nn.Sequential(nn.Conv1d(1, 4, 1)), "head": nn.Linear(48, 3)}
        scale = torch.ones(())
        for part in parts.values():
            part.register_buffer("scale", scale)
        return Net(compute, **parts)

    pool = begin_pool(make_recipe(host=sharing), incubation="branch")
    play(pool, range(6), {0: GERMINATE, 2: ADVANCE, 4: FOSSILISE})
    model: Any = pool.environments[0].model
    assert model.stem.scale is model.head.scale


def test_a_shut_mask_has_the_same_slots_and_seeds_and_allows_only_to_wait():
    mask = ActionMask({"early": frozenset(Op)}, {"early": ("a/b",)}, {"early": {"a/b": frozenset(Op)}})
    shut, no_ops = mask.shut(), frozenset()
    assert (shut.ops, shut.blueprints, shut.seeds) == ({"early": no_ops}, {"early": ()}, {"early": {"a/b": no_ops}})
    assert not any(shut.allows(Action(op, "early", "a/b")) for op in Op if op is not Op.WAIT)


SLOWLY = replace(core_worlds.GERMINATE, speed=2)


def live(pool: Pool, steps: range, plan: dict[int, Action] | None = None) -> list[Any]:
    """Return the signals of the seed in the slot, of each step."""
    return play(pool, steps, plan, lambda signals: signals[0].slots[0].living)


def lead(pool: Pool) -> float:
    """Return by how much the loss of the grown network is below that of its twin."""
    grown, twin = (environment.evaluate("validation")[0].item() for environment in pool.environments)
    return twin - grown


@pytest.mark.parametrize("way", ["shadow", "branch"])
def test_the_gain_of_an_incubating_seed_is_measured_against_its_own_host(way):
    pool = begin_pool(make_recipe(embargo=0, batches=6), incubation=way)
    seed = live(pool, range(4), {0: SLOWLY})[-1]
    grown = pool.environments[0]
    host = grown.evaluate("validation")[0].item()
    with grown.garden.incubating[0].trial():
        tried = grown.evaluate("validation")[0].item()
    assert seed.gain.n == 60
    assert seed.gain.mean == pytest.approx(host - tried, abs=1e-5) != 0.0


def test_the_gain_of_an_acting_seed_is_measured_against_the_twin_since_the_latest_fossil():
    pool = begin_pool(make_recipe(embargo=0, batches=6, place=SlotPlace("stem", stack=2)))
    seed = live(pool, range(4), {0: SLOWLY, 1: ADVANCE})[-1]
    assert seed.stage is Stage.HOLDING
    assert seed.gain.mean == pytest.approx(lead(pool), abs=1e-5)
    live(pool, range(4, 8), {4: FOSSILISE, 5: SLOWLY, 7: ADVANCE})
    before = lead(pool)
    (seed,) = live(pool, range(8, 9))
    assert seed.gain.mean == pytest.approx(lead(pool) - before, abs=1e-5)


def test_run_05_without_a_twin_the_gain_of_an_acting_seed_is_unknown_and_forbids_to_fossilise():
    pool = begin_pool(make_recipe(embargo=0), twin=False)
    live(pool, range(2), {0: SLOWLY, 1: ADVANCE})
    garden = pool.environments[0].garden
    garden.gates._settings = garden.gates._settings.model_copy(update={"gates": "strict"})
    seed = live(pool, range(2, 7))[-1]
    assert seed.gain is None
    assert seed.opinion.finding is Finding.UNKNOWN
    assert seed.opinion.reason == "the gain was not measured"
    assert not pool.masks()[0].allows(FOSSILISE)
    with pytest.raises(LifecycleError, match="its gate is closed: the gain was not measured"):
        pool.apply([FOSSILISE], 7)


def test_a_seed_that_its_gate_does_not_pass_cannot_be_advanced():
    pool = begin_pool(make_recipe(embargo=0), gates="strict", price=1.0)
    seed = live(pool, range(6), {0: SLOWLY})[-1]
    assert seed.opinion.finding in (Finding.NOT_SHOWN, Finding.UNKNOWN)
    assert not pool.masks()[0].allows(ADVANCE)
    assert pool.masks()[0].allows(PRUNE)
    ((_, pruned),), _ = pool.apply([PRUNE, WAIT], 6)
    assert pruned.reason == Reason(Cause.POLICY, "", "blending", seed.opinion)
    assert str(pruned.reason) == f"by the policy; gate before blending: {seed.opinion.reason}"


@pytest.mark.parametrize("auto", [True, False])
def test_a_seed_that_passes_its_gate_advances_by_itself_where_that_is_set(auto, monkeypatch):
    monkeypatch.setattr(gates, "MIN_EXAMPLES_FOR_EVIDENCE", 2)
    pool = begin_pool(make_recipe(embargo=0, batches=20), gates="strict", price=0.0, auto_advance=auto)
    stages = [seed and seed.stage for seed in live(pool, range(5), {0: SLOWLY})]
    assert (Stage.BLENDING in stages) is auto
    assert pool.masks()[0].allows(ADVANCE) is not auto


@pytest.mark.parametrize(("incubation", "included"), [("branch", 0.0), ("shadow", 0.5)])
def test_a_price_is_a_share_of_the_loss_without_the_seed(incubation, included):
    """The network's loss has the gain of a seed that acts on it, and not of one that acts on a branch."""
    pool = begin_pool(make_recipe(), incubation=incubation, evidence="loss")
    play(pool, range(4), {0: GERMINATE, 2: ADVANCE})
    network = pool.environments[0].network
    ((_, seed),) = network.garden.living()
    gains = {seed.number: Gain(800, 0.5, 0.4, 0.0, -2.0, 2.0)}
    before, after = (network.prices.of_living(1.0, 0.5, measured)[seed.number] for measured in ({}, gains))
    assert after / before == pytest.approx(1.0 + included)
