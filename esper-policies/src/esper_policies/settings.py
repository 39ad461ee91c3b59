"""What can be set for each policy of this package? Whether it fits the run's slots is told when the policy is built."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field


class Settings(BaseModel):
    """Settings of a component: what it does not know is refused, and nothing changes once it is read."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class PlanEntry(Settings):
    """One line of a plan: ``{step: 0, op: germinate, slot: early, blueprint: conv_light, speed: 4}``."""

    step: int = Field(ge=0, description="Decision step from which on it is tried; steps count from 0.")
    op: Literal["germinate", "advance", "prune", "fossilise"] = Field(description="What is done.")
    slot: str | None = Field(default=None, description="Where; every op needs it.")
    blueprint: str | None = Field(
        default=None, description="What is planted, by short name or full id: germinate only."
    )
    speed: int | None = Field(
        default=None, ge=1, description="Decision steps that alpha takes to its target: for germinate and prune."
    )


class ScheduleSettings(Settings):
    """Settings of ``schedule``."""

    plan: Annotated[tuple[PlanEntry, ...], Field(strict=False)] = Field(
        description="What is done when; for each slot in the order of time."
    )
