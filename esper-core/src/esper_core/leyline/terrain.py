"""What is known of a run's slots, and of what could grow in them, before anything does?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from esper_core.leyline.specs import SiteKind  # noqa: TC001  pydantic reads it

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Candidate:
    """A blueprint as it would be in one slot: two of the same description are alike to whoever chooses by it.

    parameters: exactly as many as a seed would bring that is added. flops: floating-point operations of its own, for
    one example, forwards. reach: positions of its input, along the longest side, that one position of its output can
    depend on; 0 where there are no positions. None is unknown: it could not be counted.
    """

    blueprint: str
    parameters: int
    flops: int | None
    reach: int | None
    identity: bool
    """Whether it begins as one: `BlueprintSpec.starts_as_identity`."""
    traits: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Place:
    """A slot and the host that it is in: what passes there, and what could grow.

    channels, size: as in ``Site``. depth: which share of the host's slots lies before it, in the order of the file.
    """

    kind: SiteKind
    channels: int
    size: tuple[int, ...]
    depth: float
    host_parameters: int
    host_flops: int | None
    candidates: tuple[Candidate, ...]

    @property
    def positions(self) -> int:
        """Along the longest side; 0 where there are none."""
        return max(self.size, default=0)

    def candidate(self, blueprint: str) -> Candidate | None:
        """What is known of a blueprint here; None where it is none of those that could grow."""
        return next((one for one in self.candidates if one.blueprint == blueprint), None)


@dataclass(frozen=True, slots=True)
class Operations:
    """Floating-point operations for one example, forwards: of the host, and of each block by its slot and blueprint."""

    host: int
    blocks: Mapping[tuple[str, str], int]
