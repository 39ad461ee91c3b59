"""A one-file plugin: time series of aeon, Python's own sources as text, and blocks that cannot relate positions.

The series are read from the files that aeon's wheel contains, without importing it: its other dependencies exclude the
version of numpy that this project pins. Install it with ``pip install --no-deps aeon==1.6.0``.
"""

from __future__ import annotations

import sysconfig
from importlib.util import find_spec
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from pydantic import BaseModel, ConfigDict, Field
from torch import nn
from torch.nn import functional

from esper_blueprints.plugin import BLUEPRINTS
from esper_core import BlueprintSpec, EsperError, TaskSpec, hookimpl
from esper_core.growth import Variety
from esper_core.leyline import Metric, Problem
from esper_tasks.byte_text import NextByte
from esper_tasks.settings import BytesSettings
from esper_tasks.supervised import Classification, as_split

if TYPE_CHECKING:
    from torch import Tensor

    from esper_core import Site

AEON: Final = "aeon==1.6.0"

MODULES: Final = ("argparse", "ast", "asyncio/base_events", "dataclasses", "datetime", "decimal", "difflib", "doctest")
"""Modules of the standard library whose sources are the text."""

FILLED: Final = ("conv_light", "dilated", "gru_mixer", "pointwise")
"""Blueprints with a filler: a block of as many parameters that acts on each position separately."""


class SeriesSettings(BaseModel):
    """Settings of ``series``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(description="Data set, as aeon spells it.")
    seed: int = Field(default=0, ge=0, description="RNG seed of the split.")


def series(*, name: str, seed: int = 0) -> Classification:
    """Load a data set of aeon, all examples together, and split them anew: a half, a quarter and a quarter.

    name: as aeon spells it. seed: RNG seed of the split.
    """
    parts = [_read_series(name, part) for part in ("TRAIN", "TEST")]
    inputs = np.concatenate([part[0] for part in parts])
    labels = np.concatenate([part[1] for part in parts])
    classes, targets = np.unique(labels, return_inverse=True)
    inputs = (inputs - inputs.mean(axis=(0, 2), keepdims=True)) / inputs.std(axis=(0, 2), keepdims=True)
    order = np.random.RandomState(seed).permutation(len(targets))
    quarter = len(order) // 4
    rows = {"test": order[:quarter], "validation": order[quarter : 2 * quarter], "train": order[2 * quarter :]}
    splits = {part: as_split(inputs[indices], targets[indices].astype(np.int64)) for part, indices in rows.items()}
    return Classification(splits, "sequence", classes=len(classes))  # type: ignore[arg-type]


def _read_series(name: str, part: str) -> tuple[Any, Any]:
    """Return inputs (N, C, L) and labels of a .ts file: channels and the label separated by colons."""
    spec = find_spec("aeon")
    if spec is None or not spec.submodule_search_locations:
        message = f'the data set "{name}" is part of aeon, which is not installed'
        raise EsperError(Problem("E120", message, hint=f"pip install --no-deps {AEON}"))
    file = Path(spec.submodule_search_locations[0]) / "datasets" / "data" / name / f"{name}_{part}.ts"
    lines = [line.strip() for line in file.read_text(encoding="utf-8", errors="replace").splitlines()]
    rows = [line.split(":") for line in lines if line and line[0] not in "#@"]
    inputs = np.array([[channel.split(",") for channel in row[:-1]] for row in rows], dtype=np.float64)
    return inputs, np.array([row[-1] for row in rows])


class NextByteAccuracy(NextByte):
    """Predict the next byte, measured by the share of bytes that are predicted correctly."""

    def __init__(self, text: bytes, settings: BytesSettings) -> None:
        super().__init__(text, settings)
        self.metric = Metric("accuracy", "up", "%")

    def scores(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return for each example the share of its bytes that are predicted correctly."""
        return (outputs.argmax(dim=-1) == targets).float().mean(dim=-1)


def source_text() -> NextByteAccuracy:
    """Predict the next byte in sources of Python's standard library. They differ between versions of Python."""
    folder = Path(sysconfig.get_path("stdlib"))
    text = b"\n".join((folder / f"{name}.py").read_bytes() for name in MODULES)
    return NextByteAccuracy(text, BytesSettings(length=32, windows=3200, held_out=300))


class Filler(nn.Module):
    """A residual MLP at each position separately, with about as many parameters as another block.

    Formula: x + second(relu(first(x))), c → k → c, second zero at birth, k so that (2·c + 1)·k + c is at most the size.

    site: an image, a sequence or tokens. size: parameters of the other block.
    """

    def __init__(self, site: Site, size: int) -> None:
        super().__init__()
        width = max((size - site.channels) // (2 * site.channels + 1), 1)
        self.first, self.second = nn.Linear(site.channels, width), nn.Linear(width, site.channels)
        self.axis = -1 if site.kind == "tokens" else 1
        for parameter in self.second.parameters():
            nn.init.zeros_(parameter)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return outputs in the shape of the inputs."""
        change = self.second(functional.relu(self.first(inputs.movedim(self.axis, -1))))
        outputs: Tensor = inputs + change.movedim(-1, self.axis)
        return outputs


@hookimpl
def esper_register_tasks(registry: Any) -> None:
    """Register the tasks."""
    registry.add(
        "series", series, TaskSpec(summary="A data set of aeon, split anew for each RNG seed.", settings=SeriesSettings)
    )
    registry.add("source-text", source_text, TaskSpec(summary="The next byte of Python's sources."))


@hookimpl
def esper_register_blueprints(registry: Any) -> None:
    """Register a filler for each blueprint in ``FILLED``."""
    for name in FILLED:
        target, filled = BLUEPRINTS[name]
        variety = Variety(name, filled, resolve_name(f"esper_blueprints.{target}"))

        def build(site: Site, variety: Variety = variety) -> Filler:
            return Filler(site, variety.block_parameters(site))

        summary = f"As many parameters as {name}, at each position separately."
        spec = BlueprintSpec(filled.kinds, summary=summary, starts_as_identity=True)
        registry.add(f"filler-{name}", build, spec)
