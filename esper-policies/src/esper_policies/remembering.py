"""What was tried in an environment, and what came of it? What observations alone do not tell."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from esper_core.leyline import Stage
from esper_core.leyline.lifecycle import BLENDED, INCUBATING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from esper_core.leyline import SeedSignals, SlotSignals
    from esper_policies.forecast import Forecast


@dataclass(slots=True)
class Life:
    """A seed in its slot: where it is in its life, since which step, and what it last promised while it incubated.

    promise: nats beyond its cost, as ``forecast.Forecast`` has them; None where nothing was measured so far.
    """

    stage: Stage
    since: int
    promise: float | None = None

    def plain(self) -> dict[str, Any]:
        """It as JSON can hold it. A promise may be endless, or endlessly bad: such a one is written as text."""
        endless = self.promise is not None and not math.isfinite(self.promise)
        return {
            "stage": self.stage.value,
            "since": self.since,
            "promise": str(self.promise) if endless else self.promise,
        }

    @classmethod
    def of(cls, plain: Mapping[str, Any]) -> Life:
        """The life that ``plain`` tells of."""
        promise = plain["promise"]
        return cls(Stage(plain["stage"]), plain["since"], None if promise is None else float(promise))


@dataclass(slots=True)
class Memory:
    """One environment's episode so far.

    lives: by slot and blueprint, the seeds whose fate is open. heights: by slot, the fossils that it held. refused: by
    slot and height the blueprints that were tried there and came to nothing; nobody plants them there again.
    """

    lives: dict[tuple[str, str], Life] = field(default_factory=dict)
    heights: dict[str, int] = field(default_factory=dict)
    refused: set[tuple[str, int, str]] = field(default_factory=set)

    def plain(self) -> dict[str, Any]:
        """It as JSON can hold it."""
        return {
            "lives": [[slot, blueprint, life.plain()] for (slot, blueprint), life in self.lives.items()],
            "heights": dict(self.heights),
            "refused": [list(one) for one in sorted(self.refused)],
        }

    @classmethod
    def of(cls, plain: Mapping[str, Any]) -> Memory:
        """The memory that ``plain`` tells of."""
        return cls(
            {(slot, blueprint): Life.of(life) for slot, blueprint, life in plain["lives"]},
            dict(plain["heights"]),
            {(slot, height, blueprint) for slot, height, blueprint in plain["refused"]},
        )

    def planted(self, slot: str, blueprint: str, step: int) -> None:
        """A seed was asked for. Where it is not there at the next look, it could not be built."""
        self.lives[slot, blueprint] = Life(Stage.GERMINATED, step)

    def look(self, slots: Sequence[SlotSignals], step: int, forecast: Forecast) -> None:
        """Take in what can be seen after ``step``."""
        for slot in slots:
            self._bury(slot)
            self.heights[slot.name] = slot.fossils
            for seed in slot.seeds:
                self._follow(slot.name, seed, step, forecast)

    def life(self, slot: str, seed: SeedSignals) -> Life:
        """The life of a seed that was there at the last look."""
        return self.lives[slot, seed.blueprint]

    def may_try(self, slot: SlotSignals, blueprint: str) -> bool:
        """Whether the blueprint has not come to nothing yet, in this slot and behind the fossils that it has."""
        return (slot.name, slot.fossils, blueprint) not in self.refused

    def _follow(self, slot: str, seed: SeedSignals, step: int, forecast: Forecast) -> None:
        life = self.lives.setdefault((slot, seed.blueprint), Life(seed.stage, step))
        if life.stage is not seed.stage:
            life.stage, life.since = seed.stage, step
        if seed.stage in INCUBATING and (promise := forecast.net(seed)) is not None:
            life.promise = promise

    def _bury(self, slot: SlotSignals) -> None:
        """Seeds that are no longer there: kept, dropped for another that was better, or come to nothing.

        One that was dropped though it promised to pay gets another chance if the better one fails.
        """
        living = {seed.blueprint for seed in slot.seeds}
        gone = [key for key in self.lives if key[0] == slot.name and key[1] not in living]
        kept = slot.fossils > self.heights.get(slot.name, slot.fossils)
        outdone = any(seed.stage in BLENDED for seed in slot.seeds)
        for key in gone:
            life = self.lives.pop(key)
            hopeful = life.promise is None or life.promise > 0
            if not (kept or (outdone and hopeful)):
                self.refused.add((slot.name, slot.fossils, key[1]))
