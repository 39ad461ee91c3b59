"""Transitions: which actions are legal now, and all-or-nothing changes.

``leyline.lifecycle`` has the tables of stages. ``Rules`` checks the conditions on numbers: alpha, the limits on growth,
gates, open branches, and blueprints that were withdrawn after too many faults (``FaultBook``).
"""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, TypeAlias

import torch

from esper_core.growth.dry_runs import device_of, home_of
from esper_core.growth.random_streams import GENERATOR_LOCK
from esper_core.growth.seeds import Presence, SeedFault
from esper_core.growth.slots import slots_of
from esper_core.leyline.constants import FAULTS_UNTIL_WITHDRAWN, FULL
from esper_core.leyline.errors import GraftError, GrowthError, LifecycleError, Problem, suggestion
from esper_core.leyline.lifecycle import ARGUMENTS, Action, ActionMask, Op, SeedEvent, SlotState, Stage, may
from esper_core.leyline.protocols import State

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from torch import nn

    from esper_core.growth.gates import Gates
    from esper_core.growth.incubation import Incubation
    from esper_core.growth.optimizers import OptimizerKeeper
    from esper_core.growth.seeds import Seed, Variety
    from esper_core.growth.slots import Slot
    from esper_core.settings import GrowthConfig

    Present: TypeAlias = Sequence[tuple[Slot, Seed]]

EVENT_OF_OP: Final = {
    Op.ADVANCE: SeedEvent.ADVANCE,
    Op.PRUNE: SeedEvent.PRUNE,
    Op.FOSSILISE: SeedEvent.FOSSILISE,
}
"""The lifecycle event that an op causes."""


@dataclass(frozen=True, slots=True)
class Rules:
    """Says which actions are legal in a garden as it is now; ``varieties`` are by slot and full id."""

    slots: Mapping[str, Slot]
    varieties: Mapping[str, Mapping[str, Variety]]
    settings: GrowthConfig
    faults: FaultBook
    gates: Gates

    def mask(self) -> ActionMask:
        """Return what each slot accepts now."""
        present = self.present()
        fitting = {name: self.fitting(slot, present) for name, slot in self.slots.items()}
        seeds = {name: self.ops_by_blueprint(slot) for name, slot in self.slots.items() if slot.nursery}
        ops = {
            name: frozenset({Op.GERMINATE} if fitting[name] else ()).union(*seeds.get(name, {}).values())
            for name in self.slots
        }
        return ActionMask(ops, fitting, seeds)

    def present(self) -> list[tuple[Slot, Seed]]:
        """Return every seed, fossils too, with its slot."""
        return [(slot, seed) for slot in self.slots.values() for seed in slot.seeds]

    def fitting(self, slot: Slot, present: Present) -> tuple[str, ...]:
        """Return the blueprints that could germinate in the slot now, beside the seeds that are present."""
        varieties = self.varieties[slot.name].values()
        return tuple(
            variety.id
            for variety in varieties
            if not (self.reason_closed(slot, variety, present) or self.reason_not_allowed(slot, variety, present))
        )

    def find_variety(self, blueprint: str) -> Variety:
        """Return the blueprint of this full id that may grow in any slot; GrowthError if there is none."""
        varieties = {id_: variety for of_slot in self.varieties.values() for id_, variety in of_slot.items()}
        if blueprint not in varieties:
            message = f'"{blueprint}" grew where the state was taken, and cannot grow here'
            raise GrowthError(Problem("E303", message, hint=suggestion(blueprint, varieties)))
        return varieties[blueprint]

    def variety_for(self, slot: Slot, blueprint: str) -> Variety:
        """Return the blueprint that is to germinate in the slot; an error says why it cannot."""
        variety, present = self.varieties[slot.name].get(blueprint), self.present()
        if variety is not None and (why := self.reason_closed(slot, variety, present)):
            legal = frozenset[Op]().union(*self.ops_by_blueprint(slot).values())
            raise LifecycleError(kind="slot", state=slot.state, event="germinate", legal=legal, name=slot.name, why=why)
        if variety is None or (why := self.reason_not_allowed(slot, variety, present)):
            message = f'"{blueprint}" cannot grow in slot "{slot.name}"' + (f": {why}" if variety else "")
            names = self.fitting(slot, present)
            hint = suggestion(blueprint, names) if names else "No blueprint that was given for this slot fits it."
            raise GrowthError(Problem("E303", message, hint=hint))
        return variety

    def reason_not_allowed(self, slot: Slot, variety: Variety, present: Present) -> str | None:
        """Return why the blueprint cannot germinate in the slot although that is open; None if it can."""
        if slot.site is None:
            return "the slot has seen no data yet. Give graft an example:  graft(…, example=batch)"
        if (reason := variety.spec.misfit(slot.site)) is not None:
            return reason
        if self.faults.is_withdrawn(variety.id):
            return "it failed too often and is withdrawn from this run"
        most, budget = self.settings.seeds, self.settings.parameters
        if most is not None and len(present) >= most:
            return f"the network holds {len(present)} of {most} seeds (growth.seeds)"
        added = sum(seed.parameter_count for _, seed in present)
        if budget is not None and added + (new := variety.most_parameters(slot.site)) > budget:
            return f"growth has added {added:,} of {budget:,} parameters (growth.parameters), and it takes {new:,}"
        return None

    def reason_closed(self, slot: Slot, variety: Variety, present: Present) -> str | None:
        """Return why the slot accepts no seed of the blueprint now; None if it does.

        A nursery accepts several seeds while all of them incubate, each of another blueprint, by which actions name
        them. Several slots may have branches of one host, until a seed is blended in: its branch may become the host.
        Nothing germinates beside a set.
        """
        living = [(other, seed) for other, seed in present if seed.stage is not Stage.FOSSILISED]
        if any(seed.in_set for _, seed in living):
            return "a set of seeds grows in the network"
        for other, seed in living if self.settings.incubation == "branch" else ():
            if other is not slot and not seed.incubating:
                return f"a seed in slot {other.name} is blended in, and no branch can be opened beside it"
        if slot.state is SlotState.FREE:
            return None
        seeds = slot.nursery
        if self.settings.nursery == 1 or not seeds or not all(seed.incubating for seed in seeds):
            if seeds:
                return f"{', '.join(seed.blueprint for seed in seeds)} grows in it"
            full = slot.state is SlotState.CLOSED
            return f"it holds {slot.limit} seeds (stack)" if full else f"it rests for {slot.embargo} more steps"
        if any(seed.blueprint == variety.id for seed in seeds):
            return "a seed of this blueprint already incubates in the slot"
        if len(seeds) >= self.settings.nursery:
            return f"the nursery of the slot holds {len(seeds)} of {self.settings.nursery} seeds (growth.nursery)"
        return None

    def ops_by_blueprint(self, slot: Slot) -> Mapping[str, frozenset[Op]]:
        """Return for each seed of the slot, by blueprint, the ops that it accepts now."""
        return {
            seed.blueprint: frozenset(
                op
                for op, event in EVENT_OF_OP.items()
                if may(seed.stage, event) and self.reason_op_not_allowed(seed, op) is None
            )
            for seed in slot.nursery
        }

    def reason_op_not_allowed(self, seed: Seed, op: Op) -> str | None:
        """Return why a seed's alpha or a gate does not allow an op, or its set; None if they do."""
        if seed.in_set:
            return "it grows in a set, which is kept or pruned by its gate"
        if op is Op.FOSSILISE and seed.alpha.value != FULL:
            return f"alpha is {seed.alpha.value:g}, and a seed can be fossilised only at 1"
        return self.gates.refusal(seed, op)

    def refuse(self, slot: Slot, seed: Seed, op: Op) -> None:
        """Raise a LifecycleError if the seed's stage allows the op, and its alpha or a gate does not."""
        if may(seed.stage, EVENT_OF_OP[op]) and (why := self.reason_op_not_allowed(seed, op)):
            legal = self.ops_by_blueprint(slot)[seed.blueprint]
            raise LifecycleError(kind="seed", state=seed.stage, event=op, legal=legal, why=why)

    def seeds_meant(self, slot: Slot, action: Action) -> tuple[Seed, ...]:
        """Return the seeds that ``action``, other than a germination, applies to.

        Without a blueprint an ADVANCE applies to the seed with the largest gain that allows it, other ops to all seeds.
        """
        seeds = slot.nursery
        if not seeds:
            legal = ["germinate"] if slot.state is SlotState.FREE else []
            raise LifecycleError(kind="slot", state=slot.state, event=action.op, legal=legal, name=slot.name)
        named = action.blueprint if "blueprint" in ARGUMENTS[action.op] else None
        if named is None:
            ops = self.ops_by_blueprint(slot)
            able = [seed for seed in seeds if action.op in ops[seed.blueprint]]
            return (max(able or seeds, key=self.gates.lead),) if action.op is Op.ADVANCE else seeds
        if matching := tuple(seed for seed in seeds if seed.blueprint == named):
            return matching
        message = f'no seed of "{named}" grows in slot "{slot.name}"'
        raise GrowthError(Problem("E303", message, hint=suggestion(named, [seed.blueprint for seed in seeds])))

    def ready(self, slot: Slot) -> Seed | None:
        """Return the seed that its gate lets advance without an action; never one of several that it would drop."""
        seeds = slot.nursery
        branches = [seed for _, seed in self.present() if seed.presence is Presence.BRANCHED]
        alone = len(seeds) == 1 and seeds[0].stage is Stage.TRAINING and len(branches) < 2 and not seeds[0].in_set
        return seeds[0] if alone and self.gates.ready(seeds[0]) else None


def require_fitting(slot: Slot, varieties: Sequence[Variety]) -> None:
    """Raise GraftError (E305) if none of the blueprints fits the kind of the slot; a slot without data fits all."""
    if not varieties or slot.site is None or any(variety.spec.misfit(slot.site) is None for variety in varieties):
        return
    first = varieties[0]
    raise GraftError(Problem("E305", f'"{first.id}" cannot grow in slot "{slot.name}": {first.spec.misfit(slot.site)}'))


@contextmanager
def transaction(
    model: nn.Module, slots: Sequence[Slot], keeper: OptimizerKeeper, incubations: dict[int, Incubation]
) -> Iterator[None]:
    """Run the ``with`` block, and restore slots, seeds, optimizers, incubations and torch's global state if it fails.

    Raises:
        GrowthError: the block left a trainable parameter without exactly one optimizer.
        SeedFault: the same, if the parameter is that of a seed that lived before.
    """
    living = [slot for slot in slots if slot.nursery]
    undo_slots = [_undo_slot(slot) for slot in slots]
    put_keeper_back, incubating = keeper.undo(), dict(incubations)
    put_torch_back = _torch_state(device_of(model))
    try:
        yield
        if misowned := keeper.misowned(model):
            prefixes = {
                slot.name: f"{home_of(at)}." for at, slot in slots_of(model).by_module.items() if slot in living
            }
            culprits = [
                name for name, prefix in prefixes.items() if any(parameter.startswith(prefix) for parameter in misowned)
            ]
            if culprits:
                raise SeedFault(culprits, f"has parameters that it was not born with: {', '.join(misowned[:5])}")
            hint = "An optimizer of the host gets  esper_core.growth.host_parameters(model)  while seeds live."
            message = f"not owned by exactly one optimizer: {', '.join(misowned[:5])}"
            raise GrowthError(Problem("E304", message, hint=hint))
    except BaseException:
        for put_slot_back in undo_slots:
            put_slot_back()
        put_keeper_back()
        incubations.clear()
        incubations.update(incubating)
        for incubation in incubating.values():
            incubation.reopen()
        put_torch_back()
        raise


def _torch_state(device: torch.device) -> Callable[[], None]:
    """Return a function that restores torch's default generators and gradient mode as they are now."""
    cpu, gradients, depth = torch.get_rng_state(), torch.is_grad_enabled(), GENERATOR_LOCK.depth()
    cuda = torch.cuda.get_rng_state(device) if device.type == "cuda" else None

    def put_back() -> None:
        # An interrupt may come before a stream could give the lock back.
        GENERATOR_LOCK.release_to(depth)
        torch.set_grad_enabled(gradients)
        torch.set_rng_state(cpu)
        if cuda is not None:
            torch.cuda.set_rng_state(cuda, device)

    return put_back


def _undo_slot(slot: Slot) -> Callable[[], None]:
    """Return a function that restores what a transition may change of a slot and its seeds."""
    state, embargo = slot.state, slot.embargo
    # Of alpha a copy, because it moves in place.
    seeds = [(seed, seed.stage, seed.kept, replace(seed.alpha), seed.presence) for seed in slot.seeds]
    trained = [(parameter, parameter.requires_grad) for parameter in slot.parameters()]

    def put_back() -> None:
        slot.state, slot.embargo = state, embargo
        for seed, stage, kept, alpha, presence in seeds:
            seed.stage, seed.kept, seed.alpha, seed.presence = stage, kept, alpha, presence
        for parameter, requires_grad in trained:
            parameter.requires_grad_(requires_grad)
        if [id(seed) for seed in slot.seeds] != [id(seed) for seed, *_ in seeds]:
            while len(slot.seeds):
                del slot.seeds[-1]
            slot.seeds.extend(seed for seed, *_ in seeds)

    return put_back


class FaultBook:
    """Counts the faults of each blueprint over a run, and withdraws a blueprint after too many."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def record(self, blueprint: str) -> bool:
        """Count one fault; return whether it withdraws the blueprint."""
        self._counts[blueprint] += 1
        # Not from there on: a withdrawal is reported once.
        return self._counts[blueprint] == FAULTS_UNTIL_WITHDRAWN

    def is_withdrawn(self, blueprint: str) -> bool:
        """Return whether the blueprint is withdrawn."""
        return self._counts[blueprint] >= FAULTS_UNTIL_WITHDRAWN

    def state_dict(self) -> State:
        """Return the number of faults of each blueprint."""
        return State({"counts": dict(self._counts)})

    def load_state_dict(self, state: State) -> None:
        """Continue counting from ``state``."""
        self._counts = Counter(state.plain["counts"])
