"""Settings of the policy ``ppo``."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from esper_core.leyline.constants import FULL, RAMP_STEPS
from esper_policies.settings import Settings

_SOME = Field(strict=False, min_length=1, max_length=32)


class PpoSettings(Settings):
    """Settings of ``ppo``."""

    seed: int = Field(default=0, ge=0, description="Of its first weights, its draws, and the order in which it learns.")
    learn: bool = Field(default=True, description="Whether it learns; otherwise it does what it thinks best.")
    load: str | None = Field(
        default=None,
        min_length=1,
        max_length=4096,
        description="A trained policy to begin with: its folder, or the name of one that is shipped.",
    )
    save: str | None = Field(
        default=None, min_length=1, max_length=4096, description="Folder into which it is written after each round."
    )
    decide_every: int = Field(default=1, ge=1, le=100_000, description="Steps from one decision to the next.")
    last: float = Field(
        default=1.0, ge=0, le=1, description="Share of the episode behind which it decides nothing more."
    )
    auto_fossilise: bool = Field(
        default=False, description="Whether a seed that holds at its target is kept without a decision."
    )
    one_at_a_time: bool = Field(
        default=False, description="Whether nothing is planted while another seed lives: its gain would be unknown."
    )
    look_at_new: bool = Field(
        default=False,
        description="With learn: false, whether a blueprint that is new to it is planted once, to be looked at.",
    )
    look_up_to: float | None = Field(
        default=None, ge=0, description="The highest price at which look_at_new looks; null: at any."
    )
    sure: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description="With learn: false, how likely blending a seed in has to be for it; else it does what comes next.",
    )
    blends: Annotated[tuple[Literal["add", "residual", "multiply", "gate"], ...], _SOME] = Field(
        default=("add",), description="How a seed may be blended in."
    )
    speeds: Annotated[tuple[Annotated[int, Field(ge=0, le=100_000)], ...], _SOME] = Field(
        default=(RAMP_STEPS,), description="Decision steps that alpha may take to its target."
    )
    curves: Annotated[tuple[Literal["linear", "cosine", "sigmoid"], ...], _SOME] = Field(
        default=("linear",), description="The ways that alpha may take."
    )
    targets: Annotated[tuple[Annotated[float, Field(gt=0, le=1)], ...], _SOME] = Field(
        default=(FULL,), description="Where alpha may go; a seed can be kept only at 1."
    )
    width: int = Field(default=64, ge=4, le=1024, description="Width of the network's layers.")
    memory: bool = Field(default=True, description="Whether it remembers earlier decisions of an episode.")
    names: int = Field(default=64, ge=0, le=10_000, description="Blueprints that it can know by name.")
    forget_names: float = Field(
        default=0.5,
        ge=0,
        le=1,
        description="Share of names that are left out as it learns, for blueprints to come; 1: as it plays, too.",
    )
    learning_rate: float = Field(default=1e-3, gt=0, le=1, description="Step size.")
    passes: int = Field(default=6, ge=1, le=1000, description="Passes over a round.")
    minibatch: int = Field(default=128, ge=1, le=1_000_000, description="Decisions in a minibatch, about.")
    discount: float = Field(default=1.0, gt=0, le=1, description="What a reward is worth one decision later.")
    trace: float = Field(default=0.97, ge=0, le=1, description="How far advantages look ahead (lambda).")
    clip: float = Field(default=0.2, gt=0, le=10, description="How far a decision's chance may move in a round.")
    value_clip: float | None = Field(
        default=None, gt=0, le=1e6, description="The same for values; null: as far as they like."
    )
    value_share: float = Field(default=0.5, ge=0, le=100, description="Weight of the values' loss.")
    entropy: float = Field(default=0.02, ge=0, le=10, description="Weight of being undecided, in the first round.")
    entropy_end: float = Field(default=0.002, ge=0, le=10, description="The same in the end.")
    entropy_rounds: int = Field(default=50, ge=1, le=1_000_000, description="Rounds in which it falls.")
    most_change: float | None = Field(
        default=0.03, gt=0, description="KL divergence at which the passes over a round end; null: never."
    )
    clip_norm: float = Field(default=0.5, gt=0, description="Largest norm of its gradients.")
    horizon: Literal["ends", "cut"] = Field(
        default="ends",
        description="Whether an episode is over with its last step, or was cut there and would have gone on.",
    )
    teacher: Literal["heuristic"] | None = Field(
        default=None, description="Whom it watches first: in these rounds the teacher decides, and it imitates."
    )
    teach_rounds: int = Field(default=3, ge=1, le=1000, description="Rounds with a teacher, at most.")
    enough: float = Field(
        default=0.95, gt=0, le=1, description="Share of decisions alike at which it has learnt from its teacher."
    )
    together: int = Field(
        default=1,
        ge=1,
        le=4096,
        description="Environments looked at together; each number has last bits of its own.",
    )

    @model_validator(mode="after")
    def _endless_needs_a_discount(self) -> PpoSettings:
        if self.horizon == "cut" and self.discount == 1.0:
            msg = "episodes that would go on (horizon: cut) need a discount below 1: else they are worth no number"
            raise ValueError(msg)
        return self

    def curious(self, price: float | None) -> bool:
        """Return whether the policy tries new blueprints at this price of growth.

        >>> PpoSettings(learn=False, look_at_new=True, look_up_to=20).curious(40)
        False
        """
        cheap = self.look_up_to is None or price is None or price <= self.look_up_to
        return self.look_at_new and not self.learn and cheap
