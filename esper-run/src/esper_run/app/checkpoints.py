"""Checkpointing: when a run writes a checkpoint, what is in it, and where a run resumes.

A checkpoint is written after each round, when the run is interrupted, and after every n-th step. With ``every: auto``
it is written as often as a small share of the run's time allows. After a round the best network of each arm is written,
too, in a folder that ``esper_grow.load`` reads.
"""

from __future__ import annotations

import json
import logging
import math
from dataclasses import dataclass, field, replace
from time import monotonic, perf_counter
from typing import TYPE_CHECKING, Any, Final

from pydantic import BaseModel, ConfigDict, Field, NonNegativeFloat, ValidationError

from esper_core.growth import Host
from esper_core.leyline.constants import CHECKPOINT_SHARE
from esper_core.leyline.errors import EsperError, GrowthError, Interrupted, Problem, RunFolderError, one_line
from esper_core.leyline.events import EpisodeFinished
from esper_core.leyline.protocols import State
from esper_core.telemetry import read_events
from esper_run.runs.directory import checksum_of_start, write_json
from esper_run.runs.network_files import EPISODE_FILE, write_network
from esper_run.runs.records import Checksum

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from esper_core.leyline.signals import Metric
    from esper_core.telemetry import Clock, EventFile
    from esper_core.trainer import StudyPosition
    from esper_run.runs.checkpoint_files import Checkpoints

log = logging.getLogger("esper")

FREE_TO_CHANGE: Final = frozenset(
    {
        *("lanes", "engine", "device", "devices", "patience", "grace"),
        *("name", "sinks", "checkpoints", "plugins", "capacity", "store"),
    }
)
"""Keys of a configuration that may change before a run is resumed. Numbers depend on the device alone, by rounding."""

SECONDS_BETWEEN_CHECKS: Final = 1.0
"""How often to check that the run directory is still there."""


class _Plain(BaseModel):
    """The plain data of a checkpoint. What the study has in it is checked by those who wrote it."""

    model_config = ConfigDict(strict=True)

    study_number: int = Field(ge=0, le=1)
    events: Checksum
    seconds: dict[str, NonNegativeFloat]
    total: NonNegativeFloat
    warnings: list[str]
    config: dict[str, str]
    study: dict[str, Any]


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
        default_factory=lambda: State(
            {"study_number": 0, "events": {"bytes": 0}, "seconds": {}, "total": 0.0, "warnings": []}
        )
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
        return int(self.state.plain["events"]["bytes"])

    def restore(self, study: StudyPosition, finished: Sequence[EpisodeFinished]) -> None:
        """Restore a study. Raises RunFolderError (E413) for a state that no such study has written."""
        try:
            study.load_state_dict(self.state.part("study"), finished)
        except EsperError:
            raise
        except Exception as error:  # its sums are right, so somebody wrote it: it may hold anything
            reason = one_line(f"{type(error).__name__}: {error}")
            message = f"checkpoint {self.number:06} cannot be restored: {reason}"
            hint = "It was not written by this run. Delete its folder to resume from an older one, or start again."
            raise RunFolderError(Problem("E413", message, hint=hint)) from error

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
    """Return where a run resumes: at its newest checkpoint whose events begin events.jsonl, or at the beginning.

    What follows the checkpoint's position in events.jsonl is not read: resuming cuts the file there. What is before it
    must be what the run wrote, to the last bit, since results are computed from it.

    Raises:
        RunFolderError: No checkpoint can be used (E413), or the events before its position are invalid (E421).
    """
    path = run / "events.jsonl"
    newest = checkpoints.newest(lambda state: _reason_unusable(path, state.plain))
    if newest is None:
        return Position()
    position = Position(newest.number, newest.state, newest.skipped)
    kept = read_events(path, end=position.events)
    return replace(position, finished=tuple(event for event in kept if isinstance(event, EpisodeFinished)))


def _reason_unusable(path: Path, plain: Mapping[str, Any]) -> str | None:
    """Return why a run cannot continue from a checkpoint and these events; None if it can."""
    try:
        written = _Plain.model_validate(plain).events
        present = checksum_of_start(path, written.bytes)
    except ValidationError as error:
        first = error.errors()[0]
        return f"its state is not what Esper writes: {'.'.join(map(str, first['loc']))}: {first['msg']}"
    except OSError as error:
        return f"{path.name} cannot be read: {error.strerror or error}"
    if present["bytes"] < written.bytes:
        return f"{path.name} has {present['bytes']:,} bytes; the checkpoint was written after {written.bytes:,}"
    return None if present["sha256"] == written.sha256 else f"{path.name} changed since the checkpoint was written"


@dataclass(slots=True)
class CheckpointWriter:
    """Writes checkpoints of a run. The loop calls ``after_step`` after every step and round.

    Attributes:
        checkpoints: The checkpoints of the run directory.
        networks: The folder of the best networks, each in a folder that is called as its arm.
        metric: By which the best network is chosen, on the validation split.
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
    networks: Path
    metric: Metric
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
            plain: dict[str, Any] = {
                "study_number": self.study_number,
                "events": self.events.checksum,
                "seconds": self.clock.seconds,
                "total": self.clock.total,
                "warnings": self.warnings,
                "config": self.decisive,
            }
            state = State.of({"study": progress.state_dict()}, **plain)
            if progress.step == 0:
                self._write_networks(progress, state.part("study").part("pool").part("environments"))
            self.checkpoints.write(self.number, state)
        self.on_written(self.number, self.events.length)
        self._due = perf_counter() + (perf_counter() - began) / CHECKPOINT_SHARE

    def _write_networks(self, progress: StudyPosition, states: State) -> None:
        """Write the network of each arm that is better than those of the rounds before the one that just ended.

        Before the checkpoint: a run that is killed between the two repeats the round, and writes them again.
        """
        environments = progress.study.pool.environments
        best = {
            arm: max((episode for episode in progress.finished if episode.arm == arm), key=self._worth)
            for arm in {environment.arm for environment in environments}
        }
        for environment in environments:
            episode = best[environment.arm]
            if (episode.round, episode.seed) == (environment.round, environment.seed):
                garden = states.part(str(environment.pool_index)).part("garden")
                folder = self.networks / environment.arm
                try:
                    write_network(folder, garden.plain["network"], Host.state_dict_of(garden.part("model")))
                except GrowthError as error:
                    log.warning("the network of arm %s is not saved: %s", environment.arm, error.problems[0])
                    continue
                figures = {"validation": episode.validation_metric, "test": episode.test_metric}
                write_json(folder / EPISODE_FILE, {"round": episode.round, "seed": episode.seed, **figures})

    def _worth(self, episode: EpisodeFinished) -> float:
        value = episode.validation_metric
        return -math.inf if math.isnan(value) else self.metric.gain(value, 0.0)
