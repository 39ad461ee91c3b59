"""By whose code is the host trained? As it is written; compiled; recorded once and replayed. Way within way.

Each of them can fail on a network that is in order otherwise. Then the network goes on as it is written, the run says
so once, with the reason, and it is tried again when the network's structure has changed: a seed came, went, moved on.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from torch import Tensor, nn

if TYPE_CHECKING:
    from esper_core.growth import Garden

log = logging.getLogger("esper")

Act = Callable[[nn.Module, Tensor, Tensor], Tensor]
"""Leaves the gradients of a batch, of its inputs and targets, where they are looked for; returns the loss, detached."""


class Way(Protocol):
    """Runs the pass in which the host is trained.

    holds: whether its next pass has to hold the turn to draw random numbers until its gradients are there, for a host
    that draws in its forward pass alone: since torch's generators cannot be exchanged on the way.
    """

    @property
    def holds(self) -> bool: ...

    def run(self, act: Act, inputs: Tensor, targets: Tensor) -> Tensor:
        """What ``act`` gives for a batch, of the network, or of something that computes the same."""
        ...


class AsWritten:
    """The network itself."""

    holds = False

    def __init__(self, model: nn.Module) -> None:
        self._model = model

    def run(self, act: Act, inputs: Tensor, targets: Tensor) -> Tensor:
        """What ``act`` gives."""
        return act(self._model, inputs, targets)


class Notices:
    """What is told once in a run, whoever finds it out."""

    def __init__(self) -> None:
        self._told: set[str] = set()
        self._turn = threading.Lock()

    def once(self, about: str, error: BaseException) -> None:
        """Warn that a way does not go, unless it was said of it before."""
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        reason = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
        self.tell(about, reason[:500])

    def tell(self, about: str, reason: str) -> None:
        """The same, of what failed in another process."""
        with self._turn:
            if about in self._told:
                return
            self._told.add(about)
        log.warning("%s; the network goes on as it is written, until its structure changes: %s", about, reason)


def structure_of(garden: Garden) -> Any:
    """Which seeds there are, where, and what they are to the host's own pass."""
    return tuple(
        (slot.name, tuple((seed.number, seed.stage, seed.presence) for seed in slot.stack))
        for slot in garden.slots.values()
    )
