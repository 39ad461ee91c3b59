"""Trained policies as files, and the state of the optimizer.

A trained policy is two files in a folder: tensors in safetensors, and everything else in JSON; no code is executed. The
JSON names the columns it was trained on, so that a version with other columns refuses it.
"""

from __future__ import annotations

import hashlib
import json
import os
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from safetensors import SafetensorError
from safetensors.torch import load as read_tensors, save as written_tensors

from esper_core.leyline import SettingError, State
from esper_core.leyline.files import read_bytes
from esper_policies.observations import CANDIDATE_COLUMNS, SCHEMA, SLOT_COLUMNS
from esper_policies.ppo.encoding import WHOLE_COLUMNS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import torch
    from torch import Tensor

    from esper_policies.ppo.settings import PpoSettings


FORMAT: Final = 1
NUMBERS: Final = "gardener.safetensors"
WORDS: Final = "gardener.json"

COMPARED_SETTINGS: Final = ("decide_every", "last", "speed")
"""Settings that should have the values of the training."""

_DAMAGES: Final = (ValueError, KeyError, TypeError, RuntimeError, SafetensorError)
"""Exceptions of files that were changed or truncated."""

_COLUMNS: Final = {"whole": list(WHOLE_COLUMNS), "slots": list(SLOT_COLUMNS), "candidates": list(CANDIDATE_COLUMNS)}


@dataclass(frozen=True, slots=True)
class TrainedPolicy:
    """A trained policy.

    names: the blueprints that it knows by name. settings: the settings of its training.
    """

    names: Sequence[str]
    settings: Mapping[str, Any]
    scales: Mapping[str, Any]
    numbers: Mapping[str, Tensor] = field(default_factory=dict)

    def tensors(self, part: str) -> dict[str, Tensor]:
        """Return the tensors of one part: network or scales."""
        prefix = f"{part}/"
        return {name.removeprefix(prefix): tensor for name, tensor in self.numbers.items() if name.startswith(prefix)}


def save_trained(folder: str, policy: TrainedPolicy, parts: Mapping[str, Mapping[str, Tensor]]) -> None:
    """Write a trained policy into a folder, each file atomically."""
    words = {
        "format": FORMAT,
        "policy": "ppo",
        "schema": SCHEMA,
        "columns": _COLUMNS,
        "names": list(policy.names),
        "settings": dict(policy.settings),
        "scales": dict(policy.scales),
    }
    numbers = {
        f"{part}/{name}": tensor.contiguous() for part, tensors in parts.items() for name, tensor in tensors.items()
    }
    home = Path(folder)
    home.mkdir(parents=True, exist_ok=True)
    content = written_tensors(numbers)
    words["sha256"] = hashlib.sha256(content).hexdigest()
    _write(home / NUMBERS, content)
    _write(home / WORDS, (json.dumps(words, indent=1, allow_nan=False) + "\n").encode())


def check_save_folder(folder: str) -> None:
    """Refuse a folder that cannot be written to, before training; nothing is created here."""
    home = Path(folder).absolute()
    existing = next(path for path in (home, *home.parents) if path.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        problem = "is not a folder" if not existing.is_dir() else "is a folder that you cannot write to"
        at, message = "save", f'"{folder}": {existing} {problem}'
        raise SettingError(at, message, "Name an existing folder, or one that can be created.")


def load_trained(name: str) -> TrainedPolicy:
    """Load the policy in a folder. Raises SettingError if it cannot be used."""
    try:
        words, numbers = (read_bytes(str(Path(name) / part), follow=True) for part in (WORDS, NUMBERS))
    except (OSError, ValueError) as error:  # a name that no file can have raises ValueError
        hint = f"A trained policy is a folder with {WORDS} and {NUMBERS}."
        raise _refused(name, "there is no trained policy of this name", hint) from error
    with damage_reported(name):
        description = json.loads(words)
        if hashlib.sha256(numbers).hexdigest() != description["sha256"]:
            msg = f"{NUMBERS} does not match the checksum in {WORDS}"
            raise ValueError(msg)
        tensors = read_tensors(numbers)
        if wild := [key for key, tensor in tensors.items() if not bool(tensor.isfinite().all())]:
            msg = f"{wild[0]} has values that are not finite"
            raise ValueError(msg)
        policy = TrainedPolicy(list(description["names"]), description["settings"], description["scales"], tensors)
        columns, schema, form = description["columns"], description["schema"], description["format"]
    if form != FORMAT or schema != SCHEMA or columns != _COLUMNS:
        problem = f"it was trained on observations of schema {schema} (format {form}); this version has schema {SCHEMA}"
        raise _refused(name, problem, "Train it again with this version.")
    return policy


@contextmanager
def damage_reported(name: str | None) -> Iterator[None]:
    """Report errors inside the ``with`` block as damage to the trained policy of this name, if there is one."""
    try:
        yield
    except _DAMAGES as error:
        if name is None:
            raise
        raise _refused(
            name, f"it is damaged: {error}", "Train it again, or restore the files from another copy."
        ) from error


def _refused(name: str, problem: str, hint: str) -> SettingError:
    return SettingError("load", f'"{name}": {problem}', hint)


def _write(file: Path, content: bytes) -> None:
    beside = file.with_suffix(file.suffix + ".new")
    beside.write_bytes(content)
    beside.replace(file)


def setting_differences(settings: PpoSettings, policy: TrainedPolicy) -> Iterator[str]:
    """Yield a warning for each setting that differs from training."""
    values = settings.model_dump(mode="json", include=set(COMPARED_SETTINGS))
    for name in COMPARED_SETTINGS:
        if name in policy.settings and policy.settings[name] != values[name]:
            learnt, now = (json.dumps(value) for value in (policy.settings[name], values[name]))
            yield f"the loaded policy was trained with {name}: {learnt}, but the configuration has {now}"


def optimizer_state(optimizer: torch.optim.Optimizer) -> State:
    """Return the state of an optimizer with one group, by parameter number."""
    states = optimizer.state_dict()["state"]
    return State(
        {},
        {f"{number}.{name}": tensor.clone() for number, tensors in states.items() for name, tensor in tensors.items()},
    )


def restore_optimizer(optimizer: torch.optim.Optimizer, state: State) -> None:
    """Restore the state of an optimizer."""
    states: dict[int, dict[str, torch.Tensor]] = {}
    for key, tensor in state.tensors.items():
        number, _, name = key.partition(".")
        states.setdefault(int(number), {})[name] = tensor.clone()
    optimizer.load_state_dict({"state": states, "param_groups": optimizer.state_dict()["param_groups"]})
