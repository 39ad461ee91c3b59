"""Run a study as ``esper run`` does, and keep a line of JSON for each arm, with its episodes."""

from __future__ import annotations

import json
import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.science.incubation.cells import TWIN
from esper_core.app.compose import prepare
from esper_core.app.run import run
from esper_core.leyline.events import EpisodeFinished, StageChanged, StepFinished
from esper_core.leyline.lifecycle import Stage
from esper_core.leyline.signals import Gain

if TYPE_CHECKING:
    from collections.abc import Iterable

    from benchmarks.science.incubation.cells import Size, Study
    from esper_core.leyline.events import Event


@dataclass(slots=True)
class Episode:
    """One host's training: how it ended, and what was measured of its seed in each step.

    stages: stage of the seed in each step, "" where there was none. gains: as measured in that step, or None.
    """

    seed: int
    stages: list[str] = field(default_factory=list)
    gains: list[Gain | None] = field(default_factory=list)
    validation_losses: list[float] = field(default_factory=list)
    moves: list[tuple[int, str]] = field(default_factory=list)
    """(step, stage) of each change of the seed's stage."""
    added: int = 0
    """Parameters of the seed, whatever became of it."""
    test_loss: float = 0.0
    test_metric: float = 0.0
    host_parameters: int = 0

    @property
    def kept(self) -> bool:
        """Whether the seed was fossilised."""
        return any(stage == Stage.FOSSILISED for _, stage in self.moves)


@dataclass(frozen=True, slots=True)
class Cell:
    """The episodes of one arm, by seed. ``blueprint`` is "" and ``germination`` −1 for the twin."""

    study: str
    part: str
    place: str
    incubation: str
    price: float | None
    blueprint: str
    germination: int
    steps: int
    batches: int
    episodes: tuple[Episode, ...]

    def as_json(self) -> str:
        """Return the cell in one line."""
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def from_json(cls, line: str) -> Cell:
        """Build a cell from what ``as_json`` wrote."""
        data = json.loads(line)
        data["episodes"] = tuple(_episode(one) for one in data["episodes"])
        return cls(**data)


class Notes:
    """A listener that keeps what a cell needs."""

    def __init__(self) -> None:
        self.episodes: dict[tuple[str, int], Episode] = {}

    def hear(self, event: Event) -> None:
        """Record one event."""
        if isinstance(event, StageChanged):
            episode = self._of(event.arm, event.seed)
            episode.moves.append((event.step, event.now.value))
            episode.added = event.parameters or episode.added
        elif isinstance(event, StepFinished):
            episode, seeds = self._of(event.arm, event.seed), event.signals.seeds
            episode.stages.append(seeds[0].stage.value if seeds else "")
            episode.gains.append(seeds[0].gain if seeds else None)
            episode.validation_losses.append(event.signals.validation_loss)
        elif isinstance(event, EpisodeFinished):
            episode = self._of(event.arm, event.seed)
            episode.test_loss, episode.test_metric = event.test_loss, event.test_metric
            episode.host_parameters = event.host_parameters

    def settle(self) -> None:
        """Do nothing at the end of a step."""

    def _of(self, arm: str, seed: int) -> Episode:
        return self.episodes.setdefault((arm, seed), Episode(seed))


def cells_of(study: Study, size: Size) -> list[Cell]:
    """Run ``study``; return the cell of each of its arms, the twin's last."""
    config, notes = study.config(size), Notes()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "study.yaml"
        file.write_text(json.dumps(config), encoding="utf-8")
        run(prepare(file), runs_dir=Path(folder) / "runs", listeners=[notes], on_warning=lambda warning: None)
    return [
        Cell(
            study=study.name,
            part=study.part,
            place=study.place.name,
            incubation=study.incubation,
            price=study.price,
            blueprint=blueprint,
            germination=germination,
            steps=config["episode"]["steps"],
            batches=config["episode"]["batches"],
            episodes=tuple(sorted((e for (of, _), e in notes.episodes.items() if of == arm), key=lambda e: e.seed)),
        )
        for arm, blueprint, germination in [*study.arms(size), (TWIN, "", -1)]
    ]


def read_cells(file: Path) -> list[Cell]:
    """Read the cells of earlier runs from ``file``. A study whose last line, the twin's, is missing is skipped."""
    if not file.exists():
        return []
    lines = file.read_text(encoding="utf-8").splitlines()
    cells = [Cell.from_json(line) for line in lines if line.endswith("}")]
    whole = {cell.study for cell in cells if not cell.blueprint}
    return list(
        {(cell.study, cell.blueprint, cell.germination): cell for cell in cells if cell.study in whole}.values()
    )


def append_cells(file: Path, cells: Iterable[Cell]) -> None:
    """Add ``cells`` to ``file``, all of a study at once."""
    with file.open("a", encoding="utf-8") as out:
        out.write("".join(f"{cell.as_json()}\n" for cell in cells))


def _episode(data: dict[str, Any]) -> Episode:
    gains = [None if gain is None else Gain(**gain) for gain in data.pop("gains")]
    moves = [(step, stage) for step, stage in data.pop("moves")]
    return Episode(gains=gains, moves=moves, **data)
