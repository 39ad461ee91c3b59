"""How is a prepared run trained? One study after the other: that of the file, and then the control by what was grown.

Where it was interrupted it goes on from its newest checkpoint, and nobody is told twice what was told before.
"""

from __future__ import annotations

import logging
from contextlib import ExitStack
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING

from esper_core.app.ability import demand_able
from esper_core.app.checkpointing import Keeping, decisive_in
from esper_core.app.compose import Surroundings
from esper_core.app.ending import reason, status_of
from esper_core.app.interrupts import heeded_signals
from esper_core.app.resolved import resolved_config
from esper_core.app.runtime import one_thread
from esper_core.config.plain import plain
from esper_core.leyline.errors import GovernorStop, PluginError
from esper_core.leyline.events import RunFinished, RunStarted
from esper_core.leyline.protocols import RunContext
from esper_core.plugins.dispatch import health_check, surrounded
from esper_core.plugins.isolation import answerable, lent_streams
from esper_core.runs.checkpoints import Checkpoints
from esper_core.telemetry import Bus, Clock, EventFile, SinkThread, read_events
from esper_core.trainer.loop import run_study
from esper_core.trainer.progress import Course

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from esper_core.app.checkpointing import Position, Said
    from esper_core.app.compose import Composition
    from esper_core.app.preparing import Prepared
    from esper_core.app.resolution import Resolution
    from esper_core.leyline.events import EpisodeFinished
    from esper_core.leyline.protocols import RunInfo
    from esper_core.leyline.signals import Metric
    from esper_core.plugins.dispatch import Observers
    from esper_core.telemetry import Listener
    from esper_core.trainer.study import Study

log = logging.getLogger("esper")

LOOK_EVERY_SECONDS = 1.0
"""Seconds between two looks at whether the run directory is still there."""


def train(
    prepared: Prepared,
    about: RunInfo,
    observers: Observers,
    listeners: Sequence[Listener],
    said: Said,
    position: Position | None,
    asked: Callable[[], None] = lambda: None,
) -> tuple[Sequence[EpisodeFinished], Clock]:
    """Train to the end, from ``position`` on where there is one; how every episode ended, and where the time went.

    asked: called at once where somebody asks for the end.
    """
    composition, path = prepared.composition, about.path / "events.jsonl"
    config = composition.resolution.loaded.config
    decisive = decisive_in(plain(resolved_config(composition.resolution)))
    if position is not None:
        position.demand(decisive, about.path)
    with heeded_signals(asked) as pause, ExitStack() as closing:
        log.info("run %s %s", about.id, "begins" if position is None else f"goes on from checkpoint {position.number}")
        observers.configured(prepared.settings, lambda: plain(resolved_config(composition.resolution)))
        sinks = _sinks(composition.resolution, about.path, closing)
        clock, others = Clock(), [*listeners, *sinks, observers]
        events = EventFile(path, after=0 if position is None else position.events)
        closing.callback(events.close)
        bus, checkpoints = Bus([events, *others]), Checkpoints(about.path, config.checkpoints.keep)
        if position is not None:
            checkpoints.discard_after(position.number)
        try:
            _tell_of_beginning(about, prepared.composition.task.metric, bus, listeners, sinks, path, position)
            observers.run_started(about)
            keeping = Keeping(
                checkpoints,
                events,
                clock,
                said,
                settings=config.checkpoints,
                look=_watched(events, pause),
                decisive=decisive,
                position=position,
            )
            around = Surroundings(bus, clock, keeping.pause, health_check(prepared.plugins))
            with one_thread(), lent_streams():  # stdout is for what the command answers
                whole = partial(_stages, composition, around, keeping, position)
                finished = surrounded(prepared.plugins, RunContext(about), whole)
            bus.publish(RunFinished(status="done"))
        except BaseException as error:
            bus.publish(RunFinished(status=status_of(error)[0], reason=reason(error)))
            raise
        return finished, clock


def _stages(
    composition: Composition, around: Surroundings, keeping: Keeping, position: Position | None
) -> list[EpisodeFinished]:
    """The study of the file, and the control that follows it; how every episode ended."""
    finished: list[EpisodeFinished] = []
    stages: list[Callable[[], Study | None]] = [
        lambda: composition.study(around),
        lambda: composition.follow_up(around, finished),
    ]
    if position is not None:
        around.clock.continue_from(position.state.plain["seconds"], position.state.plain["total"])
    for number, make in enumerate(stages):
        own = [] if position is None else [e for e in position.finished if _stage_of(composition, e) == number]
        if position is not None and number < position.stage:
            finished += own
            continue
        if (study := make()) is None:
            continue
        keeping.stage = number
        course = Course(study)
        try:
            if position is not None and number == position.stage:
                course.load(position.state.part("course"), own)
            finished += run_study(course)
        except (GovernorStop, PluginError) as error:
            if number == 0:
                raise
            log.warning("the control by static capacity is missing, and what the study found stands: %s", error)
        finally:
            study.pool.close()
    return finished


def _stage_of(composition: Composition, episode: EpisodeFinished) -> int:
    return int(episode.arm in composition.controls.values())


def _tell_of_beginning(
    about: RunInfo,
    metric: Metric,
    bus: Bus,
    listeners: Sequence[Listener],
    sinks: Sequence[SinkThread],
    path: Path,
    position: Position | None,
) -> None:
    """That a run begins; of one that goes on, those who watch hear what was until then, and sinks that it goes on."""
    started = RunStarted(
        run=about.id,
        arms=about.arms,
        rounds=about.rounds,
        environments=about.environments,
        steps=about.steps,
        metric=metric,
    )
    if position is None:
        bus.publish(started)
        return
    for event in read_events(path):
        for listener in listeners:
            listener.hear(event)
    for sink in sinks:
        sink.hear(started)


def _sinks(resolution: Resolution, run: Path, closing: ExitStack) -> list[SinkThread]:
    """The sinks that the file asks for; one that cannot be built stops the run before it begins."""
    sinks = []
    for chosen in resolution.sinks:
        factory = chosen.component.load()
        with answerable(chosen.label, "while it was built"):
            sink = factory(run, **chosen.settings)
            demand_able("sink", sink, chosen.label)
        sinks.append(SinkThread(sink, chosen.label))
        closing.callback(sinks[-1].close)
    return sinks


def _watched(events: EventFile, pause: Callable[[], None]) -> Callable[[], None]:
    """``pause``, and now and then a look whether the file of events is in its place; RunFolderError where it is not."""
    looked = monotonic()

    def watch() -> None:
        nonlocal looked
        if monotonic() - looked >= LOOK_EVERY_SECONDS:
            looked = monotonic()
            events.require_exists()
        pause()

    return watch
