"""Play episodes on a table: observations, masks and rewards as in the engine, without any training.

Also the reference policies: the best plan of each puzzle, which is known because every plan was trained, and the best
plan that is the same for all puzzles. ``score`` compares a policy with the best.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from esper_core.leyline import (
    WAIT,
    Action,
    ActionMask,
    ActionSpace,
    Finding,
    Gain,
    GradientHealth,
    Observation,
    Op,
    Opinion,
    RewardBreakdown,
    Rollout,
    SeedSignals,
    Signals,
    SlotSignals,
    Stage,
    Trajectory,
    Turn,
)
from esper_study.growbench.graph import CANDIDATES, Node, actions_to, after, end_nodes, mask_at
from esper_study.growbench.puzzles import DECIDE_EVERY, SLOTS, STEPS
from esper_study.growbench.table import COLUMNS, GAIN_FIELDS, GRADIENT_FIELDS, SLOT_STATES

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from numpy.typing import NDArray

    from esper_core.leyline import Policy
    from esper_study.growbench.table import Table

PER_METRIC: Final = 100.0
"""Reward for one unit of the metric: a point of accuracy is worth 1."""
FEE: Final = 0.10
"""Share of the price that a kept seed costs, whatever its size."""
GATES_OFF: Final = Opinion(Finding.OFF, "gates are off")
_COLUMN: Final = {name: number for number, name in enumerate(COLUMNS)}


@dataclass(frozen=True, slots=True)
class Match:
    """An episode to play: the index of a puzzle in the table, and the price of growth."""

    puzzle: int
    price: float


class Bench:
    """Plays episodes of growbench by looking up recorded measurements, without training.

    Args:
        table: The recorded measurements of every plan of each puzzle.
        without: Blueprints that cannot be germinated, as if they did not exist.
    """

    def __init__(self, table: Table, without: Collection[str] = ()) -> None:
        self.table = table
        self.without = frozenset(without)
        self._signals: dict[tuple[int, Node], Signals] = {}

    @property
    def space(self) -> ActionSpace:
        """The slots and blueprints of every puzzle. What is known of them is part of the observations."""
        return ActionSpace({slot: self._left_in(blueprints) for slot, blueprints in SLOTS.items()})

    def observe(self, match: Match, node: Node) -> tuple[Observation, ActionMask]:
        """Return what a policy sees at a node, and what it may do."""
        signals, twin = self._signals_at(match.puzzle, node), self._signals_at(match.puzzle, Node(node.decision))
        places = self.table.places[match.puzzle]
        return Observation(signals.step, STEPS, signals, twin, match.price, descriptions=places), self._mask(node)

    def potential(self, match: Match, node: Node) -> dict[str, float]:
        """Return the terms of the potential of the reward ``team`` at a node."""
        now, twin = self.table.row(match.puzzle, node), self.table.row(match.puzzle, Node(node.decision))
        host = float(self.table.row(match.puzzle, Node(0))[_COLUMN["parameters"]])
        gain = float(now[_COLUMN["validation_metric"]]) - float(twin[_COLUMN["validation_metric"]])
        added = (float(now[_COLUMN["parameters"]]) - host) / host
        return {
            "improvement": PER_METRIC * gain,
            "rent": 0.0 - match.price * added,
            "fossil_fee": 0.0 - match.price * FEE * len(node.kept),
        }

    def total_reward(self, match: Match, end: Node) -> float:
        """Return the sum of the rewards of an episode that ends at ``end``."""
        return math.fsum(self.potential(match, end).values())

    def play(self, policy: Policy, matches: Sequence[Match], round_: int = 0) -> tuple[Rollout, tuple[Node, ...]]:
        """Play some episodes side by side. Return the rollout, and the node at which each episode ended.

        An action that the mask does not allow counts as waiting.
        """
        if not matches:
            msg = "Bench.play needs at least one match. Received: none"
            raise ValueError(msg)
        at = [Node(0)] * len(matches)
        turns: list[list[Turn]] = [[] for _ in matches]
        while not at[0].over:
            views = [self.observe(match, node) for match, node in zip(matches, at, strict=True)]
            actions = policy.act([observation for observation, _ in views], [mask for _, mask in views])
            for place, (match, action) in enumerate(zip(matches, actions, strict=True)):
                node, (observation, mask) = at[place], views[place]
                at[place] = after(node, action if mask.allows(action) else WAIT)
                before, now = self.potential(match, node), self.potential(match, at[place])
                reward = RewardBreakdown({name: now[name] - before[name] for name in now})
                turns[place].append(Turn(observation, mask, action, reward))
        finals = [self.observe(match, node)[0] for match, node in zip(matches, at, strict=True)]
        played = [Trajectory(tuple(episode_turns), final) for episode_turns, final in zip(turns, finals, strict=True)]
        return Rollout("growbench", round_, tuple(played)), tuple(at)

    def _left_in(self, blueprints: Sequence[str]) -> tuple[str, ...]:
        return tuple(blueprint for blueprint in blueprints if blueprint not in self.without)

    def _mask(self, node: Node) -> ActionMask:
        mask = mask_at(node)
        if not self.without:
            return mask
        left = {slot: self._left_in(blueprints) for slot, blueprints in mask.blueprints.items()}
        ops = {slot: slot_ops if left[slot] else slot_ops - {Op.GERMINATE} for slot, slot_ops in mask.ops.items()}
        return replace(mask, ops=ops, blueprints=left)

    def _signals_at(self, puzzle: int, node: Node) -> Signals:
        """Return the signals of a node; they do not depend on the price and are built once."""
        if (puzzle, node) not in self._signals:
            value = dict(zip(COLUMNS, self.table.row(puzzle, node).tolist(), strict=True))
            self._signals[puzzle, node] = Signals(
                step=node.step,
                train_loss=value["train_loss"],
                validation_loss=value["validation_loss"],
                validation_metric=value["validation_metric"],
                parameters=int(value["parameters"]),
                host_parameters=int(self.table.row(puzzle, Node(0))[_COLUMN["parameters"]]),
                slots=tuple(_slot_signals(slot, node, value) for slot in SLOTS),
            )
        return self._signals[puzzle, node]


@dataclass(slots=True)
class FixedPlan:
    """A policy that follows the same plan in every episode: the actions that lead to one end."""

    end: Node

    def act(self, observations: Sequence[Observation], masks: Sequence[ActionMask]) -> list[Action]:
        """Return the plan's action at the present decision."""
        plan = actions_to(self.end)
        return [plan[observation.step // DECIDE_EVERY] for observation in observations]


@dataclass(slots=True)
class Oracle:
    """A policy that knows the table and follows the best plan of each of its matches, which it plays in their order."""

    bench: Bench
    matches: Sequence[Match]

    def act(self, observations: Sequence[Observation], masks: Sequence[ActionMask]) -> list[Action]:
        """Return the action of each match's best plan at the present decision."""
        return [
            actions_to(best_plan(self.bench, match)[1])[observation.step // DECIDE_EVERY]
            for match, observation in zip(self.matches, observations, strict=True)
        ]


@dataclass(frozen=True, slots=True)
class Score:
    """The mean reward of a policy, and how far it is from the best.

    Attributes:
        regret: ``(best - reward) / best``: 0 for the best plans, 1 for growing nothing, whose reward is 0.
    """

    reward: float
    best: float
    regret: float


def score(bench: Bench, matches: Sequence[Match], ends: Sequence[Node]) -> Score:
    """Return the score of a policy whose episodes ended at ``ends``."""
    reward = float(np.mean([bench.total_reward(match, end) for match, end in zip(matches, ends, strict=True)]))
    best = float(np.mean([best_plan(bench, match)[0] for match in matches]))
    return Score(reward, best, (best - reward) / best if best else 0.0)


def best_plan(bench: Bench, match: Match) -> tuple[float, Node]:
    """Return the reward of the best plan of a match, and the end it leads to."""
    return max(((bench.total_reward(match, end), end) for end in end_nodes()), key=lambda plan: plan[0])


def plan_rewards(bench: Bench, matches: Sequence[Match]) -> NDArray[np.float64]:
    """Return the reward of every plan in every match, as an array of shape (matches, end nodes)."""
    return np.array([[bench.total_reward(match, end) for end in end_nodes()] for match in matches])


def best_fixed_plan(bench: Bench, matches: Sequence[Match]) -> Node:
    """Return the end of the plan whose mean reward over all matches is the highest."""
    return end_nodes()[int(plan_rewards(bench, matches).mean(0).argmax())]


def _slot_signals(slot: str, node: Node, value: Mapping[str, float]) -> SlotSignals:
    state = SLOT_STATES[int(value[f"state_{slot}"])]
    if node.pending is None or CANDIDATES[node.pending[0]][0] != slot:
        return SlotSignals(slot, state, node.fossils(slot), ())
    candidate, planted = node.pending
    gradients = {name: value[f"gradients_{name}"] for name in GRADIENT_FIELDS}
    gain = {name: value[f"gain_{name}"] for name in GAIN_FIELDS[1:]}
    seed = SeedSignals(
        blueprint=CANDIDATES[candidate][1],
        stage=Stage.TRAINING,
        alpha=0.0,
        parameters=int(value["seed_parameters"]),
        age=(node.decision - planted) * DECIDE_EVERY,
        incubation_loss=None if math.isnan(value["incubation_loss"]) else value["incubation_loss"],
        gradients=None if math.isnan(gradients["global_norm"]) else GradientHealth(**gradients),
        gain=None if math.isnan(gain["mean"]) else Gain(n=int(value["gain_n"]), **gain),
        opinion=GATES_OFF,
    )
    return SlotSignals(slot, state, node.fossils(slot), (seed,))
