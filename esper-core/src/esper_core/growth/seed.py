"""What grows in a slot? A block built from a blueprint, how it is blended in, and where its life stands."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from torch import Tensor, nn

from esper_core.growth.alpha import Alpha
from esper_core.growth.blend import changes_at_birth, in_shape, joined
from esper_core.leyline.actions import Blend, Curve
from esper_core.leyline.constants import FULL, RAMP_STEPS
from esper_core.leyline.lifecycle import INCUBATING, SeedEvent, Stage, next_stage

if TYPE_CHECKING:
    from esper_core.leyline.specs import BlueprintSpec, Site


class Presence(StrEnum):
    """What a seed is to the host's own pass: how it incubates decides it, until it is blended in."""

    ACTING = "acting"
    """It acts at the strength of its alpha, which is 0 while it is in the shadow."""
    BRANCHED = "branched"
    """It is not there: it acts on the branch, and only while that is switched in."""

    @classmethod
    def _missing_(cls, value: object) -> Presence | None:
        """Read ``whispering``, which journals of earlier versions hold, as an incubating seed that does not act."""
        return cls.ACTING if value == "whispering" else None


@dataclass(frozen=True, slots=True)
class Course:
    """Where a seed's strength goes when it is blended in: how far, in how many decision steps, on which curve."""

    target: float = FULL
    speed: int = RAMP_STEPS
    curve: Curve = Curve.LINEAR


class Seed(nn.Module):
    """One seed: ``block`` is what trains, ``operator`` how it joins in, ``alpha`` how strongly.

    ``blueprint`` is the full id, ``number`` counts the seeds of one model from 0, ``course`` is what was planned for
    its strength at its germination, ``identity`` whether the block started as the identity, or so near to it that it is
    taken for it (None: it is tried), ``born`` the step of its germination and ``kept`` that of its fossilisation.
    """

    def __init__(
        self,
        block: nn.Module,
        *,
        blueprint: str,
        spec: BlueprintSpec,
        site: Site,
        number: int,
        blend: Blend = Blend.ADD,
        course: Course | None = None,
        identity: bool | None = None,
    ) -> None:
        super().__init__()
        if identity is None:
            identity = spec.starts_as_identity or not changes_at_birth(block, site)
        self.identity = identity
        self.block, self.operator = joined(block, blend, site, identity=identity)
        self.blueprint = blueprint
        self.version = spec.version
        self.blend = blend
        self.site = site
        self.number = number
        self.course = Course() if course is None else course
        self.stage = Stage.GERMINATED
        self.alpha = Alpha()
        self.presence = Presence.ACTING
        self.born: int | None = None
        self.kept: int | None = None

    def forward(self, host: Tensor, alpha: float) -> Tensor:
        """What leaves the slot when the seed acts at strength ``alpha`` > 0."""
        changed = in_shape(self.block(host), host)
        blended: Tensor = self.operator(host, changed.to(host.dtype), alpha)  # under autocast a block may change it
        return blended.to(host.dtype)

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
