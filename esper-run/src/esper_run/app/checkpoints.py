"""Checkpointing: when a run writes a checkpoint, what is in it, and where a run resumes.

A checkpoint is written after each round, when the run is interrupted, and after every n-th step. With ``every: auto``
it is written as often as a small share of the run's time allows.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from time import monotonic, perf_counter
from typing import TYPE_CHECKING, Any, Final

from esper_core.leyline.constants import CHECKPOINT_SHARE
from esper_core.leyline.errors import Interrupted, Problem, RunFolderError
from esper_core.leyline.events import EpisodeFinished
from esper_core.leyline.files import open_regular
from esper_core.leyline.protocols import State
from esper_core.telemetry import read_events

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from esper_core.telemetry import Clock, EventFile
    from esper_core.trainer import StudyPosition
    from esper_run.runs.checkpoint_files import Checkpoints


FREE_TO_CHANGE: Final = frozenset(
    {
        "name",
        "sinks",
        "lanes",
        "engine",
        "patience",
        "device",
        "devices",
        "checkpoints",
        "margin",
        "plugins",
        "capacity",
        "store",
    }
)
"""Keys of a configuration that may change before a run is resumed: no computed number depends on them."""

SECONDS_BETWEEN_CHECKS: Final = 1.0
"""How often to check that the run directory is still there."""


@dataclass(frozen=True, slots=True)
class Position:
    """Where a run starts: at a checkpoint, or at the beginning.

    Attributes:
        number: Number of the checkpoint; 0 at the beginning.
        state: What ``CheckpointWriter`` wrote.
        skipped: The newer checkpoints that cannot be used, each with the reason.
        finished: The episodes that were finished by then.
    """

    number: int = 0
    state: State = field(
        default_factory=lambda: State({"study_number": 0, "events": 0, "seconds": {}, "total": 0.0, "warnings": []})
    )
    skipped: tuple[str, ...] = ()
    finished: tuple[EpisodeFinished, ...] = ()

    @property
    def study_number(self) -> int:
        """The study that the run is in: 0, or 1 for that of the controls."""
        return int(self.state.plain["study_number"])

    @property
    def events(self) -> int:
        """Bytes of events.jsonl that were written before the checkpoint."""
        return int(self.state.plain["events"])

    def check_unchanged(self, decisive: Mapping[str, str], run: Path) -> None:
        """Raise RunFolderError (E413) if a value of config.yaml changed that the run's numbers depend on."""
        before = self.state.plain.get("config", decisive)
        for path in sorted({*before, *decisive}):
            was, now = before.get(path, "missing"), decisive.get(path, "missing")
            if was != now:
                message = f"{run / 'config.yaml'} changed since the run began: {path} is {now}, and was {was}"
                hint = f"Restore it and resume, or start a new run with it:  esper run {run / 'config.yaml'}"
                raise RunFolderError(Problem("E413", message, hint=hint))


def decisive_values(config: Mapping[str, Any]) -> dict[str, str]:
    """Return the values of a plain configuration that the run's numbers depend on: each as text, by its path.

    >>> decisive_values({"seed": 0, "lanes": 2, "episode": {"steps": 40}})
    {'seed': '0', 'episode.steps': '40'}
    """
    return dict(_leaves({name: value for name, value in config.items() if name not in FREE_TO_CHANGE}, ""))


def _leaves(value: Any, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _leaves(inner, f"{path}.{name}" if path else name)
    else:
        yield path, json.dumps(value)


def find_position(run: Path, checkpoints: Checkpoints) -> Position:
    """Return where a run resumes: at its newest checkpoint whose events are all in events.jsonl, or at the beginning.

    What follows the checkpoint's position in events.jsonl is not read: resuming cuts the file there.

    Raises:
        RunFolderError: No checkpoint can be used (E413), or the events before its position are invalid (E421).
    """
    path = run / "events.jsonl"
    newest = checkpoints.newest(lambda state: _reason_events_missing(path, state.plain["events"]))
    if newest is None:
        return Position()
    kept = read_events(path, end=newest.state.plain["events"])
    finished = tuple(event for event in kept if isinstance(event, EpisodeFinished))
    return Position(newest.number, newest.state, newest.skipped, finished)


def _reason_events_missing(path: Path, position: int) -> str | None:
    """Return why events.jsonl cannot be cut at this position; None if it can."""
    try:
        with open_regular(path) as file:
            length = file.seek(0, os.SEEK_END)
            file.seek(max(0, position - 1))
            before = file.read(1)
    except OSError as error:
        return f"{path.name} cannot be read: {error.strerror or error}"
    if length >= position and before == b"\n":
        return None
    return f"{path.name} has {length:,} bytes, and no line ends at byte {position:,}, where the checkpoint was written"


@dataclass(slots=True)
class CheckpointWriter:
    """Writes checkpoints of a run. The loop calls ``after_step`` after every step and round.

    Attributes:
        checkpoints: The checkpoints of the run directory.
        events: The file of events, whose length is part of each checkpoint.
        clock: The clock of the run.
        warnings: The warnings of the run, which fill as they come.
        every: Write after every n-th step; "auto" for a small share of the run's time.
        raise_if_interrupted: Raises Interrupted if the run has to end.
        decisive: What ``decisive_values`` gives for the configuration.
        number: Number of the checkpoint that the run resumes from, then of the latest step.
        on_written: Gets the number of each checkpoint, and the bytes of the events before it.
        study_number: The study that the run is in.
    """

    checkpoints: Checkpoints
    events: EventFile
    clock: Clock
    warnings: list[str]
    every: int | str
    raise_if_interrupted: Callable[[], None]
    decisive: Mapping[str, str]
    number: int
    on_written: Callable[[int, int], None] = lambda number, events: None
    study_number: int = field(default=0, init=False)
    _due: float = field(default=0.0, init=False)
    _checked: float = field(default_factory=monotonic, init=False)

    def after_step(self, progress: StudyPosition) -> None:
        """Write a checkpoint if it is time.

        Raises:
            Interrupted: The run has to end; a checkpoint was written.
            RunFolderError: The run directory is gone.
        """
        self.number += 1
        if monotonic() - self._checked >= SECONDS_BETWEEN_CHECKS:
            self._checked = monotonic()
            self.events.require_exists()
        try:
            self.raise_if_interrupted()
        except Interrupted:
            self._write(progress)
            raise
        is_time = self.number % self.every == 0 if isinstance(self.every, int) else perf_counter() >= self._due
        if progress.step == 0 or is_time:
            self._write(progress)

    def _write(self, progress: StudyPosition) -> None:
        began = perf_counter()
        with self.clock.region("checkpoint"):
            self.events.sync()
            self.events.require_exists()  # "the directory is gone" says more than which file cannot be written
            self.checkpoints.write(self.number, self._state(progress))
        self.on_written(self.number, self.events.length)
        self._due = perf_counter() + (perf_counter() - began) / CHECKPOINT_SHARE

    def _state(self, progress: StudyPosition) -> State:
        plain: dict[str, Any] = {
            "study_number": self.study_number,
            "events": self.events.length,
            "seconds": self.clock.seconds,
            "total": self.clock.total,
            "warnings": self.warnings,
            "config": self.decisive,
        }
        return State.of({"study": progress.state_dict()}, **plain)
