"""Which states can be gone back to? Some snapshots, the newest first, each with what was known when it was taken."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from esper_core.governor.history import History
from esper_core.growth import Snapshot
from esper_core.leyline.protocols import State

if TYPE_CHECKING:
    from esper_core.growth import Garden


@dataclass(frozen=True, slots=True)
class Kept:
    """A snapshot, the step after which it was taken (-1: before any), and the history of that time."""

    step: int
    history: History
    snapshot: Snapshot


class Shelf:
    """Up to ``room`` snapshots of one environment, the newest first, in memory that is used again and again."""

    def __init__(self, room: int) -> None:
        self._room = room
        self.kept: list[Kept] = []

    @property
    def latest(self) -> int | None:
        """The step of the newest snapshot."""
        return self.kept[0].step if self.kept else None

    def take(self, garden: Garden, step: int, history: History) -> None:
        """One more snapshot, in the place of the oldest where there is no room."""
        if len(self.kept) < self._room:
            snapshot = Snapshot(garden)
        else:
            snapshot = self.kept.pop().snapshot
            snapshot.take(garden)
        self.kept.insert(0, Kept(step, history, snapshot))

    def renew(self, garden: Garden, step: int, history: History) -> None:
        """Every place holds what is now: for a network of another structure, to which no older state goes back."""
        for _ in range(self._room):
            self.take(garden, step, history)

    def state(self) -> State:
        """Its snapshots, the newest first."""
        kept = [{"step": kept.step, "history": kept.history.as_json()} for kept in self.kept]
        return State.of({str(place): kept.snapshot.state() for place, kept in enumerate(self.kept)}, kept=kept)

    def load(self, state: State, garden: Garden) -> None:
        """Hold what another shelf held, of a garden that has grown as this one has."""
        self.kept.clear()
        for place, told in reversed(list(enumerate(state.plain["kept"]))):
            self.take(garden, told["step"], History.from_json(told["history"]))
            self.kept[0].snapshot.load(state.part(str(place)))

    def sound(self, garden: Garden) -> tuple[Kept | None, list[str]]:
        """The newest snapshot without a flaw, and what is wrong with those before it."""
        flaws: list[str] = []
        for kept in self.kept:
            why = kept.snapshot.flaw(garden)
            if why is None:
                return kept, flaws
            flaws.append(f"{_place(kept.step)}: {why}")
        return None, flaws


def _place(step: int) -> str:
    return "before training" if step < 0 else f"of step {step}"
