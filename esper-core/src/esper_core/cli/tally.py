"""How far is a run, how fast does it go, and what is each slot doing? Counted from its events, as they pass."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING, Final

from esper_core.leyline.events import EpisodeFinished, GovernorActed, RunStarted, StageChanged, StepFinished
from esper_core.leyline.lifecycle import Stage

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from esper_core.leyline.events import Event

PACE_SECONDS: Final = 120.0
"""How far back the rate looks: a run is quick at first, and slower with all that grows."""


@dataclass(frozen=True, slots=True)
class Life:
    """Where a seed is: its slot, what it is, and how far it came."""

    slot: str
    blueprint: str
    stage: Stage


class Pace:
    """How fast environment steps are done, over the latest two minutes; nothing before the first look counts.

    So what a resumed run did before it was interrupted makes it no quicker.
    """

    def __init__(self) -> None:
        self._looks: deque[tuple[float, int]] = deque()

    def look(self, done: int) -> None:
        """So many are done now."""
        now = monotonic()
        self._looks.append((now, done))
        while len(self._looks) > 2 and now - self._looks[1][0] > PACE_SECONDS:
            self._looks.popleft()

    @property
    def rate(self) -> float | None:
        """Environment steps in a second; None before there were two looks."""
        if len(self._looks) < 2:
            return None
        (began, first), (now, last) = self._looks[0], self._looks[-1]
        return (last - first) / (now - began) if now > began and last > first else None

    def left(self, total: int) -> float | None:
        """Seconds until ``total`` steps are done, from this moment on; None where that is not known."""
        rate = self.rate
        if rate is None:
            return None
        then, done = self._looks[-1]
        return max(0.0, (total - done) / rate - (monotonic() - then))


class Tally:
    """Counts what passes. ``done`` and ``total`` are environment steps: those of all arms and environments."""

    def __init__(self) -> None:
        self.run = ""
        self.rounds = 0
        self.steps = 0
        self.per_step = 1
        self.done = 0
        self.round = 0
        self.step = -1
        """The step, from 0, that was told of last; -1 before the first one."""
        self.acts: Counter[str] = Counter()
        """How often the governor did what."""
        self.latest_act = ""
        self.pace = Pace()
        self._slots: dict[str, None] = {}
        self._lives: dict[tuple[str, int, int], Life] = {}
        self._rounds: dict[str, int] = {}
        self._under_way: Counter[tuple[str, int]] = Counter()
        self._latest: tuple[str, ...] = ()
        self._together: set[str] = set()
        """The arms whose episodes began last: those of the round, or the control that is trained behind the others."""

    def hear(self, event: Event) -> None:
        """Count one event."""
        if isinstance(event, StepFinished):
            self._enter(event.arm, event.round)
            self.round, self.step = event.round, event.step
            self.done += 1
            self._under_way[event.arm, event.seed] += 1
            self._slots.update(dict.fromkeys(slot.name for slot in event.signals.slots))
        elif isinstance(event, StageChanged):
            self._enter(event.arm, event.round)
            self._lives[event.arm, event.seed, event.seed_id] = Life(event.slot, event.blueprint, event.now)
        elif isinstance(event, EpisodeFinished):  # it may have been stopped early
            self._latest = self.arms
            self.done += max(0, self.steps - self._under_way.pop((event.arm, event.seed), 0))
        elif isinstance(event, GovernorActed):
            self.acts[event.act] += 1
            self.latest_act = f"{event.act}: {event.arm}, seed {event.seed}, step {event.step}: {event.reason}"
        elif isinstance(event, RunStarted):
            self.run, self.rounds, self.steps = event.run, event.rounds, event.steps
            self.per_step = max(1, len(event.arms) * event.environments)

    def _enter(self, arm: str, round_: int) -> None:
        """The seeds of an arm's earlier round are gone."""
        if self._rounds.get(arm, round_) != round_:
            for place in [place for place in self._lives if place[0] == arm]:
                del self._lives[place]
        self._rounds[arm] = round_
        if not self._under_way:
            self._together.clear()
        self._together.add(arm)

    @property
    def total(self) -> int:
        """Environment steps of the whole run."""
        return self.rounds * self.steps * self.per_step

    @property
    def step_of_all(self) -> int:
        """Steps that all arms together have behind them, over all rounds."""
        return min(self.done, self.total) // self.per_step

    @property
    def arms(self) -> tuple[str, ...]:
        """The arms that are at work; between two rounds those that were."""
        return tuple(dict.fromkeys(arm for arm, _ in self._under_way)) or self._latest

    def _here(self) -> list[Life]:
        """The seeds of the arms that are at work."""
        return [life for (arm, _, _), life in self._lives.items() if arm in self._together]

    @property
    def stages(self) -> Mapping[Stage, int]:
        """How many seeds are where, in the order of their lives."""
        counts = Counter(life.stage for life in self._here())
        return {stage: counts[stage] for stage in Stage if counts[stage]}

    def slots(self) -> Iterator[tuple[str, Mapping[str, Mapping[Stage, int]]]]:
        """Each slot with how many seeds of which blueprint are in which stage in it, in the order of their lives.

        None where all that grew was in arms that are over.
        """
        here = self._here()
        if self._lives and not here:
            return
        counts = Counter((life.slot, life.blueprint, life.stage) for life in here)
        for slot in dict.fromkeys((*self._slots, *(slot for slot, _, _ in counts))):
            names = dict.fromkeys(blueprint for own, blueprint, _ in counts if own == slot)
            yield (
                slot,
                {
                    name: {stage: counts[slot, name, stage] for stage in Stage if counts[slot, name, stage]}
                    for name in names
                },
            )
