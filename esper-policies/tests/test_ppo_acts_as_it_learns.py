"""PPO computes the same probability of a decision when it acts and when it learns.

The policy is played on environments in any state, with rollbacks and early ends. Its probabilities are compared between
acting and learning. SIM-HIGH-2 was a defect in which they differed.
"""

import math
import random
from collections import defaultdict
from dataclasses import replace

import pytest
import torch

from esper_core.leyline import (
    WAIT,
    Action,
    ActionMask,
    Op,
    RewardBreakdown,
    Rollout,
    SeedSignals,
    SlotState,
    Stage,
    Trajectory,
    Turn,
)
from esper_policies.ppo import policy as policy_module
from esper_policies.ppo.encoding import Pace, episodes_of
from esper_policies.ppo.policy import Ppo
from esper_policies.ppo.policy_network import Chances
from esper_testing.policies import STEPS, episode, space_of

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
                turns[place].append(Turn(observation, mask, action, RewardBreakdown({"tried": draw.uniform(-1, 1)})))
                if (place, step) in early:
                    over[place] = observation
        episodes = [
            part
            for n in range(environments)
            for part in [*ended[n], *([Trajectory(tuple(turns[n]))] if turns[n] else [])]
        ]
        return Rollout("ppo", self.round, tuple(episodes))

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


def rollout_of(policy, monkeypatch, **course):
    return Witness(policy, monkeypatch).play(**course)


def test_rewards_between_decisions_belong_to_the_earlier_one(monkeypatch):
    policy = Ppo(SPACE, width=8, decide_every=5)
    rollout = rollout_of(policy, monkeypatch, undone=[(1, 6)])
    episodes, _ = episodes_of(SPACE, rollout, policy.pace)
    assert [(episode.environment, len(episode.decisions)) for episode in episodes] == [(0, 3), (1, 2), (1, 1), (2, 3)]
    rewards = [turn.reward.total for turn in rollout.trajectories[0].turns]
    assert [decision.reward for decision in episodes[0].decisions] == pytest.approx(
        [sum(rewards[:5]), sum(rewards[5:10]), sum(rewards[10:])]
    )
    behind = [turn.reward.total for turn in rollout.trajectories[2].turns if turn.observation.step >= 10]
    assert episodes[2].decisions[0].reward == pytest.approx(sum(behind)), "what came before it decided is not its doing"
    assert all(
        turn.action == WAIT for episode in rollout.trajectories for turn in episode.turns if turn.observation.step % 5
    )


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
    seen, mask = SlotScene(Stage.HOLDING, {Op.FOSSILISE, Op.PRUNE}, step=4).seen
    share = seen.step / seen.steps
    assert Pace(1, last=share).by_itself(seen, mask) is None
    assert Pace(1, last=share - 1e-6).by_itself(seen, mask) == WAIT
    assert Pace(1, last=0.0, keeps=True).by_itself(seen, mask) == Action(Op.FOSSILISE, "slot-0")


class SlotScene:
    """One seed in the first slot."""

    def __init__(self, stage, ops, step=0):
        scene = episode(SPACE, 5)[step]
        name = SPACE.blueprints["slot-0"][0]
        seed = SeedSignals(name, stage, 1.0, 10, 3)
        first = replace(scene.observation.signals.slots[0], state=SlotState.OCCUPIED, seeds=(seed,))
        signals = replace(scene.observation.signals, slots=(first, *scene.observation.signals.slots[1:]))
        mask = ActionMask({"slot-0": frozenset(ops)}, {}, {"slot-0": {name: frozenset(ops)}})
        self.seen = replace(scene.observation, signals=signals), mask


def test_episodes_with_unknown_rewards_are_left_out_and_counted(monkeypatch):
    policy = Ppo(SPACE, width=8)
    rollout = rollout_of(policy, monkeypatch)
    first = rollout.trajectories[0]
    gap = replace(first, turns=(*first.turns[:4], replace(first.turns[4], reward=None), *first.turns[5:]))
    episodes, unknown = episodes_of(SPACE, replace(rollout, trajectories=(gap, *rollout.trajectories[1:])), Pace())
    assert unknown == 1
    assert [episode.environment for episode in episodes] == [1, 2]
