"""Settings of the policies and schedules of this package, with their defaults.

Whether they fit the slots of the run is checked when the policy is built.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from esper_core.leyline.constants import FULL, NATS_PER_PARAMETER, RAMP_STEPS

if TYPE_CHECKING:
    from collections.abc import Callable

LONGEST: Final = 100_000
"""Steps of the longest episode."""

UNDERSOLD: Final = 4.0
"""Final gain of a seed as a multiple of its gain in the preview; measured, see ``heuristic``."""

CAUTION: Final = 1.64
"""Standard errors that are subtracted from a gain: a gain of 0 counts as more in one case of twenty."""

FEE: Final = 0.02
"""Nats that a kept seed costs beside its parameters; otherwise the smallest seeds would pay everywhere."""

WIDTH: Final = 2.0
"""Prior standard deviation of an untried arm's worth, in units of the usual size of rewards."""


class Settings(BaseModel):
    """Base of the settings models: unknown keys are refused, and instances are immutable."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class PlanEntry(Settings):
    """One line of a plan: ``{step: 0, op: germinate, slot: early, blueprint: conv_light, speed: 4}``."""

    step: int = Field(ge=0, description="Decision step from which on it is tried; steps count from 0.")
    op: Literal["germinate", "advance", "retarget", "prune", "fossilise"] = Field(description="What is done.")
    slot: str | None = Field(default=None, description="Where; every op needs it.")
    blueprint: str | None = Field(
        default=None, description="What is planted, by short name or full id: germinate only."
    )
    blend: Literal["add", "residual", "multiply", "gate"] | None = Field(
        default=None, description="How the seed is blended in: germinate only; default: add."
    )
    speed: int | None = Field(
        default=None,
        ge=0,
        description="Decision steps that alpha takes to its target, 0 for at once: germinate, retarget, prune.",
    )
    curve: Literal["linear", "cosine", "sigmoid"] | None = Field(
        default=None, description="The way that alpha takes: germinate, retarget, prune; default: linear."
    )
    target: float | None = Field(
        default=None,
        gt=0,
        le=1,
        description="Where alpha goes: germinate, retarget; default: 1, the only strength at which a seed can be kept.",
    )


class ScheduleSettings(Settings):
    """Settings of ``schedule``."""

    plan: Annotated[tuple[PlanEntry, ...], Field(strict=False)] = Field(
        description="What is done when; for each slot in the order of time."
    )


class HeuristicSettings(Settings):
    """Settings of ``heuristic``. The defaults are for decision steps of an epoch each, about 40 of them."""

    preview: int = Field(
        default=5, ge=1, le=100_000, description="Steps that a seed learns in isolation before it is judged."
    )
    patience: int = Field(
        default=5,
        ge=0,
        le=100_000,
        description="Steps more that a seed gets which a gate refuses, or which is blended in and does not pay yet.",
    )
    first: float = Field(
        default=0.1,
        ge=0,
        le=1,
        description="Share of the episode before which nothing is planted: at first all gains are easy.",
    )
    last: float = Field(default=0.6, ge=0, le=1, description="Share of the episode after which nothing is planted.")
    speed: int = Field(
        default=RAMP_STEPS, ge=1, le=100_000, description="Steps in which a seed is blended in, or taken out again."
    )
    undersold: float = Field(
        default=UNDERSOLD, gt=0, le=1000, description="Times what its preview shows that a seed brings at the end."
    )
    caution: float = Field(
        default=CAUTION, ge=0, le=100, description="Standard errors by which a gain is taken for less than it is."
    )
    price: float | None = Field(
        default=None,
        ge=0,
        le=1e6,
        description=f"Nats for each parameter; null: what the gates ask, or {NATS_PER_PARAMETER:g} where they are off.",
    )
    fee: float = Field(default=FEE, ge=0, le=1e6, description="Nats that each kept seed costs beside its parameters.")
    points: float | None = Field(
        default=None,
        gt=0,
        le=1e6,
        description="Hundredths of the metric that a nat brings, to ask the reward's own price; null: price and fee.",
    )


_SOME: Final = Field(strict=False, min_length=1)
"""A non-empty list, as YAML has it."""


class RandomSettings(Settings):
    """Settings of ``random``. What a list holds is drawn as often as anything else in it."""

    seed: int = Field(default=0, ge=0, description="Another one draws otherwise everywhere.")
    blends: Annotated[tuple[Literal["add", "residual", "multiply", "gate"], ...], _SOME] = Field(
        default=("add",), description="How a seed may be blended in."
    )
    speeds: Annotated[tuple[Annotated[int, Field(ge=0, le=100_000)], ...], _SOME] = Field(
        default=(RAMP_STEPS,), description="Decision steps that alpha may take to its target."
    )
    targets: Annotated[tuple[Annotated[float, Field(gt=0, le=1)], ...], _SOME] = Field(
        default=(FULL,), description="Where alpha may go; a seed can be kept only at 1."
    )


class WarmupSettings(Settings):
    """Settings of ``warmup``."""

    over: int = Field(default=2, ge=0, le=1_000_000, description="Steps below 1; 0 is none at all.")


class CosineSettings(Settings):
    """Settings of ``cosine``."""

    floor: float = Field(default=0.0, ge=0, le=1, description="What is left at the end.")
    warmup: int = Field(default=0, ge=0, le=1_000_000, description="Steps in which it first rises.")


class BanditSettings(Settings):
    """Settings of ``bandit``."""

    seed: int = Field(default=0, ge=0, description="Another one guesses otherwise everywhere.")
    seeds: int = Field(
        default=1, ge=1, le=1000, description="How many seeds it plants in an episode at most, each in another slot."
    )
    preview: int = Field(
        default=5, ge=0, le=100_000, description="Steps that a seed learns in isolation before it is blended in."
    )
    first: float = Field(default=0.1, ge=0, le=1, description="Share of the episode before which nothing is planted.")
    speed: int = Field(default=RAMP_STEPS, ge=0, le=100_000, description="Steps in which a seed is blended in.")
    width: float = Field(
        default=WIDTH,
        gt=0,
        le=1000,
        description="How far from 0 an untried seed's worth may be: times the usual size of what was measured so far.",
    )
    learn: bool = Field(
        default=True,
        description="Whether it learns; if not, it plants what it holds for best, and tries nothing out.",
    )
    explore_rounds: int | None = Field(
        default=None,
        ge=0,
        le=1_000_000,
        description="Rounds in which it tries things out; later it plants what it holds for best. null: always tries.",
    )


def too_few_steps(steps: int, fits: Callable[[int], bool], life: str) -> tuple[str, ...]:
    """Return a notice if no seed can be kept in so many steps, with the number of steps that it takes.

    ``fits`` says whether an episode is long enough, ``life`` what a seed goes through.
    """
    if fits(steps):
        return ()
    needed = next((n for n in range(steps + 1, LONGEST + 1) if fits(n)), None)
    if needed is None:
        return ("any blueprint: the settings first and last leave no step to plant in",)
    return (f"any blueprint, which needs {needed} steps ({life}): raise episode.steps or lower preview",)
