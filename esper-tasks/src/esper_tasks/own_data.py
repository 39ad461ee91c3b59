"""The task of the user's own data: arrays from an .npz or a folder of .npy files.

Files are never unpickled. Data that cannot be used are refused, with the setting to change.
"""

from __future__ import annotations

import zipfile
import zlib
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

import numpy as np
import torch

from esper_core.leyline import SettingError, Split
from esper_core.leyline.errors import nearest, suggestion
from esper_tasks.settings import NpzSettings
from esper_tasks.supervised import Classification, Regression, drawn_parts

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from numpy.typing import NDArray

    from esper_core.leyline import SiteKind, SplitName
    from esper_tasks.settings import OwnDataSettings


def refuse(setting: str, message: str, hint: str | None = None) -> NoReturn:
    """Raise SettingError (E120); ``hint`` says what to do, and ends with what was received.

    >>> refuse("path", 'there is no file "a.npz"', "Received: a.npz")
    Traceback (most recent call last):
    esper_core.leyline.errors.SettingError: E120 there is no file "a.npz"
      path
      Received: a.npz
    """
    raise SettingError(setting, message, hint)


SPLITS: Final[tuple[SplitName, ...]] = ("train", "validation", "test")


@dataclass(frozen=True, slots=True)
class Examples:
    """Inputs with examples along the first dimension, and the targets to predict: (N,), or (N, numbers)."""

    inputs: NDArray[Any]
    targets: NDArray[Any]

    def __len__(self) -> int:
        return len(self.targets)

    def rows(self, indices: NDArray[np.int64]) -> Examples:
        """Return the examples with these indices."""
        return Examples(self.inputs[indices], self.targets[indices])


def found(path: str, setting: str) -> Path:
    """Return the path of the file; raise SettingError if there is none.

    ``~`` is the home folder; a relative path is looked up in the current one.
    """
    place = Path(path).expanduser()
    if not place.exists():
        close = (
            nearest(place.name, [sibling.name for sibling in place.parent.iterdir()]) if place.parent.is_dir() else None
        )
        lines = [f'Did you mean "{close}"?'] if close else []
        if not place.is_absolute():
            lines.append(f"A relative path is looked up where esper is called: {Path.cwd()}")
        refuse(setting, f'there is no file "{path}"', "\n".join(lines) or f"Received: {path}")
    return place


def parted_by_lot(examples: Examples, settings: OwnDataSettings, *, test: bool = True) -> dict[SplitName, Examples]:
    """Split the examples at random by the settings' shares and seed; ``test=False`` omits the test split."""
    validation = max(1, round(len(examples) * settings.validation))
    held_out = max(1, round(len(examples) * settings.test)) if test else 0
    rows = drawn_parts(examples.inputs, validation=validation, test=held_out, seed=settings.seed)
    parts = {name: examples.rows(indices) for name, indices in rows.items() if test or name != "test"}
    if any(len(part) == 0 for part in parts.values()):
        sizes = ", ".join(f"{name} {len(part)}" for name, part in parts.items())
        hint = f"Equal examples stay together. Received: {len(examples)} examples, which give {sizes}"
        refuse("path", f"there are too few different examples for {len(parts)} splits", hint)
    return parts


def own_task(
    parts: Mapping[SplitName, Examples], kind: SiteKind, settings: OwnDataSettings
) -> Classification | Regression:
    """Build the task of the examples: a classification or a regression."""
    symbols = kind == "tokens" and parts["train"].inputs.ndim == 2
    inputs = {}
    for name, part in parts.items():
        # Without losing precision: float32 cannot hold years in seconds.
        dtype = np.int64 if symbols else np.result_type(part.inputs.dtype, np.float32)
        inputs[name] = torch.from_numpy(part.inputs.astype(dtype))
    if settings.normalise and not symbols:
        _normalise(inputs, kind)
    if not symbols:
        inputs = {name: tensor.float() for name, tensor in inputs.items()}
    targets = {name: part.targets for name, part in parts.items()}
    if settings.predict == "number":
        encoded_targets = _numbers(targets, normalise=settings.normalise)
        return Regression({name: Split(inputs[name], encoded_targets[name]) for name in SPLITS}, kind)
    encoded_targets, classes = _classes(targets)
    return Classification({name: Split(inputs[name], encoded_targets[name]) for name in SPLITS}, kind, classes=classes)


def demand_numbers(array: NDArray[Any], setting: str, name: str) -> None:
    """Raise SettingError unless all elements are finite numbers."""
    if array.dtype.kind not in "biuf":
        refuse(setting, f'"{name}" is not numeric', f"Received: an array of {array.dtype}")
    bad = np.argwhere(~np.isfinite(array))
    if len(bad):
        first = ", ".join(map(str, bad[0].tolist()))
        hint = f"The first is {name}[{first}] = {array[tuple(bad[0])]}. Replace them, or remove these examples."
        refuse(setting, f'{len(bad)} of the numbers in "{name}" are not finite', hint)


def _normalise(inputs: dict[SplitName, torch.Tensor], kind: SiteKind) -> None:
    """Scale each feature to mean 0 and standard deviation 1 over the training data, in place."""
    train = inputs["train"]
    feature = train.ndim - 1 if kind == "tokens" else 1
    dimensions = [dimension for dimension in range(train.ndim) if dimension != feature]
    deviation, mean = torch.std_mean(train.double(), dim=dimensions, correction=0, keepdim=True)
    deviation[deviation == 0] = 1  # a feature that is always the same is 0 then
    for tensor in inputs.values():
        tensor.sub_(mean).div_(deviation)


def _numbers(targets: Mapping[SplitName, NDArray[Any]], *, normalise: bool) -> dict[SplitName, torch.Tensor]:
    tensors = {name: torch.from_numpy(values.astype(np.float64)) for name, values in targets.items()}
    if normalise:
        _normalise(tensors, "vector")
    return {name: tensor.float() for name, tensor in tensors.items()}


def _classes(targets: Mapping[SplitName, NDArray[Any]]) -> tuple[dict[SplitName, torch.Tensor], int]:
    """Return the class index of each example and the number of classes. Classes are numbered in sorted order."""
    classes = np.unique(np.concatenate([values.ravel() for values in targets.values()]))
    examples = sum(len(values) for values in targets.values())
    if len(classes) < 2:
        refuse("path", "all examples are in one class", f"Received: {_shown(classes)}")
    if 2 * len(classes) > examples:
        hint = f"For a regression write  predict: number\nReceived: {_shown(classes)}"
        refuse("predict", f"there are {len(classes)} classes for {examples} examples", hint)
    missing = np.setdiff1d(classes, targets["train"])
    if len(missing):
        hint = f"Hold out less, use another RNG seed, or remove these classes. Received: {_shown(missing)}"
        refuse("path", f"{len(missing)} of {len(classes)} classes are missing from the training split", hint)
    return {name: torch.from_numpy(np.searchsorted(classes, values)) for name, values in targets.items()}, len(classes)


def _shown(classes: NDArray[Any], most: int = 5) -> str:
    return ", ".join(map(str, classes[:most])) + (", …" if len(classes) > most else "")


KINDS: Final[Mapping[int, SiteKind]] = {2: "vector", 3: "sequence", 4: "image"}
"""Kind of the examples by the number of dimensions of the inputs."""

DIMENSIONS: Final[Mapping[SiteKind, tuple[int, ...]]] = {
    "image": (4,),
    "sequence": (3,),
    "tokens": (2, 3),
    "vector": (2,),
}
_FORMS: Final = (
    "vector (N, features), sequence (N, channels, length), image (N, channels, height, width), "
    "tokens (N, tokens, features), or (N, tokens) for integer symbols"
)
_UNREADABLE: Final = (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error)


def npz(**settings: Any) -> Classification | Regression:
    """Load your own arrays: classes or numbers, split at random or as the arrays' names say.

    Two arrays, ``inputs`` and ``targets``, are split here. Data with splits of its own has ``train_inputs``,
    ``train_targets``, ``test_inputs``, ``test_targets`` and, unless validation is to be drawn from the training data,
    ``validation_inputs`` and ``validation_targets``.

    settings: those of ``NpzSettings``.
    """
    checked = NpzSettings.model_validate(settings)
    parts = _parts(_Arrays(found(checked.path, "path")), checked)
    kind, *_ = [_kind(parts[name], checked) for name in SPLITS]
    return own_task(parts, kind, checked)


class _Arrays:
    """The arrays of a file or folder, each read on first use."""

    def __init__(self, place: Path) -> None:
        self.place = place
        if place.is_dir():
            self.names: Collection[str] = sorted(file.stem for file in place.glob("*.npy"))
            return
        with _opened(place) as arrays:
            if isinstance(arrays, np.ndarray):
                hint = "Put inputs and targets into an .npz with numpy.savez, or name the folder of the .npy files."
                refuse("path", f'"{place}" is one array', hint)
            self.names = arrays.files

    def array(self, name: str, setting: str) -> NDArray[Any]:
        """Return the array of this name; raise SettingError if it is missing or needs pickle."""
        if name not in self.names:
            refuse(setting, f'there is no array "{name}" in "{self.place}"', suggestion(name, self.names))
        folder = self.place.is_dir()
        with _opened(self.place / f"{name}.npy" if folder else self.place) as opened:
            array: NDArray[Any] = opened if folder else opened[name]
        return array


@contextmanager
def _opened(place: Path) -> Iterator[Any]:
    """Open one array, or those of an .npz; raise SettingError if they cannot be read."""
    try:
        with place.open("rb") as file:
            yield np.load(file, allow_pickle=False)
    except _UNREADABLE as error:
        if "pickle" in str(error):
            hint = "Save numbers, array.astype(float), or texts for classes, array.astype(str)."
            refuse("path", f'"{place}" has Python objects, or no arrays; these are not read', hint)
        refuse("path", f'"{place}" cannot be read: {error}', "numpy.savez writes such a file.")


def _refuse_unread(arrays: _Arrays, settings: NpzSettings, prefixes: Collection[str]) -> None:
    """Raise SettingError for arrays that are called as those of a split, and would not be read."""
    for name in ("inputs", "targets"):
        ending = getattr(settings, name)
        for unread in set(arrays.names) - {prefix + ending for prefix in prefixes}:
            if unread.endswith(f"_{ending}"):
                splits = ", ".join(f"{split}_{ending}" for split in SPLITS)
                hint = f"Those of splits are called {splits}, and there is none without a split beside them."
                refuse(name, f'the array "{unread}" would not be used', f"{hint} Rename or remove it.")


def _parts(arrays: _Arrays, settings: NpzSettings) -> dict[SplitName, Examples]:
    by_lot = settings.inputs in arrays.names or f"train_{settings.inputs}" not in arrays.names
    _refuse_unread(arrays, settings, [""] if by_lot else [f"{name}_" for name in SPLITS])
    if by_lot:
        return parted_by_lot(_examples(arrays, "", settings), settings)
    parts: dict[SplitName, Examples]
    train, test = (_examples(arrays, f"{name}_", settings) for name in ("train", "test"))
    if f"validation_{settings.inputs}" in arrays.names:
        parts = {"train": train, "validation": _examples(arrays, "validation_", settings), "test": test}
    else:
        parts = {**parted_by_lot(train, settings, test=False), "test": test}
    shapes = {name: (parts[name].inputs.shape[1:], parts[name].targets.shape[1:]) for name in SPLITS}
    if len(set(shapes.values())) > 1:
        refuse("path", "the splits have inputs or targets of different shapes", f"Received: {shapes}")
    return {name: parts[name] for name in SPLITS}


def _examples(arrays: _Arrays, prefix: str, settings: NpzSettings) -> Examples:
    named = {setting: f"{prefix}{getattr(settings, setting)}" for setting in ("inputs", "targets")}
    inputs, targets = (arrays.array(name, setting) for setting, name in named.items())
    demand_numbers(inputs, "inputs", named["inputs"])
    lengths = f"Received: {named['inputs']} {inputs.shape}, {named['targets']} {targets.shape}"
    if inputs.ndim == 0 or targets.ndim == 0 or len(inputs) != len(targets):
        refuse("targets", "inputs and targets differ in number", lengths)
    if settings.predict == "number":
        demand_numbers(targets, "targets", named["targets"])
        if targets.ndim > 2:
            refuse("targets", "numeric targets have the shape (N,) or (N, numbers)", lengths)
        return Examples(inputs, targets if targets.ndim > 1 else targets[:, None])
    if targets.ndim != 1:
        refuse("targets", "class targets have the shape (N,)", lengths)
    return Examples(inputs, _as_classes(targets, named["targets"]))


def _as_classes(targets: NDArray[Any], name: str) -> NDArray[Any]:
    """Return texts as they are and whole numbers as integers, also if they are stored as floats."""
    if targets.dtype.kind in "US":
        return targets
    demand_numbers(targets, "targets", name)
    if targets.dtype.kind == "f":
        odd = targets[targets != np.round(targets)]
        if len(odd):
            hint = f"For a regression write  predict: number\nReceived: {odd[0]}"
            refuse("predict", f'the classes in "{name}" are not integers', hint)
    return targets.astype(np.int64)


def _kind(train: Examples, settings: NpzSettings) -> SiteKind:
    inputs = train.inputs
    kind = settings.kind or KINDS.get(inputs.ndim)
    if kind is None or inputs.ndim not in DIMENSIONS[kind]:
        subject = "an example" if kind is None else f"an example of kind {kind}"
        hint = f"Possible: {_FORMS}.\nReceived: {settings.inputs} {inputs.shape}"
        refuse("kind", f"{subject} does not have {inputs.ndim - 1} dimensions", hint)
    if kind == "tokens" and inputs.ndim == 2 and (inputs.dtype.kind not in "iu" or inputs.min() < 0):
        hint = f"Received: {inputs.dtype}, smallest value {inputs.min()}"
        refuse("inputs", "symbols must be integers from 0", hint)
    return kind
