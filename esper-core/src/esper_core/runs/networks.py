"""Where does a network that has grown go? Into a folder: what it is in growth.json, its numbers in model.safetensors.

Nothing is pickled. The numbers are written first, and growth.json, which vouches for them by their checksum, last: a
folder that was cut off in between is known for what it is.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load as decode
from safetensors.torch import save as encode
from torch import Tensor

from esper_core.growth.grafting import slots_of
from esper_core.growth.journal import Network, parse_network, read_network
from esper_core.growth.planting import Variety
from esper_core.growth.rebuilding import rebuild
from esper_core.growth.state_keys import HOME, JOURNAL, network_in
from esper_core.leyline.errors import GrowthError, Problem
from esper_core.leyline.specs import BlueprintSpec
from esper_core.plugins import load_plugins
from esper_core.runs.files import told_plainly, write_json, write_whole

if TYPE_CHECKING:
    from torch import nn

    from esper_core.plugins import Plugins

JOURNAL_FILE: Final = "growth.json"
NUMBERS_FILE: Final = "model.safetensors"

ModelT = TypeVar("ModelT", bound="nn.Module")


def save(model: nn.Module, folder: str | Path) -> None:
    """Write a grafted model, with all that grew in it, into ``folder``; what is there of an older one is replaced.

    ``load`` makes the same network of it in a fresh process. Optimizers are not part of it.

    Raises:
        GraftError: the model has no slots.
        GrowthError: its state holds something that is no tensor, which no file of numbers takes.
        RunFolderError: the folder cannot be written.
    """
    network = read_network(slots_of(model), type(model).__name__)
    numbers, aliases = _separate(model.state_dict())
    folder = Path(folder)
    with told_plainly(folder):
        folder.mkdir(parents=True, exist_ok=True)
    data = encode(numbers)
    write_whole(folder / NUMBERS_FILE, data)
    vouched = {"sha256": hashlib.sha256(data).hexdigest(), "aliases": aliases}
    write_json(folder / JOURNAL_FILE, {**network.as_json(), "numbers": vouched})


def load(model: ModelT, source: str | Path | Mapping[str, Tensor], *, plugins: Plugins | None = None) -> ModelT:
    """Make a fresh ``model`` the network that was saved, bit for bit, and return it.

    Args:
        model: the host, as it was built before it was grafted, or grafted at the same places. Changed in place.
        source: a folder that ``save`` wrote, or a state dict of a network that had grown.
        plugins: where blueprints are looked for; by default everything that is installed.

    Raises:
        GrowthError: a file is missing, damaged, of something else or of a newer Esper, or does not fit this host.
        ConfigError, PluginError: a blueprint is not installed, or its package is broken. The model is as it was.
    """
    if isinstance(source, Mapping):
        where, network, state = "the state dict", network_in(source), dict(source)
        if network is None:
            hint = "Nothing had grown in it: model.load_state_dict(state) takes it."
            raise GrowthError(Problem("E330", "the state dict holds no growth journal", hint=hint))
    else:
        where = str(source)
        network, state = _read(Path(source))
    registry = (load_plugins() if plugins is None else plugins).registry

    def find(id_: str) -> Variety:
        component = registry.find("blueprint", id_)
        assert isinstance(component.spec, BlueprintSpec)
        return Variety(component.id, component.spec, component.load())

    rebuild(model, network, state, find, source=where)
    return model


def _separate(state: Mapping[str, Any]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Each tensor once and by itself, and the names under which it stands besides."""
    numbers: dict[str, Tensor] = {}
    aliases: dict[str, str] = {}
    first: dict[tuple[Any, ...], str] = {}
    for name, value in state.items():
        if name == f"{HOME}.{JOURNAL}":
            continue
        if not isinstance(value, Tensor):
            message = f'the state of this model holds what is no tensor: "{name}", a {type(value).__name__}'
            raise GrowthError(Problem("E335", message, hint="Keep it in a buffer, or outside of the module."))
        same = (value.data_ptr(), value.dtype, tuple(value.shape), value.stride())
        if value.numel() and (known := first.setdefault(same, name)) != name:
            aliases[name] = known
        else:
            numbers[name] = value.detach().to("cpu", copy=True).contiguous()
    return numbers, aliases


def _read(folder: Path) -> tuple[Network, dict[str, Tensor]]:
    journal, vouched = _parsed(folder / JOURNAL_FILE)
    data = _bytes(folder / NUMBERS_FILE)
    if hashlib.sha256(data).hexdigest() != vouched["sha256"]:
        raise _damaged(folder / NUMBERS_FILE, "its checksum is another than growth.json says")
    try:
        state = decode(data)
        state |= {name: state[known] for name, known in vouched["aliases"].items()}
    except (SafetensorError, KeyError, ValueError) as error:
        raise _damaged(folder / NUMBERS_FILE, f"{type(error).__name__}: {error}") from error
    return journal, state


def _parsed(path: Path) -> tuple[Network, dict[str, Any]]:
    text = _bytes(path)
    try:
        whole = json.loads(text)
        vouched = whole.pop("numbers")
        told = isinstance(vouched["sha256"], str) and all(
            isinstance(name, str) and isinstance(known, str) for name, known in vouched["aliases"].items()
        )
    except (ValueError, LookupError, AttributeError, TypeError):
        told, whole, vouched = False, None, {}
    network = parse_network(text if whole is None else json.dumps(whole), source=str(path))
    if not told:
        hint = "It does not vouch for its numbers: it was cut off or changed, or is another file."
        raise GrowthError(Problem("E330", f"{path} is no growth journal", hint=hint))
    return network, vouched


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        hint = f"A saved network is a folder with {JOURNAL_FILE} and {NUMBERS_FILE} in it."
        raise GrowthError(Problem("E332", f"cannot read {path}: {error.strerror or error}", hint=hint)) from error


def _damaged(path: Path, why: str) -> GrowthError:
    hint = f"{why}\nIt was cut off or changed since it was saved, or belongs to another network."
    return GrowthError(Problem("E332", f"{path} does not hold the numbers of this network", hint=hint))
