"""The training loop of a study, in reading order, for every policy.

A study trains E environments, those of every arm, for some rounds. A round is one episode in each environment; an
episode is a number of decision steps; a decision step is a number of batches. In every step

    1. each environment trains its host and seeds                                      Pool.train
    2. each is measured on the validation split, and all numbers are read at once      Pool.evaluate, synchronise
    3. seeds that broke a loss are taken out                                           Pool.heal
    4. the governor judges each environment, and rolls back what went wrong            Pool.judge, carry_out
    5. the action of the step before is rewarded                                       EpisodeRewards.score
    6. each arm's policy decides for its environments                                  decide, below
    7. what it decided is carried out, and everything that happened is published       Pool.apply

Steps 1 to 5 are ``Stepper.advance``, and 7 is ``Stepper.act``. At the end of a round the networks are evaluated on the
test split, and policies that learn are updated.

The docstring of ``trainer`` lists the other modules. ``app.compose`` builds a study from a configuration.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from esper_core.governor import Act
from esper_core.leyline.errors import GovernorStop, Problem
from esper_core.leyline.events import UpdateFinished
from esper_core.leyline.lifecycle import WAIT
from esper_core.leyline.signals import HealthSnapshot
from esper_core.telemetry import Bus, Clock
from esper_core.trainer.event_records import governor_acted, seeds_lost, stages_changed, steps_finished
from esper_core.trainer.study import warn_of_loss_scales

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from esper_core.governor import GovernorDecision, RolledBack
    from esper_core.leyline import Action, RewardBreakdown, Signals, Verdict
    from esper_core.leyline.events import EpisodeFinished
    from esper_core.trainer.event_records import AnyEnvironment, Changes
    from esper_core.trainer.rollouts import RolloutRecorder
    from esper_core.trainer.roster import Roster
    from esper_core.trainer.study import Study
    from esper_core.trainer.study_position import StudyPosition

    Score = Callable[[Sequence[Signals], Mapping[int, GovernorDecision]], Sequence[RewardBreakdown | None]]

log = logging.getLogger("esper")


def run_study(
    progress: StudyPosition, pause: Callable[[StudyPosition], None] = lambda progress: None
) -> list[EpisodeFinished]:
    """Train a study from the position of ``progress`` to its end, and return how each episode ended.

    ``pause`` is called after each step and each round, when everything that happened is published. It writes
    checkpoints, and raises to end the run there.

    Raises:
        GovernorStop: An environment went wrong and cannot be rolled back.
        PluginError: A component failed.
    """
    study = progress.study
    clock, bus = study.clock, study.bus

    for round_ in progress.rounds():
        with clock.region("reset"):
            progress.begin()
        rewards, recorder = progress.rewards, progress.recorder
        stepper = Stepper(study.pool, rewards.score, study.check_health, bus=bus, clock=clock, packages=study.packages)

        for step in progress.steps():
            result = stepper.advance(step)
            with clock.region("policy"):
                # They reward the actions of the step before, which ``decide`` replaces by new ones.
                recorder.rewarded(result.rewards)
                actions_E = decide(study, recorder, result.signals, rolled=result.rolled)
            stepper.act(result, actions_E)
            # Before the pause: a checkpoint that it writes goes on with the next step.
            progress.step += 1
            pause(progress)

        with clock.region("conclude"):
            progress.finished += _conclude(progress)
        with clock.region("learn"):
            _learn(study, recorder, round_)
        progress.round, progress.step = progress.round + 1, 0
        pause(progress)

    return progress.finished


def decide(
    study: Study, recorder: RolloutRecorder, signals_E: Sequence[Signals], rolled: Collection[int] = ()
) -> list[Action]:
    """Ask each arm's policy for its environments' actions, and record its decisions.

    ``rolled`` are the indices that were rolled back in this step, which ends an episode for a policy that learns. They,
    and those whose episode is over, can only wait.
    """
    masks_E = [mask.shut() if pool_index in rolled else mask for pool_index, mask in enumerate(study.pool.masks())]
    actions_E, running = [WAIT] * len(signals_E), {environment.pool_index for environment in study.pool.running()}
    observations_E = study.observe(signals_E, rolled)
    for arm in study.arms:
        pool_indices = study.pool.of_arm(arm.name)
        chosen = arm.act(
            [observations_E[pool_index] for pool_index in pool_indices],
            [masks_E[pool_index] for pool_index in pool_indices],
        )
        for pool_index, action in zip(pool_indices, chosen, strict=True):
            actions_E[pool_index] = action
            if pool_index in rolled:
                recorder.terminated(pool_index)
            elif pool_index in running:
                recorder.decided(pool_index, observations_E[pool_index], masks_E[pool_index], action)
    return actions_E


def _conclude(progress: StudyPosition) -> list[EpisodeFinished]:
    """End the episodes of a round after its last step, and publish how they ended."""
    study, rewards, last = progress.study, progress.rewards, progress.step - 1
    environments: Sequence[AnyEnvironment] = study.pool.environments
    study.warn_of_unfinished_plans()
    changes, endings = study.pool.conclude(last)
    signals_E = [ending.signals for ending in endings]
    warn_of_loss_scales(environments, signals_E)
    closing_E = rewards.score(signals_E)
    progress.recorder.rewarded(closing_E)
    conclusions_E: dict[int, str] = {}
    for arm in study.arms:
        conclusions_E |= zip(study.pool.of_arm(arm.name), arm.conclusions(), strict=False)
    finished = [
        ending.event(environment, closing, rewards.total(pool_index), conclusions_E.get(pool_index, ""))
        for pool_index, (environment, ending, closing) in enumerate(zip(environments, endings, closing_E, strict=True))
    ]
    study.bus.publish(*stages_changed(environments, changes, last), *finished)
    study.bus.settle()
    return finished


def _learn(study: Study, recorder: RolloutRecorder, round_: int) -> None:
    """Update the policies that learn with the round; other policies are skipped."""
    updates = recorder.learn(round_)
    if events := [UpdateFinished(round=round_, arm=arm, figures=figures) for arm, figures in updates]:
        study.bus.publish(*events)
        study.bus.settle()


@dataclass(frozen=True, slots=True)
class StepResult:
    """The results of a step, before actions are chosen.

    Attributes:
        signals: Signals of each environment, as they are after healing and rollbacks.
        rewards: What the step was worth, and so the action before it; None where that is unknown.
        rolled: What was rolled back, by pool index.
    """

    step: int
    signals: Sequence[Signals]
    rewards: Sequence[RewardBreakdown | None]
    rolled: Mapping[int, RolledBack]


@dataclass(frozen=True, slots=True)
class Stepper:
    """Takes the environments of a pool through decision steps, and publishes what happens.

    Attributes:
        score: Rewards the signals of a step; None: nothing is rewarded.
        check_health: A second opinion on an environment, which can raise the verdict but not lower it.
        packages: The package behind each blueprint.
    """

    pool: Roster[Any]
    score: Score | None
    check_health: Callable[[HealthSnapshot], Verdict]
    bus: Bus
    packages: Mapping[str, str]
    clock: Clock = field(default_factory=Clock)

    def advance(self, step: int) -> StepResult:
        """Train every environment for one step, measure, heal, judge, roll back where necessary, and reward.

        Raises:
            GovernorStop: An environment cannot be rolled back.
        """
        pool, bus, clock = self.pool, self.bus, self.clock
        with clock.region("train"):
            passed = pool.train(step)
        with clock.region("evaluate"):
            pool.evaluate(step)
            pool.synchronise(step)  # the one sync of the step
            lost = pool.heal(step)
        with clock.region("telemetry"):
            environments = pool.environments
            # Before the verdicts: a stop is raised there, and these events would be missing from the record.
            bus.publish(
                *stages_changed(environments, passed, step), *seeds_lost(environments, lost, step, self.packages)
            )

        with clock.region("govern"):
            decisions = pool.judge(self._opinions())
            self._log_or_stop(decisions, step)
            rolled, pruned = pool.carry_out(decisions, step)
            bus.publish(*governor_acted(environments, decisions, rolled), *stages_changed(environments, pruned, step))
        signals_E = pool.latest
        with clock.region("policy"):
            rewards_E = [None] * len(signals_E) if self.score is None else self.score(signals_E, decisions)
        return StepResult(step, signals_E, rewards_E, rolled)

    def act(self, result: StepResult, actions_E: Sequence[Action]) -> None:
        """Carry out one action in each environment, and end the step that had this result."""
        environments, step = self.pool.environments, result.step
        with self.clock.region("grow"):
            changes, unborn = self.pool.apply(actions_E, step)
        with self.clock.region("telemetry"):
            self.bus.publish(
                *stages_changed(environments, changes, step),
                *seeds_lost(environments, unborn, step, self.packages),
                *steps_finished(environments, result.signals, result.rewards, actions_E, step),
            )
            self.bus.settle()

    def report(self, changes: Changes, step: int) -> None:
        """Publish changes of stage that came after the last step, such as those at the end of a loop."""
        self.bus.publish(*stages_changed(self.pool.environments, changes, step))

    def _opinions(self) -> dict[int, Verdict]:
        """Return the second opinion on each environment whose episode goes on, by its pool index."""
        return {
            environment.pool_index: self.check_health(
                HealthSnapshot(environment.round, environment.arm, environment.seed, environment.signals)
            )
            for environment in self.pool.running()
        }

    def _log_or_stop(self, decisions: Mapping[int, GovernorDecision], step: int) -> None:
        """Log each act of the governor; raise GovernorStop for the first environment that cannot be rolled back."""
        environments = self.pool.environments
        hopeless = {pool_index: decision for pool_index, decision in decisions.items() if decision.act is Act.STOP}
        # If one is hopeless the run ends here, and what was decided of the others is not carried out.
        for pool_index, decision in (hopeless or decisions).items():
            environment = environments[pool_index]
            location = f'arm "{environment.arm}", RNG seed {environment.seed}, step {decision.step}'
            if hopeless:
                # The step that ends the run is recorded, too; it does not get as far as rewards and actions.
                placeholders = [None] * len(environments), [WAIT] * len(environments)
                self.bus.publish(*steps_finished(environments, self.pool.latest, *placeholders, step))
                self.bus.publish(*governor_acted(environments, hopeless, {}))
                self.bus.settle()
                # A plugin's alarm may have other causes than the loss, so there is no advice to give.
                hint = None if decision.second_opinion else "Lower the learning rate, set clip_norm, or check the data."
                raise GovernorStop(Problem("E402", f"{location}: {decision.reason}", hint=hint))
            if decision.act is not Act.CONTINUE:
                back = decision.back_to
                restored = "" if back is None else " to before training" if back < 0 else f" to step {back}"
                level = logging.WARNING if restored else logging.INFO
                log.log(level, "%s: governor: %s%s: %s", location, decision.act, restored, decision.reason)
