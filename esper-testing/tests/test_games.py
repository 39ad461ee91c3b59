"""The optimum of each game is as declared, and out of reach without learning."""

import math
import random
import statistics

import pytest

from esper_core.leyline import WAIT, Action, Op, Rollout, Trajectory, Turn
from esper_testing import games
from esper_testing.games import GAMES, learn, play, score

MANY = 300


def germinate(slot, name):
    return Action(Op.GERMINATE, slot, f"games/{name}")


class Player:
    """Decides for each environment by a function of observation, mask and memory."""

    def __init__(self, decide):
        self.decide = decide
        self.seen = []

    def act(self, observations, masks):
        if observations[0].step == 0:
            self.seen = [[] for _ in observations]
        for history, observation in zip(self.seen, observations, strict=True):
            history.append(observation)
        return [self.decide(history, mask) for history, mask in zip(self.seen, masks, strict=True)]


def level(observation):
    return round(observation.signals.validation_loss)


def knows_the_context(seen, mask):
    return germinate("early", {1: "beech", 2: "cedar", 3: "ash"}[level(seen[0])])


def remembers(seen, mask):
    return germinate("early", {1: "right", 3: "left"}[level(seen[0])]) if len(seen) == 4 else WAIT


def plants_an_oak(seen, mask):
    return germinate("early", "oak") if len(seen) == 1 else WAIT


def takes_the_best(seen, mask):
    four = [germinate(slot, name) for slot in ("early", "late") for name in ("fern", "moss")]
    order = {1: (0, 1, 2, 3), 2: (3, 0, 1, 2), 3: (1, 2, 3, 0)}[level(seen[-1])]
    return next(four[index] for index in order if mask.allows(four[index]))


BEST = {
    "contextual": knows_the_context,
    "memory": remembers,
    "delayed": plants_an_oak,
    "masked": takes_the_best,
    "endless": lambda seen, mask: WAIT,
}


def at_random(seed=1):
    draw = random.Random(seed)

    def decide(seen, mask):
        room = [Action(Op.GERMINATE, slot, name) for slot, names in mask.blueprints.items() for name in names]
        return draw.choice([WAIT, *room])

    return decide


def returns(rollout):
    return [math.fsum(turn.reward.total for turn in episode.turns) for episode in rollout.trajectories]


@pytest.mark.parametrize("name", GAMES)
def test_the_best_player_gets_the_optimum_in_every_episode(name):
    game = GAMES[name]()
    totals = returns(play(Player(BEST[name]), game, 200))
    assert {round(total, 9) for total in totals} == {game.best}


def test_the_memory_game_shows_its_answer_in_the_first_step_only_and_pays_nothing_without_a_memory():
    for name in ("left", "right"):
        player = Player(lambda seen, mask, name=name: germinate("early", name) if len(seen) == 4 else WAIT)
        rollout = play(player, games.memory(), MANY)
        totals = returns(rollout)
        assert abs(statistics.fmean(totals)) < 4 * statistics.pstdev(totals) / MANY**0.5 + 1e-9
        for turns in (episode.turns for episode in rollout.trajectories):
            assert [level(turn.observation) for turn in turns[1:]] == [2, 2, 2]
            assert [turn.mask.allows(germinate("early", name)) for turn in turns] == [False, False, False, True]


def test_the_endless_stream_is_cut_and_not_ended():
    for episode in play(Player(at_random()), games.endless(7), 5).trajectories:
        assert [turn.reward.total for turn in episode.turns] == [1.0] * 7
        assert not episode.terminated


@pytest.mark.parametrize("name", [name for name in GAMES if name != "endless"])
def test_the_seed_determines_the_game(name):
    game = GAMES[name]()
    first, again = (play(Player(at_random()), GAMES[name](), 20, first_seed=3) for _ in range(2))
    assert first == again
    assert first != play(Player(at_random()), game, 20, first_seed=4)
    alone = play(Player(BEST[name]), game, 1, first_seed=9)
    assert alone.trajectories[0] == play(Player(BEST[name]), game, 20, first_seed=3).trajectories[6]


def test_impossible_actions_and_actions_after_the_end_are_refused():
    scene = games.delayed().begin(0)
    scene.act(germinate("early", "daisy"))
    occupied = germinate("early", "oak")
    for action in (occupied, Action(Op.ADVANCE, "early"), germinate("late", "oak"), Action(Op.PRUNE)):
        with pytest.raises(ValueError, match="step 1 of delayed"):
            scene.act(action)
    scene = games.contextual().begin(0)
    assert not scene.over
    scene.act(WAIT)
    assert scene.over
    assert scene.observe()[1] == scene.observe()[1].shut()
    with pytest.raises(ValueError, match="over after 1 step"):
        scene.act(WAIT)


def test_an_unknown_reward_counts_as_0():
    rollout = play(Player(BEST["endless"]), games.endless(4), 2)
    first, second = rollout.trajectories
    unpaid = Trajectory(
        tuple(Turn(turn.observation, turn.mask, turn.action, None) for turn in first.turns), first.final
    )
    assert score(Rollout("x", 0, (unpaid, second))) == 2.0


def test_a_policy_that_does_not_learn_is_scored_in_each_round():
    assert learn(Player(BEST["delayed"]), games.delayed(), rounds=2, episodes=3) == (games.delayed().best,) * 2
