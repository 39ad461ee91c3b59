"""An episode that is played from outside: what there is to see, what is refused, and how a moment is brought back."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from esper_core.app.compose import prepare
from esper_core.app.episode import Episode
from esper_core.app.run import run
from esper_core.leyline import WAIT, Action, GovernorStop, GrowthError, LifecycleError, Op, RewardBreakdown, State
from esper_core.trainer.study import RunReward

pytestmark = pytest.mark.members

STEPS = 7
CHANGES = (f"episode={{steps: {STEPS}, batches: 1, batch_size: 20}}", "environments=1")
GERMINATE = Action(Op.GERMINATE, "early", "blueprints/conv_light", speed=1)
ADVANCE, FOSSILISE, PRUNE = (Action(op, "early") for op in (Op.ADVANCE, Op.FOSSILISE, Op.PRUNE))
PLAYED = """
task: stripes
host: pointwise-mlp
slots:
  early: {blueprints: [conv_light, pointwise], stack: 2}
policy: static
"""
LIFE = [GERMINATE, ADVANCE, WAIT, FOSSILISE, GERMINATE, ADVANCE, WAIT]
"""What is done after each step: a seed is kept, and another is on its way when the episode ends."""

FRIGHT = """
from esper_core import hookimpl
from esper_core.leyline import Level, Verdict

@hookimpl
def esper_check_health(snapshot):
    return Verdict(Level.PANIC, "a whim") if snapshot.arm == "player" and snapshot.signals.step == 2 else None
"""
FRIGHTENED = "plugins:\n  require: {fright: '>=1.0'}\n"
BROKEN = """
from torch import nn
from esper_core import BlueprintSpec, hookimpl

class Broken(nn.Module):
    breaks = False

    def __init__(self, site):
        super().__init__()
        self.shift = nn.Parameter(__import__("torch").zeros(()))
        if self.breaks:
            raise OSError("out of clay")

    def forward(self, inputs):
        return inputs + self.shift

@hookimpl
def esper_register_blueprints(registry):
    registry.add("broken", Broken, BlueprintSpec(accepts="sequence", params="1", starts_as_identity=True))
"""
NOTING = """
from esper_core import PolicySpec, hookimpl
from esper_core.leyline import WAIT, Action, Op

class Noting:
    seen = []

    def __init__(self, space):
        self.space = space

    def act(self, observations, masks):
        self.seen += zip(observations, masks)
        grow = Action(Op.GERMINATE, "early", "blueprints/conv_light")
        return [grow if mask.allows(grow) else WAIT for mask in masks]

@hookimpl
def esper_register_policies(registry):
    registry.add("noting", Noting, PolicySpec("Writes down what it sees."))
"""

Configured = Callable[..., Path]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Episode]:
    """One to play with; every test begins its own episode."""
    file = tmp_path_factory.mktemp("played") / "run.yaml"
    file.write_text(PLAYED)
    play = Episode.of(file, CHANGES)
    yield play
    play.close()


def test_it_is_over_behind_the_last_step_and_not_before(shared: Episode) -> None:
    moments = [shared.begin(3), *(shared.act(action) for action in LIFE)]
    assert [moment.over for moment in moments] == [False] * STEPS + [True]
    assert [moment.observation.step for moment in moments] == [*range(STEPS), STEPS - 1]
    assert {moment.observation.steps for moment in moments} == {STEPS} == {shared.steps}
    last = moments[-1]
    assert last.ending is not None
    assert (len(last.ending.growth), last.ending.signals.fossils, last.ending.signals.seeds) == (1, 1, ())
    assert 0.0 <= last.ending.test_metric <= 1.0
    assert last.mask == last.mask.shut()
    with pytest.raises(RuntimeError, match="the episode is over"):
        shared.act(WAIT)


def test_nobody_can_do_anything_before_the_first_episode(shared: Episode, tmp_path: Path) -> None:
    play = Episode(prepare(shared.composition.resolution.loaded.file, CHANGES))
    for ask in (lambda: play.act(WAIT), play.state_dict, lambda: play.twin):
        with pytest.raises(RuntimeError, match="there is no episode"):
            ask()


def test_what_is_seen_has_the_twin_and_the_price(shared: Episode) -> None:
    moments = [shared.begin(5), *(shared.act(action) for action in LIFE)]
    twin = shared.twin
    assert [moment.observation.twin for moment in moments] == [*twin.signals, twin.ending.signals]
    assert {moment.observation.price for moment in moments} == {20.0}
    assert all(signals.parameters == shared.host_parameters for signals in twin.signals)
    assert moments[1].observation.signals.validation_loss == twin.signals[1].validation_loss
    assert moments[-1].observation.signals.parameters > shared.host_parameters


def test_the_reward_is_of_the_action_before_and_adds_up_to_what_became_of_it(shared: Episode) -> None:
    moments = [shared.begin(5), *(shared.act(action) for action in LIFE)]
    assert all(moment.reward is not None for moment in moments)
    kept = moments[4].reward
    assert kept is not None
    assert kept.terms["fossil_fee"] < 0.0 == sum(one.reward.terms["fossil_fee"] for one in moments[:4] if one.reward)
    end, twin = moments[-1].ending, shared.twin.ending
    assert end is not None
    gain = 100 * (end.signals.validation_metric - twin.signals.validation_metric)
    share = (end.signals.parameters - shared.host_parameters) / shared.host_parameters
    total = sum(moment.reward.total for moment in moments if moment.reward)
    assert total == pytest.approx(gain - 20 * (share + 0.1))


def test_from_any_moment_it_goes_on_to_the_same_numbers(shared: Episode) -> None:
    """From the very end, too. What is written down stays what it is, whatever is played afterwards."""
    moments, states = [shared.begin(3)], [shared.state_dict()]
    for action in LIFE:
        moments.append(shared.act(action))
        states.append(shared.state_dict())
    shared.begin(5)
    shared.act(GERMINATE)
    for step in reversed(range(STEPS + 1)):
        assert [shared.load_state_dict(states[step]), *(shared.act(action) for action in LIFE[step:])] == moments[
            step:
        ], step


def test_another_way_from_a_moment_comes_to_something_else_and_leaves_the_first_alone(shared: Episode) -> None:
    shared.begin(3)
    shared.act(GERMINATE)
    state = shared.state_dict()
    kept = [shared.act(action) for action in LIFE[1:]][-1]
    shared.load_state_dict(state)
    shared.act(PRUNE)
    while not (other := shared.act(WAIT)).over:
        pass
    assert kept.ending is not None
    assert other.ending is not None
    assert (len(kept.ending.growth), len(other.ending.growth)) == (1, 0)
    assert other.ending.test_loss == shared.twin.ending.test_loss != kept.ending.test_loss


def test_a_fresh_one_of_the_same_file_goes_on_in_its_place(shared: Episode) -> None:
    shared.begin(3)
    for action in LIFE[:2]:
        moment = shared.act(action)
    state = shared.state_dict()
    plain = json.loads(json.dumps(dict(state.plain), allow_nan=False))
    rest = [shared.act(action) for action in LIFE[2:]]
    fresh = Episode.of(shared.composition.resolution.loaded.file, CHANGES)
    assert fresh.load_state_dict(State(plain, dict(state.tensors))) == moment
    assert [fresh.act(action) for action in LIFE[2:]] == rest
    fresh.close()


def test_a_state_that_does_not_fit_is_refused_and_leaves_no_episode(shared: Episode) -> None:
    shared.begin(3)
    state = shared.state_dict()
    spoilt = {**state.plain, "pool": {**state.plain["pool"], "environments": {"0": {"round": 0, "seed": 3}}}}
    with pytest.raises(GrowthError):
        shared.load_state_dict(State(spoilt, state.tensors))
    with pytest.raises(RuntimeError, match="there is no episode"):
        shared.act(WAIT)
    assert not shared.begin(3).over


@pytest.mark.parametrize(
    ("action", "error"),
    [
        (ADVANCE, LifecycleError),
        (FOSSILISE, LifecycleError),
        (Action(Op.GERMINATE, "early", "blueprints/pointwise"), LifecycleError),
        (Action(Op.PRUNE, "nowhere"), GrowthError),
        (Action(Op.PRUNE, "early", speed=-1), GrowthError),
    ],
)
def test_what_is_not_possible_is_refused_and_nothing_is_changed(shared: Episode, action: Action, error: Any) -> None:
    """A newborn seed cannot be advanced, nor kept; its slot is taken."""
    shared.begin(3)
    before = shared.act(GERMINATE)
    undisturbed = [shared.act(action) for action in LIFE[1:]]
    shared.begin(3)
    if action == ADVANCE:
        with pytest.raises(LifecycleError):
            shared.act(action)  # there is nothing to advance yet
        assert shared.act(GERMINATE) == before
    else:
        assert shared.act(GERMINATE) == before
        with pytest.raises(error):
            shared.act(action)
    assert [shared.act(action) for action in LIFE[1:]] == undisturbed


def test_who_was_rolled_back_can_only_wait(install: Any, configured: Configured) -> None:
    """Though the slot is free and the garden would take the seed: nobody acts on what was just undone, as in a run."""
    install("fright", FRIGHT)
    play = Episode.of(configured(FRIGHTENED), [*CHANGES, "growth.embargo=0"])
    play.begin(3)
    play.act(GERMINATE)
    moment = play.act(WAIT)
    assert (moment.rolled_back, moment.over, moment.mask.ops) == (True, False, {"early": frozenset()})
    with pytest.raises(LifecycleError, match="just rolled back") as refused:
        play.act(GERMINATE)
    assert refused.value.legal == ("wait",)
    assert moment.observation.rolled_back
    assert play.load_state_dict(play.state_dict()) == moment
    assert not play.act(WAIT).rolled_back
    assert play.act(GERMINATE).observation.signals.seeds[0].blueprint == GERMINATE.blueprint


@pytest.mark.parametrize("whose", ["twin", "player"])
def test_what_nothing_helps_is_stopped(whose: str, install: Any, configured: Configured) -> None:
    """The twin's trouble is found when the episode begins, since the twin is trained before."""
    install("fright", FRIGHT.replace('"player"', '"twin"') if whose == "twin" else FRIGHT)
    play = Episode.of(configured(FRIGHTENED), [*CHANGES, "governor.rollbacks=0"])
    moment = None if whose == "twin" else [play.begin(3), play.act(WAIT)][-1]
    with pytest.raises(GovernorStop, match=f'E402 arm "{whose}", seed 3, step 2: a whim'):
        play.begin(3) if moment is None else play.act(WAIT)
    with pytest.raises(RuntimeError, match="there is no episode"):
        play.act(WAIT)


def test_what_a_blueprint_did_wrong_is_forgotten_when_an_episode_begins(
    install: Any, configured: Configured, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is withdrawn after three times; the next episode is that of a run that begins with it."""
    install("extra", BROKEN)
    play = Episode.of(configured(), [*CHANGES, "slots.early.blueprints=[broken, conv_light]"])
    monkeypatch.setattr(sys.modules["esper_extra"].Broken, "breaks", True)
    break_down = Action(Op.GERMINATE, "early", "extra/broken")
    offered = [play.begin(3).mask, *(play.act(break_down).mask for _ in range(3))]
    assert [mask.allows(break_down) for mask in offered] == [True, True, True, False]
    withdrawn = play.state_dict()
    assert play.begin(3).mask.allows(break_down)
    assert not play.load_state_dict(withdrawn).mask.allows(break_down)


def test_a_policy_of_a_run_sees_what_a_player_sees(install: Any, configured: Configured, tmp_path: Path) -> None:
    """The twin at the same step and the reward's price among it."""
    install("noting", NOTING)
    file = configured()
    changes = [*CHANGES, "policy=noting/noting", "reward={use: team, settings: {price: 7.5}}"]
    prepared = prepare(file, changes)
    run(prepared, runs_dir=tmp_path / "runs")
    seen = prepared.arms[0].policy.seen
    play = Episode.of(file, changes)
    moments = [play.begin(0), play.act(Action(Op.GERMINATE, "early", "blueprints/conv_light"))]
    moments += [play.act(WAIT) for _ in range(STEPS - 2)]
    assert [(moment.observation, moment.mask) for moment in moments] == seen
    assert all(observation.twin.step == observation.step for observation, _ in seen)
    assert {observation.price for observation, _ in seen} == {7.5}


def test_without_a_twin_a_policy_is_told_that_there_is_none(
    install: Any, configured: Configured, tmp_path: Path
) -> None:
    install("noting", NOTING)
    prepared = prepare(configured(), [*CHANGES, "policy=noting/noting", "twin=false"])
    run(prepared, runs_dir=tmp_path / "runs")
    seen = prepared.arms[0].policy.seen
    assert len(seen) == STEPS
    assert {observation.twin for observation, _ in seen} == {None}


class Priced:
    """A reward that asks for something."""

    def __init__(self, price: object) -> None:
        self.price = price

    def score(self, *_: object) -> RewardBreakdown:
        return RewardBreakdown({})


@pytest.mark.parametrize(
    ("price", "named"), [(20, 20.0), (0.0, 0.0), (None, None), ("much", None), (math.nan, None), (math.inf, None)]
)
def test_a_price_is_a_number_or_it_is_unknown(price: object, named: float | None) -> None:
    assert RunReward(Priced(price), "reward").price == named
    assert RunReward(object(), "reward").price is None
