"""What a Gardener reports: each step's measurements, what changed, and the evidence for it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from esper_core.leyline.events import GovernorActed, SeedLost, StageChanged
from esper_core.leyline.lifecycle import BLENDED, Stage
from esper_core.leyline.signals import Cause

if TYPE_CHECKING:
    from collections.abc import Iterator

    from esper_core.leyline.events import Event
    from esper_core.leyline.signals import Signals
    from esper_grow.gardener.seed_sets import SetLook


LISTED: Final = 3
"""Slots that a line of a report names, if the same happened in several."""


@dataclass(frozen=True, slots=True)
class Tended:
    """What one call of ``Gardener.tend`` found and did. ``print`` shows a summary of a few lines.

    Attributes:
        step: The number of the call, from 0.
        steps: How many calls policies plan for.
        signals: What was measured.
        changes: Whatever changed, or is about to: seeds that changed their stage, with the reason, and each act of
            the governor, which may have restored the model without a seed.
        lost: Seeds that failed and were taken out.
        together: What was found of the set that germinated together; None if none lived.
        concluded: What the policy concludes, such as that nothing pays; empty: nothing yet.
    """

    step: int
    steps: int
    signals: Signals
    changes: tuple[StageChanged | GovernorActed, ...] = ()
    lost: tuple[SeedLost, ...] = ()
    together: SetLook | None = None
    concluded: str = ""

    @property
    def moved(self) -> tuple[StageChanged, ...]:
        """The seeds that changed their stage."""
        return tuple(change for change in self.changes if isinstance(change, StageChanged))

    @property
    def governor(self) -> tuple[GovernorActed, ...]:
        """What the governor did, if anything."""
        return tuple(change for change in self.changes if isinstance(change, GovernorActed))

    @property
    def best_loss(self) -> float:
        """The lowest validation loss of the model and of its branches, which early stopping can watch.

        The model's own does not show what a seed gains before it is kept.
        """
        # Those of a set's members are not over the host, but over the set without them.
        of_seeds = [] if self.together is not None else [seed.gain for seed in self.signals.seeds]
        gains = [*of_seeds, None if self.together is None else self.together.gain]
        return self.signals.validation_loss - max([0.0, *(gain.mean for gain in gains if gain is not None)])

    @property
    def kept(self) -> tuple[StageChanged, ...]:
        """The seeds that were kept in this step: since then they are part of the model."""
        return tuple(change for change in self.moved if change.now is Stage.FOSSILISED)

    def __str__(self) -> str:
        """Return one line about the step, one for each change, and one for each other seed that lives."""
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        loss, parameters = self.signals.validation_loss, self.signals.parameters
        yield f"step {self.step + 1} of {self.steps}: validation loss {loss:.4g}, {parameters:,} parameters"
        for act in self.governor:
            place = ""
            if act.back_to is not None:
                state = "before training" if act.back_to < 0 else f"after step {act.back_to + 1}"
                place = f" to the state {state}"
            yield f"  governor: {act.act}{place}: {act.reason}"
        for lost in self.lost:
            yield f"  {lost.slot}: {lost.blueprint} was lost: the seed {lost.what}"
        if self.together is not None:
            yield f"  {self.together}"
        alike: dict[tuple[str, str, str], list[str]] = {}
        for change in self.moved:
            if change.reason.cause is Cause.SET and change.now in BLENDED:
                continue  # a set is kept at once
            stage = "kept" if change.now is Stage.FOSSILISED else change.now.value
            alike.setdefault((change.blueprint, stage, str(change.reason)), []).append(change.slot)
        for (blueprint, stage, reason), slots in alike.items():
            more = f" and {len(slots) - LISTED} more" if len(slots) > LISTED else ""
            yield f"  {', '.join(slots[:LISTED])}{more}: {blueprint} is {stage}, {reason}"
        if self.concluded:
            yield f"  policy: {self.concluded}"
        changed = {change.blueprint for change in self.moved}
        if self.together is not None:
            return
        for slot in self.signals.slots:
            for seed in slot.seeds:
                if seed.gain is not None and seed.blueprint not in changed:
                    gain = f"{seed.gain.mean:.4g} ± {seed.gain.standard_error:.2g} nats"
                    yield f"  {slot.name}: {seed.blueprint} is {seed.stage.value}: gain {gain}"


@dataclass(slots=True)
class Recorder:
    """Collects the events of one step."""

    events: list[Event] = field(default_factory=list)

    def hear(self, event: Event) -> None:
        """Keep an event."""
        self.events.append(event)

    def settle(self) -> None:
        """Do nothing at the end of a step."""

    def take(
        self, step: int, steps: int, signals: Signals, together: SetLook | None = None, concluded: str = ""
    ) -> Tended:
        """Return the report of a step, and begin the next one."""
        events, self.events = self.events, []
        changes = tuple(event for event in events if isinstance(event, StageChanged | GovernorActed))
        lost = tuple(event for event in events if isinstance(event, SeedLost))
        return Tended(step, steps, signals, changes, lost, together, concluded)
