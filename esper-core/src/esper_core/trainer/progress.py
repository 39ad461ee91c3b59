"""Where is a study, and what does it remember? All that the loop needs to go on, here or in another process."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from torch import Tensor

from esper_core.growth import decode_state, encode_state
from esper_core.growth.serialization import stored_copy
from esper_core.leyline.errors import GrowthError, PluginError, Problem
from esper_core.leyline.protocols import Resumable, State
from esper_core.plugins.isolation import attributed_to
from esper_core.trainer.rollouts import Ledger, RoundRecord

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from esper_core.leyline.events import EpisodeFinished
    from esper_core.trainer.study import Arm, Study


_STATES: Final = (
    "A State holds tensors, text, whole and finite numbers, booleans, None, lists, and mappings with text as keys."
)


class Course:
    """The way through the rounds and steps of one study.

    round: the one that it is in. step: how many of its steps are done. ledger, record: those of this round. finished:
    the episodes that are over, in their order.
    """

    def __init__(self, study: Study) -> None:
        self.study = study
        self.round = 0
        self.step = 0
        self.finished: list[EpisodeFinished] = []
        self.ledger = Ledger(study.judges(), twins=study.twins())
        self.record = RoundRecord(study)

    def rounds(self) -> Iterator[int]:
        """The rounds that are left, the one that it is in first."""
        while self.round < self.study.rounds:
            yield self.round

    def begin(self) -> None:
        """Begin the round: a new episode in every environment. Nothing happens in one that was resumed."""
        study = self.study
        if self.step == 0:
            study.pool.reset(self.round, study.first_seed + self.round * study.environments)
            self.ledger, self.record = Ledger(study.judges(), twins=study.twins()), RoundRecord(study)

    def steps(self) -> Iterator[int]:
        """The steps that are left of the round, unless every episode in it is over before."""
        while self.step < self.study.steps and not (self.step and self.study.pool.over):
            yield self.step

    def step_done(self) -> None:
        """One more step is done, to the last."""
        self.step += 1

    def round_done(self, finished: Iterable[EpisodeFinished]) -> None:
        """The round is done, to the last: how its episodes ended."""
        self.finished += finished
        self.round, self.step = self.round + 1, 0

    def state(self) -> State:
        """All that is remembered, between two steps. Of what is finished only how much it is: the events tell it."""
        policies = {arm.name: self._known(arm) for arm in self.study.arms}
        return State.of(
            {
                "pool": self.study.pool.state(),
                "ledger": encode_state(self.ledger.as_plain()),
                "record": encode_state(self.record.as_plain()),
                "policies": State.of({name: state for name, state in policies.items() if state is not None}),
            },
            round=self.round,
            step=self.step,
            finished=len(self.finished),
        )

    def load(self, state: State, finished: Iterable[EpisodeFinished]) -> None:
        """Be where another course was. finished: the episodes that were over then, as the events tell."""
        self.round, self.step, self.finished = state.plain["round"], state.plain["step"], list(finished)
        if len(self.finished) != state.plain["finished"]:
            msg = f"{state.plain['finished']} episodes were over. Received: {len(self.finished)}"
            raise ValueError(msg)
        self.study.pool.load(state.part("pool"), in_round=self.step > 0)
        self.ledger.load(decode_state(state.part("ledger")))
        self.record.load(decode_state(state.part("record")))
        policies = state.part("policies")
        for arm in self.study.arms:
            if arm.name in policies.plain and isinstance(arm.policy, Resumable):
                with attributed_to(arm.label, "when it was given what it knew"):
                    arm.policy.load(policies.part(arm.name))

    @staticmethod
    def _known(arm: Arm) -> State | None:
        if not isinstance(arm.policy, Resumable):
            return None
        with attributed_to(arm.label, "when it was asked for what it knows"):
            given = arm.policy.state()
        try:
            return _as_it_comes_back(given)
        except (GrowthError, TypeError, ValueError, AttributeError, RecursionError) as error:
            said = error.problems[0].message if isinstance(error, GrowthError) else str(error)
            message = f"{arm.label} gives a state that no checkpoint takes: {said}"
            raise PluginError(Problem("E231", message, hint=_STATES)) from error


def _as_it_comes_back(given: State) -> State:
    """The state as a checkpoint gives it back, its tensors copied; ValueError, or another, where something is lost."""
    if not isinstance(given, State):
        msg = f"it is no State. Received: {type(given).__name__}"
        raise TypeError(msg)
    written = dict(given.plain)
    if json.loads(json.dumps(written, allow_nan=False)) != written:
        msg = "its plain data comes back otherwise: a key that is no text, or a tuple"
        raise ValueError(msg)
    if strange := [name for name, tensor in given.tensors.items() if not isinstance(tensor, Tensor)]:
        msg = f"{strange[0]!r} is among its tensors. Received: {type(given.tensors[strange[0]]).__name__}"
        raise TypeError(msg)
    return State(written, {name: stored_copy(name, tensor) for name, tensor in given.tensors.items()})
