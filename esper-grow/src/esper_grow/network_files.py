"""Save and load grown networks: the architecture in growth.json, the parameters in a safetensors file.

Nothing is pickled. The parameters are written first, under a name made from their checksum, then growth.json, which
names that file and holds the checksums of both; files of an older network are deleted last. So the folder always holds
one complete network: the older one until growth.json is replaced, and then the new one.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load as decode, save as encode
from torch import Tensor, nn

from esper_core.growth import Host, Network, Variety
from esper_core.leyline.errors import GrowthError, Problem
from esper_core.leyline.specs import BlueprintSpec
from esper_core.plugins import load_plugins
from esper_grow.peft_growth import GROWN_FILE, keep_growth_with_adapters
from esper_run.runs.checkpoint_files import read_part, tensor_bytes
from esper_run.runs.directory import report_os_errors, write_atomically, write_json

if TYPE_CHECKING:
    from esper_core.plugins import Plugins

JOURNAL_FILE: Final = "growth.json"
LAYOUT: Final = f"A saved network is a folder with {JOURNAL_FILE} and the safetensors file that it names."
_TENSORS_FILE: Final = re.compile(r"model-[0-9a-f]{8}\.safetensors")

ModelT = TypeVar("ModelT", bound=nn.Module)


def save(model: nn.Module, folder: str | Path) -> None:
    """Save a grafted model, with everything that grew in it, in a folder. An older network there is replaced.

    ``load`` restores the network in a new process. Optimizers are not saved.

    Raises:
        GraftError: the model has no slots.
        GrowthError: the model's state contains something that safetensors cannot store.
        RunFolderError: the folder cannot be written.
    """
    network = Host(model).network
    numbers, aliases = _separate(model.state_dict())
    folder = Path(folder)
    with report_os_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    data = encode(numbers)
    digest = hashlib.sha256(data).hexdigest()
    name = f"model-{digest[:8]}.safetensors"
    write_atomically(folder / name, data)
    reference = {"file": name, "sha256": digest, "aliases": aliases}
    record = {**asdict(network), "numbers": reference}
    write_json(folder / JOURNAL_FILE, {**record, "sha256": _digest(record)})
    with report_os_errors(folder):
        for path in folder.iterdir():
            if path.name != name and _TENSORS_FILE.fullmatch(path.name.removeprefix(".").removesuffix(".part")):
                path.unlink(missing_ok=True)


def load(
    model: ModelT, source: str | Path | Mapping[str, Any], *, prefix: str = "", plugins: Plugins | None = None
) -> ModelT:
    """Restore a saved network in a new ``model``, bit for bit, and return it.

    The model is the host as it was built, ungrafted or grafted at the same places. The source is a folder written by
    ``save``, or the state dict of a grown network; or the folder of PEFT's adapters, which the model has loaded. With a
    ``prefix``, such as ``encoder``, the model is a part of that network, and what stands below it is loaded. Blueprints
    come from ``plugins``, by default all that are installed.

    Raises:
        GrowthError: a file is missing, damaged or from a newer Esper, or does not fit this host.
        ConfigError: a blueprint is not installed. The model is unchanged.
        PluginError: the package of a blueprint is broken. The model is unchanged.
    """
    prefix = f"{prefix.removesuffix('.')}." if prefix else ""
    if isinstance(source, Mapping):
        origin, state = "the state dict", part_of_state(prefix, source)
        network = Network.in_state(state)
        if network is None:
            hint = "Pass the state dict of the grafted model. If nothing grew, use  model.load_state_dict(state)"
            raise GrowthError(Problem("E330", "the state dict has no growth journal", hint=hint))
    else:
        origin = str(source)
        network, state = _read_beside_adapters(model, Path(source)) or _read(Path(source))
        network, state = network.moved(lambda at: _name_below(prefix, at)), part_of_state(prefix, state)
    registry = (load_plugins() if plugins is None else plugins).registry

    def find(id_: str) -> Variety:
        component = registry.find("blueprint", id_)
        assert isinstance(component.spec, BlueprintSpec)
        return Variety(component.id, component.spec, component.load(), component.title)

    Host(model).rebuild(network, state, find, source=origin)
    keep_growth_with_adapters(model)
    return model


def part_of_state(prefix: str, state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the state dict of the part with this prefix."""
    return {key[len(prefix) :]: value for key, value in state.items() if key.startswith(prefix)}


def _name_below(prefix: str, at: str) -> str | None:
    """Return the name that a module has in the part with this prefix; None if it is not in it.

    >>> _name_below("encoder.", "encoder.0"), _name_below("encoder.", "encoder"), _name_below("encoder.", "head")
    ('0', '', None)
    """
    path = f"{at}."
    return path[len(prefix) :].removesuffix(".") if path.startswith(prefix) else None


def _separate(state: Mapping[str, Any]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return each tensor once, in contiguous memory of its own, and the further names of shared ones."""
    numbers: dict[str, Tensor] = {}
    aliases: dict[str, str] = {}
    first: dict[tuple[Any, ...], str] = {}
    for name, value in state.items():
        if Network.has_key(name):
            continue
        _refuse_unwritable(name, value)
        same = (value.device, value.data_ptr(), value.dtype, tuple(value.shape), value.stride())
        if value.numel() and (original := first.setdefault(same, name)) != name:
            aliases[name] = original
        else:
            numbers[name] = value.detach().to("cpu", copy=True).contiguous()
    return numbers, aliases


def _refuse_unwritable(name: str, value: Any) -> None:
    """Raise GrowthError for a value that safetensors cannot store."""
    if not isinstance(value, Tensor):
        description = f"a {type(value).__name__}, which is not a tensor"
    elif type(value) not in (Tensor, nn.Parameter):
        description = f"a {type(value).__name__}, as of a quantised layer, which safetensors cannot store"
    elif value.is_meta or value.layout is not torch.strided or value.is_quantized or value.is_complex():
        description = f"a tensor of {value.dtype}, {value.layout} on {value.device}, which cannot be saved"
    else:
        return
    message = f'the state of this model contains "{name}", {description}'
    hint = "Use a dense tensor of real numbers, keep it outside the state, or write the state dict with torch.save."
    raise GrowthError(Problem("E335", message, hint=hint))


def _read(folder: Path) -> tuple[Network, dict[str, Tensor]]:
    file = folder / JOURNAL_FILE
    network, beside = Network.parse(read_part(file, None, LAYOUT), source=str(file), beside=("sha256", "numbers"))
    reference = beside["numbers"]
    if not isinstance(reference, dict) or _TENSORS_FILE.fullmatch(str(reference.get("file"))) is None:
        raise Network.invalid(str(file), "It does not name the file of its tensors")
    if beside["sha256"] != _digest({**asdict(network), "numbers": reference}):
        raise Network.invalid(str(file), "Its checksum does not match its content")
    path = folder / reference["file"]
    data = read_part(path, tensor_bytes(), LAYOUT)
    try:
        if hashlib.sha256(data).hexdigest() != reference["sha256"]:
            msg = "its checksum differs from the one in growth.json"
            raise ValueError(msg)
        state = decode(data)
        return network, state | {name: state[original] for name, original in reference["aliases"].items()}
    except (SafetensorError, LookupError, TypeError, AttributeError, ValueError) as error:
        hint = f"{type(error).__name__}: {error}\nThe file is incomplete, was changed, or belongs to another network."
        message = f"{path} does not contain the tensors of this network"
        raise GrowthError(Problem("E332", message, hint=hint)) from error


def _read_beside_adapters(model: nn.Module, folder: Path) -> tuple[Network, dict[str, Tensor]] | None:
    """Return what grew in a model whose adapters are in this folder, in the loaded ``model``; None if they are not."""
    file = folder / GROWN_FILE
    if not file.is_file():
        return None
    try:
        grown = decode(read_part(file, tensor_bytes(), LAYOUT))
    except SafetensorError as error:
        message = f"{file} does not contain the tensors of this network"
        raise GrowthError(Problem("E332", message, hint=f"The file is incomplete, or was changed: {error}")) from error
    network = Network.in_state(grown)
    if network is None:
        raise Network.invalid(str(file), "It has none")
    return network, {**model.state_dict(), **grown}


def _digest(record: Mapping[str, Any]) -> str:
    """Return the checksum of a journal's content, independent of its layout in the file."""
    return hashlib.sha256(json.dumps(record, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
