"""What was each environment's episode worth so far? The ledger keeps the step before and adds up.

What is a learner given? A record of each round: as the policy saw it, to the letter.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from esper_core.leyline.actions import Action, ActionMask
from esper_core.leyline.errors import PluginError, Problem
from esper_core.leyline.protocols import Learner, Played, Rollout, Turn
from esper_core.leyline.signals import Observation, RewardBreakdown, Signals
from esper_core.plugins.isolation import attributed_to
from esper_core.trainer.event_records import plain_of, record_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from esper_core.trainer.study import Arm, Judge, Study


class Ledger:
    """One round's rewards. Where an environment has no twin its reward is unknown, not 0.

    Args:
        judges: for each environment what judges it.
        twins: for each environment the place of its twin, or None.
    """

    def __init__(self, judges: Sequence[Judge], twins: Sequence[int | None]) -> None:
        self._judges = judges
        self._twins = twins
        self._before: dict[int, tuple[Signals, Signals]] = {}
        self._totals = [0.0] * len(twins)
        self._stopped: set[int] = set()

    def reward(
        self,
        signals_E: Sequence[Signals],
        running: Collection[int] | None = None,
        penalties: Mapping[int, float] | None = None,
    ) -> list[RewardBreakdown | None]:
        """What this step was worth, for each environment.

        running: the places whose episode goes on. For the others nothing changes any more, and the end finds them and
        their twins as they were in their last step.
        penalties: by place what the governor takes off.
        """
        rewards: list[RewardBreakdown | None] = []
        for place, twin in enumerate(self._twins):
            if twin is None or (running is not None and place not in running):
                rewards.append(None)
                self._stopped |= set() if twin is None else {place}
                continue
            before, twin_before = self._before.get(place, (None, None))
            twin_now = signals_E[twin] if twin_before is None or place not in self._stopped else twin_before
            judge = self._judges[place]
            with attributed_to(judge.label, f"on a step of environment {place}"):
                breakdown = judge.reward.score(
                    signals_E[place],
                    before,
                    twin_now,
                    twin_before,
                )
            if not isinstance(breakdown, RewardBreakdown):
                message = f"{judge.label} scored a step with {type(breakdown).__name__}, not a RewardBreakdown"
                raise PluginError(
                    Problem(
                        "E231", message, hint='Reward.score returns RewardBreakdown({"accuracy": 0.5}): terms, by name.'
                    )
                )
            self._before[place] = (signals_E[place], twin_now)
            if penalty := (penalties or {}).get(place, 0.0):
                breakdown = _less(breakdown, penalty)
            self._totals[place] += breakdown.total
            rewards.append(breakdown)
        return rewards

    def as_plain(self) -> dict[str, Any]:
        """All that it knows."""
        before = {place: [plain_of(own), plain_of(twin)] for place, (own, twin) in self._before.items()}
        return {"before": before, "totals": self._totals, "stopped": sorted(self._stopped)}

    def load(self, plain: Mapping[str, Any]) -> None:
        """Know what another one knew."""
        self._before = {
            place: (record_of(Signals, own), record_of(Signals, twin)) for place, (own, twin) in plain["before"].items()
        }
        self._totals, self._stopped = plain["totals"], set(plain["stopped"])

    def total(self, place: int) -> float | None:
        """The sum over the episode; None where it is unknown."""
        return None if self._twins[place] is None else self._totals[place]


def _less(breakdown: RewardBreakdown, penalty: float) -> RewardBreakdown:
    """The breakdown with what a rollback costs, as a term of its own."""
    return RewardBreakdown({**breakdown.terms, "penalty": breakdown.terms.get("penalty", 0.0) - penalty})


class RoundRecord:
    """The decisions of one round in the environments of those arms whose policy learns."""

    def __init__(self, study: Study) -> None:
        self._study = study
        self._learners = {arm.name: arm for arm in study.arms if isinstance(arm.policy, Learner)}
        self._kept = {place for arm in self._learners.values() for place in study.places(arm)}
        self._turns: dict[int, list[Turn]] = {place: [] for place in self._kept}
        self._ended: dict[int, list[Played]] = {place: [] for place in self._kept}
        self._open: dict[int, tuple[Observation, ActionMask, Action]] = {}

    def decided(self, place: int, observation: Observation, mask: ActionMask, action: Action) -> None:
        """A policy decided in the environment at ``place`` of the pool."""
        if place in self._kept:
            self._open[place] = (observation, mask, action)

    def rewarded(self, rewards_E: Sequence[RewardBreakdown | None]) -> None:
        """What came of the decisions before, in every environment that had one."""
        for place, decision in self._open.items():
            self._turns[place].append(Turn(*decision, rewards_E[place]))
        self._open = {}

    def terminated(self, place: int, final: Observation) -> None:
        """The environment at ``place`` was rolled back: what was played until then is an episode by itself."""
        if self._turns.get(place):
            self._ended[place].append(Played(tuple(self._turns[place]), final, terminated=True))
            self._turns[place] = []

    def learn(self, round_: int, final_E: Sequence[Observation]) -> Iterator[tuple[str, Mapping[str, float]]]:
        """Let every learner learn; each arm's name with what its policy says of it."""
        for name, arm in self._learners.items():
            episodes = [
                episode for place in self._study.places(arm) for episode in self._episodes(place, final_E[place])
            ]
            yield name, _updated(arm, Rollout(name, round_, tuple(episodes)))

    def as_plain(self) -> dict[str, Any]:
        """All that was kept of the round so far."""
        return {
            "turns": {place: list(map(plain_of, turns)) for place, turns in self._turns.items()},
            "ended": {place: list(map(plain_of, played)) for place, played in self._ended.items()},
            "open": {place: list(map(plain_of, decision)) for place, decision in self._open.items()},
        }

    def load(self, plain: Mapping[str, Any]) -> None:
        """Keep what another one kept."""
        self._turns = {place: [record_of(Turn, turn) for turn in turns] for place, turns in plain["turns"].items()}
        self._ended = {place: [record_of(Played, one) for one in played] for place, played in plain["ended"].items()}
        self._open = {
            place: (record_of(Observation, seen), record_of(ActionMask, mask), record_of(Action, action))
            for place, (seen, mask, action) in plain["open"].items()
        }

    def _episodes(self, place: int, final: Observation) -> list[Played]:
        last = [Played(tuple(self._turns[place]), final)] if self._turns[place] or not self._ended[place] else []
        return [*self._ended[place], *last]


def _updated(arm: Arm, rollout: Rollout) -> Mapping[str, float]:
    learner = arm.policy
    assert isinstance(learner, Learner)
    with attributed_to(arm.label, f"when it learnt from round {rollout.round}"):
        return {str(name): float(value) for name, value in learner.update(rollout).items()}
