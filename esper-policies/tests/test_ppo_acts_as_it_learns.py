"""PPO decides as it learns, and as if it had not been interrupted, whatever environments are beside it.

The policy is played on environments in any state, with rollbacks and early ends. Its probabilities are compared between
acting and learning. SIM-HIGH-2 was a defect in which they differed.
"""

import math
import random
from collections import defaultdict
from dataclasses import replace
from itertools import chain

import pytest
import torch
from hypothesis import given, settings, strategies as st

from esper_core import leyline
from esper_core.leyline import WAIT, Action, ActionMask, ActionSpace, Op, RewardBreakdown, SlotState, Trajectory
from esper_policies.ppo import policy as policy_module
from esper_policies.ppo.encoding import Pace, episodes_of, see
from esper_policies.ppo.policy import Ppo
from esper_policies.ppo.policy_network import Chances
from esper_testing.policies import STEPS, STRANGER, episode, same_state, space_of, written_and_read
from tests.support.games import delayed, play

SPACE = space_of(2)


class Witness:
    """Plays a policy and records the probability of each decision when it was taken, by place, in order."""

    def __init__(self, policy, monkeypatch):
        self.policy, self.chances, self.round = policy, defaultdict(list), 0
        act, drawn = policy._chosen, Chances.drawn
        latest = []

        def draw(chances, luck):
            chosen = drawn(chances, luck)
            latest.append(chances.log_chance(chosen))
            return chosen

        def choose(places, seen, steps):
            chosen = act(places, seen, steps)
            for place, chance in zip(places, latest.pop().tolist(), strict=False):
                self.chances[place].append(chance)
            return chosen

        monkeypatch.setattr(Chances, "drawn", draw)
        policy._chosen = choose

    def play(self, environments=3, *, undone=(), early=(), steps=STEPS, stranger=False):
        """Play a round. undone: by place, the step of a rollback; early: the last step of a shortened episode."""
        self.chances.clear()
        self.round += 1
        space, draw = self.policy.space, random.Random(self.round)
        scenes = [episode(space, 100 * self.round + n, stranger=stranger)[:steps] for n in range(environments)]
        turns, ended, over = [[] for _ in scenes], [[] for _ in scenes], {}
        for step in range(steps):
            seen = [replace(scene[step].observation, steps=steps) for scene in scenes]
            masks = [scene[step].mask for scene in scenes]
            for place in range(environments):
                if (place, step) in undone:
                    seen[place], masks[place] = replace(seen[place], rolled_back=True), masks[place].shut()
                    ended[place] += [Trajectory(tuple(turns[place]))] if turns[place] else []
                    turns[place] = []
                if place in over:
                    seen[place], masks[place] = over[place], masks[place].shut()
            actions = self.policy.act(seen, masks)
            for place, (observation, mask, action) in enumerate(zip(seen, masks, actions, strict=True)):
                assert mask.allows(action)
                if place in over or observation.rolled_back:
                    continue
                turns[place].append(
                    leyline.Turn(observation, mask, action, RewardBreakdown({"tried": draw.uniform(-1, 1)}))
                )
                if (place, step) in early:
                    over[place] = observation
        for place in range(environments):
            ended[place] += [Trajectory(tuple(turns[place]))] if turns[place] else []
        return leyline.Rollout("ppo", self.round, tuple(chain(*ended)))

    def learn(self, rollout, monkeypatch):
        """Return how far a decision's ratio is from 1 in the update at most, the number of decisions, and the figures.

        The ratios are those of the update itself; they are not computed again.
        """
        policy, weighed_by = self.policy, []
        weigh = policy_module.evaluate
        monkeypatch.setattr(policy_module, "evaluate", lambda *args: weighed_by.append(weigh(*args)) or weighed_by[-1])
        figures = policy.update(rollout)
        monkeypatch.setattr(policy_module, "evaluate", weigh)
        episodes, unknown = episodes_of(policy.space, rollout, policy.pace)
        assert unknown == 0
        learnt = weighed_by[0].log_chance.view(len(episodes), -1)
        left = {place: list(chances) for place, chances in self.chances.items()}
        off = [
            abs(math.exp(learnt[number, step].item() - left[episode.environment].pop(0)) - 1.0)
            for number, episode in enumerate(episodes)
            for step in range(len(episode.decisions))
        ]
        return max(off), len(off), figures


CASES = {
    "without a memory": ({"memory": False}, {}),
    "together": ({"together": 3}, {}),
    "without names": ({"forget_names": 1.0}, {}),
    "macro decisions": ({"decide_every": 3, "auto_fossilise": True}, {}),
    "rolled back": ({"forget_names": 0.0}, {"undone": [(0, 5), (1, 0), (2, STEPS - 1)]}),
    "rolled back and cut between decisions": ({"decide_every": 4}, {"undone": [(0, 5), (2, 4)], "early": [(1, 6)]}),
    "twice": ({}, {"undone": [(1, 3), (1, 4), (1, 8)]}),
    "strangers": ({}, {"stranger": True}),
}


@pytest.mark.parametrize(("settings", "course"), CASES.values(), ids=CASES)
def test_sim_high_2_before_the_first_gradient_step_every_ratio_is_1(monkeypatch, settings, course):
    policy = Ppo(SPACE, **{"width": 8, "learning_rate": 1e-2, "passes": 2, "minibatch": 16, **settings})
    witness = Witness(policy, monkeypatch)
    for _ in range(2):  # nothing is scaled in the first round; in the second, scales are those of the first
        rollout = witness.play(**course)
        worst, count, figures = witness.learn(rollout, monkeypatch)
        assert worst < 1e-6
        assert count > 5
        assert figures["largest_first_ratio"] < 1e-6
    assert policy.scales.whole.count > 0


def test_rewards_between_decisions_belong_to_the_earlier_one(monkeypatch):
    policy = Ppo(SPACE, width=8, decide_every=5)
    rollout = Witness(policy, monkeypatch).play(undone=[(1, 6)])
    episodes, _ = episodes_of(SPACE, rollout, policy.pace)
    assert [(episode.environment, len(episode.decisions)) for episode in episodes] == [(0, 3), (1, 2), (1, 1), (2, 3)]
    rewards = [turn.reward.total for turn in rollout.trajectories[0].turns]
    sums = [sum(rewards[:5]), sum(rewards[5:10]), sum(rewards[10:])]
    assert [decision.reward for decision in episodes[0].decisions] == pytest.approx(sums)
    behind = [turn.reward.total for turn in rollout.trajectories[2].turns if turn.observation.step >= 10]
    assert episodes[2].decisions[0].reward == pytest.approx(sum(behind)), "what came before it decided is not its doing"
    turns = chain(*(episode.turns for episode in rollout.trajectories))
    assert all(turn.action == WAIT for turn in turns if turn.observation.step % 5)


def test_b8_drl_01_memories_are_kept_in_one_place_and_end_with_the_episode(monkeypatch):
    policy = Ppo(SPACE, width=8)
    first, second = episode(SPACE, 1), episode(SPACE, 2)
    open_, shut = first[0], replace(second[3], observation=replace(second[3].observation, rolled_back=True))
    policy.act([open_.observation] * 2, [open_.mask] * 2)
    held = [memory.hidden.clone() for memory in policy._memories]
    state = policy.state_dict()
    policy.act([first[1].observation, shut.observation], [first[1].mask, shut.mask.shut()])
    assert policy._memories[1].hidden is None
    assert policy._memories[1].levels is None
    assert not torch.equal(policy._memories[0].hidden, held[0])
    assert torch.equal(state.tensors["hidden/0"], held[0]), "what was told of it does not move"
    policy.act([first[2].observation], [first[2].mask])
    assert len(policy._memories) == 1
    policy.act([open_.observation], [open_.mask])
    assert torch.equal(policy._memories[0].hidden, held[0]), "nothing is left of the episode before"
    assert not any(isinstance(value, torch.Tensor) for value in vars(policy).values())


def test_after_last_only_automatic_actions_are_taken():
    scene, name = episode(SPACE, 5)[4], SPACE.blueprints["slot-0"][0]
    first, *others = scene.observation.signals.slots
    seed, ops = leyline.SeedSignals(name, leyline.Stage.HOLDING, 1.0, 10, 3), frozenset({Op.FOSSILISE, Op.PRUNE})
    slots = (replace(first, state=SlotState.OCCUPIED, seeds=(seed,)), *others)
    seen = replace(scene.observation, signals=replace(scene.observation.signals, slots=slots))
    mask = ActionMask({"slot-0": ops}, {}, {"slot-0": {name: ops}})
    share = seen.step / seen.steps
    assert Pace(1, last=share).by_itself(seen, mask) is None
    assert Pace(1, last=share - 1e-6).by_itself(seen, mask) == WAIT
    assert Pace(1, last=0.0, keeps=True).by_itself(seen, mask) == Action(Op.FOSSILISE, "slot-0")


def test_episodes_with_unknown_rewards_are_left_out_and_counted(monkeypatch):
    policy = Ppo(SPACE, width=8)
    rollout = Witness(policy, monkeypatch).play()
    first = rollout.trajectories[0]
    gap = replace(first, turns=(*first.turns[:4], replace(first.turns[4], reward=None), *first.turns[5:]))
    episodes, unknown = episodes_of(SPACE, replace(rollout, trajectories=(gap, *rollout.trajectories[1:])), Pace())
    assert unknown == 1
    assert [episode.environment for episode in episodes] == [1, 2]


TINY = {"width": 8, "passes": 2, "minibatch": 16, "learning_rate": 1e-2}


@pytest.mark.parametrize("ways", [{}, {"together": 3, "decide_every": 2, "speed": 3}])
def test_a_policy_resumed_before_each_round_decides_and_learns_as_an_uninterrupted_one(ways):
    game = delayed()
    stays = Ppo(game.space, **TINY, **ways)
    for number in range(2):
        moves = Ppo(game.space, **TINY, **ways)
        moves.load_state_dict(written_and_read(stays.state_dict()))
        rollout, again = (play(policy, game, 3, 10 * number, number) for policy in (stays, moves))
        assert rollout == again
        assert stays.update(rollout) == moves.update(again)
        assert same_state(*(written_and_read(policy.state_dict()) for policy in (stays, moves)))


def decisions(policy, episodes, place):
    """Return the decisions in one of some environments, and its memory in the end."""
    steps = zip(*episodes, strict=True)
    actions = [
        policy.act([scene.observation for scene in step], [scene.mask for scene in step])[place] for step in steps
    ]
    return actions, policy._memories[place].hidden


@settings(max_examples=4, deadline=None)
@given(st.integers(0, 1000), st.integers(1, 4), st.integers(0, 2))
def test_run_08_decisions_in_an_environment_do_not_depend_on_others(seed, neighbours, before):
    space = space_of(3)
    scenes = episode(space, seed)
    beside = [episode(space, seed + 1 + n) for n in range(neighbours)]
    alone, crowd = (Ppo(space, width=8, learn=False) for _ in range(2))
    place = min(before, neighbours)
    actions, hidden = decisions(alone, [scenes], 0)
    again, held = decisions(crowd, [*beside[:place], scenes, *beside[place:]], place)
    assert actions == again
    assert torch.equal(hidden, held)


def test_draws_differ_between_seeds_environments_and_rounds():
    game, drawn = delayed(), {}
    for seed in (0, 1):
        policy = Ppo(game.space, width=8, together=16, seed=seed)
        for round_ in range(2):
            rollout = play(policy, game, 16, round_=round_)
            policy.round += 1
            episodes = rollout.trajectories
            drawn[seed, round_] = tuple(tuple(turn.action for turn in episode.turns) for episode in episodes)
    assert len(set(drawn.values())) == 4
    assert len(set(drawn[0, 0])) > 4


def test_run_14_it_decides_among_unseen_blueprints_and_slots():
    learnt, done = Ppo(space_of(2), **TINY), set()
    for plugin, slots in (("unheard-of", 2), ("tried", 5), ("unheard-of", 1)):
        space = space_of(slots, plugin)
        policy = Ppo(space, **TINY, together=60)
        policy.network.load_state_dict(learnt.network.state_dict())
        scenes = [episode(space, seed, stranger=bool(seed % 2))[seed % 5] for seed in range(60)]
        actions = policy.act([scene.observation for scene in scenes], [scene.mask for scene in scenes])
        assert all(scene.mask.allows(action) for scene, action in zip(scenes, actions, strict=True))
        done |= {action.op for action in actions}
        assert {action.slot for action in actions} >= set(space.slots)
        assert {action.blueprint for action in actions} - {None} <= {*_names(space), STRANGER}
        assert STRANGER in {action.blueprint for action in actions}
    assert done >= {Op.WAIT, Op.GERMINATE, Op.ADVANCE, Op.PRUNE}


def _names(space):
    return [name for names in space.blueprints.values() for name in names]


def test_new_names_are_appended_when_the_action_space_grew():
    small = space_of(2)
    joined = ActionSpace({**small.blueprints, "new": ("more/blueprint-0", "tried/blueprint-0")})
    policy = Ppo(joined, **TINY)
    policy.load_state_dict(written_and_read(Ppo(small, **TINY).state_dict()))
    assert policy._names == list(dict.fromkeys(_names(small)))
    (scene, *_) = episode(joined, 3)
    (action,) = policy.act([scene.observation], [scene.mask])
    assert scene.mask.allows(action)


def test_it_can_act_on_a_seed_of_an_unknown_blueprint_and_waits_without_candidates():
    space = space_of(1)
    ops = frozenset({Op.PRUNE})
    scene = next(entry for entry in episode(space, 4, stranger=True) if entry.observation.signals.slots[0].living)
    slot = scene.observation.signals.slots[0]
    mask = ActionMask({slot.name: ops}, {}, {slot.name: {STRANGER: ops}})
    policy = Ppo(space, width=8, together=64)
    decided = policy.act([scene.observation] * 64, [mask] * 64)
    assert {(action.op, action.blueprint) for action in decided} == {(Op.WAIT, None), (Op.PRUNE, STRANGER)}
    space = ActionSpace({"early": ()})
    scene = episode(space_of(1), 1)[0]
    signals = replace(scene.observation.signals, slots=(leyline.SlotSignals("early", SlotState.EMBARGOED, fossils=0),))
    policy = Ppo(space, width=8)
    assert policy.act([replace(scene.observation, signals=signals)], [ActionMask({"early": frozenset()})]) == [Action()]


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_forget_names_is_the_share_of_names_left_out(share):
    space = space_of(3)
    learns, plays = Ppo(space, width=8, forget_names=share), Ppo(space, width=8, forget_names=share, learn=False)
    plays._names = list(learns._names)
    scene = episode(space, 0)[0]
    seen = see(space, scene.observation, scene.mask, None)
    left = [number == 0 for environment in range(60) for number in learns._numbers(seen, environment, round_=3)]
    assert sum(left) / len(left) == pytest.approx(share, abs=0.1)
    assert learns._numbers(seen, 5, round_=3) == learns._numbers(seen, 5, round_=3)
    played = plays._numbers(seen, 5, round_=3)
    assert not any(played) if share == 1.0 else all(played), "of names that were never told nothing was learnt"
