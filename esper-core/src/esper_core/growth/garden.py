"""Garden: the seeds of one model, how actions and time change them, and their state.

``apply`` carries out an action of a policy; ``open_step``, ``tick`` and ``close_step`` let time pass; ``incubate``
trains a seed that does not act on the host yet. ``germinate_set`` and ``keep_set`` are for seeds that share a branch. A
transition that fails changes nothing.
"""

from __future__ import annotations

import json
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final

from esper_core.growth.dry_runs import device_of
from esper_core.growth.gates import Gates
from esper_core.growth.incubation import Branch, Shadow
from esper_core.growth.journal import Network, read_network
from esper_core.growth.optimizers import OptimizerKeeper
from esper_core.growth.random_streams import RandomStream, derive_seed
from esper_core.growth.rebuilding import replant
from esper_core.growth.seeds import Presence, Seed, SeedBuilder, SeedFault, Variety, describe_error
from esper_core.growth.serialization import decode_state, load_model_state, model_state, state_mismatch
from esper_core.growth.slots import slots_of
from esper_core.growth.transitions import FaultBook, Rules, require_fitting, transaction
from esper_core.leyline.constants import FULL
from esper_core.leyline.errors import EsperError, GrowthError, LifecycleError, Problem, suggestion
from esper_core.leyline.lifecycle import (
    BLENDED,
    Action,
    ActionMask,
    Op,
    SeedEvent,
    SlotEvent,
    SlotState,
    Stage,
    next_slot_state,
)
from esper_core.leyline.protocols import State
from esper_core.leyline.signals import Cause, Reason
from esper_core.plugins.isolation import is_interrupt
from esper_core.plugins.process_state import restore_defaults
from esper_core.settings import GrowthConfig

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from torch import Tensor, nn

    from esper_core.growth.incubation import Incubation, PartLoss
    from esper_core.growth.slots import Slot

_SOURCE: Final = "the state"
BY_POLICY: Final = Reason(Cause.POLICY)


@dataclass(frozen=True, slots=True)
class Transition:
    """A change of a seed's stage from ``was``, None at germination, to ``now``.

    ``branched`` says whether the seed was on a branch, where the host does not feel it.
    """

    slot: str
    seed: int
    blueprint: str
    was: Stage | None
    now: Stage
    parameters: int
    reason: Reason
    branched: bool = False

    @classmethod
    def of(cls, slot: Slot, seed: Seed, was: Stage | None, reason: Reason) -> Transition:
        """Return the transition of ``seed`` from ``was`` to its present stage."""
        branched = seed.presence is Presence.BRANCHED
        return cls(slot.name, seed.number, seed.blueprint, was, seed.stage, seed.parameter_count, reason, branched)


class Garden:
    """The seeds of one grafted model.

    Args:
        model: grafted, its slots observed.
        keeper: owns the host's parameters; the garden gives it those of the seeds.
        varieties: for each slot the blueprints that may grow in it. GrowthError for a slot that the model does not
            have (E302), or a blueprint for another kind of slot (E303).
        seed: of the random numbers of newborn seeds.
        batches: training batches in a decision step; alpha moves in each.
        settings: embargoes, limits on growth, incubation, whether fossils learn.
        faults: counts faults over all models of a run; a withdrawn blueprint grows no more.
        probe: computes the mean loss on one batch. Blueprints with informed birth choose their first weights by it.
        gates: what seeds must gain before they pass. None: gates by ``settings``.
        deterministic: the model and all blueprints are known to draw no random numbers.

    ``born`` counts the seeds and sets that were born here; it is the number of the next one. ``incubating`` holds, by
    number, how each living seed, or set of them, is trained that trains apart from the host's own step.
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
        deterministic: bool = False,
    ) -> None:
        self.model = model
        if not isinstance(keeper, OptimizerKeeper):
            message = f"a garden needs an OptimizerKeeper for its seeds. Received: {type(keeper).__name__}"
            hint = "With an optimizer of your own, in a loop of your own, use esper_grow.Gardener."
            raise GrowthError(Problem("E340", message, hint=hint))
        self.keeper = keeper
        self.slots = slots_of(model).claim()
        self._builder = SeedBuilder(model, seed, probe)
        self._batches = batches
        self._settings = settings or GrowthConfig()
        self.gates = gates or Gates(self._settings)
        by_slot = {name: {variety.id: variety for variety in varieties.get(name, ())} for name in self.slots}
        for name, slot_varieties in varieties.items():
            require_fitting(self._slot(name), slot_varieties)
        self._rules = Rules(self.slots, by_slot, self._settings, faults or FaultBook(), self.gates)
        self._deterministic = deterministic
        self.born = 0
        self.incubating: dict[int, Incubation] = {}
        self._born_here: set[int] = set()
        _adopt_seeds(self)

    def mask(self) -> ActionMask:
        """Return what each slot accepts now."""
        return self._rules.mask()

    def apply(self, action: Action, step: int) -> list[Transition]:
        """Carry out one action at the end of ``step``. LifecycleError, and nothing changed, if it is not legal."""
        if action.op is Op.WAIT:
            return []
        slot = self._slot(action.slot)
        with self._transaction():
            if action.op is Op.GERMINATE:
                seed = _add_newborn(self, slot, self._rules.variety_for(slot, action.blueprint or ""), action, step)
                self.incubating[seed.number] = _incubation(self, seed.number, [(slot, seed)])
                return [Transition.of(slot, seed, None, BY_POLICY)]
            seeds = self._rules.seeds_meant(slot, action)
            return [change for seed in seeds for change in self._carry_out(slot, seed, action, step)]

    def _slot(self, name: str | None) -> Slot:
        if name is None or name not in self.slots:
            raise GrowthError(Problem("E302", f'there is no slot "{name}"', hint=suggestion(name or "", self.slots)))
        return self.slots[name]

    def _carry_out(self, slot: Slot, seed: Seed, action: Action, step: int) -> Iterator[Transition]:
        self._rules.refuse(slot, seed, action.op)
        if action.op is Op.ADVANCE:
            yield from self._advance(slot, seed, BY_POLICY)
        elif action.op is Op.FOSSILISE:
            yield self._fossilise(slot, seed, step, self.gates.explain(BY_POLICY, seed))
        else:
            yield self._prune(slot, seed, action.speed)

    def germinate_set(self, actions: Sequence[Action], step: int, reason: Reason) -> list[Transition]:
        """Germinate a set of seeds on one branch; several of one blueprint in a slot have other first weights each.

        No other seed lives. The set's number is ``born`` as it was before.
        """
        with self._transaction():
            return _germinate_set(self, actions, step, reason)

    def keep_set(self, number: int, step: int, reason: Reason) -> list[Transition]:
        """Keep the seeds of a set, whose branch becomes the host. LifecycleError if its gate is closed."""
        incubation = self.incubating[number]
        if why := self.gates.refusal(incubation, Op.FOSSILISE):
            raise LifecycleError(kind="seed", state="training", event="fossilise", legal=[], why=why)
        with self._transaction():
            changes: list[Transition] = []
            members, explained = incubation.members, self.gates.explain(reason, incubation)
            for slot, seed in members:
                seed.alpha.aim(FULL, 0)
                blending = (SeedEvent.ADVANCE, SeedEvent.RAMP_AT_TARGET)
                changes += [Transition.of(slot, seed, seed.pass_on(event), reason) for event in blending]
            del self.incubating[incubation.number]
            incubation.commit()
            return changes + [self._fossilise(slot, seed, step, explained) for slot, seed in members]

    def _advance(self, slot: Slot, seed: Seed, reason: Reason) -> Iterator[Transition]:
        """Blend the seed in, and drop those beside it: if it is kept its branch is the host; theirs have another."""
        before = seed.pass_on(SeedEvent.ADVANCE)
        incubation = self.incubating[seed.number]
        seed.alpha.aim(FULL, 0 if incubation.lasting else seed.speed * self._batches)
        if not incubation.lasting:
            seed.presence = Presence.ACTING
            del self.incubating[seed.number]
        yield Transition.of(slot, seed, before, self.gates.explain(reason, seed))
        for place, other in list(self.living()):
            if other is not seed and (place is slot or other.presence is Presence.BRANCHED):
                yield self._remove(place, other, other.pass_on(SeedEvent.REMOVE), Reason(Cause.NURSERY, seed.blueprint))

    def _fossilise(self, slot: Slot, seed: Seed, step: int, reason: Reason) -> Transition:
        before = seed.pass_on(SeedEvent.FOSSILISE)
        if seed.number in self._born_here:  # one that was loaded may have been trained elsewhere
            owners = [owner for owner in self.keeper.owned_by_seed(seed.number) if owner.parameters]
            if owners and not any(owner.gradients.used for owner in owners):
                message = f"seed {seed.number}, {seed.blueprint} in {slot.name}, was never trained, and cannot be kept"
                hint = (
                    "For each batch call  garden.incubate(number, loss)  for each number in garden.incubating,\n"
                    "and  keeper.step(garden.blended). esper_grow.Gardener does both."
                )
                raise GrowthError(Problem("E309", message, hint=hint))
        seed.kept = step
        if not slot.nursery:  # others of its set may be left
            event = SlotEvent.FOSSILISED_AT_LIMIT if len(slot.fossils) >= slot.limit else SlotEvent.FOSSILISED
            slot.state = next_slot_state(slot.state, event)
        if (incubation := self.incubating.pop(seed.number, None)) is not None:
            incubation.commit()  # first, since a branch brings the state that the optimizers of the host had there
        self.keeper.settle(seed, freeze=self._settings.freeze_fossils)
        seed.presence, seed.in_set = Presence.ACTING, False
        return Transition.of(slot, seed, before, reason)

    def _prune(self, slot: Slot, seed: Seed, speed: int) -> Transition:
        """Send alpha to 0; a seed at alpha 0 is removed at once."""
        before = seed.pass_on(SeedEvent.PRUNE)
        if seed.stage is Stage.PRUNED:
            return self._remove(slot, seed, before, BY_POLICY)
        seed.alpha.aim(0.0, 0 if seed.number in self.incubating else speed * self._batches)  # a branch ends at once
        return Transition.of(slot, seed, before, self.gates.explain(BY_POLICY, seed))

    def open_step(self) -> list[Transition]:
        """Begin a step: schedules set learning rates, and newborn seeds start to train."""
        newborn = [(slot, seed) for slot, seed in self.living() if seed.stage is Stage.GERMINATED]
        with self._transaction():  # a seed that no optimizer owns does not start
            self.keeper.open_step()
            return [
                Transition.of(slot, seed, seed.pass_on(SeedEvent.TRAIN), Reason(Cause.STEP)) for slot, seed in newborn
            ]

    def tick(self) -> None:
        """Begin a batch: every alpha that moves moves on."""
        for _, seed in self.living():
            seed.alpha.tick()

    def close_step(self) -> list[Transition]:
        """End a step: move on seeds whose alpha arrived or whose gate is open, and count down embargoes."""
        resting = [slot for slot in self.slots.values() if slot.state is SlotState.EMBARGOED]
        waiting = [slot for slot in self.slots.values() if any(not seed.alpha.moving for seed in slot.nursery)]
        if not resting and not waiting:
            return []
        with self._transaction():
            for slot in resting:
                slot.embargo -= 1
                _lift_embargo(slot)
            return [transition for slot in waiting for transition in self._pass_time(slot)]

    def _pass_time(self, slot: Slot) -> Iterator[Transition]:
        """Apply the end of a step to a slot in which no alpha moves."""
        # One after the other, because the gains of two seeds that act at once cannot be told apart.
        if not self.blended and (seed := self._rules.ready(slot)) is not None:
            yield from self._advance(slot, seed, Reason(Cause.GAIN))
            return
        for seed in slot.nursery:
            if seed.stage is Stage.BLENDING:
                yield Transition.of(slot, seed, seed.pass_on(SeedEvent.RAMP_AT_TARGET), Reason(Cause.RAMP))
            elif seed.stage is Stage.DRAINING:
                yield self._remove(slot, seed, seed.pass_on(SeedEvent.DRAINED), Reason(Cause.DRAINED))

    def remove(
        self, reason: Reason, slots: Collection[str] | None = None, number: int | None = None
    ) -> list[Transition]:
        """Prune living seeds at once, whatever their alpha: all, those of ``slots``, or the one of ``number``."""
        living = [(slot, seed) for slot, seed in self.living() if slots is None or slot.name in slots]
        doomed = [(slot, seed) for slot, seed in living if number in (None, seed.number)]
        if not doomed:
            return []
        with self._transaction():
            return [self._remove(slot, seed, seed.pass_on(SeedEvent.REMOVE), reason) for slot, seed in doomed]

    def _remove(self, slot: Slot, seed: Seed, was: Stage, reason: Reason) -> Transition:
        del slot.seeds[list(slot.seeds).index(seed)]
        for number in [number for number, incubation in self.incubating.items() if not incubation.members]:
            del self.incubating[number]
        self.keeper.release(seed.number)
        if not slot.nursery:
            slot.state = next_slot_state(slot.state, SlotEvent.PRUNED)
            slot.embargo = self._settings.embargo
            _lift_embargo(slot)
        return Transition.of(slot, seed, was, self.gates.explain(reason, seed))

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        born = self.born
        try:
            with transaction(self.model, tuple(self.slots.values()), self.keeper, self.incubating):
                yield
        except BaseException:  # of a seed, or an interrupt: the count is undone, too
            self.born = born
            raise

    @property
    def blended(self) -> tuple[int, ...]:
        """Numbers of the living seeds that act on the host."""
        return tuple(seed.number for _, seed in self.acting())

    @property
    def blended_slots(self) -> tuple[str, ...]:
        """The slots whose living seeds act on the host."""
        return tuple(slot.name for slot, _ in self.acting())

    def all_seeds(self) -> list[tuple[Slot, Seed]]:
        """Return every seed, fossils too, with its slot."""
        return [(slot, seed) for slot in self.slots.values() for seed in slot.seeds]

    def living(self) -> list[tuple[Slot, Seed]]:
        """Return the seeds that are neither fossilised nor pruned, with their slots."""
        return [(slot, seed) for slot, seed in self.all_seeds() if seed.stage is not Stage.FOSSILISED]

    def acting(self) -> list[tuple[Slot, Seed]]:
        """Return the living seeds that act on the host, with their slots."""
        acting = Presence.ACTING
        return [(slot, seed) for slot, seed in self.living() if seed.presence is acting and seed.stage in BLENDED]

    def living_seeds(self) -> list[Seed]:
        """Return the seeds that are neither fossilised nor pruned."""
        return [seed for _, seed in self.living()]

    def incubate(self, number: int, *parts: PartLoss) -> None:
        """Train one of ``incubating`` on one batch, if it still lives. Each of ``parts`` returns the loss of a part."""
        if (incubation := self.incubating.get(number)) is not None:
            with attributed_to_seed(*incubation.members):
                incubation.train(*parts)

    def take_incubation_losses(self) -> dict[int, Tensor]:
        """Return the mean incubation loss of each seed since the last call, on the device."""
        taken = [(incubation, incubation.take_loss()) for incubation in self.incubating.values()]
        return {seed.number: loss for incubation, loss in taken if loss is not None for _, seed in incubation.members}

    def state_dict(self) -> State:
        """Return the whole state, with the model's tensors and the optimizers' state; call it between two steps."""
        incubations = {str(number): incubation.state_dict() for number, incubation in self.incubating.items()}
        parts = {"optimizers": self.keeper.state_dict(), "gates": self.gates.state_dict()}
        return State.of(
            {"model": model_state(self.model), **parts, "incubations": State.of(incubations)},
            network=json.loads(
                json.dumps(asdict(read_network(self.model)))
            ),  # lists and text, as a checkpoint gives it back
            born=self.born,
            incubating=list(self.incubating),
            sets=[
                [incubation.number, [seed.number for _, seed in incubation.members]]
                for incubation in self.incubating.values()
                if incubation.is_set
            ],
        )

    def load_state_dict(self, state: State) -> None:
        """Continue from ``state``; nothing has grown here yet.

        Raises:
            GrowthError: the slots are not those of the state, or not empty, or a blueprint or a tensor does not fit.
        """
        network, _ = Network.parse(json.dumps(state.plain["network"]), source=_SOURCE)
        tensors = decode_state(state.part("model"))["parameters"]
        replant(self.model, network, tensors, self._rules.find_variety, source=_SOURCE)
        load_model_state(self.model, state.part("model"))
        _adopt_seeds(self, state.plain["sets"])
        order: list[int] = state.plain["incubating"]
        if sorted(order) != sorted(self.incubating):
            why = f"seeds {order} incubated, and here {sorted(self.incubating)} do"
            raise state_mismatch(why)
        self.keeper.load_state_dict(state.part("optimizers"))
        self.gates.load_state_dict(state.part("gates"))
        self.incubating = {number: self.incubating[number] for number in order}  # seeds train in this order
        for number, incubation in self.incubating.items():
            incubation.load_state_dict(state.part("incubations").part(str(number)))
        self.born = state.plain["born"]


def _add_newborn(
    garden: Garden, slot: Slot, variety: Variety, action: Action, step: int, *, in_set: bool = False
) -> Seed:
    """Put a newborn seed into a slot, with an optimizer, and return it."""
    occupied = next_slot_state(slot.state, SlotEvent.GERMINATE)
    assert slot.site is not None
    dtype = slot.dtype_in(garden.model)
    twins = sum(seed.blueprint == variety.id for seed in slot.nursery) if in_set else None
    seed = garden._builder.build(
        variety, action, slot.site, dtype, slot.tapped, number=garden.born, step=step, twins=twins
    )
    garden.born += 1
    slot.seeds.append(seed)
    slot.state = occupied
    garden.keeper.adopt(seed)
    garden._born_here.add(seed.number)
    return seed


def _germinate_set(garden: Garden, actions: Sequence[Action], step: int, reason: Reason) -> list[Transition]:
    if living := garden.living_seeds():
        why = f"{living[0].blueprint} grows in the network"
        raise LifecycleError(kind="slot", state="occupied", event="germinate", legal=[], name="of a set", why=why)
    number, garden.born = garden.born, garden.born + 1
    slots = [garden._slot(action.slot) for action in actions]
    # By the rules as they are before the first is there, beside which they allow no other.
    varieties = [
        garden._rules.variety_for(slot, action.blueprint or "") for slot, action in zip(slots, actions, strict=True)
    ]
    born = zip(slots, varieties, actions, strict=True)
    members = [(slot, _add_newborn(garden, slot, variety, action, step, in_set=True)) for slot, variety, action in born]
    garden.incubating[number] = _incubation(garden, number, members)
    return [Transition.of(slot, seed, None, reason) for slot, seed in members]


def _incubation(garden: Garden, number: int, members: Sequence[tuple[Slot, Seed]]) -> Incubation:
    """Return how seeds that share a number are trained."""
    stream_seed = derive_seed(garden._builder.seed, "incubation", number)
    stream = RandomStream(stream_seed, device_of(garden.model), idle=garden._deterministic)
    opens = garden._settings.incubation == "branch" and not garden.blended  # a loaded network may hold acting seeds
    on_branch = opens or members[0][1].presence is Presence.BRANCHED
    return (Branch if on_branch else Shadow)(garden.model, number, members, garden.keeper, stream)


def _adopt_seeds(garden: Garden, sets: Sequence[tuple[int, Sequence[int]]] = ()) -> None:
    """Train the seeds that a loaded model holds already; ``sets`` has the number of each set and of its seeds."""
    number_of_set = {member: number for number, members in sets for member in members}
    together: dict[int, list[tuple[Slot, Seed]]] = {}
    for slot, seed in garden.all_seeds():
        garden.born = max(garden.born, seed.number + 1)
        garden.keeper.adopt(seed)
        if seed.stage is Stage.FOSSILISED:
            garden.keeper.settle(seed, freeze=garden._settings.freeze_fossils)
        elif seed.incubating or seed.presence is Presence.BRANCHED:
            together.setdefault(number_of_set.get(seed.number, seed.number), []).append((slot, seed))
    for number, members in together.items():
        garden.incubating[number] = _incubation(garden, number, members)


@contextmanager
def attributed_to_seed(*places: tuple[Slot, Seed]) -> Iterator[None]:
    """Raise whatever the ``with`` block raises as a SeedFault of a seed, unless it is an EsperError already.

    It is one, too, if the block changed settings of torch, which would change the numbers of whatever runs next. The
    seeds of a set, which nothing tells apart there, are all to blame.
    """
    (slot, seed), names = places[0], [slot.name for slot, _ in places]
    number = seed.number if len(places) == 1 else None
    try:
        with slot.entered(seed):
            yield
        if changes := restore_defaults():
            raise SeedFault(names, changes, number=number)
    except EsperError:
        raise
    except BaseException as error:
        if is_interrupt(error):
            raise
        raise SeedFault(names, describe_error(error, seed.block), number=number, blueprint=seed.blueprint) from error


def _lift_embargo(slot: Slot) -> None:
    if slot.embargo <= 0:
        slot.state = next_slot_state(slot.state, SlotEvent.EMBARGO_OVER)
