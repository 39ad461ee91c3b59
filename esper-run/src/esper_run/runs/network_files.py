"""Network files: write a network to a folder, its architecture in growth.json and its tensors in a safetensors file.

Nothing is pickled. The tensors are written first, under a name made from their checksum, then growth.json, which names
that file and holds the checksums of both; files of an older network are deleted last. So the folder always holds one
complete network: the older one until growth.json is replaced, and then the new one.
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import TYPE_CHECKING, Any, Final

import torch
from safetensors.torch import save
from torch import Tensor, nn

from esper_core.growth import Network
from esper_core.leyline.errors import GrowthError, Problem
from esper_core.leyline.files import read_json
from esper_run.runs.directory import report_os_errors, write_atomically, write_json

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

JOURNAL_FILE: Final = "growth.json"
EPISODE_FILE: Final = "episode.json"
"""Beside the best network of an arm of a run: which round and RNG seed it is from, and its figures."""
TENSORS_FILE: Final = re.compile(r"model-[0-9a-f]{8}\.safetensors")


def write_network(folder: Path, network: Mapping[str, Any], state: Mapping[str, Any]) -> None:
    """Write a network to a folder, which is made if it is not there. An older network there is replaced.

    Args:
        folder: Where it is written.
        network: The journal, as plain data.
        state: The state dict.

    Raises:
        GrowthError: The state contains something that safetensors cannot store.
        RunFolderError: The folder cannot be written.
    """
    tensors, aliases = _separate(state)
    with report_os_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    data = save(tensors)
    digest = hashlib.sha256(data).hexdigest()
    name = f"model-{digest[:8]}.safetensors"
    write_atomically(folder / name, data)
    record = {**network, "numbers": {"file": name, "sha256": digest, "aliases": aliases}}
    write_json(folder / JOURNAL_FILE, {**record, "sha256": digest_of(record)})
    with report_os_errors(folder):
        for path in folder.iterdir():
            if path.name != name and TENSORS_FILE.fullmatch(path.name.removeprefix(".").removesuffix(".part")):
                path.unlink(missing_ok=True)


def _separate(state: Mapping[str, Any]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return each tensor once, in contiguous memory of its own, and the further names of shared ones."""
    numbers: dict[str, Tensor] = {}
    aliases: dict[str, str] = {}
    first: dict[tuple[Any, ...], str] = {}
    for name, value in state.items():
        if Network.has_key(name):
            continue
        refuse_unwritable(name, value)
        same = (value.device, value.data_ptr(), value.dtype, tuple(value.shape), value.stride())
        if value.numel() and (original := first.setdefault(same, name)) != name:
            aliases[name] = original
        else:
            numbers[name] = value.detach().to("cpu", copy=True).contiguous()
    return numbers, aliases


def refuse_unwritable(name: str, value: Any) -> None:
    """Raise GrowthError for a value that safetensors cannot store."""
    if not isinstance(value, Tensor):
        description = f"a {type(value).__name__}, which is not a tensor"
    elif type(value) not in (Tensor, nn.Parameter):
        description = f"a {type(value).__name__}, as of a quantised layer, which safetensors cannot store"
    elif value.is_meta or value.layout is not torch.strided or value.dtype is torch.complex128:
        description = f"a tensor of {value.dtype}, {value.layout} on {value.device}, which cannot be saved"
    else:
        return
    message = f'the state of this model contains "{name}", {description}'
    hint = "Use a dense tensor, at most complex64, keep it outside the state, or write the state dict with torch.save."
    raise GrowthError(Problem("E335", message, hint=hint))


def best_episodes(run: Path) -> dict[str, dict[str, Any]]:
    """Return what is written beside the best network of each arm of a run."""
    return {file.parent.name: read_json(file) for file in sorted((run / "networks").glob(f"*/{EPISODE_FILE}"))}


def digest_of(record: Mapping[str, Any]) -> str:
    """Return the checksum of a journal's content, independent of its layout in the file."""
    return hashlib.sha256(json.dumps(record, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
