"""What happens when a prepared run runs? It is written down, run, and closed with one status, however it ends."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

import torch

from esper_core.app.ability import demand_able
from esper_core.app.guarding import health_check
from esper_core.app.interruption import heeded_signals
from esper_core.app.observing import Observers
from esper_core.app.resolved import resolved_config
from esper_core.app.results import results
from esper_core.app.saying import logged, tell_plainly
from esper_core.app.sections import collected_sections
from esper_core.app.surrounding import surrounded
from esper_core.config import dump_config
from esper_core.config.plain import plain
from esper_core.leyline.errors import EsperError, GovernorStop, Interrupted, Problem, RunFolderError
from esper_core.leyline.events import RunFinished, RunStarted
from esper_core.leyline.running import RunContext, RunInfo, RunOutcome, frozen
from esper_core.plugins.discovery import LOCAL_FILE
from esper_core.runs import RunDirectory
from esper_core.telemetry import BestEffort, Bus, Clock, EventFile
from esper_core.trainer.answerable import answerable
from esper_core.trainer.loop import run_study

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from esper_core.app.compose import Composition
    from esper_core.app.preparing import Prepared
    from esper_core.app.resolution import Resolution
    from esper_core.app.sections import OwnSection
    from esper_core.leyline.events import EpisodeFinished
    from esper_core.telemetry import Listener
    from esper_core.trainer.pool import Ending

log = logging.getLogger("esper")

LOOK_EVERY_SECONDS = 1.0
"""Seconds between two looks at whether the run directory is still there."""

READER_GONE = 141
"""What a shell expects of a command that wrote to a pipe which nobody reads: 128 + SIGPIPE."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a finished run found; the same as its summary.json. ``path`` is absolute; ``named`` as it was asked for."""

    path: Path
    named: Path
    results: Mapping[str, Any]
    timing: Mapping[str, float]
    warnings: Sequence[str] = ()
    """What was warned of while it ran, each once."""
    sections: Sequence[OwnSection] = ()
    """What plugins add to the report."""

    def as_json(self) -> dict[str, Any]:
        """The one object that ``esper run --json`` prints."""
        return {
            "run": str(self.named),
            "status": "done",
            "results": self.results,
            "timing": self.timing,
            "warnings": list(self.warnings),
            "sections": [section.as_json() for section in self.sections],
        }


def run(
    prepared: Prepared,
    *,
    runs_dir: Path,
    name: str | None = None,
    argv: Sequence[str] = (),
    listeners: Sequence[Listener] = (),
    found: Callable[[Outcome], None] = lambda outcome: None,
    tell: Callable[[str], None] = tell_plainly,
) -> Outcome:
    """Run a study in a new run directory. Whatever happens, the directory says how it ended.

    ``found`` is given what was found before it is written: a full disk does not take it away. ``tell`` is given each
    warning, once.
    """
    config = prepared.composition.resolution.loaded.config
    directory = RunDirectory.create(prepared.started_in / runs_dir, name=name or config.name, argv=list(argv))
    with _failing(directory):
        _write_beginning(directory, prepared)
    about, observers = _about(directory, prepared.composition), Observers(prepared.plugins)
    with logged(directory.path / "log.txt", tell) as warnings, _observed(observers, about) as done:
        with _closing(directory):
            finished, clock = _train(prepared, directory, about, observers, listeners)
            sections = collected_sections(prepared.plugins, about)
            named = runs_dir / directory.path.name
            outcome = _outcome(directory, named, prepared.composition, finished, clock, warnings, sections)
            found(outcome)
            _write_end(directory, finished, outcome)
        done(outcome)
    return outcome


def _train(
    prepared: Prepared, directory: RunDirectory, about: RunInfo, observers: Observers, listeners: Sequence[Listener]
) -> tuple[Sequence[tuple[EpisodeFinished, Ending]], Clock]:
    with heeded_signals() as pause:
        log.info("run %s begins", directory.path.name)
        observers.configured(prepared.settings, lambda: plain(resolved_config(prepared.composition.resolution)))
        sinks = _sinks(prepared.composition.resolution, directory.path)
        events = EventFile(directory.path / "events.jsonl")
        bus, clock = Bus([events, *listeners, *sinks, observers]), Clock()
        try:
            bus.publish(
                RunStarted(
                    run=about.id,
                    arms=about.arms,
                    rounds=about.rounds,
                    environments=about.environments,
                    steps=about.steps,
                )
            )
            observers.run_started(about)
            halt = _watched(directory.path / "events.jsonl", pause)
            study = prepared.composition.study(bus, clock, halt, health_check(prepared.plugins))
            with _one_thread():
                finished = surrounded(prepared.plugins, RunContext(about), lambda: run_study(study))
            bus.publish(RunFinished(status="done"))
        except BaseException as error:
            bus.publish(RunFinished(status=_ending(error)[0], reason=_reason(error)))
            raise
        finally:
            events.close()
            for sink in sinks:
                sink.close()
        return finished, clock


def _watched(events: Path, pause: Callable[[], None]) -> Callable[[], None]:
    """``pause``, and RunFolderError where the file of events is no longer in its place: looked at now and then."""
    looked = monotonic()

    def watch() -> None:
        nonlocal looked
        pause()
        if monotonic() - looked < LOOK_EVERY_SECONDS:
            return
        looked = monotonic()
        if not events.exists():
            message = f"cannot write {events}: it was moved or deleted while the run went on"
            hint = "The run was stopped: what it finds would have nowhere to go. Run it again, and leave its folder be."
            raise RunFolderError(Problem("E410", message, hint=hint))

    return watch


def _write_beginning(directory: RunDirectory, prepared: Prepared) -> None:
    resolution = prepared.composition.resolution
    config = resolution.loaded.config
    directory.begin(
        config=dump_config(resolved_config(resolution)),
        source=resolution.loaded.source,
        overrides=list(resolution.loaded.overrides),
        seeds={"first": config.seed, "count": config.rounds * config.environments},
        plugins=[
            {
                "id": record.id,
                "package": record.package,
                "version": record.version,
                "entry_point": Path(record.origin).name if record.package == LOCAL_FILE else record.origin,
                "sha256": record.sha256,
            }
            for record in prepared.plugins.records
            if record.status == "active"
        ],
    )
    for file in prepared.plugins.files:
        directory.write(file.path.name, file.source)


def _about(directory: RunDirectory, composition: Composition) -> RunInfo:
    config = composition.resolution.loaded.config
    return RunInfo(
        id=directory.path.name,
        path=directory.path,
        arms=composition.arm_names,
        rounds=config.rounds,
        environments=config.environments,
        steps=config.episode.steps,
        device=str(composition.recipe.device),
    )


def _sinks(resolution: Resolution, run: Path) -> list[BestEffort]:
    """The sinks that the file asks for; one that cannot be built stops the run before it begins."""
    sinks = []
    for chosen in resolution.sinks:
        factory = chosen.component.load()
        with answerable(chosen.label, "while it was built"):
            sink = factory(run, **chosen.settings)
            demand_able("sink", sink, chosen.label)
        sinks.append(BestEffort(sink, chosen.label))
    return sinks


def _outcome(
    directory: RunDirectory,
    named: Path,
    composition: Composition,
    finished: Sequence[tuple[EpisodeFinished, Ending]],
    clock: Clock,
    warnings: Sequence[str],
    sections: Sequence[OwnSection],
) -> Outcome:
    episodes = [episode for episode, _ in finished]
    margin = composition.resolution.loaded.config.margin
    found = results(composition.task.metric, composition.arm_names, episodes, margin)
    timing = {key: round(value, 4) for key, value in clock.summary().items()}
    return Outcome(directory.path, named, found, timing, tuple(warnings), sections)


def _write_end(directory: RunDirectory, finished: Sequence[tuple[EpisodeFinished, Ending]], outcome: Outcome) -> None:
    directory.write_json(
        "growth.json",
        {
            "format": 1,
            "episodes": [
                {
                    "round": episode.round,
                    "arm": episode.arm,
                    "seed": episode.seed,
                    "grown": [asdict(growth) for growth in ending.growth],
                }
                for episode, ending in finished
            ],
        },
    )
    directory.write_json("summary.json", outcome.as_json())


@contextmanager
def _observed(observers: Observers, run: RunInfo) -> Iterator[Callable[[Outcome], None]]:
    """A block after which observers are told how the run ended; it is given the outcome, if there is one."""
    outcomes: list[Outcome] = []
    try:
        yield outcomes.append
    except BaseException as error:
        observers.run_finished(run, RunOutcome(_ending(error)[0], _reason(error)))
        raise
    observers.run_finished(run, RunOutcome("done", results=frozen(outcomes[0].results)))


@contextmanager
def _closing(directory: RunDirectory) -> Iterator[None]:
    """A block after which the manifest says how it ended."""
    with _failing(directory):
        yield
    directory.finish(status="done", exit_code=0)


@contextmanager
def _failing(directory: RunDirectory) -> Iterator[None]:
    """A block after which the manifest says how it ended, unless it ended well."""
    try:
        yield
    except BaseException as error:
        status, exit_code = _ending(error)
        try:
            directory.finish(status=status, exit_code=exit_code, reason=_reason(error))
        except RunFolderError as second:
            log.warning("the manifest does not say how the run ended: %s", second.problems[0].message)
        raise


def _ending(error: BaseException) -> tuple[Any, int]:
    if isinstance(error, Interrupted):
        return "interrupted", error.status
    if isinstance(error, KeyboardInterrupt):
        return "interrupted", 130
    if isinstance(error, GovernorStop):
        return "stopped", error.exit_code
    if isinstance(error, BrokenPipeError):
        return "failed", READER_GONE
    return "failed", error.exit_code if isinstance(error, EsperError) else 1


def _reason(error: BaseException) -> str:
    return str(error) if isinstance(error, EsperError) else f"{type(error).__name__}: {error}"


@contextmanager
def _one_thread() -> Iterator[None]:
    """One intra-op thread: another number gives other bits, and small networks are no faster with more."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
