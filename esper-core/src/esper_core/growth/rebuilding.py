"""How does a network that has grown come back in a fresh process? Its host is built anew, and what grew is put back.

Everything is looked at before anything is touched: a host that is another, a blueprint that is not there or has
changed, numbers that do not fit. Then the slots are grafted, the seeds put in, and the numbers loaded: bit for bit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from esper_core.growth.grafting import graft, is_grafted, slots_of
from esper_core.growth.probe import device_of, dtype_of
from esper_core.growth.randomness import RandomStream, derive_seed
from esper_core.growth.seed import Course, Seed
from esper_core.growth.slot import key_of
from esper_core.growth.state_keys import HOME, JOURNAL
from esper_core.leyline.errors import GrowthError, Problem
from esper_core.leyline.lifecycle import SlotState, Stage
from esper_core.leyline.specs import Site, SlotPlace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import torch
    from torch import Tensor, nn

    from esper_core.growth.journal import Growth, Network
    from esper_core.growth.planting import Variety
    from esper_core.growth.slot import Slot


@dataclass(frozen=True, slots=True)
class _Shape:
    """What must agree for numbers to come back as they were."""

    size: tuple[int, ...]
    dtype: torch.dtype

    def __str__(self) -> str:
        return f"{self.size} {str(self.dtype).removeprefix('torch.')}"


def rebuild(
    model: nn.Module, network: Network, state: Mapping[str, Tensor], find: Callable[[str], Variety], *, source: str
) -> None:
    """Make ``model``, a fresh host, the network of the journal with the numbers of ``state``.

    find: the blueprint of a full id, or an error that says why it is not there. source: where it all comes from.

    GrowthError where something does not fit; the model is then as it was.
    """
    numbers = {key: value for key, value in state.items() if key != f"{HOME}.{JOURNAL}"}
    seeds = [
        _reborn(growth, find(growth.blueprint), device_of(model), _dtype(growth, numbers) or dtype_of(model))
        for growth in network.seeds
    ]
    if problems := list(_misfits(model, network, seeds, numbers)):
        more = [f"… and {len(problems) - 5} more"] if len(problems) > 5 else []
        hint = "\n".join([*problems[:5], *more, "Build the host with the settings that it had."])
        raise GrowthError(Problem("E334", f"{source} does not fit this {type(model).__name__}", hint=hint))
    _prepare(model, network, source)
    for growth, seed in zip(network.seeds, seeds, strict=True):
        slot = slots_of(model).named(growth.slot)
        seed.train(model.training)
        slot.seeds.append(seed)
        slot.state = _state(slot, seed)
    model.load_state_dict(dict(numbers))


def _dtype(growth: Growth, numbers: Mapping[str, Tensor]) -> torch.dtype | None:
    """What the seeds of a slot computed in, as far as it has numbers."""
    own = (value.dtype for key, value in numbers.items() if key.startswith(f"{HOME}.{key_of(growth.slot)}."))
    return next((dtype for dtype in own if dtype.is_floating_point), None)


def _reborn(growth: Growth, variety: Variety, device: torch.device, dtype: torch.dtype) -> Seed:
    if variety.spec.version != growth.version:
        message = (
            f'"{growth.blueprint}" grew in version {growth.version}, and what is installed is {variety.spec.version}'
        )
        hint = "It builds another network. Install the package in the version that the network grew with."
        raise GrowthError(Problem("E333", message, hint=hint))
    site = Site.of(growth.kind, growth.example_shape)
    with RandomStream(derive_seed(0, "rebuilding")):
        seed = Seed(
            variety.factory(site),
            blueprint=growth.blueprint,
            spec=variety.spec,
            site=site,
            number=growth.number,
            blend=growth.blend,
            course=Course(growth.target, growth.speed, growth.curve),
            identity=growth.identity,
        )
    seed.to(device, dtype)
    seed.stage, seed.born, seed.kept, seed.presence = growth.stage, growth.born, growth.kept, growth.presence
    seed.alpha.value = seed.alpha.target = growth.alpha
    return seed


def _misfits(model: nn.Module, network: Network, seeds: list[Seed], numbers: Mapping[str, Tensor]) -> Iterator[str]:
    """What of the numbers has no place, and what has no number."""
    expected = dict(_shapes("", model.state_dict()))
    places = {slot.name: 0 for slot in network.slots}
    for growth, seed in zip(network.seeds, seeds, strict=True):
        prefix = f"{HOME}.{key_of(growth.slot)}.seeds.{places[growth.slot]}."
        expected |= dict(_shapes(prefix, seed.state_dict()))
        places[growth.slot] += 1
    there = dict(_shapes("", numbers))
    for key in sorted(expected.keys() - there.keys()):
        yield f"it has no numbers for {key}"
    for key in sorted(there.keys() - expected.keys()):
        yield f"there is no place for {key}"
    for key in sorted(there.keys() & expected.keys()):
        if there[key] != expected[key]:
            yield f"{key} is {there[key]}, and here {expected[key]}"


def _shapes(prefix: str, state: Mapping[str, Tensor]) -> Iterator[tuple[str, _Shape]]:
    for key, value in state.items():
        yield prefix + key, _Shape(tuple(value.shape), value.dtype)


def _prepare(model: nn.Module, network: Network, source: str) -> None:
    """The slots of the journal, grafted where the model has none, empty where it has them."""
    if not is_grafted(model):
        graft(model, {place.name: SlotPlace(place.at, place.kind, place.stack) for place in network.slots})
    home = slots_of(model)
    own = {slot.name: slot.at for slot in home.each()}
    if own != {place.name: place.at for place in network.slots} or any(len(slot.seeds) for slot in home.each()):
        message = f"{source} does not fit this {type(model).__name__}: it has other slots, or has grown itself"
        raise GrowthError(Problem("E334", message, hint="Load into a fresh host; its slots come with the journal."))
    for place in network.slots:
        if place.kind is not None and place.example_shape is not None:
            home.named(place.name).site = Site.of(place.kind, place.example_shape)


def _state(slot: Slot, last: Seed) -> SlotState:
    if last.stage is not Stage.FOSSILIZED:
        return SlotState.OCCUPIED
    return SlotState.CLOSED if len(slot.fossils) >= slot.limit else SlotState.FREE
