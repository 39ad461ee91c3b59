"""Engines: what computes the environments of a run, found by entry points.

A package announces an engine in the group ``esper.engines``, by the name that ``engine`` has in a configuration:

    [project.entry-points."esper.engines"]
    cluster = "my_package.engine:ENGINE"

The entry point names an ``Engine``. A run opens it once, asks the session for a pool of environments for each of its
studies, and closes it at its end. ``threads`` is the engine of this process, which is always there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from esper_core.leyline.errors import ConfigError, Problem, suggestion
from esper_core.plugins import Extension

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import torch
    from pydantic import BaseModel

    from esper_core.growth import Growth
    from esper_core.trainer import Recipe, StudyPool
    from esper_run.config import RunConfig

ENGINE_GROUP: Final = "esper.engines"

KNOWN_ELSEWHERE: Final[Mapping[str, str]] = {"processes": "esper-scale", "ray": "esper-scale[ray]"}
"""The project's engines in other packages, each with what to install."""


@dataclass(frozen=True, slots=True)
class PoolRequest:
    """What a study asks of an engine: a pool of environments.

    Attributes:
        arms: The arms to compute, each with all environments.
        twin: The arm that never grows; None: there is none.
        implants: What each network has from the start, by arm and RNG seed; None where nothing is implanted.
        heartbeat: To be called when work begins in an environment, with its pool index, or with -1 about once a second
            while the pool waits; may raise Interrupted.
    """

    arms: Sequence[str]
    twin: str | None
    implants: Mapping[tuple[str, int], Sequence[Growth]] | None = None
    heartbeat: Callable[[int], None] = lambda pool_index: None


class ComposedRun(Protocol):
    """What a run consists of, built and checked; ``esper_run.app.compose.Composition`` says more of each part."""

    @property
    def config(self) -> RunConfig:
        """The configuration as the file has it."""

    @property
    def recipe(self) -> Recipe:
        """What environments have in common."""

    @property
    def devices(self) -> tuple[torch.device, ...]:
        """The devices that the configuration asks for."""

    @property
    def resolution(self) -> Any:
        """The components of the configuration, and the plugins that they come from."""


class EngineSession(Protocol):
    """An engine at the disposal of one run."""

    def pool(self, request: PoolRequest) -> StudyPool[Any]:
        """Return a pool, which the run closes."""

    def close(self) -> None:
        """Release what the session holds; its pools are closed before."""


@dataclass(frozen=True, slots=True)
class EngineContext:
    """What an engine gets from the run that opens it.

    Attributes:
        settings: An instance of ``Engine.settings``, or None.
        on_node: To be called with a record, as JSON, of each machine that takes part.
        on_wait: To be called about once a second while the engine waits; may raise Interrupted.
    """

    composition: ComposedRun
    settings: Any
    on_node: Callable[[Mapping[str, Any]], None]
    on_wait: Callable[[], None]


@dataclass(frozen=True, slots=True)
class Engine:
    """An engine as a package declares it. It is imported where a configuration is checked, so it imports no torch.

    Attributes:
        summary: One line for listings and editors.
        open: Opens it for a run; returns None where threads of the run's own process do as well.
        settings: The model of its settings, if it has any.
        is_remote: Whether it computes on the CPUs of other machines.
    """

    summary: str
    open: Callable[[EngineContext], EngineSession | None]
    settings: type[BaseModel] | None = None
    is_remote: bool = False


def installed_engines() -> Mapping[str, Extension]:
    """Return the engines that packages announce, by name, without importing them."""
    return Extension.find(ENGINE_GROUP, "engine")


def find_engine(name: str) -> Engine:
    """Import the engine of this name.

    Raises:
        ConfigError: There is none (E126).
        PluginError: Its package is broken, or it is not an engine.
    """
    engines = installed_engines()
    if name not in engines:
        hint = suggestion(name, engines)
        if name in KNOWN_ELSEWHERE:
            hint = f"It comes with another package:  pip install '{KNOWN_ELSEWHERE[name]}'"
        raise ConfigError(Problem("E126", f'unknown engine "{name}"', hint=hint))
    return engines[name].load(Engine, "an esper_run.engines.Engine")
