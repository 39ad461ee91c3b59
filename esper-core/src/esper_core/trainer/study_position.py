"""Position of a study in rounds and steps, and its checkpoint state."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from esper_core.growth import decode_state, encode_state
from esper_core.growth.serialization import stored_copy
from esper_core.leyline.errors import GrowthError, PluginError, Problem
from esper_core.leyline.protocols import Resumable, State
from esper_core.plugins.isolation import attributed_to, summarise
from esper_core.plugins.process_state import Scope
from esper_core.trainer.rollouts import EpisodeRewards, RolloutRecorder

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from esper_core.leyline.events import EpisodeFinished
    from esper_core.trainer.study import Arm, Study


_STATES: Final = (
    "A State holds tensors, text, whole and finite numbers, booleans, None, lists, and mappings with text as keys."
)


@dataclass
class StudyPosition:
    """Where a study is, and everything that the loop needs to continue from there, in this process or another one.

    Attributes:
        step: How many steps of the round are done.
        finished: The episodes that are over, in their order.
        rewards: The rewards of this round.
        recorder: The record of this round for learners.
    """

    study: Study
    round: int = 0
    step: int = 0
    finished: list[EpisodeFinished] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._new_round()

    def _new_round(self) -> None:
        self.rewards = EpisodeRewards(self.study.reward, twins=self.study.twins())
        self.recorder = RolloutRecorder(self.study)

    def rounds(self) -> Iterator[int]:
        """Yield the rounds that are left, beginning with the current one."""
        while self.round < len(self.study.first_seeds):
            yield self.round

    def begin(self) -> None:
        """Begin the round with a new episode in every environment. A round that was resumed goes on instead."""
        if self.step == 0:
            self.study.pool.reset(self.round, self.study.first_seeds[self.round])
            self._new_round()

    def steps(self) -> Iterator[int]:
        """Yield the steps that are left of the round, until every episode in it is over."""
        while self.step < self.study.episode.steps and self.study.pool.running():
            yield self.step

    def state_dict(self) -> State:
        """Return the state between two steps. Finished episodes are only counted in it: the events record them."""
        policies = {arm.name: _state_of_policy(arm) for arm in self.study.arms}
        return State.of(
            {
                "pool": self.study.pool.state_dict(),
                "rewards": encode_state(self.rewards.state_dict()),
                "recorder": encode_state(self.recorder.state_dict()),
                "policies": State.of({name: state for name, state in policies.items() if state is not None}),
            },
            round=self.round,
            step=self.step,
            finished=len(self.finished),
        )

    def load_state_dict(self, state: State, finished: Iterable[EpisodeFinished]) -> None:
        """Restore what ``state_dict`` returned; ``finished`` are the episodes that were over then."""
        self.round, self.step, self.finished = state.plain["round"], state.plain["step"], list(finished)
        # They come from the record of events: another number means that record and state do not belong together.
        if len(self.finished) != state.plain["finished"]:
            msg = f"{state.plain['finished']} episodes were over. Received: {len(self.finished)}"
            raise ValueError(msg)
        self.study.pool.load_state_dict(state.part("pool"), in_round=self.step > 0)
        self.rewards.load_state_dict(decode_state(state.part("rewards")))
        self.recorder.load_state_dict(decode_state(state.part("recorder")))
        policies = state.part("policies")
        for arm in self.study.arms:
            if arm.name in policies.plain and isinstance(arm.policy, Resumable):
                with attributed_to(arm.label, "when its state was restored", Scope.RUN):
                    arm.policy.load_state_dict(policies.part(arm.name))


def _state_of_policy(arm: Arm) -> State | None:
    """Return the state of an arm's policy as a checkpoint would give it back; None where it has none."""
    if not isinstance(arm.policy, Resumable):
        return None
    with attributed_to(arm.label, "when its state was saved", Scope.RUN):
        state = arm.policy.state_dict()
    try:
        plain = dict(state.plain)
        if json.loads(json.dumps(plain, allow_nan=False)) != plain:
            why = "JSON changes its plain data: a key is not text, or a value is a tuple"
        else:
            return State(plain, {name: stored_copy(name, tensor) for name, tensor in state.tensors.items()})
    except (GrowthError, TypeError, ValueError, AttributeError, RecursionError) as error:
        why = summarise(error)
    message = f"{arm.label} returned a state that cannot be saved in a checkpoint: {why}"
    raise PluginError(Problem("E231", message, hint=_STATES))
