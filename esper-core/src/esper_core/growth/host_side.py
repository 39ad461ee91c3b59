"""Which parameters are the host's own? All of a model's but those of the seeds that stand in it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from esper_core.growth.slot import Slots

if TYPE_CHECKING:
    from torch import nn


def host_parameters(model: nn.Module) -> list[nn.Parameter]:
    """The parameters of ``model`` without those of its seeds: what an OptimizerKeeper takes for the host's share.

    It may be a grafted model, a wrapper around one, or a model that was never grafted.

    >>> from torch import nn
    >>> len(host_parameters(nn.Linear(4, 4)))
    2
    """
    homes = [module for module in model.modules() if isinstance(module, Slots)]
    grown = {id(parameter) for home in homes for parameter in home.parameters()}
    return [parameter for parameter in model.parameters() if id(parameter) not in grown]
