"""Odd hosts, odd numbers, half precision: what a life must stand besides."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from esper_core.config import GrowthConfig, OptimizerConfig
from esper_core.growth import Garden, OptimizerKeeper, Seed, SeedFault, Variety, graft
from esper_core.leyline import Action, Blend, BlueprintSpec, Curve, GrowthError, Op, Site

ADAM = OptimizerConfig()


class Informed(nn.Module):
    """The identity at birth, and curious."""

    seen: Tensor | None = None

    def __init__(self, site: Site) -> None:
        super().__init__()
        self.mix = nn.Conv1d(site.channels, site.channels, 1)
        nn.init.zeros_(self.mix.weight)
        nn.init.zeros_(self.mix.bias)

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden + self.mix(hidden)

    def inform(self, inputs: Tensor, gradients: Tensor) -> None:
        type(self).seen = gradients.clone()


class InPlace(nn.Module):
    """Writes into what the slot hands on, as many hosts do."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv1d(1, 4, 1)
        self.head = nn.Linear(32, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.stem(inputs)
        hidden += 1.0
        return self.head(torch.relu_(hidden).flatten(1))


def garden(model: nn.Module, variety: Variety, **more: Any) -> Garden:
    keeper = OptimizerKeeper(model.parameters(), host_settings=ADAM, seed_settings=ADAM)
    return Garden(model, keeper, {"stem": [variety]}, seed=0, batches=2, settings=GrowthConfig(embargo=0), **more)


INPUTS = torch.randn(5, 1, 8, generator=torch.Generator().manual_seed(2))
SPEC = BlueprintSpec("sequence", "c*c + c", starts_as_identity=True, traits=("informed_birth",))


def test_a_block_is_born_informed_in_a_host_that_writes_in_place() -> None:
    model = graft(InPlace(), ["stem"], example=INPUTS)
    own = garden(model, Variety("test/informed", SPEC, Informed), probe=lambda m: m(INPUTS).square().mean())
    own.apply(Action(Op.GERMINATE, "stem", "test/informed"), 0)
    hidden = model.stem(INPUTS).detach().requires_grad_()
    (wanted,) = torch.autograd.grad(model.head(torch.relu(hidden + 1.0).flatten(1)).square().mean(), hidden)
    assert Informed.seen is not None
    assert torch.allclose(Informed.seen, wanted)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"speed": 0.5}, "a speed must be a whole number"),
        ({"speed": float("nan")}, "a speed must be a whole number"),
        ({"speed": True}, "a speed must be a whole number"),
        ({"speed": -1}, "a speed must be a whole number"),
        ({"speed": "1"}, "a speed must be a whole number"),
        ({"target": 0.0}, "a target must be above 0"),
        ({"target": float("nan")}, "a target must be above 0"),
        ({"target": None}, "a target must be above 0"),
        ({"curve": "wiggly"}, "there is no such curve"),
        ({"blend": "mix"}, "there is no such blend"),
        ({"op": "frob"}, "there is no such op"),
    ],
)
def test_what_no_action_can_have_is_refused_before_anything_changes(change: dict[str, Any], said: str) -> None:
    own = garden(graft(InPlace(), ["stem"], example=INPUTS), Variety("test/informed", SPEC, Informed))
    values = {"op": Op.GERMINATE, "slot": "stem", "blueprint": "test/informed", **change}
    with pytest.raises(GrowthError, match=f"E307 {said}"):
        own.apply(Action(**values), 0)
    assert own.slots["stem"].living is None


@pytest.mark.parametrize("blend", list(Blend))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_under_autocast_what_leaves_a_slot_is_what_the_host_put_out(dtype: torch.dtype, blend: Blend) -> None:
    """A block may compute in half precision, or in whole where the host did in half: normalisation does."""
    for block in (nn.Conv1d(4, 4, 1), nn.GroupNorm(1, 4)):
        spec = BlueprintSpec("sequence", "c")
        seed = Seed(block, blueprint="x", spec=spec, site=Site("sequence", 4, (8,)), number=0, blend=blend)
        hidden = torch.randn(3, 4, 8).to(dtype).requires_grad_()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            grown = seed(hidden, 0.5)
        assert grown.dtype is dtype
        grown.float().sum().backward()


def test_a_seed_that_cannot_be_built_is_named_without_a_slot() -> None:
    def broken(site: Site) -> nn.Module:
        raise KeyError("no")

    own = garden(graft(InPlace(), ["stem"], example=INPUTS), Variety("test/broken", SPEC, broken))
    with pytest.raises(SeedFault, match=r'^E320 the seed of blueprint "test/broken" raised KeyError'):
        own.apply(Action(Op.GERMINATE, "stem", "test/broken", curve=Curve.COSINE), 0)
