"""Seeds that come and go leave nothing behind: no number, hook, key, parameter group or tensor."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from esper_core.config import OptimizerConfig
from esper_core.growth import Garden, Variety, graft
from esper_core.leyline import Action, Blend, BlueprintSpec, Op, Site, SlotState, Stage

INPUTS, TARGETS = torch.randn(5, 1, 12, generator=torch.Generator().manual_seed(6)), torch.arange(5) % 3


class WithBuffers(nn.Module):
    """x + W·norm(V·x), W at 0, with buffers of its own."""

    def __init__(self, site: Site) -> None:
        super().__init__()
        self.first = nn.Conv1d(site.channels, site.channels, 1)
        self.norm = nn.BatchNorm1d(site.channels)
        self.last = nn.Conv1d(site.channels, site.channels, 1, bias=False)
        nn.init.zeros_(self.last.weight)

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden + self.last(self.norm(self.first(hidden)))


def loss_of(model: nn.Module) -> Tensor:
    return nn.functional.cross_entropy(model(INPUTS), TARGETS)


@pytest.fixture
def garden(noisy_host: Callable[[], nn.Module], make_garden: Callable[..., Garden]) -> Garden:
    """A garden with one slot in a host with dropout and BatchNorm, which show any disturbance."""
    torch.manual_seed(6)
    model = graft(noisy_host(), ["stem"], example=INPUTS)
    spec = BlueprintSpec("sequence", "2*c*c + 3*c", starts_as_identity=True)
    return make_garden(model, Variety("test/buffers", spec, WithBuffers), optimizer=OptimizerConfig(clip_norm=1.0))


def step(garden: Garden) -> None:
    """A step in which seeds learn, and the host stands still."""
    model, keeper = garden.model, garden.keeper
    garden.open_step()
    garden.tick()
    keeper.zero_grad()
    if numbers := garden.blended:
        own = list(keeper.seeds[numbers[0]].parameters)
        random, kept = torch.get_rng_state(), {name: buffer.clone() for name, buffer in model.named_buffers()}
        keeper.step_seed(numbers[0], torch.autograd.grad(loss_of(model), own, allow_unused=True))
        for name, buffer in model.named_buffers():
            buffer.copy_(kept[name])
        torch.set_rng_state(random)
    for number in garden.incubating:
        garden.incubate(number, loss_of)
    garden.take_incubation_losses()
    keeper.take_gradients()
    garden.close_step()


def cycle(garden: Garden, number: int, *, blended: bool) -> None:
    """The life of one seed, from germination until it is pruned."""
    blend, slot = list(Blend)[number % 4], garden.slots["stem"]
    garden.apply(Action(Op.GERMINATE, "stem", "test/buffers", blend=blend, speed=1), number)
    step(garden)
    if blended:
        garden.apply(Action(Op.ADVANCE, "stem"), number)
        step(garden)
        assert slot.living is not None
        assert slot.living.stage is Stage.HOLDING
    garden.apply(Action(Op.PRUNE, "stem", speed=1), number)
    if blended:
        step(garden)
    assert slot.state is SlotState.FREE


def contents(garden: Garden) -> dict[str, Any]:
    """What a seed could leave behind, by name or number."""
    gc.collect()
    modules, shares = list(garden.model.modules()), garden.keeper.shares()
    hooks = [(m._forward_hooks, m._forward_pre_hooks, m._backward_hooks) for m in modules]
    with torch.no_grad(), torch.random.fork_rng():
        torch.manual_seed(0)
        outputs = garden.model.eval()(INPUTS).tolist()
        garden.model.train()
    return {
        "state": {name: value.tolist() for name, value in garden.model.state_dict().items()},
        "outputs": outputs,
        "modules": [type(module).__name__ for module in modules],
        "hooks": [len(each) for every in hooks for each in every],
        "groups": sum(len(share.optimizer.param_groups) for share in shares if share.optimizer is not None),
        "gradients": [name for name, value in garden.model.named_parameters() if value.grad is not None],
        "incubating": garden.incubating,
        "unowned": garden.keeper.misowned(garden.model),
        "random numbers": torch.get_rng_state().tolist(),
        "tensors": sum(issubclass(type(thing), Tensor) for thing in gc.get_objects()),
    }


@pytest.mark.parametrize("cycles", [10, pytest.param(1000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("blended", [False, True], ids=["pruned in training", "pruned while it acts"])
def test_pruned_seeds_leave_nothing_behind(garden, blended, cycles):
    before = contents(garden)
    for number in range(cycles):
        cycle(garden, number, blended=blended)
    after = contents(garden)
    assert after.pop("tensors") <= before.pop("tensors")  # those of earlier tests may be freed meanwhile
    assert after == before
    assert garden.born == cycles
