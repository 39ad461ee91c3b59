"""Rewards of episodes, and the rollouts that learners are given.

``EpisodeRewards`` rewards each step and adds up; ``RolloutRecorder`` keeps what policies that learn decided, exactly as
they saw it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from esper_core.leyline.lifecycle import Action, ActionMask
from esper_core.leyline.protocols import Learner, Rollout, Trajectory, Turn
from esper_core.leyline.signals import Observation, RewardBreakdown, Signals
from esper_core.plugins.isolation import attributed_to
from esper_core.plugins.process_state import Guard, Scope
from esper_core.trainer.event_records import plain_of, record_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from esper_core.governor import GovernorDecision
    from esper_core.trainer.study import RunReward, Study


class EpisodeRewards:
    """The rewards of one round, for each pool index. That of an environment without a twin is unknown, not 0."""

    def __init__(self, reward: RunReward, twins: Sequence[int | None]) -> None:
        self._reward = reward
        self._twins = twins
        self._before: dict[int, tuple[Signals, Signals]] = {}
        self._totals = [0.0] * len(twins)
        self._stopped: set[int] = set()

    def score(
        self, signals_E: Sequence[Signals], decisions: Mapping[int, GovernorDecision] | None = None
    ) -> list[RewardBreakdown | None]:
        """Return what a step was worth in each environment; None where that is unknown.

        ``decisions`` are the governor's, whose penalties are subtracted, by indices of environments whose episode goes
        on; None at the end, when all are scored. An environment whose episode ended early is scored at the
        end by the signals of its last step, and its twin's of that step.
        """
        # One guard for all, since to read the states of generators takes longer than to score.
        with Guard(self._reward.label, Scope.RUN):
            return [self._score(pool_index, signals_E, decisions) for pool_index in range(len(self._twins))]

    def _score(
        self, pool_index: int, signals_E: Sequence[Signals], decisions: Mapping[int, GovernorDecision] | None
    ) -> RewardBreakdown | None:
        if (twin := self._twins[pool_index]) is None:
            return None
        if decisions is not None and pool_index not in decisions:
            self._stopped.add(pool_index)
            return None
        before, twin_before = self._before.get(pool_index, (None, None))
        now = signals_E[pool_index]
        twin_now = signals_E[twin] if twin_before is None or pool_index not in self._stopped else twin_before
        breakdown = self._reward.score(now, before, twin_now, twin_before, f"on a step of environment {pool_index}")
        self._before[pool_index] = (now, twin_now)
        if decisions is not None and (penalty := decisions[pool_index].penalty):
            terms = breakdown.terms
            # A reward may have a term of this name itself.
            breakdown = RewardBreakdown({**terms, "penalty": terms.get("penalty", 0.0) - penalty})
        self._totals[pool_index] += breakdown.total
        return breakdown

    def total(self, pool_index: int) -> float | None:
        """Return the sum over the episode; None where it is unknown."""
        return None if self._twins[pool_index] is None else self._totals[pool_index]

    def state_dict(self) -> dict[str, Any]:
        """Return the state as plain data."""
        before = {
            pool_index: [plain_of(signals), plain_of(twin)] for pool_index, (signals, twin) in self._before.items()
        }
        return {"before": before, "totals": self._totals, "stopped": sorted(self._stopped)}

    def load_state_dict(self, plain: Mapping[str, Any]) -> None:
        """Restore what ``state_dict`` returned."""
        self._before = record_of(dict[int, tuple[Signals, Signals]], plain["before"])
        self._totals, self._stopped = plain["totals"], set(plain["stopped"])


class RolloutRecorder:
    """Records the decisions of one round in the environments of those arms whose policy learns."""

    def __init__(self, study: Study) -> None:
        self._study = study
        self._learners = {arm.name: arm for arm in study.arms if isinstance(arm.policy, Learner)}
        self._kept = {pool_index for arm in self._learners.values() for pool_index in study.pool.of_arm(arm.name)}
        self._turns: dict[int, list[Turn]] = {pool_index: [] for pool_index in self._kept}
        self._ended: dict[int, list[Trajectory]] = {pool_index: [] for pool_index in self._kept}
        self._open: dict[int, tuple[Observation, ActionMask, Action]] = {}

    def decided(self, pool_index: int, observation: Observation, mask: ActionMask, action: Action) -> None:
        """Record a policy's decision in the environment at ``pool_index``."""
        if pool_index in self._kept:
            self._open[pool_index] = (observation, mask, action)

    def rewarded(self, rewards_E: Sequence[RewardBreakdown | None]) -> None:
        """Record the rewards of the latest decisions, in every environment that had one."""
        for pool_index, decision in self._open.items():
            self._turns[pool_index].append(Turn(*decision, rewards_E[pool_index]))
        self._open = {}

    def terminated(self, pool_index: int) -> None:
        """End an episode where the environment at ``pool_index`` was rolled back: what follows is another one."""
        if self._turns.get(pool_index):
            self._ended[pool_index].append(Trajectory(tuple(self._turns[pool_index])))
            self._turns[pool_index] = []

    def learn(self, round_: int) -> Iterator[tuple[str, Mapping[str, float]]]:
        """Update every learner with its rollout, and yield each arm's name with the figures that its policy reports."""
        for name, arm in self._learners.items():
            episodes: list[Trajectory] = []
            for pool_index in self._study.pool.of_arm(arm.name):
                episodes += self._ended[pool_index]
                # A rollback in the last step leaves nothing of it. Without any turn an empty one stands for the
                # environment.
                if self._turns[pool_index] or not self._ended[pool_index]:
                    episodes.append(Trajectory(tuple(self._turns[pool_index])))
            assert isinstance(arm.policy, Learner)
            with attributed_to(arm.label, f"when it learnt from round {round_}", Scope.RUN):
                figures = arm.policy.update(Rollout(name, round_, tuple(episodes)))
                # Still attributed: the mapping and its values are the policy's, and may raise.
                plain = {str(figure): float(value) for figure, value in figures.items()}
            yield name, plain

    def state_dict(self) -> dict[str, Any]:
        """Return the record of the round so far, as plain data."""
        return {
            "turns": {pool_index: list(map(plain_of, turns)) for pool_index, turns in self._turns.items()},
            "ended": {pool_index: list(map(plain_of, played)) for pool_index, played in self._ended.items()},
            "open": {pool_index: list(map(plain_of, decision)) for pool_index, decision in self._open.items()},
        }

    def load_state_dict(self, plain: Mapping[str, Any]) -> None:
        """Restore what ``state_dict`` returned."""
        self._turns = record_of(dict[int, list[Turn]], plain["turns"])
        self._ended = record_of(dict[int, list[Trajectory]], plain["ended"])
        self._open = record_of(dict[int, tuple[Observation, ActionMask, Action]], plain["open"])
