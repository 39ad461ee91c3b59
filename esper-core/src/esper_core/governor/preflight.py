"""Can a mutation be afforded? What it would take is reckoned before anything is touched.

The estimate counts what is kept for each parameter: its value, its gradient, the optimizer's state and the snapshots.
It does not count activations, which depend on the batch and on what the device's libraries do with it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from esper_core.config import GrowthConfig
from esper_core.growth import Presence
from esper_core.leyline.actions import ActionMask, Op

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from esper_core.config import GovernorConfig, OptimizerConfig, OptimizersConfig
    from esper_core.growth import Garden, Variety
    from esper_core.leyline.actions import Action
    from esper_core.leyline.specs import Site

_MIB = 1 << 20
_STATE_NUMBERS = {"adam": 2, "adamw": 2, "sgd": 1}
"""Numbers that an optimizer keeps for each parameter; sgd: with momentum."""


@dataclass(frozen=True, slots=True)
class Preflight:
    """What is refused in one run: what its settings do not let a network afford.

    varieties: for each slot what may grow in it. incubation: how seeds begin; each on a branch takes a host of its own.
    """

    settings: GovernorConfig
    optimizers: OptimizersConfig
    varieties: Mapping[str, Sequence[Variety]]
    incubation: str = GrowthConfig().incubation

    def objection(self, garden: Garden, action: Action) -> str | None:
        """Why ``action`` is impossible or unaffordable now; None where nothing speaks against it."""
        mask = garden.mask()
        if not mask.allows(action):
            ops = ", ".join(f"{op.value} {slot}" for slot, ops in mask.ops.items() for op in sorted(ops)) or "nothing"
            return f"{action.op.value} is not possible in slot {action.slot!r} now; possible: {ops}"
        if action.op is not Op.GERMINATE:
            return None
        variety = next(one for one in self.varieties[action.slot or ""] if one.id == action.blueprint)
        return self._too_dear(garden, garden.slots[action.slot or ""].site, variety)

    def narrowed(self, garden: Garden, mask: ActionMask) -> ActionMask:
        """``mask`` without what cannot be afforded: so a policy is not even offered it."""
        if self.settings.memory_mib is None:
            return mask
        varieties = {(slot, one.id): one for slot, several in self.varieties.items() for one in several}
        blueprints = {
            slot: tuple(
                one for one in fitting if self._too_dear(garden, garden.slots[slot].site, varieties[slot, one]) is None
            )
            for slot, fitting in mask.blueprints.items()
        }
        ops = {slot: ops if blueprints.get(slot) else ops - {Op.GERMINATE} for slot, ops in mask.ops.items()}
        return replace(mask, ops=ops, blueprints=blueprints)

    def mebibytes(self, garden: Garden, more: int = 0) -> float:
        """What the network takes, in MiB, with ``more`` parameters that a seed would bring."""
        parameters = list(garden.model.parameters())
        grown = {id(parameter) for slot in garden.slots.values() for parameter in slot.parameters()}
        living = {id(parameter) for seed in garden.living_seeds() for parameter in seed.parameters()}
        host = sum(one.nbytes for one in parameters if id(one) not in grown)
        fossils = sum(one.nbytes for one in parameters if id(one) in grown - living)
        seeds = sum(one.nbytes for one in parameters if id(one) in living)
        seeds += more * (parameters[0].element_size() if parameters else 4)
        branches = sum(seed.presence is Presence.BRANCHED for seed in garden.living_seeds())
        branches += bool(more) and self.incubation == "branch"
        of_fossils = self._copies(self.optimizers.host)
        of_host = of_fossils + branches * (1 + _remembered(self.optimizers.host))
        return (host * of_host + fossils * of_fossils + seeds * self._copies(self.optimizers.seed)) / _MIB

    def _too_dear(self, garden: Garden, site: Site | None, variety: Variety) -> str | None:
        most = self.settings.memory_mib
        if most is None or site is None:
            return None
        needed = self.mebibytes(garden, variety.most_parameters(site))
        if needed <= most:
            return None
        return f'with "{variety.id}" the network would take {needed:,.1f} of {most:,} MiB (governor.memory_mib)'

    def _copies(self, optimizer: OptimizerConfig) -> int:
        """Numbers that are kept for each parameter: value and gradient, optimizer's state, snapshots."""
        return 2 + _remembered(optimizer) + (self.settings.snapshots if self.settings.rollback else 0)


def _remembered(optimizer: OptimizerConfig) -> int:
    """Numbers that the optimizer keeps for each parameter."""
    return 0 if optimizer.kind == "sgd" and optimizer.momentum == 0.0 else _STATE_NUMBERS[optimizer.kind]
