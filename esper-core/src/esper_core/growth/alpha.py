"""How strong is a seed now? Alpha moves linearly, tick by tick, and ends exactly on its target."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Alpha:
    """A seed's strength: 0 is absent, 1 is whole. One tick is one training batch."""

    value: float = 0.0
    target: float = 0.0
    start: float = 0.0
    ticks: int = 0
    done: int = 0

    def aim(self, target: float, ticks: int) -> None:
        """Set out from where alpha is now and be at ``target`` after ``ticks`` ticks; 0 ticks is at once."""
        if not 0.0 <= target <= 1.0:
            msg = f"alpha stays between 0 and 1. Received: {target}"
            raise ValueError(msg)
        self.start, self.target, self.ticks, self.done = self.value, target, ticks, 0
        if ticks == 0:
            self.value = target

    def tick(self) -> None:
        """Let one batch pass. At its target alpha stays."""
        if not self.moving:
            return
        self.done += 1
        share = self.done / self.ticks
        self.value = self.target if self.done == self.ticks else self.start + (self.target - self.start) * share

    @property
    def moving(self) -> bool:
        """Whether the target is still ahead."""
        return self.done < self.ticks
