"""What a Gardener reports: each step's measurements, what changed, and the evidence for it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from esper_core.leyline.events import GovernorActed, SeedLost, StageChanged
from esper_core.leyline.lifecycle import Stage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from esper_core.leyline.events import Event
    from esper_core.leyline.signals import Signals


@dataclass(frozen=True, slots=True)
class Tended:
    """What one call of ``Gardener.tend`` found and did. ``print`` shows a summary of a few lines.

    Attributes:
        step: The number of the call, from 0.
        steps: How many calls policies plan for.
        signals: What was measured.
        changes: The seeds that changed their stage, with the reason.
        lost: Seeds that failed and were taken out.
        governor: What the governor did, if anything.
    """

    step: int
    steps: int
    signals: Signals
    changes: tuple[StageChanged, ...] = ()
    lost: tuple[SeedLost, ...] = ()
    governor: tuple[GovernorActed, ...] = ()

    @property
    def kept(self) -> tuple[StageChanged, ...]:
        """The seeds that were kept in this step: since then they are part of the model."""
        return tuple(change for change in self.changes if change.now is Stage.FOSSILISED)

    def __str__(self) -> str:
        """Return one line about the step, one for each change, and one for each other seed that lives."""
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        loss, parameters = self.signals.validation_loss, self.signals.parameters
        yield f"step {self.step + 1} of {self.steps}: validation loss {loss:.4g}, {parameters:,} parameters"
        for act in self.governor:
            yield f"  governor: {act.act}: {act.reason}"
        for lost in self.lost:
            yield f"  {lost.slot}: {lost.blueprint} was lost: the seed {lost.what}"
        for change in self.changes:
            stage = "kept" if change.now is Stage.FOSSILISED else change.now.value
            yield f"  {change.slot}: {change.blueprint} is {stage}, {change.reason}"
        changed = {change.blueprint for change in self.changes}
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

    def take(self, step: int, steps: int, signals: Signals) -> Tended:
        """Return the report of a step, and begin the next one."""
        events, self.events = self.events, []
        return Tended(
            step,
            steps,
            signals,
            tuple(event for event in events if isinstance(event, StageChanged)),
            tuple(event for event in events if isinstance(event, SeedLost)),
            tuple(event for event in events if isinstance(event, GovernorActed)),
        )
