"""How do data of the user's own become a task? Classes get numbers, and inputs the scale of the training data.

Nothing is chosen by what is held out, not even the mean that is subtracted.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch

from esper_core.leyline import Split
from esper_core.leyline.errors import nearest
from esper_tasks.classification import Classification
from esper_tasks.drawing_lots import drawn_parts
from esper_tasks.refusing import refuse
from esper_tasks.regression import Regression

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from esper_core.leyline import SiteKind, SplitName
    from esper_tasks.settings import OwnDataSettings

SPLITS: Final[tuple[SplitName, ...]] = ("train", "validation", "test")


@dataclass(frozen=True, slots=True)
class Examples:
    """Inputs with examples along the first dimension, and what is to be told of each: (N,), or (N, numbers)."""

    inputs: NDArray[Any]
    targets: NDArray[Any]

    def __len__(self) -> int:
        return len(self.targets)

    def rows(self, which: NDArray[np.int64]) -> Examples:
        """Some of them."""
        return Examples(self.inputs[which], self.targets[which])


def found(path: str, setting: str, *, folder: bool = False, more: str = "") -> Path:
    """The file, or the folder, of this name; SettingError where there is none, with ``more`` below its hint.

    ``~`` is the home folder; a relative path is looked up in the current one.
    """
    place = Path(path).expanduser()
    if not (place.is_dir() if folder else place.exists()):
        close = nearest(place.name, [one.name for one in place.parent.iterdir()]) if place.parent.is_dir() else None
        lines = [f'Did you mean "{close}"?'] if close else []
        if not place.is_absolute():
            lines.append(f"A relative path is looked up where esper is called: {Path.cwd()}")
        hint = "\n".join([*lines, *filter(None, [more])])
        refuse(setting, f'there is no {"folder" if folder else "file"} "{path}"', hint or f"Received: {path}")
    return place


def parted_by_lot(examples: Examples, settings: OwnDataSettings, *, test: bool = True) -> dict[SplitName, Examples]:
    """The splits, by the shares and the seed that are set; without a test split where that is there already."""
    validation = max(1, round(len(examples) * settings.validation))
    held_out = max(1, round(len(examples) * settings.test)) if test else 0
    rows = drawn_parts(examples.inputs, validation=validation, test=held_out, seed=settings.seed)
    parts = {name: examples.rows(own) for name, own in rows.items() if test or name != "test"}
    if any(len(own) == 0 for own in parts.values()):
        told = ", ".join(f"{name} {len(own)}" for name, own in parts.items())
        hint = f"Equal examples stay together. Received: {len(examples)} examples, which give {told}"
        refuse("path", f"these are too few different examples for {len(parts)} splits", hint)
    return parts


def own_task(
    parts: Mapping[SplitName, Examples], kind: SiteKind, settings: OwnDataSettings
) -> Classification | Regression:
    """The task that the examples make, of classes or of numbers."""
    symbols = kind == "tokens" and parts["train"].inputs.ndim == 2
    inputs = {name: _as_tensor(own.inputs, symbols=symbols) for name, own in parts.items()}
    if settings.normalise and not symbols:
        _normalise(inputs, kind)
    if not symbols:
        inputs = {name: own.float() for name, own in inputs.items()}
    targets = {name: own.targets for name, own in parts.items()}
    if settings.predict == "number":
        told = _numbers(targets, normalise=settings.normalise)
        return Regression({name: Split(inputs[name], told[name]) for name in SPLITS}, kind)
    told, classes = _classes(targets)
    return Classification({name: Split(inputs[name], told[name]) for name in SPLITS}, kind, classes=classes)


def demand_numbers(array: NDArray[Any], setting: str, name: str) -> None:
    """SettingError unless these are finite numbers."""
    if array.dtype.kind not in "biuf":
        refuse(setting, f'"{name}" holds no numbers', f"Received: an array of {array.dtype}")
    bad = np.argwhere(~np.isfinite(array))
    if len(bad):
        first = ", ".join(map(str, bad[0].tolist()))
        hint = f"The first is {name}[{first}] = {array[tuple(bad[0])]}. Fill them in, or leave these examples out."
        refuse(setting, f'{len(bad)} of the numbers in "{name}" are not finite', hint)


def _as_tensor(array: NDArray[Any], *, symbols: bool) -> torch.Tensor:
    """A copy in which nothing is lost: years in seconds would be nothing but rounding in float32, mean and all."""
    return torch.from_numpy(array.astype(np.int64 if symbols else np.result_type(array.dtype, np.float32)))


def _normalise(inputs: dict[SplitName, torch.Tensor], kind: SiteKind) -> None:
    """Mean 0 and standard deviation 1 over the training data, for each feature; in place."""
    train = inputs["train"]
    feature = train.ndim - 1 if kind == "tokens" else 1
    others = [dimension for dimension in range(train.ndim) if dimension != feature]
    deviation, mean = torch.std_mean(train.double(), dim=others, correction=0, keepdim=True)
    deviation[deviation == 0] = 1  # a feature that is always the same is 0 then
    for one in inputs.values():
        one.sub_(mean).div_(deviation)


def _numbers(targets: Mapping[SplitName, NDArray[Any]], *, normalise: bool) -> dict[SplitName, torch.Tensor]:
    told = {name: torch.from_numpy(own.astype(np.float64).reshape(len(own), -1)) for name, own in targets.items()}
    if normalise:
        _normalise(told, "vector")
    return {name: own.float() for name, own in told.items()}


def _classes(targets: Mapping[SplitName, NDArray[Any]]) -> tuple[dict[SplitName, torch.Tensor], int]:
    """For each example the number of its class, and how many there are. Classes are numbered in their order."""
    known = np.unique(np.concatenate([own.ravel() for own in targets.values()]))
    examples = sum(len(own) for own in targets.values())
    if len(known) < 2:
        refuse("path", "all examples are of one class", f"Received: {_shown(known)}")
    if 2 * len(known) > examples:
        hint = f"If they are numbers to be told, write  predict: number\nReceived: {_shown(known)}"
        refuse("predict", f"there are {len(known)} classes for {examples} examples", hint)
    missing = np.setdiff1d(known, targets["train"])
    if len(missing):
        hint = f"Hold less out, take another seed, or leave them out. Received: {_shown(missing)}"
        refuse("path", f"{len(missing)} of {len(known)} classes are missing in training", hint)
    return {name: torch.from_numpy(np.searchsorted(known, own)) for name, own in targets.items()}, len(known)


def _shown(classes: NDArray[Any], most: int = 5) -> str:
    return ", ".join(map(str, classes[:most])) + (", …" if len(classes) > most else "")
