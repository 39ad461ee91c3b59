"""Run a composed configuration, or resume an interrupted run, in a run directory of its own.

The order is that of ``_execute``: open the log, tell the observers, train the study and then the study of its controls
(``_train``), write the results. However the run ends, its manifest says how, and the error that ended it says where the
run is and how to resume it.
"""

from __future__ import annotations

import logging
import shlex
import sys
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from esper_core.app.checkpointing import CheckpointWriter, decisive_values, find_position
from esper_core.app.components import open_display, open_sinks
from esper_core.app.compose import Composition, StudyContext, prepare
from esper_core.app.interrupts import handled_signals
from esper_core.app.resolution import resolved_config
from esper_core.app.runtime import one_thread
from esper_core.config import dump_config
from esper_core.leyline.errors import (
    EsperError,
    GovernorStop,
    Interrupted,
    PluginError,
    Problem,
    RunFolderError,
)
from esper_core.leyline.events import RunFinished, RunStarted
from esper_core.leyline.protocols import RunContext, RunInfo, RunOutcome, frozen
from esper_core.plugins.dispatch import Observers, collect_sections, health_check, run_wrapped
from esper_core.plugins.isolation import LOCAL_FILE, output_to_stderr
from esper_core.runs import RunDirectory
from esper_core.runs.checkpoints import Checkpoints
from esper_core.runs.directory import run_lock, write_json
from esper_core.runs.records import read_run, resume_hint
from esper_core.runs.statistics import results
from esper_core.telemetry import Bus, Clock, EventFile, read_events
from esper_core.trainer.loop import run_study
from esper_core.trainer.progress import StudyProgress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from esper_core.app.checkpointing import Position
    from esper_core.leyline.events import EpisodeFinished
    from esper_core.leyline.protocols import RunStatus
    from esper_core.plugins import Component
    from esper_core.plugins.dispatch import PluginSection
    from esper_core.runs.records import Run
    from esper_core.telemetry import Listener, SinkThread
    from esper_core.trainer.study import Study

log = logging.getLogger("esper")

READER_GONE: Final = 141
"""The exit code that a shell expects of a command whose output pipe was closed: 128 + SIGPIPE."""

REPORT: Final = "report.html"
"""Name of the report in a run directory, if a package is installed that writes one."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a finished run found; the same as its summary.json.

    Attributes:
        path: The run directory, absolute.
        named: The run directory as the user named it, for messages.
        warnings: Each warning of the run, once.
        sections: What plugins add to the report.
    """

    path: Path
    named: Path
    results: Mapping[str, Any]
    timing: Mapping[str, float]
    warnings: Sequence[str] = ()
    sections: Sequence[PluginSection] = ()

    def as_json(self) -> dict[str, Any]:
        """Return the object that ``esper run --json`` prints."""
        return {
            "run": str(self.named),
            "status": "done",
            "results": self.results,
            "timing": self.timing,
            "warnings": list(self.warnings),
            "sections": [section.as_json() for section in self.sections],
        }


def print_warning(text: str) -> None:
    """Print a warning on stderr."""
    print(f"warning: {text}", file=sys.stderr, flush=True)


def ignore_outcome(outcome: Outcome) -> None:
    """Do nothing with an outcome."""


def run(
    configuration: Composition | Path | str,
    *,
    runs_dir: Path | str = "runs",
    name: str | None = None,
    argv: Sequence[str] = (),
    listeners: Sequence[Listener] = (),
    display: Component | None = None,
    on_outcome: Callable[[Outcome], None] = ignore_outcome,
    on_warning: Callable[[str], None] = print_warning,
) -> Outcome:
    """Run a study in a new run directory.

    Args:
        configuration: A configuration file, or what ``app.compose.prepare`` built from one.
        runs_dir: Where the run directory is made.
        name: What the run is called, instead of the configuration's name.
        argv: The command, for the manifest.
        listeners: Get every event.
        display: A sink that shows the run on the terminal. It gets every event on the run's own thread.
        on_outcome: Gets the outcome before it is written, so that a full disk does not take it away.
        on_warning: Gets each warning, once.
    """
    composition = prepare(configuration) if isinstance(configuration, Path | str) else configuration
    name = name or composition.config.name
    directory = RunDirectory.create(Path.cwd() / runs_dir, name=name, argv=list(argv))
    with run_lock(directory.path):
        with _failure_recorded(directory):
            _write_start(directory, composition)
        named = Path(runs_dir) / directory.path.name
        return _execute(_Session(composition, directory, named, None, listeners, display, on_outcome, on_warning))


def resume(
    composition: Composition,
    record: Run,
    *,
    argv: Sequence[str] = (),
    listeners: Sequence[Listener] = (),
    display: Component | None = None,
    on_outcome: Callable[[Outcome], None] = ignore_outcome,
    on_warning: Callable[[str], None] = print_warning,
) -> Outcome:
    """Resume a run from its newest usable checkpoint. It ends with the numbers that it would have had.

    Args:
        composition: That of the run's own config.yaml.
        record: The run.
        argv: The command, for the manifest.
        listeners: Get every event, those of before first.
        display: As for ``run``; it gets the events of before, too.
        on_outcome: As for ``run``.
        on_warning: As for ``run``.

    Raises:
        RunFolderError: Another process works in the directory, no checkpoint can be used, or the configuration changed.
    """
    path = Path.cwd() / record.path
    with run_lock(path):
        now = read_run(path)  # as it is now that no other process can change it
        if now.status == "done":
            message = f"{path} was just finished by another process"
            raise RunFolderError(Problem("E412", message, hint="See:  esper runs"))
        directory, checkpoints = RunDirectory(path, dict(now.manifest)), Checkpoints(path)
        position = find_position(path, checkpoints)
        if position is not None:
            checkpoints.point_to(position.number)
        directory.resume(list(argv), None if position is None else position.number)
        return _execute(
            _Session(composition, directory, record.path, position, listeners, display, on_outcome, on_warning)
        )


@dataclass(frozen=True, slots=True)
class _Session:
    """One execution of a run: what ``run`` or ``resume`` was called with, and where it starts."""

    composition: Composition
    directory: RunDirectory
    named: Path
    position: Position | None
    listeners: Sequence[Listener]
    display: Component | None
    on_outcome: Callable[[Outcome], None]
    on_warning: Callable[[str], None]

    @property
    def path(self) -> Path:
        """The run directory."""
        return self.directory.path

    def info(self) -> RunInfo:
        """Return what plugins are told of the run."""
        config = self.composition.config
        return RunInfo(
            id=self.path.name,
            path=self.path,
            arms=self.composition.every_arm,
            rounds=config.rounds,
            environments=config.instances,
            steps=config.episode.steps,
            device=str(self.composition.recipe.device),
        )


def _execute(session: _Session) -> Outcome:
    """Train, write the results, and record how the run ended: in the manifest, to the observers, and in the error."""
    directory, plugins = session.directory, session.composition.resolution.plugins
    info, observers = session.info(), Observers(plugins)
    with _location_in_errors(session.named), _logging(session.path / "log.txt", session.on_warning) as warnings:
        if session.position is not None:
            _restore_warnings(session.position, warnings)
        try:
            with _failure_recorded(directory):
                finished, clock = _train(session, info, observers, warnings)
                sections = collect_sections(plugins, info)
                timing = {key: round(value, 4) for key, value in clock.summary().items()}
                found = _results(session.composition, finished)
                outcome = Outcome(session.path, session.named, found, timing, tuple(warnings), sections)
                session.on_outcome(outcome)
                _write_results(directory, finished, outcome)
            directory.finish(status="done", exit_code=0)
        except BaseException as error:
            observers.run_finished(info, RunOutcome(status_of(error)[0], _reason(error)))
            raise
        observers.run_finished(info, RunOutcome("done", results=frozen(outcome.results)))
    return outcome


def _restore_warnings(position: Position, warnings: list[str]) -> None:
    warnings += position.state.plain["warnings"]
    if position.skipped:
        reasons = "; ".join(position.skipped)
        log.warning("resuming from checkpoint %06d: newer ones cannot be used (%s)", position.number, reasons)


# --- training


def _train(
    session: _Session, info: RunInfo, observers: Observers, warnings: list[str]
) -> tuple[Sequence[EpisodeFinished], Clock]:
    """Train to the end; return how every episode ended, and where the time went."""
    composition, position, path = session.composition, session.position, session.path
    resolution, checkpoint_config = composition.resolution, composition.config.checkpoints
    values = resolved_config(resolution).model_dump(mode="json")
    decisive = decisive_values(values)
    if position is not None:
        position.check_unchanged(decisive, path)
    with handled_signals(session.named) as raise_if_interrupted, ExitStack() as closing:
        log.info("run %s %s", info.id, "starts" if position is None else f"resumes from checkpoint {position.number}")
        observers.configured(resolution.plugin_settings, lambda: values)
        listeners = [*session.listeners, *open_display(session.display, session.path, closing)]
        sinks = open_sinks(resolution.sinks, session.path, closing)
        clock = Clock()
        events = EventFile(path / "events.jsonl", after=0 if position is None else position.events)
        closing.callback(events.close)
        bus = Bus([events, *listeners, *sinks, observers])
        checkpoints = Checkpoints(path, checkpoint_config.keep)
        if position is not None:
            checkpoints.discard_after(position.number)
            clock.continue_from(position.state.plain["seconds"], position.state.plain["total"])
        try:
            _publish_start(session, info, bus, listeners, sinks)
            observers.run_started(info)
            writer = CheckpointWriter(
                checkpoints,
                events,
                clock,
                warnings,
                every=checkpoint_config.every,
                raise_if_interrupted=raise_if_interrupted,
                decisive=decisive,
                number=0 if position is None else position.number,
            )
            context = StudyContext(bus, clock, health_check(resolution.plugins))
            with one_thread(), output_to_stderr():  # stdout is for what the command prints
                train = partial(_train_studies, composition, context, writer, position)
                finished = run_wrapped(resolution.plugins, RunContext(info), train)
            bus.publish(RunFinished(status="done"))
        except BaseException as error:
            bus.publish(RunFinished(status=status_of(error)[0], reason=_reason(error)))
            raise
        return finished, clock


def _train_studies(
    composition: Composition, context: StudyContext, writer: CheckpointWriter, position: Position | None
) -> list[EpisodeFinished]:
    """Train the study of the configuration, then that of its controls; return how every episode ended."""
    finished: list[EpisodeFinished] = []
    controls = frozenset(composition.controls.values())
    builders: list[Callable[[], Study | None]] = [
        lambda: composition.study(context),
        lambda: composition.follow_up(context, finished),
    ]
    for stage, build in enumerate(builders):
        before = [] if position is None else [one for one in position.finished if (one.arm in controls) == bool(stage)]
        if position is not None and stage < position.stage:
            finished += before
            continue
        if (study := build()) is None:
            continue
        writer.stage = stage
        progress = StudyProgress(study)
        try:
            if position is not None and stage == position.stage:
                progress.load_state_dict(position.state.part("course"), before)
            finished += run_study(progress, writer.after_step)
        except (GovernorStop, PluginError) as error:
            if stage == 0:
                raise
            log.warning("the control by static capacity failed and is left out of the results: %s", error)
        finally:
            study.pool.close()
    return finished


def _publish_start(
    session: _Session, info: RunInfo, bus: Bus, listeners: Sequence[Listener], sinks: Sequence[SinkThread]
) -> None:
    """Publish that the run starts. Of a resumed run, listeners get all events so far, and sinks the start alone."""
    started = RunStarted(
        run=info.id,
        arms=info.arms,
        rounds=info.rounds,
        environments=info.environments,
        steps=info.steps,
        metric=session.composition.task.metric,
    )
    if session.position is None:
        bus.publish(started)
        return
    for event in read_events(session.path / "events.jsonl"):
        for listener in listeners:
            listener.hear(event)
    for sink in sinks:
        sink.hear(started)


# --- files


def _write_start(directory: RunDirectory, composition: Composition) -> None:
    resolution, config = composition.resolution, composition.config
    directory.begin(
        config=dump_config(resolved_config(resolution)),
        source=resolution.loaded.source,
        overrides=list(resolution.loaded.overrides),
        seeds={"first": config.seed, "count": config.rounds * config.instances},
        plugins=[
            {
                "id": record.id,
                "package": record.package,
                "version": record.version,
                "entry_point": Path(record.origin).name if record.package == LOCAL_FILE else record.origin,
                "sha256": record.sha256,
            }
            for record in resolution.plugins.records
            if record.status == "active"
        ],
    )
    for number, overlay in enumerate(resolution.loaded.overlays, 1):
        directory.write(f"config.overlay-{number}.yaml", overlay.source)
    for file in resolution.plugins.files:
        directory.write(file.path.name, file.source)


def _results(composition: Composition, finished: Sequence[EpisodeFinished]) -> dict[str, Any]:
    arms = [arm for arm in composition.every_arm if any(episode.arm == arm for episode in finished)]
    return results(composition.task.metric, arms, finished, composition.config.margin)


def _write_results(directory: RunDirectory, finished: Sequence[EpisodeFinished], outcome: Outcome) -> None:
    episodes = [{"round": one.round, "arm": one.arm, "seed": one.seed, "grown": list(one.grown)} for one in finished]
    write_json(directory.path / "growth.json", {"format": 1, "episodes": episodes})
    write_json(directory.path / "summary.json", outcome.as_json())


@contextmanager
def _logging(path: Path, on_warning: Callable[[str], None]) -> Iterator[list[str]]:
    """Within the block, write log messages to ``path``; yield the list of warnings, which fills as they come."""
    file = logging.FileHandler(path, encoding="utf-8", delay=True)
    file.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    warnings = _WarningHandler(on_warning)
    level = log.level
    log.setLevel(logging.INFO)
    log.addHandler(file)
    log.addHandler(warnings)
    try:
        yield warnings.messages
    finally:
        log.removeHandler(warnings)
        log.removeHandler(file)
        log.setLevel(level)
        file.close()


class _WarningHandler(logging.Handler):
    """Passes on each warning once, and keeps it."""

    def __init__(self, on_warning: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._on_warning = on_warning
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Pass on the message unless it is known."""
        message = record.getMessage()
        if message not in self.messages:
            self.messages.append(message)
            with suppress(OSError):  # stderr may be closed; log.txt has it
                self._on_warning(message)


# --- how a run ends


def status_of(error: BaseException) -> tuple[RunStatus, int]:
    """Return the status and the exit code of a run that ``error`` ended."""
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
def _failure_recorded(directory: RunDirectory) -> Iterator[None]:
    """If the block raises, write to the manifest how the run ended."""
    try:
        yield
    except BaseException as error:
        status, exit_code = status_of(error)
        try:
            directory.finish(status=status, exit_code=exit_code, reason=_reason(error))
        except RunFolderError as second:
            log.warning("the manifest does not say how the run ended: %s", second.problems[0].message)
        raise


@contextmanager
def _location_in_errors(folder: Path) -> Iterator[None]:
    """Add to an error that ends the run where the run is and how to resume it.

    A problem has it at the end of its hint; an error that is not Esper's, as a note. Nothing is added to a wrong
    configuration, to a directory that is gone, or where the reader of the output went away.
    """
    try:
        yield
    except (Interrupted, GovernorStop, PluginError, RunFolderError) as error:
        if not isinstance(error, RunFolderError) or _is_only_unwritable(error, folder):
            *others, last = error.problems
            location = _location(folder, status_of(error)[0])
            error.problems = (*others, replace(last, hint=f"{last.hint}\n{location}" if last.hint else location))
        raise
    except Exception as error:
        if not isinstance(error, EsperError | BrokenPipeError):
            error.add_note(_location(folder, status_of(error)[0]))
        raise


def _is_only_unwritable(error: RunFolderError, folder: Path) -> bool:
    """Return whether the directory is whole and nothing more can be written to it, as on a full disk."""
    files = (folder / name for name in ("manifest.json", "events.jsonl"))
    return error.problems[-1].code == "E410" and all(map(Path.is_file, files))


def _location(folder: Path, status: RunStatus) -> str:
    lines = [f"Run directory: {folder}"]
    if (report := folder / REPORT).is_file():
        lines.append(f"Report: {report}")
    lines.append(resume_hint(folder))
    if status == "failed":
        lines.append("Fix the cause first: resuming repeats the failed step.")
    elif status == "stopped":
        anew = f"esper run {shlex.quote(str(folder))} --set PATH=VALUE"
        lines.append(f"Resuming stops at the same step again. To start over with other settings:  {anew}")
    return "\n".join(lines)
