"""How does a run look in TensorBoard? A curve for each figure of each environment, and what grew there as text."""

# mypy: disable-error-code="import-not-found,import-untyped"
# It is an extra: where it is not installed there is nothing to be checked against.

from __future__ import annotations

from math import fsum
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

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

    from esper_core.leyline.events import Event


class Writer(Protocol):
    """What is asked of a ``torch.utils.tensorboard.SummaryWriter``, which writes the curves of one folder."""

    def add_scalar(self, tag: str, scalar_value: float, global_step: int, /) -> None:
        """One point of a curve."""
        ...

    def add_text(self, tag: str, text_string: str, global_step: int, /) -> None:
        """A note at a step."""
        ...

    def close(self) -> None:
        """Everything is written."""
        ...


def tensorboard(run: str | Path, *, folder: str = "tensorboard", every: int = 1) -> Curves:
    """The sink. PluginError (E219) where TensorBoard is not installed.

    run: the run directory; ``folder`` is below it. every: decision steps between two points of a curve.
    """
    try:
        import tensorboard as _installed  # noqa: F401
    except ModuleNotFoundError as error:
        message = f'sink "watch/tensorboard" (esper-watch) needs a package that is not installed: {error.name}'
        hint = 'Install it:  pip install "esper-watch[tensorboard]"'
        raise PluginError(Problem("E219", message, hint=hint)) from error
    from torch.utils.tensorboard import SummaryWriter

    return Curves(Path(run, folder), lambda place: cast("Writer", SummaryWriter(str(place), flush_secs=5)), every)


class Curves:
    """A sink that draws. TensorBoard takes each folder for a run of its own, and lays their curves over each other.

    So each environment of an arm has one, ``grown/environment-0``, and what concerns an arm or the run as a whole
    stands above. The seeds of a round follow each other, so that an environment keeps its place from round to round;
    its steps go on counting.
    """

    def __init__(self, folder: Path, opened: Callable[[Path], Writer], every: int = 1) -> None:
        self._folder = folder
        self._opened = opened
        self._every = every
        self._writers: dict[Path, Writer] = {}
        self._steps = 0
        self._environments = 1
        self._closed = False

    def hear(self, event: Event) -> None:
        """Draw what there is to see of it."""
        if self._closed:
            return
        if isinstance(event, RunStarted):
            self._steps, self._environments = event.steps, max(1, event.environments)
        elif isinstance(event, StepFinished):
            if event.step % self._every == 0:
                self._draw(event, event.step, _figures_of_a_step(event))
        elif isinstance(event, EpisodeFinished):
            self._draw(event, event.steps - 1, _figures_of_an_episode(event))
        elif isinstance(event, UpdateFinished):
            writer, step = self._writer(event.arm), self._count(event.round, self._steps - 1)
            for name, value in event.figures.items():
                writer.add_scalar(f"update/{name}", value, step)
        elif isinstance(event, StageChanged | SeedLost | GovernorActed):
            self._of(event).add_text(*_note(event), self._count(event.round, event.step))
        elif isinstance(event, RunFinished):
            self._writer().add_text("run", f"{event.status}  \n{event.reason}".rstrip(), 0)

    def settle(self) -> None:
        """Nothing: the writers see to it that what they hold is on disk after some seconds."""

    def close(self) -> None:
        """Write the rest."""
        self._closed = True
        while self._writers:
            self._writers.popitem()[1].close()

    def _draw(self, event: StepFinished | EpisodeFinished, step: int, figures: Mapping[str, float]) -> None:
        writer, at = self._of(event), self._count(event.round, step)
        for name, value in figures.items():
            writer.add_scalar(name, value, at)

    def _count(self, round_: int, step: int) -> int:
        """The step, counted from the beginning of the run."""
        return max(0, round_ * self._steps + step)

    def _of(self, event: StepFinished | EpisodeFinished | StageChanged | SeedLost | GovernorActed) -> Writer:
        return self._writer(event.arm, f"environment-{event.seed % self._environments}")

    def _writer(self, *way: str) -> Writer:
        place = self._folder.joinpath(*way)
        if place not in self._writers:
            self._writers[place] = self._opened(place)
        return self._writers[place]


def _figures_of_a_step(event: StepFinished) -> dict[str, float]:
    signals = event.signals
    figures = {
        "loss/train": signals.train_loss,
        "loss/validation": signals.validation_loss,
        "metric/validation": signals.validation_metric,
        "network/parameters": signals.parameters,
        "network/fossils": signals.fossils,
    }
    return {**figures, "reward/step": fsum(event.reward.values())} if event.reward else figures


def _figures_of_an_episode(event: EpisodeFinished) -> dict[str, float]:
    figures = {"test/loss": event.test_loss, "test/metric": event.test_metric, "test/parameters": event.parameters}
    return figures if event.reward is None else {**figures, "reward/episode": event.reward}


def _note(event: StageChanged | SeedLost | GovernorActed) -> tuple[str, str]:
    """What is written under which name, in Markdown."""
    if isinstance(event, StageChanged):
        way = event.now.value if event.was is None else f"{event.was.value} → {event.now.value}"
        return "growth", f"`{event.slot}`: `{event.blueprint}` {way}: {event.reason}"
    if isinstance(event, SeedLost):
        return "growth", f"`{event.slot}`: `{event.blueprint}` lost: {event.what}"
    return "governor", f"{event.act}, {event.verdict}: {event.reason}"
