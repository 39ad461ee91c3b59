"""The decision graph of an episode: every state an episode can be in at a decision, and what leads from one to another.

At each of the four decisions a policy can plant a seed, if none is incubating; a seed that incubates can be blended in,
pruned, or left alone. A blended seed is kept. A pruned seed leaves no trace because it trained in a branch, a copy of
the host. Therefore only the kept seeds and their times matter, and the graph is small: 81 nodes, 31 of them ends.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Final

from esper_core.leyline import WAIT, Action, ActionMask, Op
from esper_study.growbench.puzzles import DECIDE_EVERY, DECISIONS, MAX_SEEDS, RAMP, SLOTS, STEPS

if TYPE_CHECKING:
    from collections.abc import Mapping

CANDIDATES: Final[tuple[tuple[str, str], ...]] = tuple(
    (slot, blueprint) for slot, blueprints in SLOTS.items() for blueprint in blueprints
)
"""Everything that can be planted, as (slot, blueprint). Nodes refer to a candidate by its index."""


@dataclass(frozen=True, slots=True)
class Kept:
    """A seed that was blended in: the candidate, and the decisions at which it was planted and blended in."""

    candidate: int
    planted: int
    advanced: int


@dataclass(frozen=True, slots=True)
class Node:
    """State of an episode at a decision, or at its end, where ``decision`` is DECISIONS.

    Attributes:
        kept: Seeds that were blended in, in their order.
        pending: The seed that incubates, as (candidate, decision at which it was planted).
    """

    decision: int
    kept: tuple[Kept, ...] = ()
    pending: tuple[int, int] | None = None

    @property
    def over(self) -> bool:
        """Whether the episode has ended."""
        return self.decision == DECISIONS

    @property
    def step(self) -> int:
        """The latest step that was trained."""
        return STEPS - 1 if self.over else self.decision * DECIDE_EVERY

    def fossils(self, slot: str) -> int:
        """Return the number of seeds that a slot keeps."""
        return sum(CANDIDATES[seed.candidate][0] == slot for seed in self.kept)

    def plantable(self) -> tuple[int, ...]:
        """Return the candidates that can be planted now."""
        if self.over or self.pending is not None or len(self.kept) == MAX_SEEDS:
            return ()
        return tuple(number for number, (slot, _) in enumerate(CANDIDATES) if not self.fossils(slot))

    def waited(self) -> Node:
        """Return the state after waiting. A seed that still incubates at the end is pruned."""
        after = self.decision + 1
        return Node(after, self.kept, None if after == DECISIONS else self.pending)

    def planted(self, candidate: int) -> Node:
        """Return the state after planting a candidate."""
        after = self.decision + 1
        return Node(after, self.kept, None if after == DECISIONS else (candidate, self.decision))

    def advanced(self) -> Node:
        """Return the state after blending in the seed that incubates."""
        assert self.pending is not None
        candidate, planted = self.pending
        return Node(self.decision + 1, (*self.kept, Kept(candidate, planted, self.decision)))

    def pruned(self) -> Node:
        """Return the state after pruning the seed that incubates: the same as if it had never been planted."""
        return Node(self.decision + 1, self.kept)

    def successors(self) -> tuple[Node, ...]:
        """Return all states that can follow, each once."""
        if self.over:
            return ()
        more = [self.advanced(), self.pruned()] if self.pending is not None else []
        return tuple(
            dict.fromkeys([self.waited(), *(self.planted(candidate) for candidate in self.plantable()), *more])
        )


@cache
def nodes() -> tuple[Node, ...]:
    """Return all nodes, each before its successors. This is the order of a table's rows."""
    reached = dict.fromkeys([Node(0)])
    for decision in range(DECISIONS):
        for node in [node for node in reached if node.decision == decision]:
            reached |= dict.fromkeys(node.successors())
    return tuple(reached)


@cache
def node_index() -> Mapping[Node, int]:
    """Return the position of each node in ``nodes()``."""
    return {node: number for number, node in enumerate(nodes())}


@cache
def end_nodes() -> tuple[Node, ...]:
    """Return the nodes at which an episode has ended."""
    return tuple(node for node in nodes() if node.over)


def is_decision_step(step: int) -> bool:
    """Return whether a decision is taken after this step."""
    return step % DECIDE_EVERY == 0 and step < DECISIONS * DECIDE_EVERY


@cache
def mask_at(node: Node) -> ActionMask:
    """Return the actions that the graph knows at a node."""
    plantable = [CANDIDATES[number] for number in node.plantable()]
    blueprints = {
        slot: tuple(candidate for candidate_slot, candidate in plantable if candidate_slot == slot) for slot in SLOTS
    }
    ops = {slot: frozenset({Op.GERMINATE} if blueprints[slot] else ()) for slot in SLOTS}
    seeds: dict[str, dict[str, frozenset[Op]]] = {}
    if node.pending is not None:
        slot, blueprint = CANDIDATES[node.pending[0]]
        ops[slot] = frozenset({Op.ADVANCE, Op.PRUNE})
        seeds[slot] = {blueprint: ops[slot]}
    return ActionMask(ops, blueprints, seeds)


def after(node: Node, action: Action) -> Node:
    """Return the node that an action leads to. An action that the mask does not allow counts as waiting.

    The blend, speed, curve and target of an action are ignored: the tables were trained with fixed ones.

    Raises:
        ValueError: If the episode is over.
    """
    if node.over:
        msg = f"the episode is over: no action is possible at an end. Received: {action}"
        raise ValueError(msg)
    if action.op is Op.WAIT or not mask_at(node).allows(action):
        return node.waited()
    if action.op is Op.GERMINATE:
        assert action.slot is not None
        assert action.blueprint is not None
        return node.planted(CANDIDATES.index((action.slot, action.blueprint)))
    return node.advanced() if action.op is Op.ADVANCE else node.pruned()


def actions_to(end: Node) -> list[Action]:
    """Return the actions, decision by decision, that lead to an end, on a table or in the engine."""
    actions = [WAIT] * DECISIONS
    for seed in end.kept:
        actions[seed.planted] = _plant(seed.candidate)
        actions[seed.advanced] = _advance(seed.candidate)
    return actions


def branches(node: Node) -> tuple[tuple[Action, Node], ...]:
    """Return the edges of a spanning tree of the graph at a node: following them trains each node exactly once.

    Pruning is left out, as is planting what would be pruned by the end of the episode: both lead to a node that is
    also reached without planting.
    """
    if node.over:
        return ()
    waiting = (WAIT, node.waited())
    if node.pending is None:
        planting = [(_plant(candidate), node.planted(candidate)) for candidate in node.plantable()]
        return (waiting, *((action, led_to) for action, led_to in planting if led_to.pending is not None))
    advancing = (_advance(node.pending[0]), node.advanced())
    return (waiting, advancing) if node.waited().pending is not None else (advancing,)


@cache
def parents() -> Mapping[Node, tuple[Node, Action]]:
    """Return, for each node but the first, the node before it in the tree of ``branches`` and the action between."""
    return {led_to: (node, action) for node in nodes() for action, led_to in branches(node)}


def _plant(candidate: int) -> Action:
    slot, blueprint = CANDIDATES[candidate]
    return Action(Op.GERMINATE, slot, blueprint, speed=RAMP)


def _advance(candidate: int) -> Action:
    return Action(Op.ADVANCE, *CANDIDATES[candidate])
