"""TensorBoard sink: a curve for each figure of each environment, and stage changes as text."""

# mypy: disable-error-code="import-not-found,import-untyped"
# TensorBoard is an optional dependency.

from __future__ import annotations

from math import fsum
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, Field

from esper_core.leyline import PluginError, Problem
from esper_core.leyline.events import (
    EpisodeFinished,
    GovernorActed,
    RunFinished,
    RunStarted,
    SeedLost,
    StageChanged,
    StepFinished,
    UpdateFinished,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch.utils.tensorboard import SummaryWriter

    from esper_core.leyline.events import Event


class TensorboardSettings(BaseModel):
    """Settings of ``tensorboard``."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    folder: str = Field(
        default="tensorboard", min_length=1, description="Folder for the curves, below the run's folder."
    )
    every: int = Field(default=1, ge=1, le=1_000_000, description="Decision steps between two points of a curve.")


def tensorboard(run: str | Path, *, folder: str = "tensorboard", every: int = 1) -> TensorboardSink:
    """Build the sink of a run directory. Raises PluginError E219 if TensorBoard is not installed."""
    try:
        import tensorboard as _installed  # noqa: F401
    except ModuleNotFoundError as error:
        message = f'sink "watch/tensorboard" (esper-watch) needs a package that is not installed: {error.name}'
        hint = 'Install it:  pip install "esper-watch[tensorboard]"'
        raise PluginError(Problem("E219", message, hint=hint)) from error
    from torch.utils.tensorboard import SummaryWriter

    return TensorboardSink(Path(run, folder), lambda path: SummaryWriter(str(path), flush_secs=5), every)


class TensorboardSink:
    """Writes events as curves. TensorBoard shows every folder as a run, and overlays their curves.

    Each environment of an arm has a folder, such as ``grown/environment-0``; what concerns an arm or the whole run is
    written to the folders above. An environment keeps its folder from round to round, and its steps keep counting.
    """

    def __init__(self, folder: Path, open_writer: Callable[[Path], SummaryWriter], every: int = 1) -> None:
        self._folder = folder
        self._open_writer = open_writer
        self._every = every
        self._writers: dict[Path, SummaryWriter] = {}
        self._steps = 0
        self._environments = 1
        self._closed = False

    def hear(self, event: Event) -> None:
        """Write what the event measured."""
        if self._closed:
            return
        if isinstance(event, RunStarted):
            self._steps, self._environments = event.steps, max(1, event.environments)
        elif isinstance(event, StepFinished):
            if event.step % self._every == 0:
                self._write(event, event.step, _step_figures(event))
        elif isinstance(event, EpisodeFinished):
            self._write(event, event.steps - 1, _episode_figures(event))
        elif isinstance(event, UpdateFinished):
            writer, step = self._writer(event.arm), self._count(event.round, self._steps - 1)
            for name, value in event.figures.items():
                writer.add_scalar(f"update/{name}", value, step)
        elif isinstance(event, StageChanged | SeedLost | GovernorActed):
            self._of(event).add_text(*_note(event), self._count(event.round, event.step))
        elif isinstance(event, RunFinished):
            self._writer().add_text("run", f"{event.status}  \n{event.reason}".rstrip(), 0)

    def settle(self) -> None:
        """Do nothing: the writers flush every few seconds."""

    def close(self) -> None:
        """Write everything to disk."""
        self._closed = True
        while self._writers:
            self._writers.popitem()[1].close()

    def _write(self, event: StepFinished | EpisodeFinished, step: int, figures: Mapping[str, float]) -> None:
        writer, at = self._of(event), self._count(event.round, step)
        for name, value in figures.items():
            writer.add_scalar(name, value, at)

    def _count(self, round_: int, step: int) -> int:
        """Return the step, counted from the start of the run."""
        return max(0, round_ * self._steps + step)

    def _of(self, event: StepFinished | EpisodeFinished | StageChanged | SeedLost | GovernorActed) -> SummaryWriter:
        return self._writer(event.arm, f"environment-{event.seed % self._environments}")

    def _writer(self, *parts: str) -> SummaryWriter:
        path = self._folder.joinpath(*parts)
        if path not in self._writers:
            self._writers[path] = self._open_writer(path)
        return self._writers[path]


def _step_figures(event: StepFinished) -> dict[str, float]:
    signals = event.signals
    figures = {
        "loss/train": signals.train_loss,
        "loss/validation": signals.validation_loss,
        "metric/validation": signals.validation_metric,
        "network/parameters": signals.parameters,
        "network/fossils": signals.fossils,
    }
    return {**figures, "reward/step": fsum(event.reward.values())} if event.reward else figures


def _episode_figures(event: EpisodeFinished) -> dict[str, float]:
    figures = {"test/loss": event.test_loss, "test/metric": event.test_metric, "test/parameters": event.parameters}
    return figures if event.reward is None else {**figures, "reward/episode": event.reward}


def _note(event: StageChanged | SeedLost | GovernorActed) -> tuple[str, str]:
    """Return the tag and the text of an event, in Markdown."""
    if isinstance(event, StageChanged):
        change = event.now if event.was is None else f"{event.was} → {event.now}"
        return "growth", f"`{event.slot}`: `{event.blueprint}` {change}: {event.reason}"
    if isinstance(event, SeedLost):
        return "growth", f"`{event.slot}`: `{event.blueprint}` lost: {event.what}"
    return "governor", f"{event.act}, {event.verdict}: {event.reason}"
