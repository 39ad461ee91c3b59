"""What may happen to the seeds of one model, and what happens then?

The tables of ``leyline.lifecycle`` say which transitions there are; the garden says what each does to slots, seeds,
optimizers and clocks. It carries a transition out whole or not at all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from esper_core.config import GrowthConfig
from esper_core.growth.conditions import beyond_bounds, crossing, misfit, obstacle, refuse_unfit, taken
from esper_core.growth.faults import FaultBook, blamed_on
from esper_core.growth.gating import Gates
from esper_core.growth.grafting import slots_of
from esper_core.growth.incubating import begin
from esper_core.growth.nursery import EVENT_OF_OP, meant, possible, ready
from esper_core.growth.planting import Soil, Variety
from esper_core.growth.probe import device_of
from esper_core.growth.randomness import RandomStream, derive_seed
from esper_core.growth.remembering import recall, regrow, state_of
from esper_core.growth.seed import Presence
from esper_core.growth.transaction import whole_or_nothing
from esper_core.leyline.actions import Action, ActionMask, Op
from esper_core.leyline.errors import GrowthError, LifecycleError, Problem, suggestion
from esper_core.leyline.lifecycle import BLENDED, SeedEvent, SlotEvent, SlotState, Stage, may, next_slot_state

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from torch import Tensor, nn

    from esper_core.growth.incubation import Incubation
    from esper_core.growth.optimizers import OptimizerKeeper
    from esper_core.growth.seed import Seed
    from esper_core.growth.slot import Slot
    from esper_core.leyline.protocols import State


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

    @classmethod
    def of(cls, slot: Slot, seed: Seed, was: Stage | None, reason: str) -> Transition:
        """The seed's way from ``was`` to where it is now."""
        return cls(slot.name, seed.number, seed.blueprint, was, seed.stage, seed.parameter_count, reason)


class Garden:
    """The seeds of one grafted model and their lives.

    Args:
        model: grafted, its slots observed.
        keeper: owns the host's parameters; the garden gives it those of the seeds.
        varieties: for each slot what may grow in it.
        seed: from which the random numbers of newborn seeds are derived.
        batches: training batches in a decision step; alpha moves with each.
        settings: how long a slot rests, how much may grow, whether fossils learn.
        faults: counts what goes wrong, over all models of a run; a withdrawn blueprint grows no more.
        probe: the mean loss on a batch, for blueprints that choose their first weights by it.
        quiet: it is known that neither model nor seeds draw random numbers while they compute.
        gates: what seeds have to show before they pass; None: nothing. A seed whose gate opens is advanced at the end
            of the step, though nobody asked, where the settings say so.

    ``born`` counts the seeds that were ever born here: a seed that was not born has no number.
    """

    def __init__(
        self,
        model: nn.Module,
        keeper: OptimizerKeeper,
        varieties: Mapping[str, Sequence[Variety]],
        *,
        seed: int,
        batches: int,
        settings: GrowthConfig | None = None,
        faults: FaultBook | None = None,
        probe: Callable[[nn.Module], Tensor] | None = None,
        gates: Gates | None = None,
        quiet: bool = False,
    ) -> None:
        self.model = model
        self.keeper = keeper
        self.slots: dict[str, Slot] = {slot.name: slot for slot in slots_of(model).each()}
        self._soil = Soil(model, seed, probe)
        self._varieties = {name: {variety.id: variety for variety in varieties.get(name, ())} for name in self.slots}
        self._batches = batches
        self._settings = GrowthConfig() if settings is None else settings
        self._faults = FaultBook() if faults is None else faults
        self.gates = Gates(self._settings) if gates is None else gates
        self._quiet = quiet
        self.born = 0
        self._incubations: dict[int, Incubation] = {}
        self._take_in()

    # What is possible.

    def mask(self) -> ActionMask:
        """What each slot would accept now."""
        fitting = {name: self._fitting(slot) for name, slot in self.slots.items()}
        seeds = {name: possible(slot, self._obstacle) for name, slot in self.slots.items() if slot.nursery}
        ops = {name: _ops(fitting[name], seeds.get(name, {})) for name in self.slots}
        return ActionMask(ops, fitting, seeds)

    def _fitting(self, slot: Slot) -> tuple[str, ...]:
        varieties = self._varieties[slot.name].values()
        return tuple(variety.id for variety in varieties if self._hindrance(slot, variety) is None)

    def _hindrance(self, slot: Slot, variety: Variety) -> str | None:
        """Why the blueprint cannot grow in the slot now; None where it can."""
        if why := taken(slot, variety, self._settings) or misfit(slot, variety) or crossing(slot, self._living()):
            return why
        if self._faults.is_withdrawn(variety.id):
            return "it went wrong too often and is withdrawn from this run"
        return beyond_bounds(slot, variety, self.slots.values(), self._settings)

    def _obstacle(self, seed: Seed, op: Op) -> str | None:
        return obstacle(seed, op) or self.gates.refusal(seed, op)

    # What a policy asks for.

    def apply(self, action: Action, step: int) -> list[Transition]:
        """Carry out one action at the end of ``step``. LifecycleError, and nothing changed, where it is not legal."""
        if action.op is Op.WAIT:
            return []
        slot = _named(action.slot, self.slots)
        refuse_unfit(action)
        with whole_or_nothing(self, self._incubations):
            if action.op is Op.GERMINATE:
                return [self._germinate(slot, action, step)]
            able = possible(slot, self._obstacle)
            seeds = meant(slot, action, able, self.gates.lead)
            return [change for seed in seeds for change in self._carried_out(slot, seed, action, step)]

    def _carried_out(self, slot: Slot, seed: Seed, action: Action, step: int) -> Iterator[Transition]:
        if may(seed.stage, EVENT_OF_OP[action.op]) and (why := self._obstacle(seed, action.op)):
            legal = [op.value for op in possible(slot, self._obstacle)[seed.blueprint]]
            raise LifecycleError(what="seed", state=seed.stage.value, event=action.op.value, legal=legal, why=why)
        if action.op is Op.ADVANCE:
            yield from self._advance(slot, seed, "asked for")
        elif action.op is Op.FOSSILISE:
            yield self._fossilise(slot, seed, step)
        else:
            yield self._aim(slot, seed, action)

    def _germinate(self, slot: Slot, action: Action, step: int) -> Transition:
        occupied = next_slot_state(slot.state, SlotEvent.GERMINATE)
        variety = self._varieties[slot.name].get(action.blueprint or "")
        if variety is not None and slot.nursery and (full := taken(slot, variety, self._settings)):
            raise _no_room(slot, full, _ops((), possible(slot, self._obstacle)))
        if variety is None or (why := self._hindrance(slot, variety)):
            message = f'"{action.blueprint}" cannot grow in slot "{slot.name}"' + (f": {why}" if variety else "")
            raise GrowthError(Problem("E303", message, hint=suggestion(action.blueprint or "", self._fitting(slot))))
        seed = self._soil.plant(variety, slot, action, self.born, step)
        self.born += 1
        slot.seeds.append(seed)
        slot.state = occupied
        self.keeper.adopt(seed)
        self._incubations[seed.number] = self._incubation(slot, seed)
        return Transition.of(slot, seed, None, "asked for")

    def _advance(self, slot: Slot, seed: Seed, reason: str) -> Iterator[Transition]:
        """Blend the seed in; those that incubated beside it are dropped."""
        before = seed.pass_on(SeedEvent.ADVANCE)
        incubation = self._incubations[seed.number]
        seed.alpha.aim(
            seed.course.target, 0 if incubation.lasting else seed.course.speed * self._batches, seed.course.curve
        )
        if not incubation.lasting:
            seed.presence = Presence.ACTING
            del self._incubations[seed.number]
        yield Transition.of(slot, seed, before, reason)
        for other in slot.nursery:
            if other is not seed:
                yield self._uprooted(slot, other, f"{seed.blueprint} was chosen from the nursery")

    def _fossilise(self, slot: Slot, seed: Seed, step: int) -> Transition:
        before = seed.pass_on(SeedEvent.FOSSILISE)
        seed.kept = step
        at_limit = len(slot.fossils) >= slot.limit
        slot.state = next_slot_state(slot.state, SlotEvent.FOSSILISED_AT_LIMIT if at_limit else SlotEvent.FOSSILISED)
        self.keeper.settle(seed, freeze=self._settings.freeze_fossils)
        if (incubation := self._incubations.pop(seed.number, None)) is not None:
            incubation.commit()
        seed.presence = Presence.ACTING
        return Transition.of(slot, seed, before, "asked for")

    def _aim(self, slot: Slot, seed: Seed, action: Action) -> Transition:
        """Send alpha to a new target, or, where the seed is pruned, to 0; a seed without strength is out at once."""
        before = seed.pass_on(EVENT_OF_OP[action.op])
        if seed.stage is Stage.PRUNED:
            self._remove(slot, seed)
        else:
            drained = seed.stage is Stage.DRAINING
            speed = 0 if drained and seed.number in self._incubations else action.speed  # nobody sees a branch end
            seed.alpha.aim(0.0 if drained else action.target, speed * self._batches, action.curve)
        return Transition.of(slot, seed, before, "asked for")

    # What time brings.

    def open_step(self) -> list[Transition]:
        """A step begins: schedules go on, and newborn seeds start to train."""
        newborn = [(slot, seed) for slot, seed in self._living() if seed.stage is Stage.GERMINATED]
        with whole_or_nothing(self, self._incubations):  # G1: it is owned by an optimizer, or nothing starts
            self.keeper.open_step()
            return [Transition.of(slot, seed, seed.pass_on(SeedEvent.TRAIN), "a step began") for slot, seed in newborn]

    def tick(self) -> None:
        """A batch begins: every alpha that moves moves on."""
        for _, seed in self._living():
            seed.alpha.tick()

    def close_step(self) -> list[Transition]:
        """A step is over: ramps that have arrived are noticed, seeds that are ready advance, embargoes run down."""
        resting = [slot for slot in self.slots.values() if slot.state is SlotState.EMBARGOED]
        waiting = [slot for slot in self.slots.values() if any(not seed.alpha.moving for seed in slot.nursery)]
        if not resting and not waiting:
            return []
        with whole_or_nothing(self, self._incubations):
            for slot in resting:
                slot.embargo -= 1
                _lift_embargo(slot)
            return [transition for slot in waiting for transition in self._time_passed(slot)]

    def _time_passed(self, slot: Slot) -> Iterator[Transition]:
        """What the end of a step does to a slot whose seeds' alpha stands still."""
        if not self.blended and (seed := ready(slot, self.gates)) is not None:
            yield from self._advance(slot, seed, "its gain is shown")
            return
        for seed in slot.nursery:
            if seed.stage is Stage.BLENDING:
                yield Transition.of(slot, seed, seed.pass_on(SeedEvent.RAMP_AT_TARGET), "alpha at its target")
            elif seed.stage is Stage.DRAINING:
                before = seed.pass_on(SeedEvent.DRAINED)
                self._remove(slot, seed)
                yield Transition.of(slot, seed, before, "alpha at 0")

    def uproot(self, reason: str, slots: Collection[str] | None = None, number: int | None = None) -> list[Transition]:
        """Prune living seeds at once, whatever their alpha: those of ``slots``, or all; of them the one of a number."""
        doomed = [
            (slot, seed)
            for slot, seed in self._living()
            if (slots is None or slot.name in slots) and number in (None, seed.number)
        ]
        if not doomed:
            return []
        with whole_or_nothing(self, self._incubations):
            return [self._uprooted(slot, seed, reason) for slot, seed in doomed]

    def _uprooted(self, slot: Slot, seed: Seed, reason: str) -> Transition:
        before = seed.pass_on(SeedEvent.UPROOT)
        self._remove(slot, seed)
        return Transition.of(slot, seed, before, reason)

    # Training.

    @property
    def blended(self) -> tuple[int, ...]:
        """Numbers of the living seeds that act on the host."""
        return tuple(seed.number for _, seed in self._acting())

    @property
    def blended_slots(self) -> tuple[str, ...]:
        """The slots whose living seeds act on the host."""
        return tuple(slot.name for slot, _ in self._acting())

    def living_seeds(self) -> list[Seed]:
        """The seeds whose fate is open."""
        return [seed for _, seed in self._living()]

    @property
    def incubating(self) -> tuple[int, ...]:
        """Numbers of the living seeds that learn behind the host's back."""
        return tuple(self._incubations)

    def incubate(self, number: int, *parts: Callable[[nn.Module], Tensor]) -> None:
        """Train one incubating seed, if it still lives, on one batch: parts of it, if need be, whose losses add up.

        SeedFault where it cannot be.
        """
        if (incubation := self._incubations.get(number)) is not None:
            with blamed_on(*self.home_of(number)):
                incubation.train(*parts)

    def trial(self, number: int) -> AbstractContextManager[None]:
        """A block in which the model acts as it would with this incubating seed at its target."""
        return self._incubations[number].trial()

    def home_of(self, number: int) -> tuple[Slot, Seed]:
        """The living seed of this number, with its slot."""
        return next((slot, seed) for slot, seed in self._living() if seed.number == number)

    def take_incubation_losses(self) -> dict[int, Tensor]:
        """Mean incubation loss of each seed since they were taken last, on the device."""
        taken = {number: incubation.take_loss() for number, incubation in self._incubations.items()}
        return {number: loss for number, loss in taken.items() if loss is not None}

    def _take_in(self) -> None:
        """Seeds that are there already, for the model was loaded, live on; the keeper trains them from now on."""
        there = [(slot, seed) for slot in self.slots.values() for seed in slot.stack]
        self.born = max((seed.number + 1 for _, seed in there), default=0)
        for slot, seed in there:
            self.keeper.adopt(seed)
            if seed.stage is Stage.FOSSILIZED:
                self.keeper.settle(seed, freeze=self._settings.freeze_fossils)
            elif seed.incubating or seed.presence is Presence.BRANCHED:
                self._incubations[seed.number] = self._incubation(slot, seed)

    def _incubation(self, slot: Slot, seed: Seed) -> Incubation:
        number, device = derive_seed(self._soil.seed, "incubation", seed.number), device_of(self.model)
        stream = RandomStream(number, device, idle=self._quiet)
        return begin(self._settings.incubation, self.model, slot, seed, self.keeper, stream)

    def state(self) -> State:
        """All that it knows, the model's numbers and the keeper's memories among it; between two steps."""
        return state_of(self, self._incubations)

    def load(self, state: State) -> None:
        """Go on from where another garden stood; nothing has grown in this one. GrowthError where it does not fit."""
        regrow(self, self._varieties, state)
        self._take_in()
        recall(self, self._incubations, state)

    def _acting(self) -> list[tuple[Slot, Seed]]:
        return [
            (slot, seed) for slot, seed in self._living() if seed.presence is Presence.ACTING and seed.stage in BLENDED
        ]

    def _living(self) -> list[tuple[Slot, Seed]]:
        return [(slot, seed) for slot in self.slots.values() for seed in slot.nursery]

    def _remove(self, slot: Slot, seed: Seed) -> None:
        del slot.seeds[list(slot.stack).index(seed)]
        self._incubations.pop(seed.number, None)
        self.keeper.release(seed.number)
        if slot.nursery:
            return  # others incubate on
        slot.state = next_slot_state(slot.state, SlotEvent.PRUNED)
        slot.embargo = self._settings.embargo
        _lift_embargo(slot)


def _ops(fitting: Sequence[str], seeds: Mapping[str, frozenset[Op]]) -> frozenset[Op]:
    """What a slot would accept now: a new seed, and what is possible for those that it has."""
    return frozenset({Op.GERMINATE} if fitting else ()).union(*seeds.values())


def _named(name: str | None, slots: Mapping[str, Slot]) -> Slot:
    if name is None or name not in slots:
        raise GrowthError(Problem("E302", f'there is no slot "{name}"', hint=suggestion(name or "", slots)))
    return slots[name]


def _no_room(slot: Slot, why: str, ops: Collection[Op]) -> LifecycleError:
    legal = [op.value for op in ops]
    return LifecycleError(what="slot", state=slot.state.value, event="germinate", legal=legal, name=slot.name, why=why)


def _lift_embargo(slot: Slot) -> None:
    if slot.embargo <= 0:
        slot.state = next_slot_state(slot.state, SlotEvent.EMBARGO_OVER)
