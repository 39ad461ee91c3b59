"""What shall be done about an environment? One decision a step, as data: it says what, why, and whose doing it was."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from esper_core.leyline.signals import CALM, Verdict

if TYPE_CHECKING:
    from esper_core.governor.watch import Culprit
    from esper_core.growth import FaultBook, Transition


class Act(StrEnum):
    """What can be done, the mildest first.

    CONTINUE and WARN: the environment goes on. EARLY_STOP: its episode ends here, cut short, and nothing is wrong.
    ROLL_BACK: it goes back to a sane state, and its episode ends here for who learns from it. STOP: nothing helps.
    """

    CONTINUE = "continue"
    WARN = "warn"
    EARLY_STOP = "early-stop"
    ROLL_BACK = "roll-back"
    STOP = "stop"


@dataclass(frozen=True, slots=True)
class Decision:
    """What is to be done after ``step``.

    culprit: the mutation that a panic is attributed to, where one is under watch.
    back_to: the step after which the state was taken that a rollback returns to; -1: before any training.
    penalty: what is to be taken off this step's reward. second_opinion: whether the verdict is not the governor's own.
    """

    act: Act
    step: int
    verdict: Verdict = CALM
    culprit: Culprit | None = None
    back_to: int | None = None
    penalty: float = 0.0
    second_opinion: bool = False

    @property
    def terminal(self) -> bool:
        """Whether the episode ends in this step for the learner, and nothing is to be hoped for behind it."""
        return self.act in (Act.ROLL_BACK, Act.STOP)

    @property
    def truncated(self) -> bool:
        """Whether the episode is cut in this step: what the state promised is still worth what it promised."""
        return self.act is Act.EARLY_STOP

    @property
    def reason(self) -> str:
        """The verdict's reason, and whose doing it was."""
        doing = f"; after {self.culprit.mutation}" if self.culprit is not None else ""
        return self.verdict.reason + doing

    def counted(self, faults: FaultBook) -> bool:
        """Count a rollback against its culprit's blueprint, if it is to blame; whether that is withdrawn by it."""
        culprit = self.culprit
        return culprit is not None and culprit.blamed and faults.record(culprit.mutation.blueprint)


@dataclass(frozen=True, slots=True)
class RolledBack:
    """What a rollback did: seeds that were dropped, and whether it withdraws the culprit's blueprint from the run.

    train_loss: of the last healthy step before the state that was returned to, that of guessing before any; None where
    that is unknown.
    """

    transitions: tuple[Transition, ...]
    withdrawn: bool
    train_loss: float | None
