"""The network of a user's loop as an environment in the phases of a step, and the batches of the loop."""

from __future__ import annotations

import atexit
import logging
import math
import random
import sys
import weakref
from collections import Counter
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import torch
from torch.nn.utils import get_total_norm

from esper_core.growth import Example, Host
from esper_core.leyline.errors import GovernorStop, GrowthError, Problem
from esper_core.leyline.lifecycle import Op
from esper_core.leyline.protocols import State
from esper_core.leyline.signals import Cause, Reason
from esper_grow.gardener.checks import kept_by, refuse_shared_state
from esper_grow.gardener.traces import without_trace
from esper_grow.gardener.validation import kind_of, noted

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor, nn

    from esper_core.growth import Transition
    from esper_core.leyline import ActionMask, Signals, SplitName
    from esper_core.trainer import GrowingNetwork
    from esper_grow.gardener.borrowed_optimizers import BorrowedOptimizers
    from esper_grow.gardener.seed_sets import SeedSet
    from esper_grow.gardener.traces import HostAutocast
    from esper_grow.gardener.validation import Validation


T = TypeVar("T")

log = logging.getLogger("esper")

STEPS_PER_BATCH: Final = 2
"""Steps of one optimizer for each batch that ``step`` gets, on average, above which batches seem to be left out."""

MOST_APART: Final = {None: 0.025, torch.bfloat16: 0.05}
"""How far a branch may be from the model after its first batch, as a share of the model's step, by the loop's autocast:
above rounding, also where the model is compiled. In float16 an optimizer may have skipped the step."""

STEPS_WITHOUT_TEND: Final = 10_000
"""Steps of the optimizer without a call of ``tend`` that are reported."""


@dataclass(slots=True)
class BatchFeed:
    """Counts the steps of the optimizers, and collects the batches between two of them.

    ``used`` counts the steps whose batches were taken since the last ``tend``.
    """

    used: int = 0
    _counted: int = 0
    _taken: int = 0
    _waiting: list[Any] = field(default_factory=list)
    _latest: tuple[Any, ...] = ()
    """The tensors of the latest batch, which are kept: their ids tell whether the next one is the same."""
    _of_each: Counter[int] = field(default_factory=Counter)
    """Steps of each optimizer, by its id, since the last ``tend``."""
    _stepped: set[int] = field(default_factory=set)
    """Optimizers that have stepped, by their ids."""
    _warned: set[str] = field(default_factory=set)

    def count(self, optimizer: Any, *_: Any) -> None:
        """Count a step of an optimizer; a hook."""
        self._counted += 1
        self._of_each[id(optimizer)] += 1

    def add(self, batch: Any) -> list[Any]:
        """Return the batches of the step that an optimizer has just taken; none if it has not.

        A batch that is passed again without a step between counts once, as the mean loss of both would be the same.
        """
        tensors, latest = tuple(Example.tensors_in(batch)), self._latest
        stepped, self._latest = self._counted > self._taken, tensors
        repeated = bool(tensors) and [id(tensor) for tensor in tensors] == [id(tensor) for tensor in latest]
        if repeated and not stepped:
            message = "gardener.step(batch) was called twice with a batch, for one step of the optimizer"
            self._warn(Problem("E370", message, hint="The second is left out: call it once for each batch."))
            return []
        if not repeated or not self._waiting:
            self._waiting.append(batch)
        if not stepped:
            return []
        batches, self._waiting, self._taken = self._waiting, [], self._counted
        self.used += 1
        if self.used == STEPS_WITHOUT_TEND:
            warn_of_tending(f"tend() was not called for {self.used:,} steps of the optimizer", HOW_OFTEN)
        return batches

    def end_interval(self) -> None:
        """Begin to count anew after a ``tend``, and log what was unusual in the steps before, once each."""
        steps = max(self._of_each.values(), default=0)
        if steps > STEPS_PER_BATCH * self.used:
            message = f"gardener.step(batch) was called for {self.used} of {steps} steps of the optimizer"
            hint = "Seeds train on those batches alone: call it for each batch, after optimizer.step()."
            self._warn(Problem("E370", message, hint=hint))
        self._stepped |= self._of_each.keys()
        if idle := len(self._stepped) - len(self._of_each):
            message = f"{idle} of {len(self._stepped)} optimizers stepped, but did not step since the last tend()"
            hint = "Seeds may join it. If the loop replaced it, close this Gardener; make one with the new optimizer."
            self._warn(Problem("E374", message, hint=hint))
        self.used = 0
        self._of_each.clear()

    def _warn(self, problem: Problem) -> None:
        if problem.code not in self._warned:
            self._warned.add(problem.code)
            log.warning("%s", problem)

    def begin_at(self, used: int) -> None:
        """Continue counting from the steps that another feed has counted."""
        self.used, self._taken, self._waiting = used, self._counted, []

    def refuse_untrained(self) -> None:
        """Raise GrowthError if nothing was trained since the last ``tend``."""
        if self.used:
            return
        if self._waiting:
            message = "gardener.step(batch) was called, but the optimizer did not step"
            hint = "Pass the optimizer that the loop steps, and call gardener.step(batch) after optimizer.step()."
        else:
            message = "nothing was trained since the last tend(): gardener.step(batch) was not called"
            hint = "Call gardener.step(batch) for each batch, after optimizer.step(), and tend() once an epoch."
        raise GrowthError(Problem("E345", message, hint=hint))


LISTED: Final = 3
"""Seeds that a warning names."""

HOW_OFTEN: Final = "Seeds are kept in tend() alone: call it once an epoch, or every n batches."


def warn_of_tending(message: str, hint: str) -> None:
    """Log a warning that ``tend`` is called otherwise than planned (E371)."""
    log.warning("%s", Problem("E371", message, hint=hint))


def warn_at_exit(gardener: Any, is_open: Callable[[Any], bool]) -> None:
    """Log a warning when the program ends if a Gardener is open then (E371)."""
    reference = weakref.ref(gardener)

    def warn() -> None:
        if (left := reference()) is not None and is_open(left):
            hint = "What lives is not in the model, and no results are written. Use  with Gardener(…) as gardener:"
            warn_of_tending("the program ends without gardener.close()", hint)

    atexit.register(warn)


def _norm_of(parameters: Sequence[nn.Parameter]) -> float:
    return float(get_total_norm([parameter.detach() for parameter in parameters])) if parameters else 0.0


class LoopEnvironment:
    """One network that a user's loop trains. Its attributes are those of ``trainer.event_records.AnyEnvironment``.

    ``planned`` is the number of steps that policies plan for: after them nothing germinates. ``last_batch`` is the
    latest one of the loop.
    """

    pool_index = index = round = 0

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
        self.last_batch = self._example = last_batch
        self.resumed_loss: float | None = None
        """The mean loss on the latest batch of a loop that was resumed since; None: there was none, or another one."""
        self.steps, self.over = 0, False
        self.flops: int | None = None  # a loop has more passes than a Gardener sees
        self.signals: Signals | None = None
        self.seed_set: SeedSet | None = None
        """The seeds that germinate together; whoever makes it sets it."""
        self._dropped: list[Transition] = []
        """Seeds that a stop of the governor took out, which ``end`` reports."""
        self.compared: set[int] = set()
        """Numbers of the branches whose first step was compared with the model's."""
        self._warned_apart = False
        self._copied: list[nn.Parameter] = []
        """What branches have copies of, from the end of the latest ``tend`` until the loop's next step."""
        self._norm_at_tend = 0.0
        self._warned_of_weights = False
        self._order = 0
        self._validation, self._autocast = validation, autocast

    def train(self) -> list[Transition]:
        """End a decision step whose batches the loop has trained, and return the seeds' changes of stage."""
        network = self.network
        transitions = network.open_step()
        if not (network.garden.incubating or network.averages.is_final):
            network.averages.forget()  # they are kept up while seeds incubate, whose host they judge
        network.garden.tick()
        loss, self.resumed_loss = self._latest_loss(), None
        self.steps += 1
        return transitions + network.close_step([loss])

    def incubate(self, parts: Sequence[Callable[[nn.Module], Tensor]]) -> None:
        """Train the seeds on a batch, of which some are new, and watch the first step of their branches.

        Raises:
            GrowthError: It changed what the loop's optimizers keep (E340).
        """
        keeper, incubating = cast("BorrowedOptimizers", self.network.keeper), self.network.garden.incubating
        new = incubating.keys() - self.compared
        self.compared |= new
        # A set begins after the loop's step. Where gradients are clipped, those of a new seed change the norm.
        compared = [] if keeper.clip_norm is not None else [incubating[number] for number in new]
        before = {branch: self._look_at(branch) for branch in compared if not branch.is_set}
        kept = kept_by(keeper.lenders)
        self.network.incubate(parts)
        refuse_shared_state(keeper.lenders, kept)
        for branch, (steps, drawn) in before.items():
            self._warn_if_apart(branch, steps, drawn)

    def _warn_if_apart(self, branch: Any, steps: Sequence[float], drawn: Sequence[Any]) -> None:
        """Log a warning, once, if a branch did not take the loop's step (E376), unless random numbers were drawn.

        A newborn seed changes no output, so its branch has to take the same ``steps``, in all that the loop has moved.
        """
        distances, drawn_now = self._look_at(branch)
        apart = math.hypot(*(distance for distance, step in zip(distances, steps, strict=True) if step))
        most = MOST_APART.get(self._autocast.dtype, math.inf) * math.hypot(*steps)
        if apart > most and drawn_now == drawn and not self._warned_apart:
            self._warned_apart = True
            share = f"{apart / math.hypot(*steps):.1%} of a step"
            message = f"a branch trains otherwise than the loop: after one batch it is {share} from the model"
            hint = "Gates take that for a gain of seeds. Pass the loss and the batches that the loop trains on."
            log.warning("%s", Problem("E376", message, hint=hint))

    def end_tend(self) -> None:
        """Warn of a ``tend`` too many, and remember the weights for branches, which follow no other changes."""
        self._warn_of_surplus()
        if self.network.garden.incubating and not self._warned_of_weights:
            of_host, _ = Host.split_state(dict(self.network.model.named_parameters()))
            self._copied = [parameter for parameter in of_host.values() if parameter.requires_grad]
            self._norm_at_tend = _norm_of(self._copied)

    def compare_weights(self, *_: Any) -> None:
        """Log a warning if the loop has changed the weights since ``tend`` (E376); a hook before its first step."""
        trained, self._copied = self._copied, []
        if trained and self._norm_at_tend != (now := _norm_of(trained)) and not math.isnan(now):
            self._warned_of_weights = True
            message = "the loop has changed the weights since tend(), and branches go on with what they had"
            hint = "Gates take the difference for a gain. Load weights when no seed lives."
            log.warning("%s", Problem("E376", message, hint=hint))

    def _look_at(self, branch: Any) -> tuple[list[float], list[Any]]:
        """Return how far each of a branch's parameters is from the model's, and the states of random numbers."""
        tensors = branch.tensors()
        pairs = [(member, tensors.get(id(member))) for member in self.network.model.parameters()]
        distances = [float(torch.dist(member.detach(), other)) for member, other in pairs if other is not None]
        drawn = [state.tolist() for state in branch.stream.state_dict() if state is not None]
        numpy = sys.modules.get("numpy")
        return distances, [*drawn, random.getstate(), numpy and numpy.random.get_state()[2:]]

    def _latest_loss(self) -> Tensor:
        """Return the mean loss on the latest batch."""
        model = self.network.model
        if self.resumed_loss is not None:
            return torch.tensor(self.resumed_loss, device=Host(model).device)
        with noted(lambda: f"The loss function got the batch of step(): {kind_of(self.last_batch)}."):
            return self._validation.mean_loss(model, self.last_batch, self._autocast)

    def evaluate(self, split: SplitName) -> Tensor:
        """Evaluate the network as it acts now; there is no other split than that for validation."""
        evaluate = partial(self._validation.evaluate, self.network.model, self._autocast)
        self.network.evaluation = self.network.evaluate(evaluate)
        return self.network.evaluation.means

    def end_averaged(self) -> tuple[float, float]:
        """Give the network the average of its weights for good; return the validation loss with it, and before."""
        evaluate = partial(self._validation.evaluate, self.network.model, self._autocast)
        last = self.network.evaluate(evaluate, averaged=False).means[0]
        self.network.averages.settle()
        return float(self.network.evaluate(evaluate, averaged=False).means[0]), float(last)

    def measure_seeds(self, undisturbed: Tensor | None) -> None:
        """Measure the gain of each seed on its branch, or of a set, and of its members. A loop has no twin."""
        before, self._order = self._order, self._validation.order
        if before != self._order:  # by another order, or other examples, no example is known again
            self.network.gains.forget_examples()
        trial = partial(self._validation.evaluate, self.network.model, self._autocast, trial=True)
        self.network.measure_gains(trial, undisturbed)
        if self.seed_set is not None:
            self.seed_set.measure()

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

    def advance(self, take_step: Callable[[int], T]) -> T:
        """Return what a decision step gives; restore the last healthy state first if the governor stops the loop."""
        try:
            return take_step(self.steps)
        except GovernorStop:
            self.network.governor.restore()
            self._dropped = self.network.garden.remove(Reason(Cause.ROLLBACK))
            raise

    def end(self) -> tuple[list[Transition], list[Transition]]:
        """Keep a set whose gate is open, though the loop ends early, and prune other seeds; return both."""
        kept = [] if self.seed_set is None else self.seed_set.keep_shown(self.steps)
        return kept, [*self._dropped, *self.network.garden.remove(Reason(Cause.LOOP_END))]

    def _warn_of_surplus(self) -> None:
        """Log a warning if the planned steps are over, and nothing lives that could still be kept (E371)."""
        if self.steps == self.planned + 1 and not self.network.garden.living_seeds():
            message = f"tend() was called more often than steps={self.planned} says, and nothing germinates any more"
            warn_of_tending(message, "Pass steps=, the number of calls of tend(), such as the epochs.")

    def warn_of_end(self, used: int, pruned: list[str]) -> None:
        """Log a warning if the loop ends without a ``tend``, after ``used`` steps, or with seeds that live (E371)."""
        if not self.steps:
            what = f"in {used:,} steps of the optimizer" if used else "and step() neither"
            warn_of_tending(f"tend() was never called {what}: nothing grew", HOW_OFTEN)
        if pruned:
            calls = f"steps={self.planned} calls of tend() were planned, and the loop made {self.steps}"
            hint = f"{calls}; in further calls living seeds finish."
            listed = ", ".join(pruned[:LISTED]) + (f" and {len(pruned) - LISTED} more" if pruned[LISTED:] else "")
            warn_of_tending(f"close() pruned what was not kept yet: {listed}", hint)

    def state_dict(self) -> State:
        """Return the state between two steps of the optimizer."""
        with without_trace(self.network.model):
            loss = self.resumed_loss if self.last_batch is self._example else float(self._latest_loss())
        position = {"steps": self.steps, "over": self.over, "loss": loss, "order": self._order}
        network, seed_set = self.network.state_dict(), None if self.seed_set is None else self.seed_set.state()
        return State({**network.plain, **position, "set": seed_set}, network.tensors)

    def load_state_dict(self, state: State) -> None:
        """Restore what ``state_dict`` returned, in a network that has not grown."""
        self.network.load_state_dict(state)
        self.compared, self._order = set(self.network.garden.incubating), state.plain["order"]
        self.steps, self.over, self.resumed_loss = (state.plain[name] for name in ("steps", "over", "loss"))
        if self.seed_set is not None and state.plain["set"] is not None:
            self.seed_set.load_state(state.plain["set"])
