"""How are arrays of the user's own trained on? Read from an .npz, or from a folder of .npy files; never by pickle."""

from __future__ import annotations

import zipfile
import zlib
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NoReturn

import numpy as np

from esper_core.leyline.errors import suggestion
from esper_tasks.own_data import SPLITS, Examples, demand_numbers, found, own_task, parted_by_lot
from esper_tasks.refusing import refuse
from esper_tasks.settings import NpzSettings

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from esper_core.leyline import SiteKind, SplitName
    from esper_tasks.classification import Classification
    from esper_tasks.regression import Regression
    from esper_tasks.settings import Predicted

KINDS: Final[Mapping[int, SiteKind]] = {2: "vector", 3: "sequence", 4: "image"}
"""What examples are taken for, by the dimensions of the inputs."""

DIMENSIONS: Final[Mapping[SiteKind, tuple[int, ...]]] = {
    "image": (4,),
    "sequence": (3,),
    "tokens": (2, 3),
    "vector": (2,),
}
_FORMS: Final = (
    "vector (N, features), sequence (N, channels, length), image (N, channels, height, width), "
    "tokens (N, tokens, features), or (N, tokens) for symbols by their number"
)
_UNREADABLE: Final = (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error)


def npz(
    *,
    path: str,
    inputs: str = "inputs",
    targets: str = "targets",
    kind: SiteKind | None = None,
    predict: Predicted = "class",
    normalise: bool = True,
    validation: float = 0.15,
    test: float = 0.15,
    seed: int = 0,
) -> Classification | Regression:
    """Arrays of your own: classes or numbers, parted by a seed or by yourself.

    Two arrays, ``inputs`` and ``targets``, are parted here. Data that are parted already are ``train_inputs``,
    ``train_targets``, ``test_inputs``, ``test_targets`` and, unless it is to be drawn from the training data,
    ``validation_inputs`` and ``validation_targets``.

    path: an .npz, or a folder of .npy files; relative to the current folder. inputs, targets: what the arrays are
    called. kind: what an example is; None: told by its dimensions. predict, normalise, validation, test, seed: see
    ``OwnDataSettings``.
    """
    settings = NpzSettings(
        path=path,
        inputs=inputs,
        targets=targets,
        kind=kind,
        predict=predict,
        normalise=normalise,
        validation=validation,
        test=test,
        seed=seed,
    )
    place = found(path, "path")
    parts = _parts(_Arrays(place), settings)
    return own_task(parts, _kind(parts["train"], settings), settings)


class _Arrays:
    """The arrays of a file or folder, each read when it is asked for."""

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
        """The array of this name; SettingError where it is not there or cannot be read without pickle."""
        if name not in self.names:
            refuse(setting, f'there is no array "{name}" in "{self.place}"', suggestion(name, self.names))
        folder = self.place.is_dir()
        with _opened(self.place / f"{name}.npy" if folder else self.place) as opened:
            array: NDArray[Any] = opened if folder else opened[name]
        return array


@contextmanager
def _opened(place: Path) -> Iterator[Any]:
    """One array, or those of an .npz; SettingError where they cannot be read."""
    try:
        with place.open("rb") as file:
            yield np.load(file, allow_pickle=False)
    except _UNREADABLE as error:
        _refuse_unreadable(str(place), error)


def _refuse_unreadable(what: str, error: BaseException) -> NoReturn:
    if "pickle" in str(error):
        hint = "Save numbers, or texts of one length: array.astype(float), or array.astype(str) for classes."
        refuse("path", f'"{what}" holds Python objects, or no arrays; these are not read', hint)
    refuse("path", f'"{what}" cannot be read: {error}', "numpy.savez writes such a file.")


def _parts(arrays: _Arrays, settings: NpzSettings) -> dict[SplitName, Examples]:
    if settings.inputs in arrays.names or f"train_{settings.inputs}" not in arrays.names:
        return parted_by_lot(_examples(arrays, "", settings), settings)
    parts: dict[SplitName, Examples]
    train, test = (_examples(arrays, f"{name}_", settings) for name in ("train", "test"))
    if f"validation_{settings.inputs}" in arrays.names:
        parts = {"train": train, "validation": _examples(arrays, "validation_", settings), "test": test}
    else:
        parts = {**parted_by_lot(train, settings, test=False), "test": test}
    shapes = {name: parts[name].inputs.shape[1:] for name in SPLITS}
    if len(set(shapes.values())) > 1:
        refuse("path", "the splits have examples of several shapes", f"Received: {shapes}")
    return {name: parts[name] for name in SPLITS}


def _examples(arrays: _Arrays, prefix: str, settings: NpzSettings) -> Examples:
    named = {setting: f"{prefix}{getattr(settings, setting)}" for setting in ("inputs", "targets")}
    inputs, targets = (arrays.array(name, setting) for setting, name in named.items())
    demand_numbers(inputs, "inputs", named["inputs"])
    lengths = f"Received: {named['inputs']} {inputs.shape}, {named['targets']} {targets.shape}"
    if inputs.ndim == 0 or targets.ndim == 0 or len(inputs) != len(targets):
        refuse("targets", "there is not one target for each input", lengths)
    if settings.predict == "number":
        demand_numbers(targets, "targets", named["targets"])
        if targets.ndim > 2:
            refuse("targets", "numbers to be told are (N,) or (N, numbers)", lengths)
        return Examples(inputs, targets)
    if targets.ndim != 1:
        refuse("targets", "there is not one class for each example", lengths)
    return Examples(inputs, _as_classes(targets, named["targets"]))


def _as_classes(targets: NDArray[Any], name: str) -> NDArray[Any]:
    """Texts and whole numbers, also where they are written as floating-point ones."""
    if targets.dtype.kind in "US":
        return targets
    demand_numbers(targets, "targets", name)
    if targets.dtype.kind == "f":
        odd = targets[targets != np.round(targets)]
        if len(odd):
            hint = f"If they are numbers to be told, write  predict: number\nReceived: {odd[0]}"
            refuse("predict", f'the classes in "{name}" are no whole numbers', hint)
    return targets.astype(np.int64)


def _kind(train: Examples, settings: NpzSettings) -> SiteKind:
    inputs = train.inputs
    kind = settings.kind or KINDS.get(inputs.ndim)
    if kind is None or inputs.ndim not in DIMENSIONS[kind]:
        told = "an example" if kind is None else f"an example of kind {kind}"
        hint = f"Possible: {_FORMS}.\nReceived: {settings.inputs} {inputs.shape}"
        refuse("kind", f"{told} does not have {inputs.ndim - 1} dimensions", hint)
    if kind == "tokens" and inputs.ndim == 2 and (inputs.dtype.kind not in "iu" or inputs.min() < 0):
        hint = f"Received: {inputs.dtype} from {inputs.min()} on"
        refuse("inputs", "symbols are whole numbers from 0 on", hint)
    return kind
