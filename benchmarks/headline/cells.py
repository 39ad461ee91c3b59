"""Cells: a data set and a host, with what may grow where, and the sizes of the study."""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from esper_run.app.compose import Composition, prepare

if TYPE_CHECKING:
    from collections.abc import Mapping

HOST: Final = "host"
"""The architecture without blocks."""

PLUGIN: Final = Path(__file__).parent / "datasets.py"


@dataclass(frozen=True, slots=True, order=True)
class Setting:
    """How a network is trained: learning rate of Adam, and its schedule, ``constant`` or ``cosine``."""

    rate: float
    schedule: str


@dataclass(frozen=True, slots=True)
class Part:
    """One data set of a cell. slots: blueprints that may grow in each. seeded: the RNG seed splits the data, too."""

    name: str
    task: Mapping[str, Any]
    host: Mapping[str, Any]
    slots: Mapping[str, tuple[str, ...]]
    places: Mapping[str, str] = field(default_factory=dict)
    seeded: bool = False

    def architectures(self) -> list[str]:
        """Return every static network, with at most one block in each slot, such as ``early=conv_light+late=mlp``."""
        options = [["", *(f"{slot}={name}" for name in names)] for slot, names in self.slots.items()]
        return ["+".join(filter(None, chosen)) or HOST for chosen in product(*options)]


@dataclass(frozen=True, slots=True)
class Cell:
    """A data set and a host, or a pool of such parts.

    Attributes:
        steps, batches, batch_size: The full horizon of one training.
        held_out: Nothing of it is trained before the fresh phase.
        data_changes: Whether the arms with eight classes, then ten, are part of it.
    """

    name: str
    title: str
    parts: tuple[Part, ...]
    steps: int = 40
    batches: int = 32
    batch_size: int = 100
    held_out: bool = False
    data_changes: bool = False


_POINTWISE: Final = {"early": ("conv_light", "pointwise"), "late": ("mlp",)}
_CONVOLUTIONAL: Final = {"early": ("conv_light", "pointwise"), "features": ("mlp",)}


def _signals(name: str, title: str, *, shuffled: bool, host: str, batches: int = 32, changes: bool = False) -> Cell:
    task = {"use": "mnist1d-shuffled" if shuffled else "mnist1d"}
    slots = _POINTWISE if host == "pointwise-mlp" else _CONVOLUTIONAL
    return Cell(name, title, (Part(name, task, {"use": host}, slots),), batches=batches, data_changes=changes)


def _series(name: str, host: str) -> Part:
    slots = _POINTWISE if host == "pointwise-mlp" else {"early": ("conv_light", "dilated"), "features": ("mlp",)}
    return Part(name, {"use": "series", "settings": {"name": name}}, {"use": host}, slots, seeded=True)


_SMALL: Final = ("ArrowHead", "BasicMotions", "GunPoint", "ItalyPowerDemand")
_IMAGES: Final = Part(
    "images",
    {"use": "images-synthetic"},
    {"use": "cnn2d", "settings": {"channels": 4}},
    {"early": ("conv_light", "pointwise"), "middle": ("conv_light",)},
)
_SOURCES: Final = Part(
    "sources",
    {"use": "source-text"},
    {"use": "transformer", "settings": {"causal": True, "blocks": 1}},
    {"first": ("gru_mixer", "mlp"), "embedded": ("gru_mixer",)},
    places={"first": "blocks.0", "embedded": "embed"},
)
CELLS: Final = {
    cell.name: cell
    for cell in (
        _signals("pointwise", "MNIST-1D × pointwise-mlp", shuffled=False, host="pointwise-mlp", changes=True),
        _signals("narrow", "MNIST-1D × narrow cnn1d", shuffled=False, host="cnn1d", changes=True),
        _signals("wide", "MNIST-1D × wide cnn1d", shuffled=False, host="wide-cnn1d", batches=8),
        _signals("pointwise-shuffled", "shuffled × pointwise-mlp", shuffled=True, host="pointwise-mlp"),
        _signals("narrow-shuffled", "shuffled × narrow cnn1d", shuffled=True, host="cnn1d"),
        _signals("wide-shuffled", "shuffled × wide cnn1d", shuffled=True, host="wide-cnn1d", batches=8),
        Cell("images", "synthetic images × cnn2d", (_IMAGES,), batches=8, batch_size=50),
        Cell("small", "four small data sets", tuple(_series(name, "pointwise-mlp") for name in _SMALL), 40, 8, 20),
        Cell("leaves", "OSULeaf × narrow cnn1d", (_series("OSULeaf", "cnn1d"),), 40, 8, 20, held_out=True),
        Cell("sources", "Python's sources × transformer", (_SOURCES,), 40, 8, 32, held_out=True),
    )
}


@dataclass(frozen=True, slots=True)
class Size:
    """How much is trained.

    Attributes:
        tuning, fresh: RNG seeds on which settings are chosen, and on which everything is reported.
        shares: Horizons of static networks from scratch, as shares of the full one.
        esper_shares, random_shares: Those of growth and of random search from scratch.
        budgets: Further compute for a trained network, as shares of training the best static network from scratch.
        tuned_budget: The budget at which settings for trained networks are chosen.
        extensions: How often a grid is extended where the best setting lies at its edge.
    """

    cells: tuple[str, ...] = tuple(CELLS)
    tuning: tuple[int, ...] = (7000, 7001, 7002)
    fresh: tuple[int, ...] = tuple(range(8000, 8020))
    rates: tuple[float, ...] = (0.0033, 0.01, 0.03)
    schedules: tuple[str, ...] = ("constant", "cosine")
    shares: tuple[float, ...] = (1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0)
    esper_shares: tuple[float, ...] = (1 / 8, 1 / 4, 1 / 2, 1.0)
    random_shares: tuple[float, ...] = (1 / 2, 1.0)
    budgets: tuple[float, ...] = (0.05, 0.125, 0.25, 0.5, 1.0)
    tuned_budget: float = 0.25
    extensions: int = 2
    scale: float = 1.0
    """Factor on the batches of a step."""


QUICK: Final = Size(
    cells=("pointwise", "wide"),
    tuning=(9000,),
    fresh=(9100, 9101),
    rates=(0.01,),
    schedules=("constant", "cosine"),
    shares=(1 / 8, 1 / 2, 1.0),
    esper_shares=(1 / 2, 1.0),
    random_shares=(1 / 2, 1.0),
    budgets=(0.25, 1.0),
    extensions=0,
    scale=1 / 4,
)
"""A small form with RNG seeds of its own, to see that everything runs. Its figures mean little."""


@lru_cache(maxsize=32)
def _compose(config: str) -> Composition:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "cell.yaml"
        file.write_text(config, encoding="utf-8")
        return prepare(file)


def compose(cell: Cell, part: Part, seed: int, more: Mapping[str, Any]) -> Composition:
    """Return task, data, host and blueprints of a part, composed by Esper; ``more`` overrides the configuration."""
    task = dict(part.task)
    if part.seeded:
        task["settings"] = {**task["settings"], "seed": seed}
    names = {
        slot: [*blueprints, *(f"filler-{name}" for name in blueprints if name != "mlp")]
        for slot, blueprints in part.slots.items()
    }
    acts = "policy" in more
    slots = {slot: {"blueprints": list(blueprints)} for slot, blueprints in (part.slots if acts else names).items()}
    for slot, place in part.places.items():
        slots[slot]["at"] = place  # type: ignore[assignment]
    config = {
        "task": task,
        "host": dict(part.host),
        "slots": slots,
        "policy": "static",
        "environments": 1,
        "seed": seed if acts or part.seeded else 0,
        "twin": False,
        "capacity": False,
        "device": "cpu",
        "episode": {"steps": cell.steps, "batches": cell.batches, "batch_size": cell.batch_size},
        "plugins": {"local": [str(PLUGIN)]},
        **more,
    }
    return _compose(json.dumps(config))
