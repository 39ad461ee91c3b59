"""Does what is remembered come back as it was, and is nothing trained twice?"""

from __future__ import annotations

import random

import pytest

from esper_core import Play, Remembered
from esper_core.leyline import WAIT, Action, LifecycleError, Op

pytestmark = pytest.mark.members

CONFIG = """
task: {use: mnist1d, settings: {samples: 500, validation: 150}}
host: {use: pointwise-mlp, settings: {channels: 4, hidden: 8}}
slots: {early: {blueprints: [pointwise]}}
policy: static
growth: {auto_advance: false}
episode: {steps: 5, batches: 1, batch_size: 20}
lanes: 1
"""
PLANT = Action(Op.GERMINATE, "early", "blueprints/pointwise", speed=1)
ADVANCE = Action(Op.ADVANCE, "early")


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("prefixes") / "config.yaml"
    path.write_text(CONFIG)
    return path


def an_episode(play, actions, seed=3):
    return [play.begin(seed), *(play.act(action) for action in actions)]


PLANS = [
    (PLANT, WAIT, ADVANCE, WAIT, WAIT),
    (PLANT, WAIT, WAIT, WAIT, WAIT),
    (WAIT, PLANT, WAIT, ADVANCE, WAIT),
    (PLANT, WAIT, ADVANCE, WAIT, WAIT),
]


@pytest.mark.parametrize("states", [1, 2, 64])
def test_it_gives_what_play_gives_however_few_states_are_kept(file, states):
    remembered, plain = Remembered(Play.of(file), states=states), Play.of(file)
    for actions in PLANS:
        assert an_episode(remembered, actions) == an_episode(plain, actions)


def test_nothing_is_trained_twice(file):
    remembered = Remembered(Play.of(file))
    for actions in PLANS:
        an_episode(remembered, actions)
    different = {actions[:n] for actions in PLANS for n in range(len(actions) + 1)}
    assert remembered.trained == len(different)
    assert remembered.trained + remembered.recalled == sum(len(actions) + 1 for actions in PLANS)


def test_it_may_be_left_in_the_middle_and_seeds_do_not_mix(file):
    remembered, plain = Remembered(Play.of(file), states=3), Play.of(file)
    draw = random.Random(5)
    for _ in range(6):
        seed, actions = draw.randrange(2), draw.choice(PLANS)[: draw.randrange(6)]
        assert an_episode(remembered, actions, seed) == an_episode(plain, actions, seed)


def test_what_is_not_possible_is_refused_and_changes_nothing(file):
    remembered, plain = Remembered(Play.of(file)), Play.of(file)
    remembered.begin(3)
    for _ in range(2):
        with pytest.raises(LifecycleError):
            remembered.act(ADVANCE)
    assert remembered.act(PLANT) == an_episode(plain, [PLANT])[-1]


def test_what_somebody_else_plays_on_the_same_engine_is_not_mistaken_for_it(file):
    play, plain = Play.of(file), Play.of(file)
    remembered = Remembered(play)
    remembered.begin(1)
    remembered.act(PLANT)
    play.begin(5)
    assert remembered.act(WAIT) == an_episode(plain, [PLANT, WAIT], seed=1)[-1]


def test_an_episode_has_to_be_begun_and_there_has_to_be_room(file):
    with pytest.raises(RuntimeError, match="begin"):
        Remembered(Play.of(file)).act(WAIT)
    with pytest.raises(ValueError, match="room for one state"):
        Remembered(Play.of(file), states=0)
