"""Settings of the policy ``ppo``."""

from __future__ import annotations

from pydantic import Field

from esper_core.leyline.constants import RAMP_STEPS
from esper_policies.settings import Settings


class PpoSettings(Settings):
    """Settings of ``ppo``."""

    seed: int = Field(
        default=0, ge=0, description="RNG seed of the initial weights, the draws, and the order of minibatches."
    )
    learn: bool = Field(default=True, description="Whether it learns; otherwise it takes the likeliest decision.")
    load: str | None = Field(
        default=None,
        min_length=1,
        max_length=4096,
        description="Folder of the trained policy to start from.",
    )
    save: str | None = Field(
        default=None, min_length=1, max_length=4096, description="Folder in which the policy is saved after each round."
    )
    decide_every: int = Field(default=1, ge=1, le=100_000, description="Steps from one decision to the next.")
    last: float = Field(default=1.0, ge=0, le=1, description="Share of the episode after which no decisions are made.")
    auto_fossilise: bool = Field(
        default=False, description="Whether a seed that holds at its target is fossilised without a decision."
    )
    speed: int = Field(default=RAMP_STEPS, ge=0, le=100_000, description="Decision steps from alpha to its target.")
    width: int = Field(default=64, ge=4, le=1024, description="Width of the network's layers.")
    memory: bool = Field(default=True, description="Whether a GRU remembers earlier decisions of the episode.")
    names: int = Field(
        default=64, ge=0, le=10_000, description="Maximum number of blueprints that have a name embedding."
    )
    forget_names: float = Field(
        default=0.5,
        ge=0,
        le=1,
        description="Share of name embeddings dropped while learning, for new blueprints; 1: while playing, too.",
    )
    learning_rate: float = Field(default=1e-3, gt=0, le=1, description="Step size.")
    passes: int = Field(default=6, ge=1, le=1000, description="Passes over a round.")
    minibatch: int = Field(
        default=128, ge=1, le=1_000_000, description="Approximate number of decisions in a minibatch."
    )
    discount: float = Field(default=1.0, gt=0, le=1, description="Discount of rewards per decision (gamma).")
    trace: float = Field(default=0.97, ge=0, le=1, description="Decay of the generalised advantages (lambda).")
    clip: float = Field(default=0.2, gt=0, le=10, description="Clip range of the probability ratio.")
    value_share: float = Field(default=0.5, ge=0, le=100, description="Weight of the value loss.")
    entropy: float = Field(default=0.02, ge=0, le=10, description="Weight of the entropy bonus in the first round.")
    entropy_end: float = Field(
        default=0.002, ge=0, le=10, description="Weight of the entropy bonus after entropy_rounds."
    )
    entropy_rounds: int = Field(default=50, ge=1, le=1_000_000, description="Rounds over which the weight falls.")
    most_change: float | None = Field(
        default=0.03, gt=0, description="KL divergence at which the passes over a round end; null: never."
    )
    clip_norm: float = Field(default=0.5, gt=0, description="Norm to which gradients are clipped.")
    together: int = Field(
        default=1,
        ge=1,
        le=4096,
        description="Environments per forward pass; last bits of the results depend on it.",
    )
