"""How does a seed come into being? Its block is built, looks around where it wants to, and is joined to an operator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from esper_core.growth.blend import blend_parameters
from esper_core.growth.faults import SeedFault, in_words
from esper_core.growth.informing import TRAIT, inform
from esper_core.growth.probe import device_of, dtype_at
from esper_core.growth.randomness import RandomStream, derive_seed
from esper_core.growth.seed import Course, Seed
from esper_core.leyline.actions import Blend
from esper_core.leyline.errors import PluginError
from esper_core.plugins import evaluate_formula
from esper_core.plugins.isolation import is_ctrl_c

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor, nn

    from esper_core.growth.slot import Slot
    from esper_core.leyline.actions import Action
    from esper_core.leyline.specs import BlueprintSpec, Site


@dataclass(frozen=True, slots=True)
class Variety:
    """A blueprint that may grow here: its full id, what it says of itself, and what builds it."""

    id: str
    spec: BlueprintSpec
    factory: Callable[[Site], nn.Module]

    def most_parameters(self, site: Site) -> int:
        """How many parameters a seed of it has at ``site``, under the operator that takes the most."""
        identity = self.spec.starts_as_identity
        own = evaluate_formula(self.spec.params, site.formula_variables())
        return own + max(blend_parameters(blend, site, identity=identity) for blend in Blend)


@dataclass(frozen=True, slots=True)
class Soil:
    """Where seeds are planted: the model, the seed of its random numbers, and the loss on a batch to look at.

    probe: runs the model on the batch and returns the mean loss; None: no block gets to look at anything.
    """

    model: nn.Module
    seed: int
    probe: Callable[[nn.Module], Tensor] | None = None

    def plant(self, variety: Variety, slot: Slot, action: Action, number: int, step: int) -> Seed:
        """A newborn seed, not in its slot yet. SeedFault where its block cannot be built.

        Its first weights hang on where and when it is born, and on nothing that was tried before: whoever plants the
        same at the same time has the same seed, on whatever way he came there.
        """
        assert slot.site is not None
        birth = (slot.name, variety.id, step)
        device, dtype = device_of(self.model), dtype_at(slot, self.model)
        try:
            with RandomStream(derive_seed(self.seed, "birth", *birth), device):
                block = variety.factory(slot.site).to(device, dtype)
            if self.probe is not None and TRAIT in variety.spec.traits:
                stream = RandomStream(derive_seed(self.seed, "informing", *birth), device)
                inform(block, self.model, slot, self.probe, stream)
            seed = Seed(
                block,
                blueprint=variety.id,
                spec=variety.spec,
                site=slot.site,
                number=number,
                blend=action.blend,
                course=Course(action.target, action.speed, action.curve),
            )
        except BaseException as error:
            others = isinstance(error, PluginError) and not isinstance(error, SeedFault)  # a task that was asked, say
            if is_ctrl_c(error) or others:
                raise
            what = f'of blueprint "{variety.id}" {in_words(error, variety.factory)} when it was built'
            raise SeedFault([], what) from error
        seed.to(device, dtype).train(self.model.training)
        seed.born = step
        return seed
