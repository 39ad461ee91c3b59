"""What grows in a slot? A block built from a blueprint, how it is blended in, and where its life stands."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor, nn

from esper_core.growth.alpha import Alpha
from esper_core.growth.blend import Add
from esper_core.leyline.lifecycle import INCUBATING, SeedEvent, Stage, next_stage

if TYPE_CHECKING:
    from esper_core.leyline.specs import Site

FULL = 1.0
"""The strength at which a seed is tried while it incubates, and at which it is kept."""


class Seed(nn.Module):
    """One seed: ``block`` is what trains, ``blend`` how it joins in, ``alpha`` how strongly.

    ``blueprint`` is the full id, ``number`` counts the seeds of one model from 0, ``ramp`` is the length of its ramp
    in decision steps, ``born`` the step of its germination and ``kept`` that of its fossilisation.
    """

    def __init__(self, block: nn.Module, *, blueprint: str, version: int, site: Site, number: int, ramp: int) -> None:
        super().__init__()
        self.block = block
        self.blend = Add()
        self.blueprint = blueprint
        self.version = version
        self.site = site
        self.number = number
        self.ramp = ramp
        self.stage = Stage.GERMINATED
        self.alpha = Alpha()
        self.born: int | None = None
        self.kept: int | None = None

    def forward(self, host: Tensor, alpha: float) -> Tensor:
        """What leaves the slot when the seed acts at strength ``alpha`` > 0."""
        return self.blend(host, self.block(host), alpha)  # type: ignore[no-any-return]

    def pass_on(self, event: SeedEvent) -> Stage:
        """Move to the stage after ``event`` and return the one before; LifecycleError where there is none."""
        before = self.stage
        self.stage = next_stage(before, event)
        return before

    @property
    def incubating(self) -> bool:
        """Whether the host does not see the seed yet."""
        return self.stage in INCUBATING

    @property
    def parameter_count(self) -> int:
        """How many numbers it trains."""
        return sum(parameter.numel() for parameter in self.parameters())
