"""Manual episodes: observations, illegal actions, and how a moment is saved and restored."""

import sys
from collections.abc import Iterator
from typing import Any

import pytest

from esper_core.leyline import WAIT, Action, GovernorStop, GrowthError, LifecycleError, Op
from esper_run.app.compose import prepare
from esper_run.app.episode import Episode
from esper_run.app.run import run

pytestmark = pytest.mark.members

STEPS = 7
CHANGES = (f"episode={{steps: {STEPS}, batches: 1, batch_size: 20}}", "environments=1")
GERMINATE = Action(Op.GERMINATE, "early", "blueprints/conv_light", speed=1)
ADVANCE, FOSSILISE = (Action(op, "early") for op in (Op.ADVANCE, Op.FOSSILISE))
PLAYED = """
task: stripes
host: pointwise-mlp
slots:
  early: {blueprints: [conv_light, pointwise], stack: 2}
policy: static
growth: {gates: "off", nursery: 1}
"""
LIFE = [GERMINATE, ADVANCE, WAIT, FOSSILISE, GERMINATE, ADVANCE, WAIT]
"""The action after each step: one seed is kept, and another is still growing when the episode ends."""

FRIGHT = """
from esper_core import hookimpl
from esper_core.leyline import Level, Verdict

@hookimpl
def esper_check_health(snapshot):
    return Verdict(Level.PANIC, "a whim") if snapshot.arm == "policy" and snapshot.signals.step == 2 else None
"""
FRIGHTENED = "plugins:\n  require: {fright: '>=1.0'}\n"
BROKEN = """
from torch import nn

class Broken(nn.Module):
    breaks = False

    def __init__(self, site):
        super().__init__()
        self.shift = nn.Parameter(__import__("torch").zeros(()))
        if self.breaks:
            raise OSError("out of clay")

    def forward(self, inputs):
        return inputs + self.shift
"""


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Episode]:
    """An Episode for all tests; every test begins its own episode."""
    file = tmp_path_factory.mktemp("played") / "run.yaml"
    file.write_text(PLAYED)
    episode = Episode.of(file, CHANGES)
    yield episode
    episode.close()


def play(episode: Episode, seed: int, actions: list[Action]) -> list[Any]:
    """Begin an episode and carry out these actions; return the step before and after each."""
    return [episode.begin(seed), *(episode.act(action) for action in actions)]


def test_episode_is_over_after_the_last_step(shared):
    moments = play(shared, 3, LIFE)
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


def test_observation_has_the_twin_and_the_price_and_rewards_add_up(shared):
    moments = play(shared, 5, LIFE)
    twin = shared.twin
    assert [moment.observation.twin for moment in moments] == [*twin.signals, twin.ending.signals]
    assert {moment.observation.price for moment in moments} == {1.0}
    assert all(signals.parameters == shared.composition.host_parameters for signals in twin.signals)
    assert moments[1].observation.signals.validation_loss == twin.signals[1].validation_loss
    assert moments[-1].observation.signals.parameters > shared.composition.host_parameters
    rewards = [moment.reward for moment in moments]
    assert None not in rewards
    assert rewards[4].terms["fossil_fee"] < 0.0 == sum(reward.terms["fossil_fee"] for reward in rewards[:4])
    end = moments[-1].ending
    gain = 100 * (end.signals.validation_metric - twin.ending.signals.validation_metric)
    assert sum(reward.total for reward in rewards) == pytest.approx(gain - (end.signals.doublings + 0.1))


def test_nothing_can_be_done_before_the_first_episode(shared):
    fresh = Episode(shared.composition)
    for ask in (lambda: fresh.act(WAIT), lambda: fresh.twin):
        with pytest.raises(RuntimeError, match="there is no episode"):
            ask()


def test_illegal_action_is_refused_and_changes_nothing(shared):
    """An empty slot has nothing to advance; a new seed cannot be advanced or fossilised, and its slot is occupied."""
    moments = play(shared, 3, LIFE)
    shared.begin(3)
    with pytest.raises(LifecycleError):
        shared.act(ADVANCE)
    assert shared.act(GERMINATE) == moments[1]
    for action in (FOSSILISE, Action(Op.GERMINATE, "early", "blueprints/pointwise")):
        with pytest.raises(LifecycleError):
            shared.act(action)
    with pytest.raises(GrowthError):
        shared.act(Action(Op.PRUNE, "nowhere"))
    assert [shared.act(action) for action in LIFE[1:]] == moments[2:]


def test_rolled_back_environment_can_only_wait(install, configured):
    """This holds although the slot is free, as in a run: no action follows directly on a rollback."""
    install("fright", FRIGHT)
    player = Episode.of(configured(FRIGHTENED), [*CHANGES, "growth.embargo=0"])
    player.begin(3)
    player.act(GERMINATE)
    moment = player.act(WAIT)
    assert (moment.rolled_back, moment.over, moment.mask.ops) == (True, False, {"early": frozenset()})
    with pytest.raises(LifecycleError, match="just rolled back") as refused:
        player.act(GERMINATE)
    assert refused.value.legal == ("wait",)
    assert moment.observation.rolled_back
    assert not player.act(WAIT).rolled_back
    assert player.act(GERMINATE).observation.signals.seeds[0].blueprint == GERMINATE.blueprint


@pytest.mark.parametrize("whose", ["twin", "policy"])
def test_stop_of_the_governor_is_raised(whose, install, configured):
    """A failure of the twin is raised when the episode begins, since the twin is trained before it."""
    install("fright", FRIGHT.replace('"policy"', '"twin"') if whose == "twin" else FRIGHT)
    player = Episode.of(configured(FRIGHTENED), [*CHANGES, "governor.rollbacks=0"])
    moment = None if whose == "twin" else [player.begin(3), player.act(WAIT)][-1]
    with pytest.raises(GovernorStop, match=f'E402 arm "{whose}", RNG seed 3, step 2: a whim'):
        player.begin(3) if moment is None else player.act(WAIT)
    with pytest.raises(RuntimeError, match="there is no episode"):
        player.act(WAIT)


def test_withdrawn_blueprint_is_offered_again_in_the_next_episode(install, configured, monkeypatch):
    """A blueprint is withdrawn after three faults; the next episode starts without earlier faults."""
    spec = "Broken, BlueprintSpec('sequence', '1', starts_as_identity=True)"
    install.components("extra", BROKEN, blueprint={"broken": spec})
    player = Episode.of(configured(), [*CHANGES, "slots.early.blueprints=[broken, conv_light]"])
    monkeypatch.setattr(sys.modules["esper_extra"].Broken, "breaks", True)
    break_down = Action(Op.GERMINATE, "early", "extra/broken")
    offered = [player.begin(3).mask, *(player.act(break_down).mask for _ in range(3))]
    assert [mask.allows(break_down) for mask in offered] == [True, True, True, False]
    assert player.begin(3).mask.allows(break_down)


def test_observations_are_those_of_a_run(recorder, configured, tmp_path):
    """This includes the twin at the same step, if there is one, and the reward's price."""
    policy = recorder().Recorder

    def noted(*overrides: str) -> list[Any]:
        policy.seen.clear()
        run(prepare(configured(), [*overrides, "policy=recorder"]), runs_dir=tmp_path / "runs")
        return [pair for step in policy.seen for pair in zip(*step, strict=True)]

    changes = [*CHANGES, "reward={use: team, settings: {price: 7.5}}"]
    seen = noted(*changes)
    player = Episode.of(configured(), [*changes, "policy=static"])
    moments = play(player, 0, [Action(Op.GERMINATE, "early", "blueprints/conv_light"), *[WAIT] * (STEPS - 2)])
    assert [(moment.observation, moment.mask) for moment in moments] == seen
    assert all(observation.twin.step == observation.step for observation, _ in seen)
    assert {(observation.price, observation.batches) for observation, _ in seen} == {(7.5, 1)}
    alone = noted(*CHANGES, "twin=false")
    assert (len(alone), {observation.twin for observation, _ in alone}) == (STEPS, {None})
