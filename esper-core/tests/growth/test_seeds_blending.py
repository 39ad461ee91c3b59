"""How a seed joins in: by the formula, not at all at 0, as the identity at birth, and with a way for every gradient."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from esper_core.config import OptimizerConfig
from esper_core.growth import Garden, SeedFault, Variety, graft, slots_of
from esper_core.growth.optimizers import OptimizerKeeper
from esper_core.growth.seeds import Eased, GatedBlend, Residual, Seed, blend_parameters
from esper_core.leyline import Action, Blend, BlueprintSpec, Op, Site, SlotPlace, Stage

SITES = {
    "image": Site("image", 3, (2, 4)),
    "sequence": Site("sequence", 3, (5,)),
    "vector": Site("vector", 3),
    "tokens": Site("tokens", 3, (5,)),
}
ALPHAS = (0.25, 0.5, 1.0)
every_site = pytest.mark.parametrize("site", SITES.values(), ids=SITES)
every_blend = pytest.mark.parametrize("blend", Blend)
both_births = pytest.mark.parametrize("tame", [True, False], ids=["identity", "no identity"])


def features_last(site: Site, tensor: Tensor) -> Tensor:
    return tensor if site.kind in ("tokens", "vector") else tensor.movedim(1, -1)


class Block(nn.Module):
    """x + W·tanh(V·x + v) over the features. W is 0 where the block is tame; a wild one is far from the identity."""

    def __init__(self, site: Site, *, tame: bool = True) -> None:
        super().__init__()
        self.axis = -1 if site.kind in ("tokens", "vector") else 1
        self.first = nn.Linear(site.channels, site.channels)
        self.last = nn.Linear(site.channels, site.channels, bias=False)
        if tame:
            nn.init.zeros_(self.last.weight)

    def forward(self, hidden: Tensor) -> Tensor:
        features = hidden.movedim(self.axis, -1)
        return (features + self.last(torch.tanh(self.first(features)))).movedim(-1, self.axis)


def spec_of(site: Site, *, tame: bool) -> BlueprintSpec:
    return BlueprintSpec(site.kind, "2*c*c + c", starts_as_identity=tame)


def seed_of(site: Site, blend: Blend, *, tame: bool) -> Seed:
    torch.manual_seed(3)
    spec = spec_of(site, tame=tame)
    return Seed(Block(site, tame=tame), blueprint="test/x", spec=spec, site=site, number=0, blend=blend)


def stirred(module: nn.Module) -> None:
    """As after much training: nothing is where it began."""
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.7)


def by_hand(seed: Seed, site: Site, host: Tensor, alpha: float) -> Tensor:
    """The formulas of the operators, number by number, in doubles."""
    block, easing = (seed.block.block, seed.block.gain.item()) if isinstance(seed.block, Eased) else (seed.block, 1.0)
    raw = features_last(site, block(host)).reshape(len(host), -1, site.channels).tolist()
    given = features_last(site, host).reshape(len(host), -1, site.channels).tolist()
    result = []
    for example, put_out in zip(given, raw, strict=True):
        gate = 1.0
        if isinstance(seed.operator, GatedBlend):
            means = [sum(place[c] for place in example) / len(example) for c in range(site.channels)]
            told = sum(w * m for w, m in zip(seed.operator.weight.tolist(), means, strict=True))
            gate = 2 / (1 + math.exp(-(told + seed.operator.bias.item())))
        gain = seed.operator.gain.item() if isinstance(seed.operator, Residual) else 1.0
        for place, after in zip(example, put_out, strict=True):
            for h, b in zip(place, after, strict=True):
                s = h + easing * (b - h)
                result.append(
                    h * (1 + alpha * math.tanh(s - h))
                    if seed.blend is Blend.MULTIPLY
                    else h + alpha * gate * gain * (s - h)
                )
    return torch.tensor(result).reshape(features_last(site, host).shape)


@every_site
@every_blend
@both_births
def test_each_operator_is_its_formula_number_by_number(site: Site, blend: Blend, tame: bool) -> None:
    seed = seed_of(site, blend, tame=tame)
    stirred(seed)
    host = torch.randn(4, *site.example_shape)
    for alpha in (0.01, *ALPHAS):
        with torch.no_grad():
            found = features_last(site, seed(host, alpha))
            torch.testing.assert_close(found, by_hand(seed, site, host, alpha), rtol=1e-4, atol=1e-5)


@every_site
@every_blend
@both_births
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_run_02_every_seed_is_the_identity_at_birth_whatever_the_operator(site, blend, tame, dtype) -> None:
    """Bit for bit but for the sign of a zero, for ugly numbers and in few bits, too; no operator scales what passes."""
    seed = seed_of(site, blend, tame=tame).to(dtype)
    host = torch.randn(4, *site.example_shape).to(dtype)
    host.view(-1)[:4] = torch.tensor([0.0, -0.0, 1e-30, 3e4])
    for alpha in ALPHAS:
        found = seed(host, alpha)
        assert found.dtype is dtype
        assert torch.equal(found, host)


@every_site
@every_blend
@both_births
@pytest.mark.parametrize(
    "learner",
    [partial(torch.optim.SGD, lr=0.1), pytest.param(partial(torch.optim.Adam, lr=0.01), marks=pytest.mark.slow)],
)
def test_run_01_every_parameter_has_a_gradient_within_two_steps(site, blend, tame, learner) -> None:
    """Of block, gain and gate, whatever the operator, the strength and the optimizer."""
    for alpha in ALPHAS:
        seed = seed_of(site, blend, tame=tame)
        optimizer = learner(seed.parameters())
        waiting = {name for name, _ in seed.named_parameters()}
        for _ in range(2):
            host, wanted = torch.randn(2, 16, *site.example_shape)
            optimizer.zero_grad()
            (seed(host, alpha) - wanted).square().mean().backward()
            waiting -= {name for name, value in seed.named_parameters() if value.grad is not None and value.grad.any()}
            optimizer.step()
        assert waiting == set(), alpha


@every_site
@every_blend
@both_births
def test_its_parameters_are_as_many_as_was_said(site: Site, blend: Blend, tame: bool) -> None:
    seed = seed_of(site, blend, tame=tame)
    own = sum(parameter.numel() for parameter in Block(site).parameters())
    assert seed.parameter_count == own + blend_parameters(blend, site, identity=tame)
    variety = Variety("test/x", spec_of(site, tame=tame), Block)
    assert variety.most_parameters(site) == own + max(blend_parameters(each, site, identity=tame) for each in Blend)


@every_site
@every_blend
def test_in_few_bits_it_is_nearly_what_it_is_in_many(site: Site, blend: Blend) -> None:
    seed = seed_of(site, blend, tame=False)
    stirred(seed)
    host = torch.randn(4, *site.example_shape).bfloat16()
    few = seed.bfloat16()(host, 0.5)
    many = seed.double()(host.double(), 0.5)
    assert few.dtype is torch.bfloat16
    torch.testing.assert_close(few.double(), many, rtol=0.05, atol=0.1)


class Host(nn.Module):
    """A module to put a slot behind."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(3, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.stem(inputs)


class Mine(nn.Module):
    """Blows up, or is not a number."""

    def __init__(self, site: Site, *, raises: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(site.channels))
        self.raises = raises

    def forward(self, hidden: Tensor) -> Tensor:
        if self.raises:
            raise RuntimeError("stepped on")
        return hidden * self.weight * math.nan


@every_blend
@pytest.mark.parametrize("raises", [True, False], ids=["raises", "no numbers"])
@pytest.mark.parametrize("stage", [Stage.GERMINATED, Stage.TRAINING, Stage.BLENDING, Stage.DRAINING])
def test_at_strength_0_a_seed_is_never_called(blend: Blend, raises: bool, stage: Stage) -> None:
    inputs = torch.randn(4, 3)
    model = graft(Host(), {"early": SlotPlace("stem")}, example=inputs)
    alone = model(inputs)
    slot = slots_of(model).named("early")
    assert slot.site is not None
    spec = BlueprintSpec("vector", "c", starts_as_identity=True)
    seed = Seed(Mine(slot.site, raises=raises), blueprint="test/x", spec=spec, site=slot.site, number=0, blend=blend)
    slot.seeds.append(seed)
    seed.stage = stage
    for model_trains in (True, False):
        assert torch.equal(model.train(model_trains)(inputs), alone)
    seed.alpha.aim(1e-3, 0)
    if raises:
        with pytest.raises(SeedFault, match="stepped on"):
            model(inputs)
    else:
        assert not model(inputs).isfinite().any()


@every_blend
def test_run_03_gate_and_gain_are_owned_from_birth_to_the_end(blend: Blend) -> None:
    """What an operator learns is owned, stepped and clipped with its seed."""
    inputs = torch.randn(16, 3)
    model = graft(Host(), {"early": SlotPlace("stem")}, example=inputs)
    keeper = OptimizerKeeper(model.parameters(), host_settings=OptimizerConfig(), seed_settings=OptimizerConfig())
    variety = Variety("test/x", BlueprintSpec("vector", "2*c*c + c"), partial(Block, tame=False))
    garden = Garden(model, keeper, {"early": (variety,)}, seed=1, batches=1)

    def loss(model: nn.Module) -> Tensor:
        return (model(inputs) - inputs.flip(1)).square().mean()

    garden.apply(Action(Op.GERMINATE, "early", "test/x", blend=blend, speed=1), 0)
    seed = garden.slots["early"].living
    assert seed is not None
    extra = [p for name, p in seed.named_parameters() if name.startswith("operator.") or name == "block.gain"]
    assert sum(parameter.numel() for parameter in extra) == blend_parameters(blend, seed.site, identity=False)
    for op in (None, None, Op.ADVANCE, None, None, Op.FOSSILISE, None):
        if op is not None:
            garden.apply(Action(op, "early"), 1)
        owned = [
            id(parameter) for share in keeper.shares() for group in share.groups() for parameter in group["params"]
        ]
        assert all(owned.count(id(parameter)) == 1 for parameter in extra)
        before = [parameter.detach().clone() for parameter in extra]
        garden.open_step()
        garden.tick()
        keeper.zero_grad()
        loss(model).backward()
        keeper.step(garden.blended)
        for number in garden.incubating:
            garden.incubate(number, loss)
        garden.close_step()
        moved = [not torch.equal(parameter, value) for parameter, value in zip(extra, before, strict=True)]
    assert all(moved)
    assert seed.stage is Stage.FOSSILISED
