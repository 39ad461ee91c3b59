"""What is learnt from? The turns of a rollout as decisions: each with what came until the next, summed up.

A gardener may decide once in several steps, and leave what goes without saying to itself in between: what was done
there is no decision of its own, and what it brought belongs to the decision before.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from esper_core.leyline import WAIT, Action, Op, Stage
from esper_policies.ppo.encoding import see

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from esper_core.leyline import ActionMask, ActionSpace, Observation, Played, Rollout
    from esper_policies.ppo.encoding import Seen


LARGEST: Final = 1e12
"""The largest reward that is learnt from: what is beyond, or no number, would leave nothing of what was learnt."""


@dataclass(frozen=True, slots=True)
class Pace:
    """When there is something to decide. every: steps from one decision to the next. last: share of the episode behind
    which nothing is decided any more.

    keeps: whether a seed that holds at its target is fossilised without being asked about. alone: whether nothing is
    planted while another seed lives.
    """

    every: int = 1
    last: float = 1.0
    keeps: bool = False
    alone: bool = False

    def narrowed(self, observation: Observation, mask: ActionMask) -> ActionMask:
        """What of the mask is to choose from."""
        if not self.alone or not observation.signals.seeds:
            return mask
        ops = {slot: own - {Op.GERMINATE} for slot, own in mask.ops.items()}
        return replace(mask, ops=ops, blueprints=dict.fromkeys(mask.blueprints, ()))

    def by_itself(self, observation: Observation, mask: ActionMask) -> Action | None:
        """What is done without a decision; None where there is one to take."""
        if self.keeps:
            for slot in observation.signals.slots:
                holding = any(seed.stage is Stage.HOLDING for seed in slot.seeds)
                if holding and mask.allows(keep := Action(Op.FOSSILISE, slot.name)):
                    return keep
        late = observation.step > self.last * observation.steps
        return None if observation.step % self.every == 0 and not late else WAIT


@dataclass(frozen=True, slots=True)
class Decision:
    """What was seen and done, and what it brought until the next decision. action: as it stands in the turn."""

    seen: Seen
    action: Action
    reward: float


@dataclass(frozen=True, slots=True)
class Episode:
    """The decisions of one episode, or of a part of one.

    place: of its environment among those of the arm. behind: what could be seen after the last of them, where the
    episode was cut and would have gone on; None where it had come to its end.
    """

    place: int
    decisions: tuple[Decision, ...]
    behind: Seen | None


def episodes_of(space: ActionSpace, rollout: Rollout, pace: Pace, *, endless: bool) -> tuple[list[Episode], int]:
    """Everything that can be learnt from, and how many episodes cannot: a reward in them is unknown, or no number.

    endless: whether an episode that was not rolled back was cut, and would have gone on. Otherwise its last step is its
    end, also where the governor ended it early: everything is paid out by then, and behind it there is nothing.
    """
    episodes: list[Episode] = []
    unknown = 0
    for place, played in _placed(rollout.episodes):
        found = _decisions(space, played, pace)
        if found is None:
            unknown += 1
        elif found:
            cut = endless and not played.terminated
            behind = see(space, played.final, _mask_behind(played), found[-1].seen.levels) if cut else None
            episodes.append(Episode(place, tuple(found), behind))
    return episodes, unknown


def outcome_of(episodes: Sequence[Episode]) -> dict[str, float]:
    """What they came to, and what was done in them: mean and deviation of returns, and the share of each op.

    Parts that a rollback cut apart are one episode here.
    """
    whole: dict[int, float] = {}
    for episode in episodes:
        brought = math.fsum(one.reward for one in episode.decisions)
        whole[episode.place] = whole.get(episode.place, 0.0) + brought
    returns = list(whole.values())
    decisions = [decision.action.op for episode in episodes for decision in episode.decisions]
    shares = {f"share_{op.value}": decisions.count(op) / len(decisions) for op in Op}
    return {"return": statistics.fmean(returns), "spread_of_returns": statistics.pstdev(returns), **shares}


def _placed(episodes: Sequence[Played]) -> Iterator[tuple[int, Played]]:
    """Each with its environment: where a step is not later than the one before, another environment begins."""
    place, last = -1, 0
    for played in episodes:
        if not played.turns:
            continue
        place += place < 0 or played.turns[0].observation.step <= last
        last = played.turns[-1].observation.step
        yield place, played


def _decisions(space: ActionSpace, played: Played, pace: Pace) -> list[Decision] | None:
    """None where a reward is unknown or beyond all bounds. What comes before the first decision belongs to none."""
    found: list[Decision] = []
    for turn in played.turns:
        if turn.reward is None or not abs(turn.reward.total) <= LARGEST:
            return None
        if pace.by_itself(turn.observation, turn.mask) is None:
            levels = found[-1].seen.levels if found else None
            seen = see(space, turn.observation, pace.narrowed(turn.observation, turn.mask), levels)
            found.append(Decision(seen, turn.action, turn.reward.total))
        elif found:
            before = found[-1]
            found[-1] = Decision(before.seen, before.action, before.reward + turn.reward.total)
    return found


def _mask_behind(played: Played) -> ActionMask:
    """Nobody acts behind the end: what would be possible there is taken to be nothing."""
    return played.turns[-1].mask.shut()
