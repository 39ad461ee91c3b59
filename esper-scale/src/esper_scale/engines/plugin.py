"""The engines ``processes`` and ``ray`` as a run finds them. Imports no torch before one is opened."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

from pydantic import Field

from esper_core.settings import Section
from esper_run.engines import Engine

if TYPE_CHECKING:
    from esper_run.engines import EngineContext, EngineSession


class RaySettings(Section):
    """The Ray cluster that ``engine: ray`` uses."""

    address: Annotated[str, Field(min_length=1, max_length=100)] | None = Field(
        default=None,
        description="Address of a cluster; null: that of RAY_ADDRESS, else a cluster on this machine for this run.",
    )
    wait_seconds: int = Field(
        default=300, ge=1, le=86_400, description="Seconds to wait until the cluster has started the workers."
    )


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
