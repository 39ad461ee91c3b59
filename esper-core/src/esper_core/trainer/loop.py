"""What does a run do? This: the one loop, for every policy, from top to bottom.

E environments (those of every arm) are trained a step at a time. After each step they are measured, judged, rewarded,
and their policies decide what grows. A study is made by ``app.compose``; the pieces that act in it are

    course    where the study is, and all that it takes to go on from there            trainer.course
    pool      trains and measures the environments, and carries out what is decided    trainer.pool
    arms      who decides where                                                        trainer.study
    ledger    remembers the step before, and adds up rewards                           trainer.ledger
    record    keeps what learners learn from                                           trainer.rollout
    governor  one in each environment: brings back what has gone wrong, or stops it    esper_core.governor
    bus       tells what happened                                                      esper_core.telemetry

Did the factors on the loss drift apart? Then arms of one seed were not trained alike, and whoever compares is told.

In float16 each environment searches for a factor of its own: one that overflows leaves a step out and halves it. Where
the arms of a seed end with different ones, some of them were trained on fewer batches than others.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from esper_core.governor import Act
from esper_core.leyline.actions import WAIT
from esper_core.leyline.errors import GovernorStop, Problem
from esper_core.trainer.event_records import (
    episode_finished,
    governor_acted,
    seeds_lost,
    stages_changed,
    steps_finished,
    updates_finished,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from esper_core.governor import Decision
    from esper_core.leyline.actions import Action
    from esper_core.leyline.events import EpisodeFinished
    from esper_core.leyline.signals import Signals
    from esper_core.trainer.pool import Ending
    from esper_core.trainer.progress import Course
    from esper_core.trainer.rollouts import Ledger, RoundRecord
    from esper_core.trainer.study import Member, Study


log = logging.getLogger("esper")


def warn_of_scales(environments: Sequence[Member], signals_E: Sequence[Signals]) -> None:
    """At the end of a round: one warning that names the seeds whose arms have different factors, with these."""
    factors: dict[int, dict[str, float]] = {}
    for environment, signals in zip(environments, signals_E, strict=True):
        if signals.loss_scale is not None:
            factors.setdefault(environment.seed, {})[environment.arm] = signals.loss_scale
    apart = [
        f"seed {seed}: {', '.join(f'{arm} {factor:g}' for arm, factor in own.items())}"
        for seed, own in factors.items()
        if len(set(own.values())) > 1
    ]
    if apart:
        what = "the factors on the loss (float16) differ between arms, which were not trained on the same batches"
        log.warning("%s: %s", what, "; ".join(apart))


def run_study(course: Course) -> list[EpisodeFinished]:
    """Go on along the course of a study to its end, and return how each episode ended.

    Raises GovernorStop where an environment goes wrong, PluginError where a component does, and whatever
    ``study.pause`` raises: it is called after each step and each round, when all that happened is told.
    """
    study = course.study
    pool, clock, bus = study.pool, study.clock, study.bus

    for round_ in course.rounds():
        with clock.region("reset"):
            course.begin()
        ledger, record = course.ledger, course.record

        for step in course.steps():
            with clock.region("train"):
                passed = pool.train(step)
            clock.split("train", "shadow", pool.shadow_share)
            with clock.region("evaluate"):
                pool.evaluate(step)
                signals_E = pool.synchronise(step)  # the one sync of the step
                signals_E, mishaps = pool.heal(signals_E, step)
            with clock.region("telemetry"):
                bus.publish(*stages_changed(passed, step), *seeds_lost(mishaps, step, study.packages))

            with clock.region("govern"):
                decisions = pool.judge(signals_E, study.opinions(signals_E))
                _stop_where_nothing_helps(study, signals_E, decisions, step)
                signals_E, rolled, dropped = pool.heed(signals_E, decisions, step)  # may roll an environment back
                bus.publish(*governor_acted(pool.environments, decisions, rolled), *stages_changed(dropped, step))
                study.warn_of(rolled, decisions)

            with clock.region("policy"):
                penalties = {place: decision.penalty for place, decision in decisions.items()}
                rewards_E = ledger.reward(signals_E, decisions, penalties)  # of the action before
                record.rewarded(rewards_E)
                actions_E = decide(study, record, signals_E, resting=rolled)
            with clock.region("grow"):
                decided, unborn = pool.apply(actions_E, step)

            with clock.region("telemetry"):
                bus.publish(*stages_changed(decided, step), *seeds_lost(unborn, step, study.packages))
                bus.publish(*steps_finished(pool, signals_E, rewards_E, actions_E, step))
                bus.settle()
            course.step_done()
            study.pause(course)

        with clock.region("conclude"):
            finished, endings = _conclude(study, ledger, record, course.step - 1)
        with clock.region("learn"):
            _learn(study, record, round_, endings)
        course.round_done(finished)
        study.pause(course)

    return course.finished


def decide(
    study: Study, record: RoundRecord, signals_E: Sequence[Signals], resting: Collection[int] = ()
) -> list[Action]:
    """Ask each arm's policy about its environments; WAIT where nobody is asked.

    resting: the places that were rolled back in this step, which ends an episode for whoever learns. They, and those
    whose episode is over, can only wait.
    """
    masks_E = [mask.shut() if place in resting else mask for place, mask in enumerate(study.pool.masks())]
    actions_E, running = [WAIT] * len(signals_E), study.pool.running()
    seen_E = study.observe(signals_E, resting)
    for arm in study.arms:
        places = study.places(arm)
        seen = [seen_E[place] for place in places]
        chosen = arm.act(seen, [masks_E[place] for place in places])
        for place, observation, action in zip(places, seen, chosen, strict=True):
            actions_E[place] = action
            if place in resting:
                record.terminated(place, observation)
            elif place in running:
                record.decided(place, observation, masks_E[place], action)
    return actions_E


def _stop_where_nothing_helps(
    study: Study, signals_E: Sequence[Signals], decisions: Mapping[int, Decision], step: int
) -> None:
    """Stop the run where an environment is beyond repair."""
    hopeless = {place: decision for place, decision in decisions.items() if decision.act is Act.STOP}
    for place, decision in hopeless.items():
        unpaid, waiting = [None] * len(signals_E), [WAIT] * len(signals_E)
        study.bus.publish(*steps_finished(study.pool, signals_E, unpaid, waiting, step))
        study.bus.publish(*governor_acted(study.pool.environments, hopeless, {}))
        study.bus.settle()
        environment = study.pool.environments[place]
        where = f'arm "{environment.arm}", seed {environment.seed}, step {decision.step}'
        hint = "A smaller optimizer.host.learning_rate or a clip_norm may help."
        problem = Problem("E402", f"{where}: {decision.reason}", hint=None if decision.second_opinion else hint)
        raise GovernorStop(problem)


def _learn(study: Study, record: RoundRecord, round_: int, endings: Sequence[Ending]) -> None:
    """Let the policies that learn learn from the round: nothing to do for a plan."""
    finals_E = study.observe([ending.signals for ending in endings])
    if told := list(updates_finished(round_, record.learn(round_, finals_E))):
        study.bus.publish(*told)
        study.bus.settle()


def _conclude(
    study: Study, ledger: Ledger, record: RoundRecord, last: int
) -> tuple[list[EpisodeFinished], list[Ending]]:
    """End the episodes of a round after the step ``last``, and tell what became of them."""
    pool = study.pool
    study.tell_unfinished()
    changes, endings = pool.conclude(last)
    warn_of_scales(pool.environments, [ending.signals for ending in endings])
    closing_E = ledger.reward([ending.signals for ending in endings])
    record.rewarded(closing_E)
    finished = [
        episode_finished(environment, ending, closing_E[place], ledger.total(place))
        for place, (environment, ending) in enumerate(zip(pool.members, endings, strict=True))
    ]
    study.bus.publish(*stages_changed(changes, last), *finished)
    study.bus.settle()
    return finished, endings
