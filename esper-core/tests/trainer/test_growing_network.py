"""Growing networks: incubation, gains, gates and the governor together."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from esper_core import leyline
from esper_core.governor import Act
from esper_core.growth import Variety, gates
from esper_core.leyline import WAIT, Action, ActionMask, BlueprintSpec, Finding, LifecycleError, Op, SlotPlace, Stage
from esper_core.leyline.signals import Cause, Gain, Level, Reason, Verdict
from esper_core.trainer.environment import Environment
from esper_core.trainer.pool import Pool
from tests.support import core_worlds
from tests.support.core_worlds import ADVANCE, FOSSILISE, GERMINATE, PRUNE, Net, begin, begin_pool, make_recipe, slow
from tests.support.studies import play


def test_gains_are_unknown_while_two_seeds_act_and_after_one_of_them_is_kept():
    """Otherwise one seed could be credited with the gain of another that was kept beside it."""
    slots = {"early": SlotPlace("stem"), "late": SlotPlace("stem.0")}
    varieties = dict.fromkeys(slots, (core_worlds.LOCAL_CONV,))
    pool = begin_pool(core_worlds.change_recipe(make_recipe(embargo=0), slots=slots, varieties=varieties))
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


HOSTS: dict[str, Callable[[], nn.Module]] = {"noisy": core_worlds.NoisyHost, "replacing": core_worlds.replacing}
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "adam": {},
    "sgd": {"kind": "sgd", "momentum": 0.9},
    "clipped": {"clip_norm": 0.1},
    "foreach": {"implementation": "foreach"},
}


def host_state(environment: Environment) -> dict[str, torch.Tensor]:
    """Everything that determines the host's future: parameters, buffers, optimizer state, random numbers."""
    state = {key: value for key, value in environment.model.state_dict().items() if "_esper" not in key}
    for index, parameter in enumerate(environment.keeper.host.parameters):
        for key, value in environment.keeper.host.optimizer.state[parameter].items():
            if isinstance(value, torch.Tensor):
                state[f"optimizer.{index}.{key}"] = value
    state["random"] = environment.network.training_stream.state_dict()[0]
    return state


def live_beside_twin(pool: Pool, plan: dict[int, Action], steps: int) -> list[tuple[bool, Any]]:
    """Return of each step whether the host differs from its twin, and the signals of its seed."""

    def look(signals: list[leyline.Signals]) -> tuple[bool, Any]:
        grown, twin = pool.environments
        assert grown.keeper.misowned(grown.model) == []
        grown_state, twin_state = host_state(grown), host_state(twin)
        assert grown_state.keys() == twin_state.keys()
        return not core_worlds.same(grown_state, twin_state), signals[0].slots[0].living

    return play(pool, range(steps), plan, look)


def losses(reports: list[tuple[bool, Any]]) -> list[float]:
    return [seed.incubation_loss for _, seed in reports if seed is not None and seed.incubation_loss is not None]


@pytest.mark.parametrize(
    ("way", "host", "optimizer"),
    [
        ("shadow", "noisy", "clipped"),
        ("branch", "replacing", "sgd"),
        ("branch", "noisy", "foreach"),
        *(slow(way, *pair) for way in ("shadow", "branch") for pair in (("noisy", "sgd"), ("replacing", "adam"))),
    ],
)
def test_the_host_is_bitwise_its_twin_until_a_seed_blends_or_its_branch_is_kept_and_the_seed_learns(
    way, host, optimizer
):
    recipe = make_recipe(embargo=0, host=HOSTS[host], optimizer=OPTIMIZERS[optimizer], batches=8)
    pool, default = begin_pool(recipe, incubation=way), torch.get_rng_state()
    reports = live_beside_twin(pool, {1: SLOWLY, 5: ADVANCE, 7: FOSSILISE}, 10)
    alike = 6 if way == "shadow" else 8
    assert [differs for differs, _ in reports] == [False] * alike + [True] * (10 - alike)
    assert len(losses(reports)) == alike - 2  # on a branch it trains until it is kept
    assert losses(reports)[-1] < losses(reports)[0]
    assert [reports[step][1].stage for step in (5, 7)] == [Stage.TRAINING, Stage.HOLDING]
    assert torch.equal(torch.get_rng_state(), default)


def test_run_04_the_loss_of_an_incubating_seed_falls():
    """If the gradient did not depend on the seed's output, the loss at full blend would rise without bound."""
    environment = begin(make_recipe(batches=20), seed=1)
    environment.train()
    environment.network.apply(SLOWLY, 0)
    curve = []
    for _ in range(6):
        environment.train()
        curve.append(float(environment.network.measurements.incubation_losses[0]))
        assert all(parameter.grad is None for parameter in environment.keeper.seeds[0].parameters)
    assert curve[-1] < 0.8 * curve[0]
    assert max(curve[1:]) < 1.05 * curve[0]


@pytest.mark.install  # this suite must pass for every change
@pytest.mark.parametrize("way", ["branch", "shadow"])
def test_run_04_an_incubating_seed_lowers_the_loss_that_it_would_cause(way):
    """The loss with the seed at full strength falls while it incubates: its gradient depends on its output."""
    recipe = make_recipe(embargo=0, batches=30, optimizer={"learning_rate": 0.03})

    def validation_losses(steps: int) -> tuple[float, float]:
        """With the seed at full strength, and without it."""
        pool = begin_pool(recipe, incubation=way)
        play(pool, range(steps), {0: SLOWLY})
        grown = pool.environments[0]
        with grown.garden.incubating[0].trial():
            tried = float(grown.evaluate("validation")[0])
        return tried, float(grown.evaluate("validation")[0])

    (born, _), (tried, without) = validation_losses(1), validation_losses(8)
    assert tried < born
    assert tried < without + 0.05


def test_an_incubating_seed_runs_once_a_batch_beside_a_younger_acting_one():
    def normed(site: leyline.Site) -> nn.Module:
        norm, last = nn.BatchNorm1d(site.channels), core_worlds.zeroed(nn.Conv1d(site.channels, site.channels, 1))
        return Net(lambda net, hidden: hidden + net.last(net.norm(hidden)), norm=norm, last=last)

    variety = Variety("test/local-conv", BlueprintSpec("sequence", starts_as_identity=True), normed)
    slots = {"early": SlotPlace("stem"), "late": SlotPlace("drop")}
    varieties = dict.fromkeys(slots, (variety,))
    environment = begin(core_worlds.change_recipe(make_recipe(batches=2), slots=slots, varieties=varieties))
    later = replace(SLOWLY, slot="late"), WAIT, replace(ADVANCE, slot="late"), WAIT, WAIT
    core_worlds.train_and_act(environment, SLOWLY, *later)
    (late,) = environment.garden.slots["late"].seeds
    assert late.block.norm.num_batches_tracked.item() == 4 * 2  # once a batch since its birth, in shadow or blended


def test_run_10_the_test_split_is_read_once_at_the_end():
    recipe = make_recipe(embargo=0)
    read: list[str] = []

    class Watched(dict):
        def __getitem__(self, name: str) -> object:
            read.append(name)
            return super().__getitem__(name)

    test = recipe.data["test"]
    shifted = leyline.Split(test.inputs, (test.targets + 1) % 3)
    pool = Pool(replace(recipe, data=Watched({**recipe.data, "test": shifted})), ["twin"], 1)
    play(pool, 2)
    assert "test" not in read
    _, (ending,) = pool.conclude(1)
    assert read.count("test") == 1
    model = pool.environments[0].model.eval()
    right = (model(shifted.inputs).argmax(1) == shifted.targets).float().mean().item()
    assert ending.test_metric == pytest.approx(right)
    assert ending.test_metric != ending.signals.validation_metric


def test_when_a_seed_is_kept_its_branch_becomes_the_host():
    pool = begin_pool(make_recipe(embargo=0, batches=4), incubation="branch")
    live_beside_twin(pool, {0: SLOWLY, 3: ADVANCE}, 6)
    grown = pool.environments[0]

    def numbers() -> dict[str, torch.Tensor]:
        """Of the host and of its optimizer."""
        skipped = ("random", "esper_core")
        return {key: value.clone() for key, value in host_state(grown).items() if not any(s in key for s in skipped)}

    with grown.garden.incubating[0].trial():
        before, tried = numbers(), grown.evaluate("validation")
    assert not torch.equal(grown.evaluate("validation"), tried)
    grown.network.apply(FOSSILISE, 6)
    assert torch.equal(grown.evaluate("validation"), tried)
    assert any(key.startswith("optimizer.") for key in before)
    assert all(torch.equal(numbers()[key], value) for key, value in before.items())


@pytest.mark.parametrize(
    ("host", "optimizer", "when"),
    [
        ("noisy", "adam", 6),
        ("replacing", "foreach", 2),
        *(slow("noisy", optimizer, 4) for optimizer in OPTIMIZERS),
        *(slow("replacing", "sgd", when) for when in (2, 4, 6)),
    ],
)
def test_after_a_branch_is_pruned_the_host_is_bitwise_its_twin(host, optimizer, when):
    pool = begin_pool(make_recipe(embargo=0, host=HOSTS[host], optimizer=OPTIMIZERS[optimizer]), incubation="branch")
    advance = {3: ADVANCE} if when > 3 else {}
    reports = live_beside_twin(pool, {0: SLOWLY, **advance, when: PRUNE}, 10)
    assert not any(differs for differs, _ in reports)
    grown, twin = pool.environments
    assert torch.equal(grown.evaluate("validation"), twin.evaluate("validation"))
    assert list(grown.model.state_dict()) == list(twin.model.state_dict())
    assert not grown.garden.incubating


@pytest.mark.parametrize(
    ("way", "scale"), [("shadow", 16.0), ("branch", 2.0**126), slow("shadow", 2.0**126), slow("branch", 16.0)]
)
def test_an_incubating_seed_does_not_change_the_scaler_of_the_host(way, scale):
    """With a factor of 2^126, the first steps overflow and are skipped."""
    pool = begin_pool(make_recipe(embargo=0, batches=8), incubation=way, scale=scale, interval=5)
    reports = live_beside_twin(pool, {1: SLOWLY, 4: PRUNE}, 6)
    assert not any(differs for differs, _ in reports)
    grown, twin = pool.environments
    assert grown.keeper.scaler.state_dict() == twin.keeper.scaler.state_dict()
    assert losses(reports)[-1] < losses(reports)[0]
