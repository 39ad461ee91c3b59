"""Rebuilding: restore a grown network in a fresh host, or build the control by static capacity.

``rebuild`` checks everything before it changes anything: the host, the blueprints and their versions, the tensors. Then
it loads the tensors, grafts the slots and puts the seeds in. ``implant`` puts newborn blocks where another network grew
its fossils: the same capacity from the start, without the growing.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from torch import Tensor

from esper_core.growth.dry_runs import device_of, dtype_of
from esper_core.growth.grafting import graft, is_grafted, slots_of
from esper_core.growth.journal import DTYPES, resume
from esper_core.growth.random_streams import RandomStream, derive_seed
from esper_core.growth.seeds import AlphaSchedule, Seed, SeedBuilder, describe_error
from esper_core.growth.slots import HOME, JOURNAL, key_of
from esper_core.leyline.actions import Action, Op
from esper_core.leyline.constants import FULL
from esper_core.leyline.errors import GrowthError, Problem
from esper_core.leyline.lifecycle import SlotState, Stage
from esper_core.leyline.specs import Site, SlotPlace
from esper_core.plugins import evaluate_formula

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import torch
    from torch import nn

    from esper_core.growth.journal import Growth, Network
    from esper_core.growth.seeds import Variety
    from esper_core.growth.slots import Slot


def rebuild(
    model: nn.Module, network: Network, state: Mapping[str, Any], find: Callable[[str], Variety], *, source: str
) -> None:
    """Make ``model``, a fresh host, the network of the journal with the numbers of ``state``.

    find: the blueprint of a full id, or an error that says why it is not there. source: where it all comes from.

    GrowthError where something does not fit; the model is then as it was.
    """
    misplaced = f"{source} does not fit this {type(model).__name__}"
    _refuse_unfit(model, network, misplaced)
    numbers = {key: value for key, value in state.items() if key != f"{HOME}.{JOURNAL}"}
    seeds = [_reborn(growth, find(growth.blueprint), model, numbers, misplaced) for growth in network.seeds]
    placed = list(_placed(network, seeds))
    if problems := list(_misfits(model, placed, numbers)):
        more = [f"… and {len(problems) - 5} more"] if len(problems) > 5 else []
        hint = "\n".join([*problems[:5], *more, *_part_that_fits(model, numbers)])
        raise GrowthError(Problem("E334", misplaced, hint=hint))
    for prefix, _, seed in placed:
        own = {key.removeprefix(prefix): value for key, value in numbers.items() if key.startswith(prefix)}
        seed.load_state_dict(own)
    with _as_they_were(model):
        model.load_state_dict({key: value for key, value in numbers.items() if not key.startswith(f"{HOME}.")})
        if not is_grafted(model):
            graft(model, {place.name: SlotPlace(place.at, place.kind, place.stack) for place in network.slots})
    _put_in(model, network, placed)


def replant(
    model: nn.Module, network: Network, numbers: Mapping[str, Any], find: Callable[[str], Variety], *, source: str
) -> None:
    """Put seeds where the journal has them, into a model that is grafted already; their numbers are another's to load.

    numbers: those that will be loaded, which say what a seed computes in. find, source: as in ``rebuild``.

    GrowthError where something does not fit; the model is then as it was.
    """
    misplaced = f"{source} does not fit this {type(model).__name__}"
    _refuse_unfit(model, network, misplaced)
    seeds = [_reborn(growth, find(growth.blueprint), model, numbers, misplaced) for growth in network.seeds]
    _put_in(model, network, list(_placed(network, seeds)))


def _refuse_unfit(model: nn.Module, network: Network, misplaced: str) -> None:
    """GrowthError where the slots of the journal cannot be this model's."""
    if is_grafted(model):
        own = {slot.name: slot.at for slot in slots_of(model).each()}
        full = any(len(slot.seeds) for slot in slots_of(model).each())
        if full or own != {place.name: place.at for place in network.slots}:
            hint = "Load into a fresh host; its slots come with the journal."
            raise GrowthError(Problem("E334", f"{misplaced}: it has other slots, or has grown itself", hint=hint))
        return
    known = {name for name, _ in model.named_modules() if name}
    for place in network.slots:
        if place.at not in known:
            hint = "\n".join(
                [f'Slot "{place.name}" stands behind "{place.at}", which is not there.', *_parts(model, place.at)]
            )
            raise GrowthError(Problem("E334", misplaced, hint=hint))


def _reborn(growth: Growth, variety: Variety, model: nn.Module, numbers: Mapping[str, Any], misplaced: str) -> Seed:
    """A seed as the journal has it, with the numbers of a newborn one."""
    if variety.spec.version != growth.version:
        message = (
            f'"{growth.blueprint}" grew in version {growth.version}, and what is installed is {variety.spec.version}'
        )
        hint = "It builds another network. Install the package in the version that the network grew with."
        raise GrowthError(Problem("E333", message, hint=hint))
    site = Site.of(growth.kind, growth.example_shape)
    there = sum(value.numel() for value in numbers.values() if isinstance(value, Tensor))
    if (wanted := evaluate_formula(variety.spec.params, site.formula_variables())) > there:
        hint = f"{growth.blueprint} has {wanted:,} parameters at {site}, and there are {there:,} numbers in all."
        raise GrowthError(Problem("E334", misplaced, hint=hint))
    try:
        with RandomStream(derive_seed(0, "rebuilding")):
            seed = Seed(
                variety.factory(site),
                blueprint=growth.blueprint,
                spec=variety.spec,
                site=site,
                number=growth.number,
                blend=growth.blend,
                schedule=AlphaSchedule(growth.target, growth.speed, growth.curve),
                identity=growth.identity,
            )
    except (Exception, SystemExit) as error:
        hint = f"{growth.blueprint} {describe_error(error)} when it was built for {site}."
        raise GrowthError(Problem("E334", misplaced, hint=hint)) from error
    seed.to(device_of(model), _dtype(growth, numbers) or dtype_of(model)).train(model.training)
    seed.born, seed.kept, seed.presence = growth.born, growth.kept, growth.presence
    resume(seed, growth)
    return seed


def _dtype(growth: Growth, numbers: Mapping[str, Any]) -> torch.dtype | None:
    """What the seeds of a slot computed in, as far as it has numbers."""
    prefix = f"{HOME}.{key_of(growth.slot)}."
    own = (value.dtype for key, value in numbers.items() if key.startswith(prefix) and isinstance(value, Tensor))
    return next((dtype for dtype in own if dtype.is_floating_point), None)


def _placed(network: Network, seeds: list[Seed]) -> Iterator[tuple[str, str, Seed]]:
    """Each seed with the beginning of its keys, and the slot that it goes into."""
    places = dict.fromkeys((slot.name for slot in network.slots), 0)
    for growth, seed in zip(network.seeds, seeds, strict=True):
        yield f"{HOME}.{key_of(growth.slot)}.seeds.{places[growth.slot]}.", growth.slot, seed
        places[growth.slot] += 1


def _misfits(model: nn.Module, placed: list[tuple[str, str, Seed]], numbers: Mapping[str, Any]) -> Iterator[str]:
    """What of the numbers has no place, and what has no number."""
    expected = {key: _form(value) for key, value in model.state_dict().items()}
    for prefix, _, seed in placed:
        expected |= {prefix + key: _form(value) for key, value in seed.state_dict().items()}
    there = {key: _form(value) for key, value in numbers.items()}
    for key in sorted(expected.keys() - there.keys()):
        yield f"it has no numbers for {key}"
    for key in sorted(there.keys() - expected.keys()):
        yield f"there is no place for {key}"
    for key in sorted(there.keys() & expected.keys()):
        if there[key] != expected[key]:
            yield f"{key} is {there[key]}, and here {expected[key]}"


def _form(value: Any) -> str:
    """What must agree for a value to come back as it was."""
    if not isinstance(value, Tensor):
        return "no tensor"
    return f"{tuple(value.shape)} {str(value.dtype).removeprefix('torch.')}"


def _part_that_fits(model: nn.Module, numbers: Mapping[str, Any]) -> list[str]:
    """The way out: another host, or a part of this one, where it is a wrapper around what was saved."""
    host = {key for key in numbers if not key.startswith(f"{HOME}.")}
    own = set(model.state_dict())
    for name, _ in model.named_modules():
        if name and host and {f"{name}.{key}" for key in host} <= own:
            return [f"Load into its part:  esper_core.load(model.{name}, …)"]
    return ["Build the host with the settings that it had."]


def _parts(model: nn.Module, at: str) -> list[str]:
    """The way out where a part of the model has what the whole has not."""
    for name, _ in model.named_modules():
        if name.endswith(f".{at}"):
            return [f"Load into its part:  esper_core.load(model.{name.removesuffix(f'.{at}')}, …)"]
    return ["Build the host with the settings that it had."]


@contextmanager
def _as_they_were(model: nn.Module) -> Iterator[None]:
    """A block after which, where it fails, the model's numbers are what they were."""
    kept = [(value, value.clone()) for value in model.state_dict().values() if isinstance(value, Tensor)]
    try:
        yield
    except BaseException:
        for value, before in kept:
            value.copy_(before)
        raise


def _put_in(model: nn.Module, network: Network, placed: list[tuple[str, str, Seed]]) -> None:
    """The seeds into their slots, which are grafted and empty; nothing of it can fail."""
    home = slots_of(model)
    for _, name, seed in placed:
        home.named(name).seeds.append(seed)
    for place in network.slots:
        slot = home.named(place.name)
        if place.kind is not None and place.example_shape is not None:
            slot.site = Site.of(place.kind, place.example_shape)
        if place.dtypes is not None:
            slot.dtypes = DTYPES[place.dtypes[0]], DTYPES[place.dtypes[1]]
        slot.embargo, slot.state = place.embargo, _state(slot, place.embargo)


def _state(slot: Slot, embargo: int) -> SlotState:
    if slot.living is not None:
        return SlotState.OCCUPIED
    if len(slot.fossils) >= slot.limit:
        return SlotState.CLOSED
    return SlotState.EMBARGOED if embargo else SlotState.FREE


def implant(
    model: nn.Module,
    grown: Sequence[Growth],
    varieties: Mapping[str, Sequence[Variety]],
    *,
    seed: int,
    probe: Callable[[nn.Module], Tensor] | None = None,
) -> None:
    """Put newborn blocks into the empty slots of ``model`` as if they had been kept there: for a garden to take in.

    grown: which, in the order in which they act. seed, probe: as a garden has them; a block is born as it was there.
    """
    builder = SeedBuilder(model, seed, probe)
    for growth in grown:
        slot = slots_of(model).named(growth.slot)
        variety = next(one for one in varieties[growth.slot] if one.id == growth.blueprint)
        asked = Action(Op.GERMINATE, growth.slot, growth.blueprint, blend=growth.blend)
        assert slot.site is not None
        dtype = slot.dtype_in(model)
        block = builder.build(variety, asked, slot.site, dtype, slot.tapped, number=growth.number, step=0)
        block.stage, block.kept = Stage.FOSSILISED, 0
        block.alpha.aim(FULL, 0)
        slot.seeds.append(block)
        slot.state = SlotState.CLOSED if len(slot.fossils) >= slot.limit else SlotState.FREE
