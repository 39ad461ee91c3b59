"""When is it written down where a run is, and what does it take to go on from there?

After each round, after a step in which somebody asked the run to end, and after every n-th step; where the file does
not say which, as often as the time for it stays a small share of the run's.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final, Protocol

from esper_core.leyline.constants import CHECKPOINT_SHARE
from esper_core.leyline.errors import Interrupted, Problem, RunFolderError
from esper_core.leyline.events import EpisodeFinished
from esper_core.leyline.files import open_regular
from esper_core.leyline.protocols import State
from esper_core.telemetry import read_events

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from esper_core.config import CheckpointConfig
    from esper_core.runs.checkpoints import Checkpoints
    from esper_core.telemetry import Clock, EventFile
    from esper_core.trainer.progress import Course


FREE: Final = frozenset(
    {"name", "sinks", "lanes", "workers", "device", "devices", "checkpoints", "margin", "plugins", "capacity"}
)
"""What of a configuration may be another one when a run goes on: what was computed until then hangs on none of it."""


class Said(Protocol):
    """What was warned of, each once."""

    told: list[str]


@dataclass(frozen=True, slots=True)
class Position:
    """Where an interrupted run is resumed: a checkpoint, its state, and the episodes that were finished by then.

    skipped: the newer checkpoints that cannot be used, each with the reason.
    """

    number: int
    state: State
    skipped: tuple[str, ...]
    finished: tuple[EpisodeFinished, ...]

    @property
    def stage(self) -> int:
        """The study that it is in."""
        return int(self.state.plain["stage"])

    @property
    def events(self) -> int:
        """Bytes of events.jsonl that belong to it."""
        return int(self.state.plain["events"])

    def demand(self, decisive: Mapping[str, str], run: Path) -> None:
        """RunFolderError where the run's configuration is not what it was: half of the numbers would be of another."""
        began = self.state.plain.get("config", decisive)
        for path in sorted({*began, *decisive}):
            was, now = began.get(path, "missing"), decisive.get(path, "missing")
            if was != now:
                message = f"{run / 'config.yaml'} changed since the run began: {path} is {now}, and was {was}"
                hint = f"Put it back, and resume; or run it anew, as it is now:  esper run {run / 'config.yaml'}"
                raise RunFolderError(Problem("E413", message, hint=hint))


def decisive_in(config: Mapping[str, Any]) -> dict[str, str]:
    """What a run's numbers hang on, of its configuration as plain data: each value as text, by its path.

    >>> decisive_in({"seed": 0, "lanes": 2, "episode": {"steps": 40}})
    {'seed': '0', 'episode.steps': '40'}
    """
    return dict(_leaves({name: value for name, value in config.items() if name not in FREE}, ""))


def _leaves(value: Any, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _leaves(inner, f"{path}.{name}" if path else name)
    else:
        yield path, json.dumps(value)


def position_in(run: Path, checkpoints: Checkpoints) -> Position | None:
    """Return where to resume the run: at its newest checkpoint whose events are all in events.jsonl.

    Nothing in events.jsonl behind the checkpoint's position is read: resuming cuts the file there.

    Returns:
        None where the run has no checkpoint yet.

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
    """Return why the file of events cannot be cut at this position; None where it can."""
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


class Keeping:
    """Keeps where the run is. ``pause`` is what the loop calls when a step or a round is done.

    look: raises where the run has to end now. decisive: what the numbers hang on, as ``decisive_in`` gives it. stage:
    the study that the run is in.
    """

    def __init__(
        self,
        checkpoints: Checkpoints,
        events: EventFile,
        clock: Clock,
        said: Said,
        *,
        settings: CheckpointConfig,
        look: Callable[[], None],
        decisive: Mapping[str, str],
        position: Position | None = None,
    ) -> None:
        self._checkpoints = checkpoints
        self._events = events
        self._clock = clock
        self._said = said
        self._every = settings.every
        self._look = look
        self._decisive = decisive
        self._number = 0 if position is None else position.number
        self._due = 0.0
        self.stage = 0

    def pause(self, course: Course) -> None:
        """Write down where the run is, if it is time. Interrupted where somebody asked for the end."""
        self._number += 1
        try:
            self._look()
        except Interrupted:
            self._write(course)
            raise
        if course.step == 0 or self._is_time():
            self._write(course)

    def _is_time(self) -> bool:
        if self._every == "auto":
            return perf_counter() >= self._due
        return self._number % self._every == 0

    def _write(self, course: Course) -> None:
        began = perf_counter()
        with self._clock.region("checkpoint"):
            self._events.sync()
            try:
                self._checkpoints.write(self._number, self._state(course))
            except RunFolderError:
                self._events.require_exists()  # that says more than which file of it could not be written
                raise
        self._due = perf_counter() + (perf_counter() - began) / CHECKPOINT_SHARE

    def _state(self, course: Course) -> State:
        told: dict[str, Any] = {
            "stage": self.stage,
            "events": self._events.length,
            "seconds": self._clock.seconds,
            "total": self._clock.total,
            "warnings": self._said.told,
            "config": self._decisive,
        }
        return State.of({"course": course.state()}, **told)
