"""Lost seeds of a run: count them by blueprint, warn of each kind once, and name blueprints of which none survived."""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from esper_core.leyline.events import SeedLost, StageChanged
from esper_core.leyline.signals import Cause
from esper_run.runs.findings import lost_text

if TYPE_CHECKING:
    from esper_core.leyline.events import Event

log = logging.getLogger("esper")


@dataclass(slots=True)
class LostBlueprint:
    """The seeds of a blueprint that were lost: how many of how many, to what first, and whose code it is."""

    blueprint: str
    package: str
    what: str
    lost: int = 0
    tried: int = 0
    failed: int = 0
    """How many were lost by their own code, rather than by numbers that are not finite."""

    @property
    def is_hopeless(self) -> bool:
        """Whether every seed of the blueprint was lost by its own code."""
        return self.failed == self.lost == self.tried

    def __str__(self) -> str:
        return lost_text(self.blueprint, self.package, self.what, self.lost, self.tried)


@dataclass(slots=True)
class SeedLosses:
    """A listener of events that counts the seeds of each blueprint, and those that were lost."""

    by_blueprint: dict[str, LostBlueprint] = field(default_factory=dict)
    _born: Counter[str] = field(default_factory=Counter)
    _unborn: Counter[str] = field(default_factory=Counter)
    """Losses that no change of a stage follows: the block could not be built, so there was no seed yet."""

    def hear(self, event: Event) -> None:
        """Count an event; warn of a fault that a blueprint did not have before."""
        if isinstance(event, StageChanged):
            self._born[event.blueprint] += event.was is None
            self._unborn[event.blueprint] -= event.reason.cause is Cause.LOST
        elif isinstance(event, SeedLost):
            self._unborn[event.blueprint] += 1
            is_new = event.blueprint not in self.by_blueprint
            lost = self.by_blueprint.setdefault(
                event.blueprint, LostBlueprint(event.blueprint, event.package, event.what)
            )
            lost.lost += 1
            lost.failed += event.blame == "code"
            where = f"arm {event.arm}, RNG seed {event.seed}, step {event.step}, slot {event.slot}"
            log.info("a seed is lost (%s): that of %s %s", where, event.blueprint, event.what)
            if is_new:
                package = event.package or "an unknown package"
                message = "E320 a seed of %s is lost (%s): that of %s %s"
                log.warning(message, package, where, event.blueprint, event.what)

    def settle(self) -> None:
        """Do nothing at the end of a step."""

    def counted(self) -> list[LostBlueprint]:
        """Return the blueprints with lost seeds, with how many were tried."""
        for blueprint, lost in self.by_blueprint.items():
            lost.tried = self._born[blueprint] + self._unborn[blueprint]
        return list(self.by_blueprint.values())
