"""Rebuilding: restore a grown network in a new host, or build the static control.

``rebuild`` checks everything before it changes anything: the host, the blueprints and their versions, the tensors. Then
it loads the tensors, grafts the slots and puts the seeds in. ``implant`` puts newborn blocks where another network grew
its fossils: the same capacity from the start, without growth.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from torch import Tensor

from esper_core.growth.dry_runs import HOME, device_of, dtype_of, home_of, is_grown
from esper_core.growth.grafting import attach_slots
from esper_core.growth.journal import DTYPES, resume
from esper_core.growth.random_streams import RandomStream, derive_seed
from esper_core.growth.seeds import Seed, SeedBuilder, describe_error
from esper_core.growth.serialization import describe_mismatch, form_of
from esper_core.growth.slots import is_grafted, slots_of
from esper_core.leyline.constants import FULL
from esper_core.leyline.errors import GrowthError, Problem
from esper_core.leyline.lifecycle import Action, Blend, Op, SlotState, Stage
from esper_core.leyline.specs import Site

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import nn

    from esper_core.growth.journal import Growth, Network
    from esper_core.growth.seeds import Variety
    from esper_core.growth.slots import Slot


def rebuild(
    model: nn.Module, network: Network, state: Mapping[str, Any], find: Callable[[str], Variety], *, source: str
) -> None:
    """Turn ``model``, a new host, into the network of the journal, with the tensors of the state dict ``state``.

    ``find`` returns the blueprint of a full id, or raises; ``source`` is named in messages.

    Raises:
        GrowthError: something does not fit; the model is then unchanged.
    """
    # A module with several names has its keys, and a journal, below each.
    aliases = {name for name, _ in model.named_modules(remove_duplicate=False)}
    aliases -= {name for name, _ in model.named_modules()}
    network = network.moved(lambda at: None if at in aliases else at)
    tensors = {
        key: value
        for key, value in state.items()
        if not network.has_key(key) and key.partition(f".{HOME}.")[0] not in aliases
    }
    seeds = _build_seeds(model, network, tensors, find, source)
    expected = {key: form_of(value) for key, value in model.state_dict().items()}
    for prefix, _, seed in seeds:
        expected |= {prefix + key: form_of(value) for key, value in seed.state_dict().items()}
    if mismatch := describe_mismatch(expected, {key: form_of(value) for key, value in tensors.items()}):
        raise _does_not_fit(model, source, f"{mismatch}\nBuild the host with the settings that it had.")
    for prefix, _, seed in seeds:
        seed.load_state_dict({key.removeprefix(prefix): tensors[key] for key in tensors if key.startswith(prefix)})
    # ``load_state_dict`` writes in place, and may raise half-way.
    before = [(value, value.clone()) for value in model.state_dict().values() if isinstance(value, Tensor)]
    try:
        model.load_state_dict({key: value for key, value in tensors.items() if not is_grown(key)})
        if not is_grafted(model):
            with ExitStack() as undo:
                attach_slots(model, network.places(), undo)
                undo.pop_all()
    except BaseException:
        for value, copy in before:
            value.copy_(copy)
        raise
    _put_in(model, network, seeds)


def replant(
    model: nn.Module, network: Network, tensors: Mapping[str, Any], find: Callable[[str], Variety], *, source: str
) -> None:
    """Put seeds where the journal has them into a grafted model; the caller loads their tensors, ``tensors``.

    Raises:
        GrowthError: something does not fit; the model is then unchanged.
    """
    _put_in(model, network, _build_seeds(model, network, tensors, find, source))


def _does_not_fit(model: nn.Module, source: str, hint: str) -> GrowthError:
    return GrowthError(Problem("E334", f"{source} does not fit this {type(model).__name__}", hint=hint))


def _build_seeds(
    model: nn.Module, network: Network, tensors: Mapping[str, Any], find: Callable[[str], Variety], source: str
) -> list[tuple[str, str, Seed]]:
    """Return each seed of the journal, newborn, with the prefix of its keys and its slot."""
    if is_grafted(model):
        slots = slots_of(model)
        grown = any(len(slot.seeds) for slot in slots)
        if grown or slots.places() != {place.name: place.at for place in network.slots}:
            raise _does_not_fit(model, source, "It has other slots, or has grown. Load into a new host.")
    module_names = {name for name, _ in model.named_modules()}
    for place in network.slots:
        if place.at not in module_names:
            hint = f'Slot "{place.name}" is behind "{place.at}", which does not exist. Build the host as it was.'
            raise _does_not_fit(model, source, hint)
    seeds: list[tuple[str, str, Seed]] = []
    places = dict.fromkeys((slot.name for slot in network.slots), 0)
    for growth in network.seeds:
        prefix = f"{home_of(growth.at)}.seeds.{places[growth.slot]}."
        places[growth.slot] += 1
        seeds.append((prefix, growth.slot, _build_seed(growth, find(growth.blueprint), model, tensors, source, prefix)))
    return seeds


def _build_seed(
    growth: Growth, variety: Variety, model: nn.Module, tensors: Mapping[str, Any], source: str, prefix: str
) -> Seed:
    """Return a seed as the journal has it, with the parameters of a newborn one."""
    if variety.spec.version != growth.version:
        installed = variety.spec.version
        message = f'"{growth.blueprint}" grew in version {growth.version}, and version {installed} is installed'
        hint = "The versions build different networks. Install the version that the network grew with."
        raise GrowthError(Problem("E333", message, hint=hint))
    site = Site.of(growth.kind, growth.example_shape, growth.inputs or 0)
    if (why := variety.spec.misfit(site)) is not None:
        raise _does_not_fit(model, source, f"{growth.blueprint} cannot grow in {growth.slot}: {why}.")
    # Before it is built: a file from anywhere may name a block that does not fit into memory.
    available = sum(value.numel() for value in tensors.values() if isinstance(value, Tensor))
    if (needed := variety.block_parameters(site)) > available:
        hint = f"{growth.blueprint} has {needed:,} parameters at {site}, but the file has {available:,} in all."
        raise _does_not_fit(model, source, hint)
    try:
        with RandomStream(derive_seed(0, "rebuilding")):
            seed = Seed(
                variety.build(site),
                blueprint=growth.blueprint,
                spec=variety.spec,
                site=site,
                number=growth.number,
                blend=growth.blend,
                speed=growth.speed,
                identity=growth.identity,
                title=variety.title,
            )
    except (Exception, SystemExit) as error:
        hint = f"{growth.blueprint} {describe_error(error)} when it was built for {site}."
        raise _does_not_fit(model, source, hint) from error
    of_seed = (value for key, value in tensors.items() if key.startswith(prefix) and isinstance(value, Tensor))
    dtype = next((value.dtype for value in of_seed if value.is_floating_point()), dtype_of(model))
    seed.to(device_of(model), dtype).train(model.training)
    seed.born, seed.kept, seed.presence = growth.born, growth.kept, growth.presence
    resume(seed, growth)
    return seed


def _put_in(model: nn.Module, network: Network, seeds: list[tuple[str, str, Seed]]) -> None:
    """Put the seeds into their slots, which are grafted and empty."""
    slots = slots_of(model)
    for _, name, seed in seeds:
        slots.named(name).seeds.append(seed)
    for place in network.slots:
        slot = slots.named(place.name)
        if place.kind is not None and place.example_shape is not None:
            slot.site = Site.of(place.kind, place.example_shape, place.inputs or 0)
        if place.dtypes is not None:
            slot.dtypes = DTYPES[place.dtypes[0]], DTYPES[place.dtypes[1]]
        slot.part = place.output
        slot.embargo, slot.state, slot.order = place.embargo, state_of(slot, place.embargo), place.order


def state_of(slot: Slot, embargo: int) -> SlotState:
    """Return the state of a slot with these seeds, which rests for so many steps."""
    if slot.nursery:
        return SlotState.OCCUPIED
    if len(slot.fossils) >= slot.limit:
        return SlotState.CLOSED
    return SlotState.EMBARGOED if embargo else SlotState.FREE


def plant(
    model: nn.Module, slot: Slot, variety: Variety, builder: SeedBuilder, number: int, blend: Blend = Blend.ADD
) -> Seed:
    """Put a newborn seed into a slot, at full strength, and return it; SeedFault if it cannot be built."""
    action = Action(Op.GERMINATE, slot.name, variety.id, blend=blend)
    assert slot.site is not None
    seed = builder.build(variety, action, slot.site, slot.dtype_in(model), slot.tapped, number=number, step=0)
    seed.alpha.aim(FULL, 0)
    slot.seeds.append(seed)
    return seed


def implant(
    model: nn.Module,
    grown: Sequence[Growth],
    varieties: Mapping[str, Sequence[Variety]],
    *,
    seed: int,
    probe: Callable[[nn.Module], Tensor] | None,
) -> None:
    """Put newborn blocks into the empty slots of ``model`` as if they had been fossilised there.

    With the ``seed`` and ``probe`` of a garden a block gets the same initial weights as there.
    """
    builder = SeedBuilder(model, seed, probe)
    for growth in grown:
        slot = slots_of(model).named(growth.slot)
        variety = next(variety for variety in varieties[growth.slot] if variety.id == growth.blueprint)
        block = plant(model, slot, variety, builder, growth.number, growth.blend)
        block.stage, block.kept = Stage.FOSSILISED, 0
        slot.state = state_of(slot, 0)
