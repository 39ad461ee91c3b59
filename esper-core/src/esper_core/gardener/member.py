"""The network of a user's loop as a member of the phases of a step."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any

from esper_core.leyline.actions import Op
from esper_core.leyline.protocols import State

if TYPE_CHECKING:
    from torch import Tensor

    from esper_core.gardener.traces import HostAutocast
    from esper_core.gardener.validation import Validation
    from esper_core.growth import Transition
    from esper_core.leyline import ActionMask, Signals, SplitName
    from esper_core.trainer.network import GrowingNetwork


class LoopMember:
    """One network that a user's loop trains. Its attributes are those of ``trainer.event_records.Member``.

    ``planned`` is the number of steps that policies plan for: after them nothing germinates. ``last_batch`` is the
    latest one of the loop.
    """

    place = index = round = 0

    def __init__(
        self,
        network: GrowingNetwork,
        validation: Validation,
        autocast: HostAutocast,
        arm: str,
        seed: int,
        planned: int,
        last_batch: Any,
    ) -> None:
        self.network = network
        self.arm, self.seed, self.planned = arm, seed, planned
        self.last_batch = last_batch
        self.steps, self.over = 0, False
        self.seconds = 0.0, 0.0
        self.signals: Signals | None = None
        self._validation, self._autocast = validation, autocast
        self._began = perf_counter()

    def train(self) -> list[Transition]:
        """End the training of a step, which the loop has done, and return what time brought to the seeds."""
        network = self.network
        incubation = network.incubation_seconds
        transitions = network.open_step()
        network.garden.tick()
        loss = self._validation.mean_loss(network.model, self.last_batch, self._autocast)
        self.steps += 1
        transitions += network.close_step([loss])
        now = perf_counter()
        self.seconds, self._began = (now - self._began, incubation), now
        return transitions

    def evaluate(self, split: SplitName) -> Tensor:
        """Evaluate the network as it acts now; there is no other split than that for validation."""
        self.network.evaluation = self.network.evaluate(
            partial(self._validation.evaluate, self.network.model, self._autocast)
        )
        return self.network.evaluation.means()

    def measure_seeds(self, undisturbed: Tensor | None) -> None:
        """Measure the gain of each seed on its branch. A loop has no twin."""
        trial = partial(self._validation.evaluate, self.network.model, self._autocast, trial=True)
        self.network.measure_gains(trial, undisturbed)

    def measure_again(self, step: int) -> Signals:
        """Return the signals of a network that was changed after its step was read. The training loss stays."""
        self.evaluate("validation")
        self.signals = self.network.signals(step, self.network.numbers().tolist())
        return self.signals

    def mask(self) -> ActionMask:
        """Return what can be done now: nothing germinates any more once the planned steps are over."""
        mask = self.network.mask()
        if self.over:
            return mask.shut()
        if self.steps < self.planned:
            return mask
        ops = {slot: ops - {Op.GERMINATE} for slot, ops in mask.ops.items()}
        return replace(mask, ops=ops, blueprints=dict.fromkeys(mask.blueprints, ()))

    def state_dict(self) -> State:
        """Return the state between two steps."""
        own, network = State({"steps": self.steps, "over": self.over}), self.network.state_dict()
        return State({**own.plain, **network.plain}, network.tensors)

    def load_state_dict(self, state: State) -> None:
        """Restore what ``state_dict`` returned, in a network that has not grown."""
        self.network.load_state_dict(state)
        self.steps, self.over = state.plain["steps"], state.plain["over"]
