"""How is an episode played without training anything? Along the graph, with what was measured at its nodes.

What a policy is shown are the same observations and masks as those of the engine, but that nothing else is legal than
what was tried; what it is paid is what the reward ``team`` pays. So any policy can be played here, and any that learns
can learn here, from millions of decisions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Final

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
    Played,
    RewardBreakdown,
    Rollout,
    SeedSignals,
    Signals,
    SlotSignals,
    Stage,
    Turn,
)
from esper_tasks.growbench.building import COLUMNS, OF_GAIN, OF_GRADIENTS, STATES
from esper_tasks.growbench.plans import SPROUTS, Node
from esper_tasks.growbench.puzzles import DECISIONS, EVERY, RAMP, ROOM, STEPS

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from esper_core.leyline import Policy
    from esper_tasks.growbench.table import Table

PER_METRIC: Final = 100.0
FEE: Final = 0.10
UNGUARDED: Final = Opinion(Finding.SHOWN, "gates are off")
"""What is said of a seed in the runs that the table is of."""
_AT: Final = {name: number for number, name in enumerate(COLUMNS)}


@dataclass(frozen=True, slots=True)
class Match:
    """One episode to be played: a puzzle of the table, and the price of what grows."""

    puzzle: int
    price: float


class Bench:
    """Plays episodes on a table. What was measured at a node is looked up once, and then kept, for whatever price.

    without: blueprints that cannot be planted here, as if nobody knew of them.
    """

    def __init__(self, table: Table, without: Collection[str] = ()) -> None:
        self.table = table
        self.without = frozenset(without)
        self._seen: dict[tuple[int, Node], tuple[Signals, Signals]] = {}

    @property
    def space(self) -> ActionSpace:
        """What there is to choose from in every puzzle. Observations tell what is known of the places."""
        return ActionSpace({slot: tuple(one for one in own if one not in self.without) for slot, own in ROOM.items()})

    def look(self, match: Match, node: Node) -> tuple[Observation, ActionMask]:
        """What there is to see and to do."""
        key = (match.puzzle, node)
        if key not in self._seen:
            own = self._signals(match.puzzle, node)
            alone = Node(node.decision)
            self._seen[key] = own, own if node == alone else self._signals(match.puzzle, alone)
        seen, twin = self._seen[key]
        places = self.table.places[match.puzzle]
        return Observation(seen.step, STEPS, seen, twin, match.price, places=places), self._mask(node)

    def worth(self, match: Match, node: Node) -> dict[str, float]:
        """The potential of ``team`` at a node, in its three parts."""
        now, twin = self._row(match.puzzle, node), self._row(match.puzzle, Node(node.decision))
        host = float(self._row(match.puzzle, Node(0))[_AT["parameters"]])
        gain = float(now[_AT["validation_metric"]]) - float(twin[_AT["validation_metric"]])
        added = (float(now[_AT["parameters"]]) - host) / host
        return {
            "improvement": PER_METRIC * gain,
            "rent": 0.0 - match.price * added,
            "fossil_fee": 0.0 - match.price * FEE * len(node.kept),
        }

    def total(self, match: Match, end: Node) -> float:
        """What an episode that ends there was worth."""
        return math.fsum(self.worth(match, end).values())

    def play(self, policy: Policy, matches: Sequence[Match], round_: int = 0) -> tuple[Rollout, tuple[Node, ...]]:
        """Play some episodes side by side, and where each ended. Actions that lead nowhere count as waiting."""
        if not matches:
            msg = "there is nothing to be played: give one match at least. Received: none"
            raise ValueError(msg)
        at = [Node(0)] * len(matches)
        turns: list[list[Turn]] = [[] for _ in matches]
        while not at[0].over:
            seen = [self.look(match, node) for match, node in zip(matches, at, strict=True)]
            actions = policy.act([one for one, _ in seen], [mask for _, mask in seen])
            for place, (match, action) in enumerate(zip(matches, actions, strict=True)):
                node, (observation, mask) = at[place], seen[place]
                at[place] = after(node, action if mask.allows(action) else WAIT)
                before, now = self.worth(match, node), self.worth(match, at[place])
                reward = RewardBreakdown({name: now[name] - before[name] for name in now})
                turns[place].append(Turn(observation, mask, action, reward))
        finals = [self.look(match, node)[0] for match, node in zip(matches, at, strict=True)]
        played = [Played(tuple(own), final) for own, final in zip(turns, finals, strict=True)]
        return Rollout("growbench", round_, tuple(played)), tuple(at)

    def _mask(self, node: Node) -> ActionMask:
        mask = mask_at(node)
        if not self.without:
            return mask
        left = {slot: tuple(one for one in own if one not in self.without) for slot, own in mask.blueprints.items()}
        ops = {slot: own if left[slot] else own - {Op.GERMINATE} for slot, own in mask.ops.items()}
        return replace(mask, ops=ops, blueprints=left)

    def _row(self, puzzle: int, node: Node) -> NDArray[np.float32]:
        return self.table.row(puzzle, node)

    def _signals(self, puzzle: int, node: Node) -> Signals:
        row = self._row(puzzle, node).tolist()
        value = {name: row[number] for name, number in _AT.items()}
        return Signals(
            step=node.step,
            train_loss=value["train_loss"],
            validation_loss=value["validation_loss"],
            validation_metric=value["validation_metric"],
            parameters=int(value["parameters"]),
            host_parameters=int(self._row(puzzle, Node(0))[_AT["parameters"]]),
            slots=tuple(
                SlotSignals(slot, STATES[int(value[f"state_{slot}"])], node.fossils(slot), _seeds(slot, node, value))
                for slot in ROOM
            ),
        )


def after(node: Node, action: Action) -> Node:
    """Where an action leads: one that the mask does not allow leads where waiting does.

    With which blend, speed, curve and target is not read: everything was tried with the same ones.
    """
    if node.over:
        msg = f"the episode is over, and nothing leads on from there. Received: {action}"
        raise ValueError(msg)
    if action.op is Op.WAIT or not mask_at(node).allows(action):
        return node.waited()
    if action.op is Op.GERMINATE:
        assert action.slot is not None
        assert action.blueprint is not None
        return node.planted(SPROUTS.index((action.slot, action.blueprint)))
    return node.advanced() if action.op is Op.ADVANCE else node.dropped()


@cache
def mask_at(node: Node) -> ActionMask:
    """What was tried from there."""
    ops: dict[str, frozenset[Op]] = {}
    blueprints: dict[str, tuple[str, ...]] = {}
    seeds: dict[str, dict[str, frozenset[Op]]] = {}
    plantable = [SPROUTS[number] for number in node.plantable()]
    for slot in ROOM:
        blueprints[slot] = tuple(own for where, own in plantable if where == slot)
        possible = {Op.GERMINATE} if blueprints[slot] else set()
        if node.pending is not None and SPROUTS[node.pending[0]][0] == slot and not node.over:
            seeds[slot] = {SPROUTS[node.pending[0]][1]: frozenset({Op.ADVANCE, Op.PRUNE})}
            possible = {Op.ADVANCE, Op.PRUNE}
        ops[slot] = frozenset(possible)
    return ActionMask(ops, blueprints, seeds)


def actions_to(end: Node) -> list[Action]:
    """What has to be done for an episode to end there, decision by decision: here, and with the engine."""
    actions = [WAIT] * DECISIONS
    for one in end.kept:
        slot, blueprint = SPROUTS[one.sprout]
        actions[one.planted] = Action(Op.GERMINATE, slot, blueprint, speed=RAMP)
        actions[one.advanced] = Action(Op.ADVANCE, slot, blueprint)
    return actions


def _seeds(slot: str, node: Node, value: Mapping[str, float]) -> tuple[SeedSignals, ...]:
    if node.pending is None or SPROUTS[node.pending[0]][0] != slot or node.over:
        return ()
    sprout, planted = node.pending
    gain = {name: value[f"gain_{name}"] for name in OF_GAIN[1:]}
    return (
        SeedSignals(
            blueprint=SPROUTS[sprout][1],
            stage=Stage.TRAINING,
            alpha=0.0,
            parameters=int(value["seed_parameters"]),
            age=(node.decision - planted) * EVERY,
            incubation_loss=_known(value["incubation_loss"]),
            gradients=None
            if math.isnan(value["gradients_global_norm"])
            else GradientHealth(**{name: value[f"gradients_{name}"] for name in OF_GRADIENTS}),
            gain=None if math.isnan(gain["mean"]) else Gain(n=int(value["gain_n"]), **gain),
            opinion=UNGUARDED,
        ),
    )


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value
