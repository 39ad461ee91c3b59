"""Hosts: what a caller asks of a model before and after slots are put into it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from esper_core.growth.averages import RunningAverage, places_that_train
from esper_core.growth.dry_runs import device_of, evaluating, host_parameters, observe_places, split_state
from esper_core.growth.grafting import alike, plain_outputs
from esper_core.growth.journal import read_network
from esper_core.growth.prices import Prices, follow_operations
from esper_core.growth.rebuilding import plant, rebuild, state_of
from esper_core.growth.seeds import SeedBuilder
from esper_core.growth.serialization import state_dict_of
from esper_core.growth.slots import Slots, host_layers, is_grafted, observe, slots_of
from esper_core.growth.trials import audition
from esper_core.leyline.specs import SlotPlace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from contextlib import AbstractContextManager

    import torch
    from torch import Tensor, nn

    from esper_core.growth.examples import Example
    from esper_core.growth.journal import Network
    from esper_core.growth.seeds import Seed, Variety
    from esper_core.leyline.errors import Problem
    from esper_core.leyline.events import HostLayer
    from esper_core.leyline.specs import Site
    from esper_core.settings import GrowthConfig


class Host:
    """A model as the host of seeds. It holds nothing but the model, and may be made as often as it is needed.

    ``slots``, ``network``, ``observe`` and ``plant`` need a grafted model.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    @property
    def device(self) -> torch.device:
        """The device of its first parameter or buffer; the CPU if it has none."""
        return device_of(self.model)

    @property
    def is_grafted(self) -> bool:
        """Whether it has slots."""
        return is_grafted(self.model)

    @property
    def slots(self) -> Slots:
        """Its slots."""
        return slots_of(self.model)

    @property
    def layers(self) -> tuple[HostLayer, ...]:
        """Its layers in the order of its modules, each with the slots behind it."""
        return host_layers(self.model)

    @property
    def network(self) -> Network:
        """The journal of its slots, and of the seeds in them."""
        return read_network(self.model)

    def rebuild(
        self, network: Network, state: Mapping[str, Any], find: Callable[[str], Variety], *, source: str
    ) -> None:
        """Turn it, a new host, into the network of a journal, with the tensors of a state dict.

        ``find`` returns the blueprint of a full id, or raises; ``source`` is named in messages. GrowthError if
        something does not fit; the model is then unchanged.
        """
        rebuild(self.model, network, state, find, source=source)

    def has_outputs_of(self, other: nn.Module, example: Example) -> bool:
        """Return whether it has the outputs of another model, but for rounding; GraftError if one of them raises."""
        return alike(plain_outputs(other, example), plain_outputs(self.model, example))

    def parameters(self) -> dict[str, nn.Parameter]:
        """Return its own parameters by name, without those of seeds."""
        return host_parameters(self.model)

    def prune(self) -> None:
        """Remove the seeds that are not kept, and let no slot rest, once nothing trains them.

        They act on branches, which end with their training, so that no output changes.
        """
        for slot in self.slots if self.is_grafted else ():
            for seed in slot.nursery:
                del slot.seeds[list(slot.seeds).index(seed)]
            slot.embargo, slot.state = 0, state_of(slot, 0)

    split_state, alike = staticmethod(split_state), staticmethod(alike)
    state_dict_of = staticmethod(state_dict_of)

    def evaluating(self) -> AbstractContextManager[None]:
        """Run the ``with`` block in evaluation mode; restore each module's mode, and the buffers, after it."""
        return evaluating(self.model)

    def follows_operations(self, growth: GrowthConfig) -> bool:
        """Return whether the prices of what grows in it follow operations, where these are known."""
        return follow_operations(self.model, growth)

    def prices(self, growth: GrowthConfig, operations: int | None) -> Prices:
        """Return the prices of what may grow in it, in its loss; ``operations`` are those of its pass, if known."""
        return Prices(self.model, growth, None, operations)

    def running_average(self, half_life: float) -> RunningAverage:
        """Return the average of what trains in it, over batches."""
        return RunningAverage(half_life, partial(places_that_train, self.model))

    def observe(self, example: Any) -> None:
        """Set the site and dtype that each slot sees, by running the model on an example, as ``graft`` does."""
        observe(self.model, example)

    def audition(self, variety: Variety, site: Site) -> Problem | None:
        """Return the first thing that is wrong with a blueprint at a site; None if it does what its spec says."""
        return audition(variety, site, self.device)

    def try_places(self, names: Iterable[str], example: Example) -> None:
        """Raise GraftError, with a problem for each, if modules of these names cannot have a slot."""
        observe_places(self.model, {name: SlotPlace(name) for name in names}, example)

    def plant(self, slot: str, variety: Variety, seed: int, probe: Callable[[nn.Module], Tensor] | None = None) -> Seed:
        """Put a newborn seed at full strength into a slot, and return it; SeedFault if it cannot be built.

        ``seed`` is the RNG seed of the network; ``probe`` computes its mean loss, for informed births.
        """
        number = 1 + max((seed.number for place in self.slots for seed in place.seeds), default=-1)
        builder = SeedBuilder(self.model, seed, probe)
        return plant(self.model, self.slots.named(slot), variety, builder, number)
