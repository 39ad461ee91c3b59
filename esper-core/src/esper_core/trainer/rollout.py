"""What is a learner given? A record of each round: as the policy saw it, to the letter."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from esper_core.leyline.actions import Action, ActionMask
from esper_core.leyline.learning import Learner, Played, Rollout, Turn
from esper_core.leyline.signals import Observation
from esper_core.trainer.answerable import answerable
from esper_core.trainer.records import plain_of, record_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from esper_core.leyline.signals import RewardBreakdown
    from esper_core.trainer.study import Arm, Study


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
    with answerable(arm.label, f"when it learnt from round {rollout.round}"):
        return {str(name): float(value) for name, value in learner.update(rollout).items()}
