"""What does a plugin see of a run? Frozen records: which run it is, how it is set up, and how it ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from pathlib import Path

RunStatus = Literal["done", "failed", "interrupted", "stopped"]


@dataclass(frozen=True, slots=True)
class RunInfo:
    """Which run it is: ``rounds`` times ``environments`` episodes of ``steps`` steps for each of the ``arms``.

    id: the name of the run directory. path: the directory itself. device: where tensors live, as torch names it.
    """

    id: str
    path: Path
    arms: tuple[str, ...]
    rounds: int
    environments: int
    steps: int
    device: str


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """How a run ended. ``results`` is that of summary.json; None where the run was not done."""

    status: RunStatus
    reason: str = ""
    results: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class ReportSection:
    """A part of a run's report: a title of one line, and plain text under it, in as many lines as it takes."""

    title: str
    text: str


@dataclass(frozen=True, slots=True)
class RunContext:
    """What is about to be trained."""

    run: RunInfo


@dataclass(frozen=True, slots=True)
class PluginConfig:
    """How a run is set up, for one plugin.

    settings: an instance of the model that the plugin's ``esper_settings_model`` names; None where it names none.
    values: the whole configuration as config.yaml has it, names in full and defaults written out. Read-only.
    """

    settings: Any
    values: Mapping[str, Any]


def frozen(value: Any) -> Any:
    """Plain data that nobody can change any more: mappings are views, lists are tuples.

    >>> frozen({"slots": [1, 2]})["slots"]
    (1, 2)
    """
    if isinstance(value, Mapping):
        return MappingProxyType({key: frozen(item) for key, item in value.items()})
    if isinstance(value, list | tuple):
        return tuple(frozen(item) for item in value)
    return value
