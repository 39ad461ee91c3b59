"""Adapters, and a model with a slot for them beside its middle layer."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from esper_core import BlueprintSpec, SlotPlace, graft
from esper_core.growth import Seed, slots_of
from esper_core.leyline import Blend, Site
from tests.support.core_worlds import add_seed

SPEC = BlueprintSpec(("vector", "tokens"), starts_as_identity=True, adapts=True)
TOKENS = torch.randn(4, 5, 8, generator=torch.Generator().manual_seed(0))


class Adapter(nn.Sequential):
    """A map of rank 2, zero at birth."""

    def __init__(self, site: Site) -> None:
        super().__init__(nn.Linear(site.inputs, 2, bias=False), nn.Linear(2, site.channels, bias=False))
        nn.init.zeros_(self[1].weight)


class Bent(Adapter):
    """An adapter that is not linear."""

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self[1](torch.tanh(self[0](inputs)))
        return outputs


class Host(nn.Module):
    """A layer between two others; its inputs come by position, or by keyword."""

    def __init__(self, layer: nn.Module, *, by_name: bool = False) -> None:
        super().__init__()
        self.first, self.layer, self.by_name = nn.Linear(8, 8), layer, by_name
        self.last = nn.LazyLinear(3)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.first(inputs)
        outputs: Tensor = self.last(self.layer(input=hidden) if self.by_name else self.layer(hidden))
        return outputs


def host(layer: nn.Module, **more: Any) -> Host:
    torch.manual_seed(0)
    model = Host(layer, **more)
    model(TOKENS)
    return graft(model, {"here": SlotPlace("layer", "tokens", stack=3)}, example=TOKENS)


def grow(
    model: nn.Module, block: Callable[[Site], nn.Module] = Adapter, blend: Blend = Blend.ADD, spec: BlueprintSpec = SPEC
) -> Seed:
    """Put a fossil with random weights into the slot."""
    number = len(slots_of(model).named("here").seeds)
    return add_seed(model, "here", block, fossil=True, seed=number, noise=0.3, spec=spec, blueprint="t/b", blend=blend)
