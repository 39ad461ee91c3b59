"""Seeds: blend operators, the identity at birth, gradients, and alpha on its curve."""

import math
from functools import partial
from itertools import pairwise, product
from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor, nn

from esper_core.growth import SeedFault, graft, slots_of
from esper_core.growth.seeds import Alpha, Eased, GatedBlend, Residual, Seed
from esper_core.leyline import Blend, BlueprintSpec, Site, SlotPlace, Stage
from tests.support.core_worlds import Net, Tame

SITES = {
    "image": Site("image", 3, (2, 4)),
    "sequence": Site("sequence", 3, (5,)),
    "vector": Site("vector", 3),
    "tokens": Site("tokens", 3, (5,)),
}
ALPHAS = (0.25, 0.5, 1.0)
every_seed = pytest.mark.parametrize(
    ("site", "blend", "tame"),
    [*product(SITES.values(), Blend, (True, False))],
    ids=lambda value: value.kind if isinstance(value, Site) else None,
)


def features_last(site: Site, tensor: Tensor) -> Tensor:
    return tensor if site.kind in ("tokens", "vector") else tensor.movedim(1, -1)


def seed_of(site: Site, blend: Blend, *, tame: bool) -> Seed:
    torch.manual_seed(3)
    block, spec = Tame(site), BlueprintSpec(site.kind, starts_as_identity=tame)
    if not tame:
        block.last.reset_parameters()
    return Seed(block, blueprint="test/x", spec=spec, site=site, number=0, blend=blend)


def by_hand(seed: Seed, site: Site, host: Tensor, alpha: float) -> Tensor:
    """Compute the formulas of the operators in float64."""
    block, easing = (seed.block.block, seed.block.gain.item()) if isinstance(seed.block, Eased) else (seed.block, 1.0)
    hidden, raw = (features_last(site, values).double() for values in (host, block(host)))
    change = easing * (raw - hidden)
    if seed.blend is Blend.MULTIPLY:
        return hidden * (1 + alpha * torch.tanh(change))
    factor: Any = seed.operator.gain.item() if isinstance(seed.operator, Residual) else 1.0
    if isinstance(seed.operator, GatedBlend):
        means = hidden.reshape(len(host), -1, site.channels).mean(1)
        factor = 2 / (1 + torch.exp(-(means @ seed.operator.weight.double() + seed.operator.bias.item())))
        factor = factor.view(-1, *[1] * (hidden.ndim - 1))
    return hidden + alpha * factor * change


@every_seed
def test_operator_computes_its_formula(site, blend, tame):
    seed = seed_of(site, blend, tame=tame)
    for parameter in seed.parameters():
        nn.init.normal_(parameter, std=0.7)
    host = torch.randn(4, *site.example_shape)
    for alpha in (0.01, *ALPHAS):
        with torch.no_grad():
            output = features_last(site, seed(host, alpha)).double()
            torch.testing.assert_close(output, by_hand(seed, site, host, alpha), rtol=1e-4, atol=1e-5)


@every_seed
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_run_02_every_seed_starts_as_the_identity_with_any_operator(site, blend, tame, dtype):
    """Bit for bit except for the sign of zero, also for extreme values and in half precision."""
    seed = seed_of(site, blend, tame=tame).to(dtype)
    host = torch.randn(4, *site.example_shape).to(dtype)
    host.view(-1)[:4] = torch.tensor([0.0, -0.0, 1e-30, 3e4])
    for alpha in ALPHAS:
        output = seed(host, alpha)
        assert output.dtype is dtype
        assert torch.equal(output, host)
        assert torch.equal(seed.operator.float()(host, host, alpha).to(dtype), host), "as of an adapter"


@every_seed
@pytest.mark.parametrize(
    "learner",
    [partial(torch.optim.SGD, lr=0.1), pytest.param(partial(torch.optim.Adam, lr=0.01), marks=pytest.mark.slow)],
)
def test_run_01_every_parameter_has_a_gradient_within_two_steps(site, blend, tame, learner):
    """This holds for block, gain and gate, with every operator, strength and optimizer."""
    for alpha in ALPHAS:
        seed = seed_of(site, blend, tame=tame)
        optimizer = learner(seed.parameters())
        waiting = {name for name, _ in seed.named_parameters()}
        for _ in range(2):
            host, targets = torch.randn(2, 16, *site.example_shape)
            optimizer.zero_grad()
            (seed(host, alpha) - targets).square().mean().backward()
            waiting -= {name for name, value in seed.named_parameters() if value.grad is not None and value.grad.any()}
            optimizer.step()
        assert waiting == set(), alpha


def mine(net: Any, hidden: Tensor) -> Tensor:
    """Raise, or return NaN."""
    if net.raises:
        raise RuntimeError("fails")
    return hidden * math.nan


@pytest.mark.parametrize("blend", Blend)
@pytest.mark.parametrize("raises", [True, False], ids=["raises", "no numbers"])
@pytest.mark.parametrize("stage", [Stage.GERMINATED, Stage.TRAINING, Stage.BLENDING, Stage.DRAINING])
def test_seed_is_never_called_at_alpha_0(blend, raises, stage):
    inputs = torch.randn(4, 3)
    model = graft(nn.Sequential(nn.Linear(3, 3)), {"early": SlotPlace("0")}, example=inputs)
    alone, slot = model(inputs), slots_of(model).named("early")
    block, spec = Net(mine, raises=raises), BlueprintSpec("vector", starts_as_identity=True)
    seed = Seed(block, blueprint="test/x", spec=spec, site=slot.site, number=0, blend=blend)
    slot.seeds.append(seed)
    seed.stage = stage
    for model_trains in (True, False):
        assert torch.equal(model.train(model_trains)(inputs), alone)
    seed.alpha.aim(1e-3, 0)
    if raises:
        with pytest.raises(SeedFault, match="fails"):
            model(inputs)
    else:
        assert not model(inputs).isfinite().any()


strengths = st.floats(0, 1, allow_nan=False)
ULP = 2.3e-16


@given(start=strengths, target=strengths, ticks=st.integers(1, 300))
def test_alpha_is_monotonic_and_ends_exactly_on_its_target(start, target, ticks):
    alpha = Alpha(value=start)
    alpha.aim(target, ticks)
    path = [alpha.value]
    for tick in range(1, ticks + 1):
        assert alpha.moving
        alpha.tick()
        path.append(alpha.value)
        assert alpha.value == pytest.approx(start + (target - start) * tick / ticks, abs=1e-12)
    assert not alpha.moving
    assert (path[0], path[-1]) == (start, target)
    way = math.copysign(1.0, target - start)
    assert all((later - earlier) * way >= -ULP for earlier, later in pairwise(path))
    assert all(0.0 <= value <= 1.0 for value in path)
