"""Fixtures for tests of growth: gardens, and seeds put into a slot directly."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from esper_core.config import GrowthConfig, OptimizerConfig
from esper_core.growth import Garden, OptimizerKeeper, OptimizerSettings, Variety, host_parameters, slots_of
from esper_core.growth.seeds import Seed
from esper_core.leyline import BlueprintSpec, Site
from esper_core.leyline.lifecycle import Stage


class Bend(nn.Module):
    """x + tanh(mix(x)): changes everything a little."""

    def __init__(self, site: Site) -> None:
        super().__init__()
        self.axis = -1 if site.kind == "tokens" else 1
        self.mix = nn.Linear(site.channels, site.channels)

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden + torch.tanh(self.mix(hidden.movedim(self.axis, -1))).movedim(-1, self.axis)


@pytest.fixture
def add_seed() -> Callable[..., Seed]:
    """``add_seed(model, slot, alpha=…, fossil=…)``: put a seed there, which acts immediately."""

    def put(model: nn.Module, name: str, *, alpha: float = 1.0, fossil: bool = False, seed: int = 0) -> Seed:
        slot = slots_of(model).named(name)
        assert slot.site is not None
        spec = BlueprintSpec(slot.site.kind, "c*c + c", starts_as_identity=True)
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            block = Bend(slot.site)
        grown = Seed(block, blueprint="test/bend", spec=spec, site=slot.site, number=len(slot.seeds))
        grown.to(next(model.parameters()).dtype).train(model.training)
        grown.stage = Stage.FOSSILISED if fossil else Stage.HOLDING
        grown.alpha.aim(alpha, 0)
        slot.seeds.append(grown)
        return grown

    return put


@pytest.fixture
def make_garden() -> Callable[..., Garden]:
    """``make_garden(model, *varieties, optimizer=…, growth=…, …)``: a garden whose slots all take the varieties."""

    def make(
        model: nn.Module,
        *varieties: Variety,
        optimizer: OptimizerConfig | OptimizerSettings | None = None,
        seed_optimizer: OptimizerConfig | OptimizerSettings | None = None,
        growth: dict[str, Any] | None = None,
        **more: Any,
    ) -> Garden:
        host = optimizer or OptimizerConfig()
        keeper = OptimizerKeeper(host_parameters(model), host_settings=host, seed_settings=seed_optimizer or host)
        settings = GrowthConfig.model_validate({"incubation": "shadow", "embargo": 0, **(growth or {})})
        slots = {slot.name: varieties for slot in slots_of(model).each()}
        return Garden(model, keeper, slots, **{"seed": 0, "batches": 1, "settings": settings, **more})

    return make
