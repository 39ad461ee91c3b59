"""PEFT: what grew in a model with adapters is saved beside them.

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
from esper_core.leyline.files import read_bytes
from esper_run.runs.directory import report_os_errors, write_json

if TYPE_CHECKING:
    from torch import nn

GROWN_FILE: Final = "esper_grown.safetensors"
"""What grew, beside the adapters."""

_CONFIGURATION: Final = "adapter_config.json"
_MARK: Final = "for_esper_grow.load"
"""Key in PEFT's configuration: what to call is all that PEFT reports of a key that it does not know."""

_SAVE: Final = "save_pretrained"


def save_growth_with_adapters(model: nn.Module) -> None:
    """Let ``save_pretrained`` of the model and its parts write what grew in them where it writes adapters alone."""
    for module in model.modules():
        if hasattr(type(module), _SAVE):
            # On the object: PEFT's class is shared with models that do not grow. Copies and pickles take it along.
            setattr(module, _SAVE, partial(_save_with_growth, module))


def forget_growth(model: nn.Module) -> None:
    """Put back ``save_pretrained`` as it was, in a model that is to be used without Esper."""
    for module in model.modules():
        replaced = vars(module).get(_SAVE)
        if isinstance(replaced, partial) and replaced.func is _save_with_growth:
            delattr(module, _SAVE)


def _save_with_growth(module: Any, save_directory: str | Path, *arguments: Any, **options: Any) -> Any:
    """Save a model as its class does, and what grew in it if that wrote adapters alone."""
    saved = getattr(type(module), _SAVE)(module, save_directory, *arguments, **options)
    folder = Path(save_directory)
    configurations = [*folder.rglob(_CONFIGURATION)]
    grown = Host.split_state(module.state_dict())[1]
    if configurations and grown:
        with report_os_errors(folder):
            save_file({name: tensor.detach().cpu().contiguous() for name, tensor in grown.items()}, folder / GROWN_FILE)
        for file in configurations:
            write_json(file, {**json.loads(read_bytes(file)), _MARK: GROWN_FILE})
    return saved
