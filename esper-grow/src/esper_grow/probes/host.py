"""Training of the host before anything is tried: until its validation curve is flat.

On a host that still learns fast, whatever speeds learning up looks like a gain: on an untrained one a gated MLP is
ahead on real and on shuffled data alike. So a copy of the host is trained first. It counts as flat once the mean of its
latest validation losses is hardly below that of as many before. A host that comes trained is flat as soon as there are
two means.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final

EVALUATIONS: Final = 6
"""Validation losses in each of the two means that are compared."""

SHORTEST_INTERVAL: Final = 25
"""Steps between two evaluations, at least."""

FLAT_SHARE: Final = 0.01
"""The host is flat if it improves by less than this share of its loss from one mean to the next."""

FLAT_NATS: Final = 0.002
"""It is flat, too, if it improves by less than so many nats, or this share of a first loss below 1."""


def interval_of(validation: int, batch: int) -> int:
    """Return the steps between two evaluations: so many that evaluations take a third of the time of training at most.

    >>> interval_of(800, 100), interval_of(10_000, 100)
    (25, 100)
    """
    return max(SHORTEST_INTERVAL, math.ceil(validation / max(batch, 1)))


@dataclass(slots=True)
class HostCurve:
    """Validation losses of the host in training, by step."""

    points: list[tuple[int, float]] = field(default_factory=list)

    def add(self, step: int, loss: float) -> None:
        """Add an evaluation."""
        self.points.append((step, loss))

    @property
    def improvement(self) -> float:
        """By how many nats the latest mean is below the one before; infinity before there are two."""
        return self._improvement(len(self.points))

    @property
    def tolerance(self) -> float:
        """By how many nats a flat host may improve."""
        return max(FLAT_NATS * min(1.0, abs(self.points[0][1])), FLAT_SHARE * abs(self.points[-1][1]))

    @property
    def is_flat(self) -> bool:
        """Whether the host hardly improves any more."""
        return self.improvement < self.tolerance

    def fewest_steps(self, interval: int) -> int:
        """Return after how many steps after its latest evaluation the host can be flat at the earliest."""
        return max(2 * EVALUATIONS - len(self.points), 1) * interval

    def steps_needed(self, interval: int) -> int:
        """Return about how many steps after its latest evaluation the host needs until it is flat.

        Its improvements are expected to shrink as they did; ``interval`` is that between two evaluations.
        """
        short = (2 * EVALUATIONS - len(self.points)) * interval
        before, now = self._improvement(len(self.points) - EVALUATIONS), self.improvement
        if short > 0 or math.isinf(before):
            return max(short, EVALUATIONS * interval)
        shrinking = min(max(now / before, 0.4), 0.9) if before > 0.0 else 0.9
        windows = math.log(max(now / self.tolerance, 1.1)) / -math.log(shrinking)
        return math.ceil(windows) * EVALUATIONS * interval

    def _improvement(self, until: int) -> float:
        losses = [loss for _, loss in self.points[:until]]
        if len(losses) < 2 * EVALUATIONS:
            return math.inf
        return (sum(losses[-2 * EVALUATIONS : -EVALUATIONS]) - sum(losses[-EVALUATIONS:])) / EVALUATIONS
