"""A set of seeds that germinates together, on one branch, and is judged as a whole and member by member.

The first blueprint of each slot germinates with the first batch. All members share one copy of what trains in the host,
one pass and one step of the optimizer for each batch, and the host stays as it is.

In each ``tend`` the set is compared with the host by the gate before seeds are kept: it has to gain more than the sum
of its members' prices. A member's gain is how much higher the loss is when it alone is left out. Each has a gate of its
own with the error probability of the gate before blending, since a place that lost a member can be tried again.

    pruned  members whose upper bound lies below their price: as many of them as may be left out *together* for less
            than the sum of their prices, so that of two that do the same one stays
    kept    the rest, in one step, once the gate of the set is open and what members seem to cost above their mean
            gains is together little of what the set gains; or with the last planned ``tend``, in which a set whose gate
            is closed is pruned

To leave out n members takes n passes over the validation data, which begin behind the member that is left out. So this
is done only as often as it takes no more than a share of the training so far.
"""

from __future__ import annotations

import logging
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import torch

from esper_core.growth import Example, Host, compare_losses
from esper_core.leyline.constants import BLENDING_ALPHA
from esper_core.leyline.errors import GrowthError, Problem, plural
from esper_core.leyline.lifecycle import Action, Op, Stage
from esper_core.leyline.signals import Cause, Reason
from esper_grow.gardener.counterfactuals import Counterfactuals

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from torch import Tensor, nn

    from esper_core.growth import Seed, Transition, Variety
    from esper_core.leyline.signals import Gain, Opinion
    from esper_core.settings import GrowthConfig
    from esper_core.trainer import GrowingNetwork
    from esper_grow.gardener.traces import HostAutocast
    from esper_grow.gardener.validation import Validation

log = logging.getLogger("esper")

PASSES: Final = 3, 2
"""What a training step takes, in forward passes: of a host that trains, and of one that is mostly frozen."""

BEHIND: Final = 0.8
"""Share of a pass that leaving out a member takes, on average: measured with 36 places in an encoder of six layers."""

LITTLE: Final = 0.05
"""Share of what the set gains that members may seem to cost in all when it is kept: to wait until the last of them is
sure costs a second pass in each step of the loop."""

SPARED: Final = "not missed when left out, at most {:.4f} nats are lost"
SHOWN: Final = Reason(Cause.SET, "the gain is shown")
REFUSED: Final = Reason(Cause.SET, "the gain was not shown in the planned steps")


@dataclass(frozen=True, slots=True)
class SetLook:
    """What one ``tend`` found of a set of seeds, before it pruned or kept any.

    Attributes:
        members: How many seeds it had.
        parameters: Those of all of them.
        gain: How much lower the validation loss is on the branch than on the host.
        opinion: What the set's gate concludes.
        missed: How much higher the loss is on average without each member, by slot, the most missed first; empty in a
            ``tend`` that left none out. Of several in a slot, all are named after it.
        pruned: How many members were pruned in this ``tend``.
        kept: Whether the others were kept.
    """

    members: int
    parameters: int
    gain: Gain | None
    opinion: Opinion | None
    missed: tuple[tuple[str, float], ...] = ()
    pruned: int = 0
    kept: bool = False

    def __str__(self) -> str:
        return "; ".join(self._parts())

    def _parts(self) -> list[str]:
        parts = [f"a set of {plural(self.members, 'seed')}, {self.parameters:,} parameters"]
        if self.gain is not None:
            parts.append(f"gain {self.gain.mean:.4g} ± {self.gain.standard_error:.2g} nats")
        if self.opinion is not None and self.opinion.reason:
            parts.append(self.opinion.reason)
        if self.missed:
            (most, rise), (least, fall) = self.missed[0], self.missed[-1]
            parts.append(f"most missed when left out: {most} ({rise:+.4f}), least: {least} ({fall:+.4f})")
        if self.pruned:
            parts.append(f"{self.pruned} pruned")
        if self.kept:
            parts.append(f"{self.members - self.pruned} kept")
        return parts


class SeedSet:
    """The set of a Gardener.

    Args:
        network: Grafted; nothing but kept seeds has grown in it.
        validation: Its held-out examples.
        autocast: How the model computes.
        varieties: What may grow, by slot; the first of each germinates.
        growth: The limits on growth.
        copies: How many seeds of it germinate in each slot.
        share: How much leaving members out may take, as a share of the training so far.

    Raises:
        GrowthError: The set exceeds a limit, or a slot has no room for it (E347).
    """

    def __init__(
        self,
        network: GrowingNetwork,
        validation: Validation,
        autocast: HostAutocast,
        varieties: Mapping[str, Sequence[Variety]],
        growth: GrowthConfig,
        copies: int,
        share: float,
    ) -> None:
        self._network, self._validation, self._autocast, self._share = network, validation, autocast, share
        self._counterfactuals = Counterfactuals(network.model, run=validation.losses_of)
        slots = Host(network.model).slots
        open_slots = [slots.named(name) for name, fitting in varieties.items() if fitting]
        open_slots = [slot for slot in open_slots if len(slot.seeds) < slot.limit]
        firsts = [(slot, varieties[slot.name][0]) for slot in open_slots]
        _refuse_crowded(open_slots, copies)
        sizes = [variety.block_parameters(slot.site) for slot, variety in firsts if slot.site is not None]
        self._sizes = copies * sizes
        self.size, self.parameters = len(self._sizes), sum(self._sizes)
        _refuse_above_limits(network.model, growth, self.size, self.parameters)
        self._actions = [Action(Op.GERMINATE, slot.name, variety.id) for slot, variety in firsts for _ in range(copies)]
        host = Host(network.model).parameters().values()
        trained = sum(parameter.numel() for parameter in host if parameter.requires_grad)
        self._passes = PASSES[2 * trained < sum(parameter.numel() for parameter in host)]
        self.prospect = ""
        """What it costs, and which gains of it can be shown, as it is told before training."""
        self._number: int | None = None
        self._lives = False
        self._trained = self._spent = 0.0
        self._losses: dict[int | None, Tensor] = {}
        self.look: SetLook | None = None
        """What the latest ``tend`` found; None if there was no set in it."""

    @property
    def _members(self) -> list[tuple[Any, Seed]]:
        incubation = None if self._number is None else self._network.garden.incubating.get(self._number)
        return [] if incubation is None else incubation.members

    def price(self, loss: float, growth: GrowthConfig) -> float | None:
        """Return the sum of its prices at a validation loss; None if these follow operations."""
        host = Host(self._network.model)
        if host.follows_operations(growth):
            return None
        prices = host.prices(growth, None)
        return sum(prices.price(size, size, 0, loss) for size in self._sizes)

    @property
    def germinated(self) -> bool:
        """Whether the set has germinated, whatever became of it."""
        return self._number is not None

    def germinate(self, step: int) -> list[Transition]:
        """Germinate the set, with the first batch."""
        garden = self._network.garden
        self._number, self._lives = garden.born, True
        return garden.germinate_set(self._actions, step, Reason(Cause.SET))

    def count(self, batches: Sequence[Any]) -> None:
        """Count the examples on which the set was trained."""
        if self._members:
            self._trained += self._passes * sum(max(1, Example.of(batch).size) for batch in batches)

    def measure(self) -> None:
        """Leave out each member on its own, if that is not too much beside the training so far."""
        self._losses = {}
        behind = BEHIND if self._counterfactuals.reason is None else 1.0
        cost = len(self._network.evaluation.losses) * (1 + len(self._members) * behind)
        if self._members and self._spent + cost <= self._share * self._trained:
            self._spent += cost
            self._losses = self._network.lost.run_without_faulty(self._leave_out)
            self._network.gains.take_left_out(self._losses)

    def _leave_out(self) -> dict[int | None, Tensor]:
        assert self._number is not None
        if not self._members:  # the last of them failed
            return {None: torch.zeros(0)}
        with self._network.averages.judged(self._number):
            return self._validation.leave_out(self._counterfactuals, self._autocast)

    def decide(self, step: int, *, last: bool) -> list[Transition]:
        """Prune members that are not missed, and keep the set or prune it if that is due; ``last``: after this none."""
        members, self.look = self._members, None
        if self._number is None or not members:
            self._warn_if_lost()
            return []
        garden, gates = self._network.garden, self._network.garden.gates
        opinion = gates.opinion(garden.incubating[self._number])
        self.look = self._looked(members, opinion)
        changes = [
            change
            for number, upper in self._not_missed(members)
            for change in garden.remove(Reason(Cause.SET, SPARED.format(upper)), number=number)
        ]
        left, is_open = self._members, opinion is not None and opinion.opens
        settled = gates.open or last or (bool(self._losses) and not changes and self._is_worthwhile(left, opinion))
        kept = bool(left) and is_open and settled
        if kept:
            changes += garden.keep_set(self._number, step, SHOWN)
        elif last:
            changes += [change for _, seed in left for change in garden.remove(REFUSED, number=seed.number)]
        self._lives = bool(self._members)
        pruned = sum(change.now is Stage.PRUNED for change in changes)
        self.look = replace(self.look, pruned=pruned, kept=kept)
        return changes

    def _warn_if_lost(self) -> None:
        """Log a warning, once, if all members failed (E342)."""
        if self._lives:
            self._lives = False
            message = "every seed of the set was lost, and none germinates again"
            hint = "print(tended) says why. A batch may be the cause: a mean over no labels is nan."
            log.warning("%s", Problem("E342", message, hint=hint))

    def keep_shown(self, step: int) -> list[Transition]:
        """Keep the set if its gate is open, and what it trained since is finite."""
        garden, members = self._network.garden, self._members
        weights = [parameter for _, seed in members for parameter in seed.parameters()]
        if self._number is None or not members or not all(bool(weight.isfinite().all()) for weight in weights):
            return []
        opinion = garden.gates.opinion(garden.incubating[self._number])
        return garden.keep_set(self._number, step, SHOWN) if opinion is not None and opinion.opens else []

    def _is_worthwhile(self, members: Sequence[tuple[Any, Seed]], opinion: Opinion | None) -> bool:
        """Return whether what members seem to cost above their gains is little of what the set gains."""
        gates = self._network.garden.gates
        wasted = sum(max(0.0, -gates.lead(seed)) for _, seed in members)
        return opinion is not None and opinion.evidence is not None and wasted <= LITTLE * opinion.evidence.lower

    def _not_missed(self, members: Sequence[tuple[Any, Seed]]) -> list[tuple[int, float]]:
        """Return the members to prune, by number, with upper bounds on what is lost with each of them alone."""
        doomed: list[tuple[float, float, int]] = []
        uppers: dict[int, float] = {}
        for _, seed in members:
            opinion = self._network.garden.gates.opinion(seed)
            if seed.number in self._losses and opinion is not None and opinion.evidence and opinion.price is not None:
                evidence, price = opinion.evidence, opinion.price
                if evidence.upper < price:
                    doomed.append((evidence.mean - price, price, seed.number))
                    uppers[seed.number] = evidence.upper
        doomed.sort()
        while len(doomed) > 1 and not self._may_go(doomed):
            doomed = doomed[: len(doomed) // 2]
        return [(number, uppers[number]) for _, _, number in doomed]

    def _may_go(self, doomed: Sequence[tuple[float, float, int]]) -> bool:
        """Return whether several members gain less together than the sum of their prices."""
        numbers = {number for _, _, number in doomed}
        without = self._network.lost.run_without_faulty(self._evaluate_without, numbers)
        self._spent += len(without)
        evidence = compare_losses(without, self._losses[None], BLENDING_ALPHA)
        return evidence.upper < sum(price for _, price, _ in doomed)

    def _evaluate_without(self, numbers: Collection[int]) -> Tensor:
        assert self._number is not None
        with self._network.averages.judged(self._number), ExitStack() as stack:
            for slot, seed in self._members:
                if seed.number in numbers:
                    stack.enter_context(slot.disabled(seed))
            return self._validation.evaluate(self._network.model, self._autocast, trial=True)

    def _looked(self, members: Sequence[tuple[Any, Seed]], opinion: Opinion | None) -> SetLook:
        assert self._number is not None
        gains, names = self._network.measured.gains, {seed.number: slot.name for slot, seed in members}
        missed = [(name, gains[number].mean) for number, name in names.items() if number in gains]
        missed.sort(key=lambda entry: -entry[1])
        parameters = sum(seed.parameter_count for _, seed in members)
        return SetLook(len(members), parameters, gains.get(self._number), opinion, tuple(missed))

    def state(self) -> dict[str, Any]:
        """Return which set it is, and what was trained and spent, as plain data."""
        return {"number": self._number, "trained": self._trained, "spent": self._spent}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Continue from what ``state`` returned, after the network was restored."""
        self._number, self._trained, self._spent = state["number"], state["trained"], state["spent"]
        self._lives = bool(self._members)


def _refuse_crowded(slots: Sequence[Any], copies: int) -> None:
    """Raise GrowthError if there is no slot with room for a set, or one has too little."""
    if not slots:
        full = "Every slot is full, or no blueprint fits it. Without together a set that is kept trains on;"
        hint = f"{full} another one needs room from the start:  adapters(…, stack=2)"
        raise GrowthError(Problem("E347", "no slot has room for a set of seeds", hint=hint))
    for slot in slots:
        if (room := slot.limit - len(slot.seeds)) < copies:
            message = f'slot "{slot.name}" has room for {room} of {copies} seeds (stack)'
            hint = f"Give it a larger stack: SlotPlace(…, stack={copies}), as  adapters(…, block=…)  does."
            raise GrowthError(Problem("E347", message, hint=hint))


def _refuse_above_limits(model: nn.Module, growth: GrowthConfig, size: int, parameters: int) -> None:
    """Raise GrowthError if a set, beside what has grown, is above the limits of ``growth``."""
    grown = [seed for slot in Host(model).slots for seed in slot.seeds]
    added = sum(seed.parameter_count for seed in grown)
    for name, limit, present, new in (
        ("seeds", growth.seeds, len(grown), size),
        ("parameters", growth.parameters, added, parameters),
    ):
        if limit is not None and present + new > limit:
            beside = f" beside {present:,} that have grown" if present else ""
            message = f"the set would have {new:,} {name}{beside}, and growth.{name} allows {limit:,}"
            hint = "Take fewer places, a smaller rank, or a larger budget."
            raise GrowthError(Problem("E347", message, hint=hint))


def seed_set_of(
    options: Mapping[str, Any],
    network: GrowingNetwork,
    validation: Validation,
    autocast: HostAutocast,
    varieties: Mapping[str, Sequence[Variety]],
    growth: GrowthConfig,
) -> SeedSet | None:
    """Return the set that the options ``together`` and ``leave_out`` describe; None if there is to be none."""
    together, share = options.get("together", False), options.get("leave_out", 0.5)
    if not isinstance(together, int) or together < 0:
        hint = f"Pass True, or how many seeds germinate in each slot. Received: {together!r}"
        raise GrowthError(Problem("E347", "together must be a bool or a number", hint=hint))
    if isinstance(share, bool) or not isinstance(share, int | float) or not share >= 0.0:
        hint = f"It is a share of the training, such as 0.5. Received: {share!r}"
        raise GrowthError(Problem("E347", "leave_out must be a number of at least 0", hint=hint))
    return SeedSet(network, validation, autocast, varieties, growth, int(together), share) if together else None
