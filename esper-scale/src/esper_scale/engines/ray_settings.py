"""The section ``ray`` of a configuration. Imports no torch."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from esper_core.settings import Section


class RaySettings(Section):
    """The Ray cluster that ``engine: ray`` uses."""

    address: Annotated[str, Field(min_length=1, max_length=100)] | None = Field(
        default=None,
        description="Address of a cluster; null: that of RAY_ADDRESS, else a cluster on this machine for this run.",
    )
    wait_seconds: int = Field(
        default=300, ge=1, le=86_400, description="Seconds to wait until the cluster has started the workers."
    )
