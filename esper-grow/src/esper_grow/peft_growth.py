"""PEFT: what grew in a model with adapters is saved beside them, and not merged away.

``save_pretrained`` of such a model writes adapters alone, by their names. So it is replaced on the model, and then
writes what grew, too, which ``esper_grow.load`` restores. PEFT reads none of this, and warns of a key in its
configuration.
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from safetensors.torch import save_file

from esper_core.growth import Host
from esper_core.leyline.errors import GrowthError, Problem
from esper_core.leyline.files import read_bytes
from esper_run.runs.directory import report_os_errors, write_json

if TYPE_CHECKING:
    from torch import nn

GROWN_FILE: Final = "esper_grown.safetensors"
"""What grew, beside the adapters."""

ADAPTER_CONFIGURATION: Final = "adapter_config.json"
"""Name of PEFT's file beside adapters, in the folder or in one for each of them."""

_MARK: Final = "for_esper_grow.load"
"""Key in PEFT's configuration: what to call is all that PEFT reports of a key that it does not know."""

_SAVE: Final = "save_pretrained"
_MERGING: Final = ("merge_and_unload", "unload")
"""Methods of PEFT that replace layers with adapters, and would lose what grew behind these."""


def has_adapters(model: nn.Module) -> bool:
    """Return whether PEFT has put adapters into a model."""
    return hasattr(model, "peft_config")


def keep_growth_with_adapters(model: nn.Module) -> None:
    """Let ``save_pretrained`` of the model and its parts write what grew in them where it writes adapters alone.

    What would lose it is refused then.
    """
    # On the objects: PEFT's classes are shared with models that do not grow. Copies and pickles take it along.
    for module in model.modules():
        if hasattr(type(module), _SAVE):
            setattr(module, _SAVE, partial(_save_with_growth, module))
        for name in _MERGING:
            if hasattr(type(module), name):
                setattr(module, name, partial(_merge_around_growth, module, name))


def forget_growth(model: nn.Module) -> None:
    """Put these methods back as they were, in a model that is to be used without Esper."""
    for module in model.modules():
        for name in (_SAVE, *_MERGING):
            replaced = vars(module).get(name)
            if isinstance(replaced, partial) and replaced.func in (_save_with_growth, _merge_around_growth):
                delattr(module, name)


def _merge_around_growth(module: Any, name: str, *arguments: Any, **options: Any) -> Any:
    """Merge or remove adapters, unless something grew behind a layer that would be replaced."""
    host = Host(module)
    for at, slot in host.slots.by_module.items() if host.is_grafted else ():
        if len(slot.seeds) and hasattr(module.get_submodule(at), "base_layer"):
            message = f'{name}() would replace the module "{at}", and with it what grew in slot "{slot.name}"'
            hint = "Merge adapters before the Gardener is made, or put slots behind modules without adapters."
            raise GrowthError(Problem("E358", message, hint=hint))
    return getattr(type(module), name)(module, *arguments, **options)


def _save_with_growth(module: Any, save_directory: str | Path, *arguments: Any, **options: Any) -> Any:
    """Save a model as its class does, and what grew in it if that wrote adapters alone."""
    saved = getattr(type(module), _SAVE)(module, save_directory, *arguments, **options)
    folder = Path(save_directory)
    configurations = [*folder.rglob(ADAPTER_CONFIGURATION)]
    grown = Host.split_state(module.state_dict())[1]
    if not configurations:
        return saved
    with report_os_errors(folder):
        (folder / GROWN_FILE).unlink(missing_ok=True)  # that of a model that was saved here before
    if grown:
        with report_os_errors(folder):
            save_file({name: tensor.detach().cpu().contiguous() for name, tensor in grown.items()}, folder / GROWN_FILE)
        for file in configurations:
            write_json(file, {**json.loads(read_bytes(file)), _MARK: GROWN_FILE})
    return saved


def refuse_living(model: nn.Module) -> None:
    """Raise GrowthError (E336) if seeds in a model are not kept yet."""
    if living := living_seeds(model):
        hint = (
            "Train until tend() keeps what pays. close() keeps a set whose gain is shown, and loses the rest.\n"
            "In a copy without a Gardener esper_grow.prune(model) drops all of them."
        )
        raise GrowthError(Problem("E336", f"seeds are not kept yet: {', '.join(living)}", hint=hint))


def living_seeds(model: nn.Module) -> list[str]:
    """Return the blueprints and slots of seeds that are not kept yet, as messages name them."""
    slots = Host(model).slots if Host(model).is_grafted else ()
    return [f"{seed.blueprint} in {slot.name}" for slot in slots for seed in slot.nursery]
