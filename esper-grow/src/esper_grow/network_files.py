"""Save and load grown networks, in folders that ``esper_run.runs.network_files`` describes, and state dicts."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from safetensors import SafetensorError
from safetensors.torch import load as decode
from torch import nn

from esper_core.growth import Host, Network, RandomStream, Variety
from esper_core.leyline.errors import GrowthError, Problem, suggestion
from esper_core.leyline.files import read_json
from esper_core.leyline.specs import BlueprintSpec
from esper_core.plugins import load_plugins
from esper_grow.peft_growth import GROWN_FILE, keep_growth_with_adapters
from esper_run.runs.checkpoint_files import read_part, tensor_bytes
from esper_run.runs.network_files import EPISODE_FILE, JOURNAL_FILE, TENSORS_FILE, digest_of, write_network

if TYPE_CHECKING:
    from torch import Tensor

    from esper_core.plugins import Plugins

LAYOUT: Final = f"A saved network is a folder with {JOURNAL_FILE} and the safetensors file that it names."

log = logging.getLogger("esper")

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
    write_network(Path(folder), asdict(network), model.state_dict())


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


def load_best(run: str | Path, arm: str) -> nn.Module:
    """Return the best network that an arm of ``esper run`` ended with, on the CPU and in evaluation mode.

    It is the best in validation, where networks are judged by the average of their weights. It has the weights that
    were tested, and buffers with ``persistent=False`` as its host was built with them. The host of the run is built
    anew, with its plugins and the data of its task; ``load`` restores the network in a host of your own, from the run's
    folder ``networks/ARM``. The run is named as for ``esper_run.load_run``: by its folder, its id below ``runs``, the
    words of its id, or the URL of a stored run.

    Raises:
        RunFolderError: There is no such run.
        GrowthError: The run has no such network, or it does not fit.
        ConfigError: A package of the run is missing.
        PluginError: A plugin of the run is at fault.
    """
    # The machinery of runs, which ``save`` and ``load`` do without.
    from esper_run import load_run
    from esper_run.app.compose import changed_files, prepare
    from esper_run.runs.records import changed_events

    record = load_run(run)
    folder = record.path / "networks"
    try:
        arms = [path.name for path in folder.iterdir()] if folder.is_dir() else []
        if arm not in arms:
            hint = suggestion(arm, arms) if arms else "They are saved after each round. log.txt says what failed."
            raise GrowthError(Problem("E332", f'{record.path} has no network of an arm "{arm}"', hint=hint))
        seed = int(read_json(folder / arm / EPISODE_FILE)["seed"])
    except (OSError, LookupError, TypeError, ValueError) as error:
        message = f"the network of arm {arm} in {record.path} cannot be read: {type(error).__name__}: {error}"
        raise GrowthError(Problem("E332", message, hint=LAYOUT)) from error
    composition = prepare(record.path / "config.yaml", ["device=cpu", "devices=[]", "engine=threads", "sinks=[]"])
    for warning in (changed_events(record), *changed_files(composition, record)):
        if warning is not None:
            log.warning("%s", warning)
    with RandomStream(RandomStream.derive_seed(seed, "host")):  # as in the run: it may have constants that it draws
        host = composition.recipe.build_host()
    return load(host, folder / arm, plugins=composition.resolution.plugins).eval()


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


def _read(folder: Path) -> tuple[Network, dict[str, Tensor]]:
    file = folder / JOURNAL_FILE
    network, beside = Network.parse(read_part(file, None, LAYOUT), source=str(file), beside=("sha256", "numbers"))
    reference = beside["numbers"]
    if not isinstance(reference, dict) or TENSORS_FILE.fullmatch(str(reference.get("file"))) is None:
        raise Network.invalid(str(file), "It does not name the file of its tensors")
    if beside["sha256"] != digest_of({**asdict(network), "numbers": reference}):
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
