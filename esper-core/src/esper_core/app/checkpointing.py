"""Checkpointing: when a run writes a checkpoint, what is in it, and where a run resumes.

A checkpoint is written after each round, when the run is interrupted, and after every n-th step. With ``every: auto``
it is written as often as the time for it stays a small share of the run's.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
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

    from esper_core.runs.checkpoints import Checkpoints
    from esper_core.telemetry import Clock, EventFile
    from esper_core.trainer.progress import StudyProgress


FREE_TO_CHANGE: Final = frozenset(
    {"name", "sinks", "lanes", "workers", "device", "devices", "checkpoints", "margin", "plugins", "capacity"}
)
"""Keys of a configuration that may change before a run is resumed: no computed number depends on them."""

SECONDS_BETWEEN_CHECKS: Final = 1.0
"""How often to check that the run directory is still there."""


@dataclass(frozen=True, slots=True)
class Position:
    """Where an interrupted run resumes: a checkpoint, its state, and the episodes that were finished by then.

    Attributes:
        skipped: The newer checkpoints that cannot be used, each with the reason.
    """

    number: int
    state: State
    skipped: tuple[str, ...]
    finished: tuple[EpisodeFinished, ...]

    @property
    def stage(self) -> int:
        """The study that the run is in: 0, or 1 for that of the controls."""
        return int(self.state.plain["stage"])

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


def find_position(run: Path, checkpoints: Checkpoints) -> Position | None:
    """Return where a run resumes: at its newest checkpoint whose events are all in events.jsonl.

    What follows the checkpoint's position in events.jsonl is not read: resuming cuts the file there.

    Returns:
        None if the run has no checkpoint yet.

    Raises:
        RunFolderError: No checkpoint can be used (E413), or the events before its position are invalid (E421).
    """
    path = run / "events.jsonl"
    newest = checkpoints.newest(lambda state: _reason_events_missing(path, state.plain["events"]))
    if newest is None:
        return None
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
    except FileNotFoundError:
        length, before = 0, b""
    except OSError as error:
        return f"{path.name} cannot be read: {error.strerror or error}"
    if length < position:
        return f"{path.name} has {length:,} bytes, and had {position:,} when the checkpoint was written"
    if before != b"\n":
        return f"{path.name} was changed: no line of it ends at byte {position:,}, where the checkpoint was written"
    return None


class CheckpointWriter:
    """Writes checkpoints of a run. The loop calls ``after_step`` after every step and round.

    Attributes:
        stage: The study that the run is in.
    """

    def __init__(
        self,
        checkpoints: Checkpoints,
        events: EventFile,
        clock: Clock,
        warnings: list[str],
        *,
        every: int | str,
        raise_if_interrupted: Callable[[], None],
        decisive: Mapping[str, str],
        number: int = 0,
    ) -> None:
        """Initialise the writer.

        Args:
            checkpoints: The checkpoints of the run directory.
            events: The file of events, whose length is part of each checkpoint.
            clock: The clock of the run.
            warnings: The warnings of the run, which fill as they come.
            every: Write after every n-th step; "auto" for a small share of the run's time.
            raise_if_interrupted: Raises Interrupted if the run has to end.
            decisive: What ``decisive_values`` gives for the configuration.
            number: Number of the checkpoint that the run resumes from.
        """
        self._checkpoints = checkpoints
        self._events = events
        self._clock = clock
        self._warnings = warnings
        self._every = every
        self._raise_if_interrupted = raise_if_interrupted
        self._decisive = decisive
        self._number = number
        self._due = 0.0
        self._checked = monotonic()
        self.stage = 0

    def after_step(self, progress: StudyProgress) -> None:
        """Write a checkpoint if it is time.

        Raises:
            Interrupted: The run has to end; a checkpoint was written.
            RunFolderError: The run directory is gone.
        """
        self._number += 1
        try:
            if monotonic() - self._checked >= SECONDS_BETWEEN_CHECKS:
                self._checked = monotonic()
                self._events.require_exists()
            self._raise_if_interrupted()
        except Interrupted:
            self._write(progress)
            raise
        if progress.step == 0 or self._is_time():
            self._write(progress)

    def _is_time(self) -> bool:
        if isinstance(self._every, int):
            return self._number % self._every == 0
        return perf_counter() >= self._due

    def _write(self, progress: StudyProgress) -> None:
        began = perf_counter()
        with self._clock.region("checkpoint"):
            self._events.sync()
            try:
                self._checkpoints.write(self._number, self._state(progress))
            except RunFolderError:
                self._events.require_exists()  # "the directory is gone" says more than which file cannot be written
                raise
        self._due = perf_counter() + (perf_counter() - began) / CHECKPOINT_SHARE

    def _state(self, progress: StudyProgress) -> State:
        plain: dict[str, Any] = {
            "stage": self.stage,
            "events": self._events.length,
            "seconds": self._clock.seconds,
            "total": self._clock.total,
            "warnings": self._warnings,
            "config": self._decisive,
        }
        return State.of({"course": progress.state_dict()}, **plain)
