"""Observations as tensors, rollouts as decisions, and the scales of columns and returns.

The encoding depends on observation, mask and the decision before only, so learning can compute it again exactly and
nothing has to be stored beside the rollout. Ppo may decide every few steps only, and leave some actions to ``Pace``:
the rewards in between belong to the decision before. The scales stay fixed while a round is played and learnt from, and
are updated afterwards.
"""

from __future__ import annotations

import math
import statistics
from array import array
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import torch

from esper_core.leyline import WAIT, Action, Op, Stage, State
from esper_policies.observations import CANDIDATE_COLUMNS, GLOBAL_COLUMNS, SLOT_COLUMNS, rows_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from esper_core.leyline import ActionMask, ActionSpace, Observation, Rollout, Trajectory
    from esper_policies.observations import Rows


OPS: Final = (Op.WAIT, Op.GERMINATE, Op.ADVANCE, Op.PRUNE, Op.FOSSILISE)
"""The order of the ops in every tensor."""

TRENDS: Final = ("train_loss", "validation_loss", "metric", "metric_over_twin")
"""Global columns whose change since the last decision is a column, too."""

TREND_COLUMNS: Final = (*(f"trend_{name}" for name in TRENDS), "trend?")
WHOLE_COLUMNS: Final = (*GLOBAL_COLUMNS, *TREND_COLUMNS)

_AT: Final = tuple(GLOBAL_COLUMNS.index(name) for name in TRENDS)
_MAY: Final = tuple(CANDIDATE_COLUMNS.index(f"may_{op.value}") for op in OPS[1:])


@dataclass(frozen=True, slots=True)
class Seen:
    """One environment at one decision: global columns with trends, and the rows."""

    whole: tuple[float, ...]
    rows: Rows

    @property
    def levels(self) -> tuple[float, ...]:
        """The values that the trends of the next decision are relative to."""
        return tuple(self.rows.whole[at] for at in _AT)

    @property
    def candidates(self) -> tuple[tuple[str, str], ...]:
        """Slot and blueprint of each candidate's row."""
        return self.rows.candidate_names

    def action(self, op: Op, candidate: int) -> Action:
        """Return the action of an op on a candidate, with default details."""
        if op is Op.WAIT:
            return Action()
        slot, blueprint = self.candidates[candidate]
        return Action(op, slot, blueprint if op in (Op.GERMINATE, Op.ADVANCE, Op.PRUNE) else None)

    def find(self, action: Action) -> int:
        """Return the row of an action, the first that matches; -1 for WAIT or if there is none."""
        if action.op is Op.WAIT:
            return -1
        may = _MAY[OPS.index(action.op) - 1]
        for index, (slot, blueprint) in enumerate(self.candidates):
            meant = slot == action.slot and action.blueprint in (None, blueprint)
            if meant and self.rows.candidates[index][may] == 1.0:
                return index
        return -1


def see(space: ActionSpace, observation: Observation, mask: ActionMask, levels: Sequence[float] | None) -> Seen:
    """Encode an observation. levels: those of the episode's decision before; None at the first."""
    rows = rows_of(space, observation, mask)
    if levels is None:
        return Seen((*rows.whole, *(0.0 for _ in _AT), 1.0), rows)
    trends = (rows.whole[at] - before for at, before in zip(_AT, levels, strict=True))
    return Seen((*rows.whole, *trends, 0.0), rows)


@dataclass(frozen=True, slots=True)
class Batch:
    """Several environments as padded tensors: B environments, S slots, C candidates.

    names: number of each candidate's blueprint among those that the policy knows by name; 0: not by name.
    home: the slot of each candidate. legal: (B, ops, C), without WAIT, which always is. Padding is legal for nothing.
    """

    whole: Tensor
    slots: Tensor
    slot_there: Tensor
    candidates: Tensor
    candidate_there: Tensor
    names: Tensor
    home: Tensor
    legal: Tensor

    def __len__(self) -> int:
        return len(self.whole)

    def at(self, index: Tensor) -> Batch:
        """Return some of the environments."""
        return Batch(*(getattr(self, name)[index] for name in self.__slots__))


def batch_of(seen: Sequence[Seen], numbers: Sequence[Sequence[int]]) -> Batch:
    """Batch several environments. numbers: name indices of candidates."""
    slots = max(1, *(len(state.rows.slots) for state in seen))
    wide = max(1, *(len(state.candidates) for state in seen))
    homes = [[state.rows.slot_names.index(slot) for slot, _ in state.candidates] for state in seen]
    candidates = _table([state.rows.candidates for state in seen], wide, len(CANDIDATE_COLUMNS))
    return Batch(
        whole=torch.tensor([state.whole for state in seen]),
        slots=_table([state.rows.slots for state in seen], slots, len(SLOT_COLUMNS)),
        slot_there=_there([len(state.rows.slots) for state in seen], slots),
        candidates=candidates,
        candidate_there=_there([len(state.candidates) for state in seen], wide),
        names=torch.tensor([[*row, *[0] * (wide - len(row))] for row in numbers]),
        home=torch.tensor([[*row, *[0] * (wide - len(row))] for row in homes]),
        legal=(candidates[:, :, list(_MAY)] == 1.0).transpose(1, 2).contiguous(),
    )


def _table(rows: Sequence[Sequence[Sequence[float]]], high: int, wide: int) -> Tensor:
    """Return the rows of several environments, padded with zeros."""
    numbers = array("f")
    for group in rows:
        for row in group:
            numbers.extend(row)
        numbers.extend([0.0] * (wide * (high - len(group))))
    return torch.frombuffer(numbers, dtype=torch.float32).view(len(rows), high, wide).clone()


def _there(counts: Sequence[int], high: int) -> Tensor:
    return torch.arange(high)[None] < torch.tensor(counts)[:, None]


LARGEST: Final = 1e12
"""Episodes with larger or non-finite rewards are not learnt from: they would destroy the network."""


@dataclass(frozen=True, slots=True)
class Pace:
    """When decisions are made, and which ops they may choose.

    every: steps from one decision to the next. last: share of the episode after which no decisions are made.

    keeps: whether a seed that holds at its target is fossilised without a decision.
    """

    every: int = 1
    last: float = 1.0
    keeps: bool = False

    def by_itself(self, observation: Observation, mask: ActionMask) -> Action | None:
        """Return the action that needs no decision; None if there is one to take."""
        if self.keeps:
            for slot in observation.signals.slots:
                holding = any(seed.stage is Stage.HOLDING for seed in slot.seeds)
                if holding and mask.allows(keep := Action(Op.FOSSILISE, slot.name)):
                    return keep
        late = observation.step > self.last * observation.steps
        return None if observation.step % self.every == 0 and not late else WAIT


@dataclass(frozen=True, slots=True)
class Decision:
    """An observation, the action, and the reward until the next decision."""

    seen: Seen
    action: Action
    reward: float


@dataclass(frozen=True, slots=True)
class EpisodeDecisions:
    """The decisions of one episode, or of a part of one. environment: its index in the arm."""

    environment: int
    decisions: tuple[Decision, ...]


def episodes_of(space: ActionSpace, rollout: Rollout, pace: Pace) -> tuple[list[EpisodeDecisions], int]:
    """Return the episodes to learn from, and the number of those with unknown or non-finite rewards.

    Each terminates with its last step, also if the governor ended it early.
    """
    episodes: list[EpisodeDecisions] = []
    unknown = 0
    environment, last = -1, 0
    for played in rollout.trajectories:
        if not played.turns:
            continue
        # A step that is not later than the last begins another environment.
        environment += environment < 0 or played.turns[0].observation.step <= last
        last = played.turns[-1].observation.step
        decisions = _decisions(space, played, pace)
        if decisions is None:
            unknown += 1
        elif decisions:
            episodes.append(EpisodeDecisions(environment, tuple(decisions)))
    return episodes, unknown


def outcome_of(episodes: Sequence[EpisodeDecisions]) -> dict[str, float]:
    """Return mean and deviation of returns, and the share of each op.

    Parts that a rollback cut apart are one episode here.
    """
    totals: dict[int, float] = {}
    for episode in episodes:
        brought = math.fsum(decision.reward for decision in episode.decisions)
        totals[episode.environment] = totals.get(episode.environment, 0.0) + brought
    returns = list(totals.values())
    decisions = [decision.action.op for episode in episodes for decision in episode.decisions]
    shares = {f"share_{op.value}": decisions.count(op) / len(decisions) for op in Op}
    return {"return": statistics.fmean(returns), "spread_of_returns": statistics.pstdev(returns), **shares}


def _decisions(space: ActionSpace, played: Trajectory, pace: Pace) -> list[Decision] | None:
    """Return the decisions; None if a reward is unknown or too large. Rewards before the first one are dropped."""
    decisions: list[Decision] = []
    for turn in played.turns:
        if turn.reward is None or not abs(turn.reward.total) <= LARGEST:
            return None
        if pace.by_itself(turn.observation, turn.mask) is None:
            levels = decisions[-1].seen.levels if decisions else None
            seen = see(space, turn.observation, turn.mask, levels)
            decisions.append(Decision(seen, turn.action, turn.reward.total))
        elif decisions:
            before = decisions[-1]
            decisions[-1] = Decision(before.seen, before.action, before.reward + turn.reward.total)
    return decisions


LEAST = 0.05
"""Smallest deviation that a column is divided by."""

LEAST_RETURN = 1e-6
"""Smallest scale of returns."""

BEYOND = 5.0
"""Scaled columns are clipped to this."""

_AS_THEY_ARE = ("state_", "stage_", "may_", "kind_", "identity", "is_new", "gate_opens")


class Columns:
    """Running mean and deviation of the columns of one kind of rows. Flags and one-hot columns are not scaled."""

    def __init__(self, names: Sequence[str]) -> None:
        flags = [name.endswith("?") or name.startswith(_AS_THEY_ARE) for name in names]
        self._spread = torch.tensor([not flag for flag in flags])
        self.count = 0.0
        self.mean = torch.zeros(len(names), dtype=torch.float64)
        self.squares = torch.zeros(len(names), dtype=torch.float64)
        self._scaling: tuple[Tensor, Tensor] | None = None
        """What is subtracted from each column, and what it is divided by."""

    def __call__(self, rows: Tensor) -> Tensor:
        """Return the scaled rows."""
        if self.count < 2:
            return rows
        if self._scaling is None:
            deviation = (self.squares / self.count).sqrt().clamp(min=LEAST)
            mean = torch.where(self._spread, self.mean, 0.0)
            self._scaling = mean.float(), torch.where(self._spread, deviation, 1.0).float()
        mean, deviation = self._scaling
        return ((rows - mean) / deviation).clamp(-BEYOND, BEYOND)

    def learn(self, rows: Tensor) -> None:
        """Update the statistics with these rows."""
        if not len(rows):
            return
        rows = rows.double()
        count, mean = len(rows), rows.mean(0)
        off, total = mean - self.mean, self.count + count
        self.squares += ((rows - mean) ** 2).sum(0) + off**2 * (self.count * count / total)
        self.mean += off * (count / total)
        self.count, self._scaling = total, None


class Scales:
    """The scales of the three kinds of rows, and of returns."""

    def __init__(self) -> None:
        self.whole, self.slots = Columns(WHOLE_COLUMNS), Columns(SLOT_COLUMNS)
        self.candidates = Columns(CANDIDATE_COLUMNS)
        self.returns = 1.0
        """Root mean square of returns."""
        self._seen, self._square = 0.0, 0.0

    def scaled(self, batch: Batch) -> Batch:
        """Return the batch with scaled columns."""
        return replace(
            batch,
            whole=self.whole(batch.whole),
            slots=self.slots(batch.slots),
            candidates=self.candidates(batch.candidates),
        )

    def learn(self, batch: Batch) -> None:
        """Update the scales of columns with a round, after it was learnt from."""
        self.whole.learn(batch.whole)
        self.slots.learn(batch.slots[batch.slot_there])
        self.candidates.learn(batch.candidates[batch.candidate_there])

    def learn_returns(self, returns: Sequence[float]) -> float:
        """Update the scale of returns before a round is learnt from; return the factor by which it grew."""
        before = self.returns if self._seen else None
        self._seen += len(returns)
        self._square += math.fsum(value * value for value in returns)
        if self._seen:
            self.returns = max(math.sqrt(self._square / self._seen), LEAST_RETURN)
        return 1.0 if before is None else self.returns / before

    def state_dict(self) -> State:
        """Return the state."""
        plain: dict[str, Any] = {"returns": self.returns, "seen": self._seen, "square": self._square}
        tensors: dict[str, Tensor] = {}
        for name in ("whole", "slots", "candidates"):
            columns: Columns = getattr(self, name)
            plain[f"{name}_count"] = columns.count
            tensors |= {f"{name}_mean": columns.mean.clone(), f"{name}_squares": columns.squares.clone()}
        return State(plain, tensors)

    def load_state_dict(self, state: State) -> None:
        """Restore a state. Raises ValueError if it is invalid."""
        plain, tensors = state.plain, state.tensors
        if not (plain["returns"] and all(math.isfinite(number) and number >= 0 for number in plain.values())):
            msg = f"scales must be finite and at least 0, received {plain}"
            raise ValueError(msg)
        self.returns, self._seen, self._square = plain["returns"], plain["seen"], plain["square"]
        for name in ("whole", "slots", "candidates"):
            columns: Columns = getattr(self, name)
            columns.count = plain[f"{name}_count"]
            mean, squares = (tensors[f"{name}_{statistic}"].double().clone() for statistic in ("mean", "squares"))
            if mean.shape != columns.mean.shape or squares.shape != columns.squares.shape:
                msg = f"scales have shape {tuple(mean.shape)}, expected {tuple(columns.mean.shape)}"
                raise ValueError(msg)
            columns.mean, columns.squares = mean, squares
            columns._scaling = None
