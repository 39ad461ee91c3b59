"""The gymnasium environment has the masks, numbers, rewards and ends of a run."""

import importlib
import math
import sys
from dataclasses import replace

import numpy as np
import pytest

from esper_core.leyline import WAIT, Action, GovernorStop, Op
from esper_run.app.episode import Episode

gymnasium = pytest.importorskip("gymnasium")

from gymnasium.utils.env_checker import check_env  # noqa: E402

from esper_study.gymnasium_env import NAME, GrowthEnv, actions_of, numbers_of  # noqa: E402

STEPS = 6
CONV, POINTWISE = "blueprints/conv_light", "blueprints/pointwise"
SMALL = f"""
task: stripes
host: pointwise-mlp
slots:
  early: {{blueprints: [conv_light, pointwise]}}
policy:
  use: schedule
  settings:
    plan:
      - {{step: 0, op: germinate, slot: early, blueprint: conv_light, speed: 1}}
      - {{step: 1, op: advance, slot: early}}
      - {{step: 3, op: fossilise, slot: early}}
environments: 1
capacity: false
checkpoints: {{every: 1000}}
growth: {{auto_advance: false}}
episode: {{steps: {STEPS}, batches: 1, batch_size: 20}}
"""
GUARD = """
from esper_core import hookimpl
from esper_core.leyline import Level, Verdict

@hookimpl
def esper_check_health(snapshot):
    return Verdict(Level.{level}, "so") if (snapshot.arm, snapshot.signals.step) == ("policy", {step}) else None
"""


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("study") / "small.yaml"
    path.write_text(SMALL, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def env(file):
    """An environment that several tests share."""
    with GrowthEnv(file, seeds=range(3), speed=1) as environment:
        yield environment


@pytest.fixture
def guarded(file):
    """``guarded(level, step)``: an environment in which a health check reports ``level`` in one step."""

    def build(level, step, overrides=(), **settings):
        guard = file.with_name(f"guard_{level}_{step}.py".lower())
        guard.write_text(GUARD.format(level=level, step=step), encoding="utf-8")
        return GrowthEnv(file, [f"plugins.local=[{guard}]", *overrides], **settings)

    return build


def number(env, op, blueprint=None):
    return next(n for n, action in enumerate(env.actions) if (action.op, action.blueprint) == (op, blueprint))


def played(env, actions, seed=0):
    """Play an episode, waiting after the given actions. Return what each step returned."""
    env.reset(seed=seed)
    steps = [env.step(actions[0] if actions else 0)]
    while not (steps[-1][2] or steps[-1][3]):
        steps.append(env.step(actions[len(steps)] if len(steps) < len(actions) else 0))
    return steps


def kept_plan(env):
    return [number(env, Op.GERMINATE, CONV), number(env, Op.ADVANCE), 0, number(env, Op.FOSSILISE)]


def test_the_environment_passes_gymnasiums_checker(file):
    environment = gymnasium.make(NAME, configuration=file, overrides=["episode.steps=3"], seeds=range(2))
    check_env(environment.unwrapped)
    environment.close()


def test_importing_without_gymnasium_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    monkeypatch.delitem(sys.modules, "esper_study.gymnasium_env")
    with pytest.raises(ModuleNotFoundError, match=r"pip install \"esper-study\[gymnasium\]\"") as steps:
        importlib.import_module("esper_study.gymnasium_env")
    assert steps.value.name == "gymnasium"


@pytest.mark.parametrize(("nursery", "every"), [(1, 1), (2, 4)])
def test_masks_observations_and_rewards_equal_those_of_a_play(file, nursery, every):
    overrides = [f"growth.nursery={nursery}", "growth.embargo=1"]
    mirror = Episode.of(file, overrides)
    actions = actions_of(mirror.space, speed=1, single_out=nursery > 1)
    env = GrowthEnv(file, overrides, actions=actions, decide_every=every)
    draw, choices = np.random.default_rng(nursery), []
    for seed in (0, 1, 1):
        seen, info = env.reset(seed=seed)
        moment = mirror.begin(seed)
        rewards = [moment.reward]
        while not moment.over:
            possible = [moment.mask.allows(action) for action in actions]
            assert env.action_masks().tolist() == info["action_mask"].tolist() == possible
            assert np.array_equal(seen, numbers_of(mirror.space, moment.observation, moment.mask))
            assert env.observation_space.contains(seen)
            wished = np.flatnonzero(possible if len(choices) % 3 else np.logical_not(possible))
            choice = int(draw.choice(wished))
            for action in [actions[choice] if possible[choice] else WAIT, *[WAIT] * (every - 1)]:
                if not moment.over:
                    moment = mirror.act(action)
                    rewards.append(moment.reward)
            seen, reward, terminated, truncated, info = env.step(np.int64(choice))
            assert reward == pytest.approx(math.fsum(breakdown.total for breakdown in rewards), abs=1e-9)
            assert reward == pytest.approx(math.fsum(info["terms"].values()), abs=1e-12)
            assert (info["refused"], terminated, truncated) == (not possible[choice], False, moment.over)
            choices.append((actions[choice].op, possible[choice]))
            rewards = []
        assert info["test_metric"] == moment.ending.test_metric
        assert info["twin_test_metric"] == mirror.twin.ending.test_metric
        assert env.action_masks().tolist() == [True] + [False] * (len(actions) - 1)
    assert (Op.GERMINATE, True) in choices
    assert any(not possible for _, possible in choices)


def test_actions_have_a_fixed_order(env):
    space = env.play.space
    ops = [(action.op.value, action.blueprint) for action in actions_of(space, single_out=True)]
    tending = [(op, blueprint) for blueprint in (None, CONV, POINTWISE) for op in ("advance", "prune")]
    germinating = [("germinate", CONV), ("germinate", POINTWISE)]
    assert ops == [("wait", None), *germinating, *tending, ("fossilise", None)]
    assert {action.speed for action in actions_of(space, speed=7) if action.op in (Op.GERMINATE, Op.PRUNE)} == {7}
    assert env.actions == actions_of(space, speed=1)


@pytest.mark.parametrize(("step", "every"), [(1, 1), (3, 4), (STEPS - 1, 1)])
def test_a_rollback_terminates_the_episode_with_its_penalty(guarded, step, every):
    with guarded("PANIC", step, decide_every=every) as env:
        steps = played(env, [])
        _, reward, terminated, truncated, info = steps[-1]
        assert (terminated, truncated, len(steps)) == (True, False, math.ceil(step / every))
        assert info["terms"]["penalty"] < 0
        assert reward == pytest.approx(math.fsum(info["terms"].values()))
        assert info["action_mask"].tolist() == [1] + [0] * (len(env.actions) - 1)
        assert "test_metric" not in info
        with pytest.raises(gymnasium.error.ResetNeeded, match="the episode is over"):
            env.step(0)
        env.reset()


def test_a_governor_that_may_not_roll_back_stops_the_episode(guarded):
    with guarded("PANIC", 1, overrides=["governor.rollback=false"]) as env:
        with pytest.raises(GovernorStop, match="E402"):
            played(env, [])
        with pytest.raises(gymnasium.error.ResetNeeded, match="the episode is over"):
            env.step(0)


def test_seeds_are_played_in_a_random_order_without_repetition(env, monkeypatch):
    begun = env.play.begin(0)
    monkeypatch.setattr(env.play, "begin", lambda seed: begun)
    many = GrowthEnv(env.play, seeds=np.arange(40, 52))

    def order(seed):
        first = many.reset(seed=seed)[1]["seed"]
        return first, [many.reset()[1]["seed"] for _ in range(27)]

    first, following = order(7)
    assert first == 7
    assert sorted(following[:12]) == sorted(following[12:24]) == list(range(40, 52))
    assert following[:12] != following[12:24] != sorted(following[12:24])
    assert order(7) == (7, following)
    assert order(8)[1] != following


def test_auto_fossilise_keeps_seeds(env):
    plan = kept_plan(env)[:2]
    assert played(env, plan)[-1][4]["grown"] == ()
    with GrowthEnv(env.play, speed=1, auto_fossilise=True, decide_every=2) as other:
        assert {action.op for action in other.actions} == {Op.WAIT, Op.GERMINATE, Op.ADVANCE, Op.PRUNE}
        steps = played(other, plan)
        assert len(steps) == STEPS // 2
        assert steps[-1][4]["grown"] == (f"early {CONV}",)
    assert env.reset(seed=0), "the Episode must not be closed by an environment that was given it"


def test_an_unknown_reward_counts_as_zero_and_is_reported(env, monkeypatch):
    env.reset(seed=0)
    act = env.play.act
    monkeypatch.setattr(env.play, "act", lambda action: replace(act(action), reward=None))
    _, reward, _, _, info = env.step(0)
    assert (reward, info["reward_unknown"]) == (0.0, True)


def test_calls_out_of_order_are_rejected(env):
    fresh = GrowthEnv(env.play)
    for ask in (lambda: fresh.step(0), fresh.action_masks):
        with pytest.raises(gymnasium.error.ResetNeeded, match="no episode has begun"):
            ask()
    env.reset(seed=0)
    for wrong in (-1, len(env.actions)):
        with pytest.raises(gymnasium.error.InvalidAction, match=f"from 0 to 5. Received: {wrong}"):
            env.step(wrong)
    env.play.begin(1)
    with pytest.raises(gymnasium.error.ResetNeeded, match="used by other code"):
        env.step(0)
    played(env, [])
    with pytest.raises(gymnasium.error.ResetNeeded, match="the episode is over"):
        env.step(0)


@pytest.mark.parametrize(
    ("settings", "steps"),
    [
        ({"seeds": []}, "at least one. Received: \\[\\]"),
        ({"seeds": [3, -1]}, "integers from 0"),
        ({"decide_every": 0}, "at least 1. Received: 0"),
        ({"actions": [Action(Op.PRUNE, "early")]}, "the first of the actions must be WAIT"),
        ({"actions": []}, "the first of the actions must be WAIT"),
        ({"overrides": ["seed=3"]}, "overrides need a configuration file"),
        ({"speed": -1}, "speed must be an integer from 0"),
        ({"speed": 1.5}, "speed must be an integer from 0"),
    ],
)
def test_invalid_arguments_are_rejected(env, settings, steps):
    with pytest.raises(ValueError, match=steps):
        GrowthEnv(env.play, **settings)
