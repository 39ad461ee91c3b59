"""What happens when a prepared run runs, or goes on? It is written down, run, and closed with one status.

However it ends, its directory says how; and until it ends, the directory is this process's alone.
"""

from __future__ import annotations

import logging
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from esper_core.app.checkpointing import position_in
from esper_core.app.ending import reason, status_of
from esper_core.app.resolved import resolved_config
from esper_core.app.results import results
from esper_core.app.saying import logged, tell_plainly
from esper_core.app.training import train
from esper_core.app.whereabouts import tell_of_end, told_where
from esper_core.config import dump_config
from esper_core.leyline.errors import Problem, RunFolderError
from esper_core.leyline.protocols import RunInfo, RunOutcome, frozen
from esper_core.plugins.dispatch import Observers, collected_sections
from esper_core.plugins.isolation import LOCAL_FILE
from esper_core.runs import RunDirectory
from esper_core.runs.checkpoints import Checkpoints
from esper_core.runs.directory import run_lock
from esper_core.runs.records import read_run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from esper_core.app.checkpointing import Position
    from esper_core.app.compose import Composition
    from esper_core.app.preparing import Prepared
    from esper_core.leyline.events import EpisodeFinished
    from esper_core.plugins.dispatch import OwnSection
    from esper_core.runs.records import Run
    from esper_core.telemetry import Clock, Listener

log = logging.getLogger("esper")


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
    with run_lock(directory.path):
        with _failing(directory):
            _write_beginning(directory, prepared)
        return _carried_out(prepared, directory, runs_dir / directory.path.name, None, listeners, found, tell)


def resume(
    prepared: Prepared,
    record: Run,
    *,
    argv: Sequence[str] = (),
    listeners: Sequence[Listener] = (),
    found: Callable[[Outcome], None] = lambda outcome: None,
    tell: Callable[[str], None] = tell_plainly,
) -> Outcome:
    """Resume the run of ``record`` from its newest usable checkpoint, to the numbers that it would have had.

    prepared: its own configuration. RunFolderError where another process works there, or no checkpoint can be used.
    """
    path = prepared.started_in / record.path
    with run_lock(path):
        directory = RunDirectory(path, _unfinished(path))
        checkpoints = Checkpoints(directory.path)
        position = position_in(directory.path, checkpoints)
        if position is not None:
            checkpoints.point_to(position.number)
        directory.resume(list(argv), None if position is None else position.number)
        return _carried_out(prepared, directory, record.path, position, listeners, found, tell)


def _unfinished(path: Path) -> dict[str, Any]:
    """The manifest as it is now that nobody else can change it; RunFolderError where another process was quicker."""
    record = read_run(path)
    if record.status == "done":
        raise RunFolderError(Problem("E412", f"{path} was just finished by another process", hint="See:  esper runs"))
    return dict(record.manifest)


def _carried_out(
    prepared: Prepared,
    directory: RunDirectory,
    named: Path,
    position: Position | None,
    listeners: Sequence[Listener],
    found: Callable[[Outcome], None],
    tell: Callable[[str], None],
) -> Outcome:
    about, observers = _about(directory, prepared.composition), Observers(prepared.plugins)
    log_file = directory.path / "log.txt"
    with told_where(named), logged(log_file, tell) as said, _observed(observers, about) as done:
        if position is not None:
            said.told += position.state.plain["warnings"]
            _warn_of_skipped(position)
        with _closing(directory):
            finished, clock = train(prepared, about, observers, listeners, said, position, partial(tell_of_end, named))
            sections = collected_sections(prepared.plugins, about)
            outcome = _outcome(directory, named, prepared.composition, finished, clock, said.told, sections)
            found(outcome)
            _write_end(directory, finished, outcome)
        done(outcome)
    return outcome


def _warn_of_skipped(position: Position) -> None:
    """Warn where the run resumes from an older checkpoint than its newest."""
    if position.skipped:
        reasons = "; ".join(position.skipped)
        log.warning("resuming from checkpoint %06d: newer ones cannot be used (%s)", position.number, reasons)


def _write_beginning(directory: RunDirectory, prepared: Prepared) -> None:
    resolution = prepared.composition.resolution
    config = resolution.loaded.config
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
            for record in prepared.plugins.records
            if record.status == "active"
        ],
    )
    for number, overlay in enumerate(resolution.loaded.overlays, 1):
        directory.write(f"config.overlay-{number}.yaml", overlay.source)
    for file in prepared.plugins.files:
        directory.write(file.path.name, file.source)


def _about(directory: RunDirectory, composition: Composition) -> RunInfo:
    config = composition.resolution.loaded.config
    return RunInfo(
        id=directory.path.name,
        path=directory.path,
        arms=composition.every_arm,
        rounds=config.rounds,
        environments=config.instances,
        steps=config.episode.steps,
        device=str(composition.recipe.device),
    )


def _outcome(
    directory: RunDirectory,
    named: Path,
    composition: Composition,
    finished: Sequence[EpisodeFinished],
    clock: Clock,
    warnings: Sequence[str],
    sections: Sequence[OwnSection],
) -> Outcome:
    margin = composition.resolution.loaded.config.margin
    arms = [arm for arm in composition.every_arm if any(episode.arm == arm for episode in finished)]
    found = results(composition.task.metric, arms, finished, margin)
    timing = {key: round(value, 4) for key, value in clock.summary().items()}
    return Outcome(directory.path, named, found, timing, tuple(warnings), sections)


def _write_end(directory: RunDirectory, finished: Sequence[EpisodeFinished], outcome: Outcome) -> None:
    directory.write_json(
        "growth.json",
        {
            "format": 1,
            "episodes": [
                {
                    "round": episode.round,
                    "arm": episode.arm,
                    "seed": episode.seed,
                    "grown": list(episode.grown),
                }
                for episode in finished
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
        observers.run_finished(run, RunOutcome(status_of(error)[0], reason(error)))
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
        status, exit_code = status_of(error)
        try:
            directory.finish(status=status, exit_code=exit_code, reason=reason(error))
        except RunFolderError as second:
            log.warning("the manifest does not say how the run ended: %s", second.problems[0].message)
        raise
