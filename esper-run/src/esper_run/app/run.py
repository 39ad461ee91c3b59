"""Run a composed configuration, or resume an interrupted run, in a run directory of its own.

``run`` and ``resume`` prepare a ``_Session``, and ``_Session.execute`` does the rest: open the log, train the study and
then the study of its controls, write the results. However the run ends, its manifest says how, and the error that ended
it says where the run is and how to resume it.
"""

from __future__ import annotations

import logging
import sys
from contextlib import ExitStack, contextmanager, redirect_stdout, suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Any

from esper_core.leyline.errors import GovernorStop, PluginError, Problem, RunFolderError
from esper_core.leyline.events import RunFinished, RunStarted
from esper_core.leyline.files import append_regular, refuse_special
from esper_core.leyline.protocols import RunInfo, RunOutcome
from esper_core.telemetry import Bus, Clock, EventFile, read_events
from esper_core.trainer import StudyPosition, run_study
from esper_run.app.checkpoints import CheckpointWriter, Position, decisive_values, find_position
from esper_run.app.components import open_sinks
from esper_run.app.compose import Composition, StudyContext, code_of, prepare
from esper_run.app.dispatch import Observers, frozen, health_check
from esper_run.app.endings import add_location, reason_of, record_end, record_interruption, status_of
from esper_run.app.interrupts import SignalHandler, handled_signals
from esper_run.app.lost_seeds import LostBlueprint, SeedLosses
from esper_run.app.recipes import digest_data
from esper_run.app.resolution import resolved_config
from esper_run.app.runtime import one_thread
from esper_run.config import dump_config
from esper_run.engines import EngineContext
from esper_run.runs import RunDirectory
from esper_run.runs.checkpoint_files import Checkpoints
from esper_run.runs.directory import report_os_errors, run_lock
from esper_run.runs.findings import check_command
from esper_run.runs.records import read_run
from esper_run.runs.statistics import results
from esper_run.runs.uploads import Uploader
from esper_run.stores import open_store
from esper_run.watchdog import watched

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from esper_core.leyline.events import EpisodeFinished
    from esper_core.telemetry import Listener
    from esper_core.trainer import Study
    from esper_run.engines import EngineSession
    from esper_run.runs.records import Run
    from esper_run.watchdog import Heartbeat

log = logging.getLogger("esper")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a finished run found; the same as its summary.json.

    Attributes:
        path: The run directory, absolute.
        named: The run directory as the user named it, for messages.
        warnings: Each warning of the run, once.
        events: Length and SHA-256 of events.jsonl.
        lost_seeds: The blueprints with lost seeds.
    """

    path: Path
    named: Path
    results: Mapping[str, Any]
    timing: Mapping[str, float]
    warnings: Sequence[str] = ()
    lost_seeds: Sequence[LostBlueprint] = ()
    events: Mapping[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Return the object that ``esper run --json`` prints."""
        return {
            "run": str(self.named),
            "status": "done",
            "results": self.results,
            "timing": self.timing,
            "warnings": list(self.warnings),
            "events": self.events,
            "lost_seeds": [asdict(record) for record in self.lost_seeds],
        }

    @property
    def problems(self) -> list[Problem]:
        """What was wrong although the run is done: a problem for each blueprint of which no seed survived."""
        message, hint = "no seed of a blueprint survived.", "The other results stand. Test the blueprint:  "
        hopeless = [(lost, check_command(lost.blueprint, lost.package)) for lost in self.lost_seeds if lost.is_hopeless]
        return [Problem("E320", f"{message} {lost}", hint=f"{hint}{command}") for lost, command in hopeless]

    @property
    def exit_code(self) -> int:
        """The exit code of ``esper run``: that of a broken plugin if there is a problem, else 0."""
        return PluginError.exit_code if self.problems else 0


def print_warning(text: str) -> None:
    """Print a warning on stderr."""
    print(f"warning: {text}", file=sys.stderr, flush=True)


def run(
    configuration: Composition | Mapping[str, Any] | Path | str,
    *,
    overrides: Sequence[str] = (),
    runs_dir: Path | str = "runs",
    name: str | None = None,
    argv: Sequence[str] = (),
    listeners: Sequence[Listener] = (),
    on_outcome: Callable[[Outcome], None] = lambda outcome: None,
    on_warning: Callable[[str], None] = print_warning,
) -> Outcome:
    """Run a study in a new run directory.

    Args:
        configuration: A configuration file, what it would contain, or what ``app.compose.prepare`` built from it.
        overrides: ``PATH=VALUE`` for single values, as ``--set`` takes them; not for a composition.
        runs_dir: Where the run directory is made.
        name: What the run is called, instead of the configuration's name.
        argv: The command, for the manifest.
        listeners: Get every event.
        on_outcome: Gets the outcome before it is written, so that a full disk does not take it away.
        on_warning: Gets each warning, once.
    """
    composition = configuration if isinstance(configuration, Composition) else prepare(configuration, overrides)
    name = name or composition.config.name
    uploader = _uploader(composition)
    directory = RunDirectory.create(Path.cwd() / runs_dir, name=name, argv=list(argv), is_free=uploader.claim_new)
    named = Path(runs_dir) / directory.path.name
    with run_lock(directory.path), uploader.uploading(named, on_warning) as upload:
        session = _Session(composition, directory, named, Position(), listeners, on_outcome, on_warning, upload)
        return session.execute(partial(_write_start, directory, composition))


def resume(
    composition: Composition,
    record: Run,
    *,
    argv: Sequence[str] = (),
    listeners: Sequence[Listener] = (),
    on_outcome: Callable[[Outcome], None] = lambda outcome: None,
    on_warning: Callable[[str], None] = print_warning,
) -> Outcome:
    """Resume a run from its newest usable checkpoint. It ends with the numbers that it would have had.

    The composition is that of the run's own config.yaml. Listeners get the events of before, too. The
    other arguments are those of ``run``.

    Raises:
        RunFolderError: Another process works in the directory, no checkpoint can be used, or the configuration changed.
    """
    path = Path.cwd() / record.path
    with run_lock(path):
        now = read_run(path)  # as it is now that no other process can change it
        if now.status == "done":
            message = f"{path} was just finished by another process"
            raise RunFolderError(Problem("E412", message, hint="See:  esper runs"))
        directory, position = RunDirectory(path, dict(now.manifest)), find_position(path, Checkpoints(path))
        resolved = resolved_config(composition.resolution)
        position.check_unchanged(decisive_values(resolved.model_dump(mode="json")), path)
        before = now.manifest.get("data", {})  # runs of older versions have none
        if changed := [name for name, sha in digest_data(composition.recipe).items() if before.get(name, sha) != sha]:
            message = f"the data of the task changed since {path} began: {', '.join(changed)}"
            hint = "Restore the data, or start again. A task that splits at random needs an RNG seed of its own.\n"
            hint += 'If only last bits differ, as on another processor, delete "data" in manifest.json.'
            raise RunFolderError(Problem("E413", message, hint=hint))
        uploader = _uploader(composition)
        uploader.claim(path, position.number)
        with uploader.uploading(record.path, on_warning) as upload:
            session = _Session(composition, directory, record.path, position, listeners, on_outcome, on_warning, upload)
            return session.execute(partial(directory.resume, list(argv), position.number or None))


def _uploader(composition: Composition) -> Uploader:
    store = composition.config.store
    return Uploader(None if store is None else open_store(store))


@dataclass(frozen=True, slots=True)
class _Session:
    """One execution of a run: what ``run`` or ``resume`` was called with, and where it starts."""

    composition: Composition
    directory: RunDirectory
    named: Path
    position: Position
    listeners: Sequence[Listener]
    on_outcome: Callable[[Outcome], None]
    on_warning: Callable[[str], None]
    on_checkpoint: Callable[[int, int], None]

    def execute(self, begin: Callable[[], None]) -> Outcome:
        """Train, write the results, and record how the run ended: in the manifest, to the observers, and in the error.

        Args:
            begin: Writes to the run directory that the run starts or is resumed.
        """
        plugins, path = self.composition.resolution.plugins, self.directory.path
        grace, device = self.composition.config.grace, str(self.composition.recipe.device)
        info, observers = RunInfo(id=path.name, path=path, device=device, **self._size()), Observers(plugins)
        record, losses = partial(record_interruption, self.directory, self.named), SeedLosses()
        with handled_signals(self.named, grace, record) as signals, _logging(path, self.on_warning) as warnings:
            try:
                begin()
                warnings += self.position.state.plain["warnings"]
                finished, clock, events = self._train(info, observers, warnings, losses, signals)
                timing = {region: round(seconds, 4) for region, seconds in clock.summary().items()}
                arms = [arm for arm in self.composition.every_arm if any(episode.arm == arm for episode in finished)]
                numbers = results(self.composition.task.metric, arms, finished)
                outcome = Outcome(path, self.named, numbers, timing, tuple(warnings), losses.counted(), events)
                self.on_outcome(outcome)
                episodes = [
                    {"round": episode.round, "arm": episode.arm, "seed": episode.seed, "grown": list(episode.grown)}
                    for episode in finished
                ]
                self.directory.write_results(episodes, outcome.as_json())
                self.directory.finish(status="done", exit_code=outcome.exit_code)
            except BaseException as error:
                status, exit_code = status_of(error)
                try:
                    self.directory.finish(status=status, exit_code=exit_code, reason=reason_of(error))
                except RunFolderError as second:
                    log.warning("the manifest does not say how the run ended: %s", second.problems[0].message)
                with self._watched(signals):
                    observers.run_finished(info, RunOutcome(status, reason_of(error)))
                add_location(error, self.named)
                raise
            with self._watched(signals):
                observers.run_finished(info, RunOutcome("done", results=frozen(outcome.results)))
        return outcome

    def _watched(self, signals: SignalHandler) -> AbstractContextManager[Heartbeat]:
        """Return a context in which a component that blocks or crashes this process is named."""
        patience = self.composition.config.patience
        on_end = partial(record_end, self.directory, self.named)
        return watched(None if patience == "auto" else patience, on_end, signals.interruption)

    def _size(self) -> dict[str, Any]:
        """Return what both plugins and the first event say of the run."""
        config, arms = self.composition.config, self.composition.every_arm
        counts = {"rounds": config.rounds, "environments": config.environments, "steps": config.episode.steps}
        return {"arms": arms, **counts}

    def _train(
        self,
        info: RunInfo,
        observers: Observers,
        warnings: list[str],
        losses: SeedLosses,
        signals: SignalHandler,
    ) -> tuple[Sequence[EpisodeFinished], Clock, Mapping[str, Any]]:
        """Train to the end; return how every episode ended, where the time went, and the checksum of the events."""
        resolution, position, path = self.composition.resolution, self.position, info.path
        config = resolved_config(resolution).model_dump(mode="json")
        # stdout is for what the command prints; sinks close in bounded time by themselves
        with redirect_stdout(sys.stderr), ExitStack() as closing, self._watched(signals) as heartbeat:
            start = f"resumes from checkpoint {position.number}" if position.number else "starts"
            log.info("run %s %s", info.id, start)
            if position.skipped:
                reasons = "; ".join(position.skipped)
                log.warning("resuming from checkpoint %06d: newer ones cannot be used (%s)", position.number, reasons)
            observers.configured(config)
            listeners = [losses, *self.listeners]
            sinks = open_sinks(resolution.of_kind("sink"), path, closing)
            clock = Clock()
            clock.continue_from(position.state.plain["seconds"], position.state.plain["total"])
            events = EventFile(path / "events.jsonl", after=position.events)
            closing.callback(events.close)
            bus = Bus([events, *listeners, *sinks, observers])
            writer = self._checkpoint_writer(events, clock, warnings, decisive_values(config), signals)
            engine, composed = self._open_engine(closing, signals.raise_if_interrupted), self.composition
            beat = partial(_beat, heartbeat, signals)
            context = StudyContext(bus, clock, health_check(resolution.plugins), engine, beat)
            try:
                if position.number:
                    for event in read_events(path / "events.jsonl"):
                        for listener in listeners:
                            listener.hear(event)
                started = RunStarted(
                    run=info.id,
                    metric=composed.task.metric,
                    host=composed.layers,
                    choices=dict(composed.space.blueprints),
                    gains_in=composed.gains_in,
                    **self._size(),
                )
                (Bus(sinks) if position.number else bus).publish(started)
                observers.run_started(info)
                with one_thread():
                    finished = self._train_studies(context, writer)
                bus.publish(RunFinished(status="done"))
                events.settle()
            except BaseException as error:
                bus.publish(RunFinished(status=status_of(error)[0], reason=reason_of(error)))
                raise
            return finished, clock, events.checksum

    def _checkpoint_writer(
        self,
        events: EventFile,
        clock: Clock,
        warnings: list[str],
        decisive: Mapping[str, str],
        signals: SignalHandler,
    ) -> CheckpointWriter:
        """Return what writes checkpoints from the run's position on."""
        settings, number = self.composition.config.checkpoints, self.position.number
        checkpoints, pause = Checkpoints(self.directory.path, settings.keep), signals.raise_if_interrupted
        if number:
            checkpoints.return_to(number)
        networks, metric = self.directory.path / "networks", self.composition.task.metric
        writer = CheckpointWriter(
            checkpoints, networks, metric, events, clock, warnings, settings.every, pause, decisive, number
        )
        writer.on_written = self.on_checkpoint
        return writer

    def _open_engine(self, closing: ExitStack, on_wait: Callable[[], None]) -> EngineSession | None:
        """Return the engine of the run, which ``closing`` closes; None: threads of this process."""
        configured = self.composition.resolution.engine
        context = EngineContext(self.composition, configured.settings, self.directory.add_node, on_wait)
        session = None if configured.engine is None else configured.engine.open(context)
        if session is not None:
            closing.callback(session.close)
        return session

    def _train_studies(self, context: StudyContext, writer: CheckpointWriter) -> list[EpisodeFinished]:
        """Train the study of the configuration, then that of its controls; return how every episode ended."""
        position, composition = self.position, self.composition
        finished: list[EpisodeFinished] = []
        controls = frozenset(composition.controls.values())
        builders: tuple[Callable[[StudyContext], Study | None], ...] = (
            composition.study,
            partial(composition.follow_up, finished=finished),
        )
        for study_number, build in enumerate(builders):
            before = [episode for episode in position.finished if (episode.arm in controls) == bool(study_number)]
            if study_number < position.study_number:
                finished += before
                continue
            if (study := build(context)) is None:
                continue
            writer.study_number = study_number
            progress = StudyPosition(study)
            try:
                if position.number and study_number == position.study_number:
                    position.restore(progress, before)
                finished += run_study(progress, partial(_after_step, context, writer))
            except (GovernorStop, PluginError) as error:
                if study_number == 0:
                    raise
                log.warning("the static control failed and is left out of the results: %s", error)
            finally:
                study.pool.close()
        return finished


def _beat(heartbeat: Heartbeat, signals: SignalHandler, pool_index: int) -> None:
    """Tell the watching process that the run goes on, and give up a step whose grace is over."""
    heartbeat(pool_index)
    if pool_index < 0:  # on the run's own thread, which may wait for a worker that hangs
        signals.raise_if_expired()


def _after_step(context: StudyContext, writer: CheckpointWriter, progress: StudyPosition) -> None:
    context.heartbeat(-1)
    writer.after_step(progress)


# --- files


def _write_start(directory: RunDirectory, composition: Composition) -> None:
    resolution, config = composition.resolution, composition.config
    directory.begin(
        config=dump_config(resolved_config(resolution)),
        source=resolution.loaded.source,
        overrides=list(resolution.loaded.overrides),
        seeds={"first": config.seed, "count": config.rounds * config.environments},
        data=digest_data(composition.recipe),
        plugins=code_of(resolution),
    )
    for file in resolution.plugins.files:
        directory.write(file.path.name, file.source)


class _RunLog(logging.FileHandler):
    """Writes log.txt, and passes on and keeps each warning once."""

    def __init__(self, path: Path, on_warning: Callable[[str], None]) -> None:
        super().__init__(path, encoding="utf-8", delay=True)
        self.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        self.on_warning = on_warning
        self.warnings: list[str] = []

    def _open(self) -> TextIOWrapper:
        # As all files of a run, which may come from anywhere: not through a link, and not where it would wait.
        return TextIOWrapper(append_regular(Path(self.baseFilename)), encoding="utf-8")

    def emit(self, record: logging.LogRecord) -> None:
        """Write a message; pass it on if it is a new warning."""
        with suppress(OSError):  # the disk may be full before the file exists; other files then end the run
            super().emit(record)
        message = record.getMessage()
        if record.levelno >= logging.WARNING and message not in self.warnings:
            self.warnings.append(message)
            with suppress(OSError):  # stderr may be closed; log.txt has it
                self.on_warning(message)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        """Print no traceback for a message that cannot be written; others are a mistake in Esper."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handleError(record)


@contextmanager
def _logging(run: Path, on_warning: Callable[[str], None]) -> Iterator[list[str]]:
    """Write log messages to log.txt within the block; yield the list of warnings, which fills as they come.

    Raises:
        RunFolderError: E410, log.txt is no regular file. A full disk is no reason to stop here.
    """
    with report_os_errors(run / "log.txt"):
        refuse_special(run / "log.txt")
    handler, level = _RunLog(run / "log.txt", on_warning), log.level
    log.setLevel(logging.INFO)
    log.addHandler(handler)
    try:
        yield handler.warnings
    finally:
        log.removeHandler(handler)
        log.setLevel(level)
        handler.close()
