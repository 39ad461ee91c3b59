"""The engines ``processes`` and ``ray`` as a run finds them. Imports no torch before one is opened."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from esper_run.engines import Engine
from esper_scale.engines.ray_settings import RaySettings

if TYPE_CHECKING:
    from esper_run.engines import EngineContext, EngineSession


def open_processes(context: EngineContext) -> EngineSession | None:
    """Open worker processes for a run, if several are asked for or may be faster."""
    from esper_scale.engines.sessions import open_processes as open_session

    return open_session(context)


def open_ray(context: EngineContext) -> EngineSession | None:
    """Open workers on a cluster for a run that asks for them."""
    from esper_scale.engines.sessions import open_ray as open_session

    return open_session(context)


PROCESSES: Final = Engine("Worker processes on this machine's CPU.", open_processes)
RAY: Final = Engine("Workers on the machines of a Ray cluster.", open_ray, RaySettings, is_remote=True)
