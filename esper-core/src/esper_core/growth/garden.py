"""What may happen to the seeds of one model, and what happens then?

The tables of ``leyline.lifecycle`` say which transitions there are; the garden says what each does to slots, seeds,
optimizers and clocks. It carries a transition out whole or not at all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from esper_core.growth.faults import FaultBook, SeedFault, in_words
from esper_core.growth.grafting import slots_of
from esper_core.growth.incubation import Shadow
from esper_core.growth.probe import device_of
from esper_core.growth.randomness import RandomStream, derive_seed
from esper_core.growth.seed import FULL, Seed
from esper_core.growth.transaction import whole_or_nothing
from esper_core.leyline.actions import Action, ActionMask, Op
from esper_core.leyline.errors import EsperError, GrowthError, LifecycleError, Problem
from esper_core.leyline.lifecycle import BLENDED, SeedEvent, SlotEvent, SlotState, Stage, may, next_slot_state
from esper_core.leyline.nearest import suggestion

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from torch import Tensor, nn

    from esper_core.growth.optimizers import OptimizerKeeper
    from esper_core.growth.slot import Slot
    from esper_core.leyline.specs import BlueprintSpec, Site

_EVENT_OF_OP = {Op.ADVANCE: SeedEvent.ADVANCE, Op.PRUNE: SeedEvent.PRUNE, Op.FOSSILISE: SeedEvent.FOSSILISE}


@dataclass(frozen=True, slots=True)
class Variety:
    """A blueprint that may grow here: its full id, what it says of itself, and what builds it."""

    id: str
    spec: BlueprintSpec
    factory: Callable[[Site], nn.Module]


@dataclass(frozen=True, slots=True)
class Transition:
    """A seed moved on: from where to where, and why. ``was`` is None at germination."""

    slot: str
    seed: int
    blueprint: str
    was: Stage | None
    now: Stage
    parameters: int
    reason: str


class Garden:
    """The seeds of one grafted model and their lives.

    Args:
        model: grafted, its slots observed.
        keeper: owns the model's parameters.
        varieties: for each slot what may grow in it.
        seed: from which the random numbers of newborn seeds are derived.
        batches: training batches in a decision step; alpha moves with each.
        embargo: steps for which a slot rests after a prune.
        faults: counts what goes wrong, over all models of a run; a withdrawn blueprint grows no more.
    """

    def __init__(
        self,
        model: nn.Module,
        keeper: OptimizerKeeper,
        varieties: Mapping[str, Sequence[Variety]],
        *,
        seed: int,
        batches: int,
        embargo: int,
        faults: FaultBook | None = None,
    ) -> None:
        self.model = model
        self.keeper = keeper
        self.slots: dict[str, Slot] = {slot.name: slot for slot in slots_of(model).each()}
        self._varieties = {name: {variety.id: variety for variety in varieties.get(name, ())} for name in self.slots}
        self._seed = seed
        self._batches = batches
        self._embargo = embargo
        self._faults = FaultBook() if faults is None else faults
        self._born = 0
        self._shadows: dict[str, Shadow] = {}

    # What is possible.

    def mask(self) -> ActionMask:
        """What each slot would accept now."""
        fitting = {name: self._fitting(slot) for name, slot in self.slots.items()}
        return ActionMask({name: self._ops(slot, fitting[name]) for name, slot in self.slots.items()}, fitting)

    def _fitting(self, slot: Slot) -> tuple[str, ...]:
        if slot.state is not SlotState.FREE or slot.site is None:
            return ()
        return tuple(
            id
            for id, variety in self._varieties[slot.name].items()
            if slot.site.kind in variety.spec.kinds and not self._faults.is_withdrawn(id)
        )

    @staticmethod
    def _ops(slot: Slot, fitting: tuple[str, ...]) -> frozenset[Op]:
        seed = slot.living
        if seed is None:
            return frozenset({Op.GERMINATE}) if fitting else frozenset()
        return frozenset(op for op, event in _EVENT_OF_OP.items() if may(seed.stage, event))

    # What a policy asks for.

    def apply(self, action: Action, step: int) -> list[Transition]:
        """Carry out one action at the end of ``step``. LifecycleError, and nothing changed, where it is not legal."""
        if action.op is Op.WAIT:
            return []
        slot = self._slot(action.slot)
        with whole_or_nothing(self, self._shadows):
            transition = self._carried_out(slot, action, step)
        if action.op is Op.GERMINATE:
            self._born += 1  # only now: a seed that was not born has no number
        return [transition]

    def _carried_out(self, slot: Slot, action: Action, step: int) -> Transition:
        if action.op is Op.GERMINATE:
            return self._germinate(slot, action, step)
        seed = slot.living
        if seed is None:
            legal = [op.value for op in self._ops(slot, self._fitting(slot))]
            raise LifecycleError(
                what="slot", state=slot.state.value, event=action.op.value, legal=legal, name=slot.name
            )
        if action.op is Op.ADVANCE:
            return self._advance(slot, seed)
        if action.op is Op.FOSSILISE:
            return self._fossilise(slot, seed, step)
        return self._prune(slot, seed, action.speed)

    def _slot(self, name: str | None) -> Slot:
        if name not in self.slots:
            problem = Problem("E302", f'there is no slot "{name}"', hint=suggestion(name or "", self.slots))
            raise GrowthError(problem)
        return self.slots[name]

    def _germinate(self, slot: Slot, action: Action, step: int) -> Transition:
        occupied = next_slot_state(slot.state, SlotEvent.GERMINATE)
        variety = self._varieties[slot.name].get(action.blueprint or "")
        if variety is None or variety.id not in self._fitting(slot):
            message = f'"{action.blueprint}" cannot grow in slot "{slot.name}"'
            raise GrowthError(Problem("E303", message, hint=suggestion(action.blueprint or "", self._fitting(slot))))
        assert slot.site is not None
        number, device = self._born, device_of(self.model)
        try:
            with RandomStream(derive_seed(self._seed, "birth", number), device):
                block = variety.factory(slot.site).to(device)
        except Exception as error:
            raise SeedFault([], f'of blueprint "{variety.id}" {in_words(error)} when it was built') from error
        seed = Seed(
            block, blueprint=variety.id, version=variety.spec.version, site=slot.site, number=number, ramp=action.speed
        )
        seed.train(self.model.training)
        seed.born = step
        slot.seeds.append(seed)
        slot.state = occupied
        self.keeper.adopt(seed)
        stream = RandomStream(derive_seed(self._seed, "shadow", number), device)
        self._shadows[slot.name] = Shadow(self.model, slot, self.keeper, stream)
        return self._transition(slot, seed, None, "asked for")

    def _advance(self, slot: Slot, seed: Seed) -> Transition:
        before = seed.pass_on(SeedEvent.ADVANCE)
        seed.alpha.aim(FULL, seed.ramp * self._batches)
        del self._shadows[slot.name]
        return self._transition(slot, seed, before, "asked for")

    def _fossilise(self, slot: Slot, seed: Seed, step: int) -> Transition:
        before = seed.pass_on(SeedEvent.FOSSILISE)
        seed.kept = step
        at_limit = len(slot.fossils) >= slot.limit
        slot.state = next_slot_state(slot.state, SlotEvent.FOSSILISED_AT_LIMIT if at_limit else SlotEvent.FOSSILISED)
        self.keeper.hand_over(seed.number)
        return self._transition(slot, seed, before, "asked for")

    def _prune(self, slot: Slot, seed: Seed, speed: int) -> Transition:
        before = seed.pass_on(SeedEvent.PRUNE)
        if seed.stage is Stage.DRAINING:
            seed.alpha.aim(0.0, speed * self._batches)
        else:
            self._remove(slot, seed)
        return self._transition(slot, seed, before, "asked for")

    # What time brings.

    def open_step(self) -> list[Transition]:
        """A step begins: newborn seeds start to train."""
        return [
            self._transition(slot, seed, seed.pass_on(SeedEvent.TRAIN), "a step began")
            for slot, seed in self._living()
            if seed.stage is Stage.GERMINATED
        ]

    def tick(self) -> None:
        """A batch begins: every alpha that moves moves on."""
        for _, seed in self._living():
            seed.alpha.tick()

    def close_step(self) -> list[Transition]:
        """A step is over: ramps that have arrived are noticed, and embargoes run down."""
        transitions: list[Transition] = []
        for slot in self.slots.values():
            if slot.state is SlotState.EMBARGOED:
                slot.embargo -= 1
                self._lift_embargo(slot)
        for slot, seed in self._living():
            if seed.alpha.moving:
                continue
            if seed.stage is Stage.BLENDING:
                transitions.append(
                    self._transition(slot, seed, seed.pass_on(SeedEvent.RAMP_AT_TARGET), "alpha at its target")
                )
            elif seed.stage is Stage.DRAINING:
                with whole_or_nothing(self, self._shadows):
                    before = seed.pass_on(SeedEvent.DRAINED)
                    self._remove(slot, seed)
                transitions.append(self._transition(slot, seed, before, "alpha at 0"))
        return transitions

    def uproot(self, reason: str, slots: Collection[str] | None = None) -> list[Transition]:
        """Prune living seeds at once, whatever their alpha: those of ``slots``, or all."""
        transitions: list[Transition] = []
        for slot, seed in self._living():
            if slots is not None and slot.name not in slots:
                continue
            with whole_or_nothing(self, self._shadows):
                before = seed.pass_on(SeedEvent.UPROOT)
                self._remove(slot, seed)
            transitions.append(self._transition(slot, seed, before, reason))
        return transitions

    # Training.

    @property
    def blended(self) -> tuple[int, ...]:
        """Numbers of the living seeds that act on the host, and so learn with it."""
        return tuple(seed.number for _, seed in self._living() if seed.stage in BLENDED)

    @property
    def blended_slots(self) -> tuple[str, ...]:
        """The slots whose living seeds act on the host."""
        return tuple(slot.name for slot, seed in self._living() if seed.stage in BLENDED)

    def living_seeds(self) -> list[Seed]:
        """The seeds whose fate is open."""
        return [seed for _, seed in self._living()]

    @property
    def incubating_slots(self) -> tuple[str, ...]:
        """The slots whose living seeds learn behind the host's back."""
        return tuple(self._shadows)

    def incubate(self, slot: str, loss: Callable[[nn.Module], Tensor]) -> None:
        """Train the incubating seed of one slot, if it still lives, on one batch. SeedFault where it cannot be."""
        shadow = self._shadows.get(slot)
        if shadow is None:
            return
        try:
            shadow.train(loss)
        except EsperError:  # somebody has answered for it already
            raise
        except Exception as error:
            raise SeedFault([slot], f'of blueprint "{shadow.blueprint}" {in_words(error)}') from error

    def take_incubation_losses(self) -> dict[str, Tensor]:
        """Mean incubation loss by slot since they were taken last, on the device."""
        taken = {name: shadow.take_loss() for name, shadow in self._shadows.items()}
        return {name: loss for name, loss in taken.items() if loss is not None}

    # Pieces.

    def _living(self) -> list[tuple[Slot, Seed]]:
        return [(slot, seed) for slot in self.slots.values() if (seed := slot.living) is not None]

    def _remove(self, slot: Slot, seed: Seed) -> None:
        del slot.seeds[-1]
        self._shadows.pop(slot.name, None)
        self.keeper.release(seed.number)
        slot.state = next_slot_state(slot.state, SlotEvent.PRUNED)
        slot.embargo = self._embargo
        self._lift_embargo(slot)

    @staticmethod
    def _lift_embargo(slot: Slot) -> None:
        if slot.embargo <= 0:
            slot.state = next_slot_state(slot.state, SlotEvent.EMBARGO_OVER)

    def _transition(self, slot: Slot, seed: Seed, was: Stage | None, reason: str) -> Transition:
        return Transition(slot.name, seed.number, seed.blueprint, was, seed.stage, seed.parameter_count, reason)
