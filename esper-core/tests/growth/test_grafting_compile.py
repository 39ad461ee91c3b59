"""Slots and torch.compile: seeds act whatever was compiled before, and alpha may change without recompiling."""

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.fx import GraphModule

from esper_core.growth import graft, slots_of
from tests.support.core_worlds import Net, add_seed, slow

pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # torch's own

INPUTS = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.last = nn.Linear(4, 4)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.last(torch.relu(self.first(inputs)))


class Broken(Block):
    """Has a graph break: a print in the middle."""

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.first(inputs)
        torch.compiler.disable(lambda: None)()
        return self.last(hidden)


class Counting:
    """A backend that runs graphs as they are and counts them."""

    def __init__(self) -> None:
        self.compiled = 0

    def __call__(self, graph: GraphModule, example: list[Any]) -> Callable[..., Any]:
        self.compiled += 1
        return graph


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def tower(blocks: int = 2, kind: type[nn.Module] = Block) -> nn.Module:
    torch.manual_seed(0)
    parts = nn.Sequential(*(kind() for _ in range(blocks)))
    return Net(lambda net, inputs: net.blocks(inputs), blocks=parts).eval()


@pytest.mark.install  # CI runs it for every change
@pytest.mark.parametrize("first", ["twin", slow("grafted")])
def test_plain_twin_and_grafted_model_are_right_in_either_order_of_compilation(first):
    twin, model = tower(), graft(tower(), ["blocks.1.first"], example=INPUTS)
    add_seed(model, "blocks.1.first")
    expected = {"twin": twin(INPUTS), "grafted": model(INPUTS)}
    compiled = {"twin": torch.compile(twin, backend="aot_eager"), "grafted": torch.compile(model, backend="aot_eager")}
    for name in (first, *(other for other in compiled if other != first)):
        torch.testing.assert_close(compiled[name](INPUTS), expected[name])
    assert not torch.allclose(expected["twin"], expected["grafted"])


@pytest.mark.parametrize(
    ("kind", "way"),
    [(Block, "regional"), *(slow(*pair) for pair in ((Broken, "regional"), (Block, "whole"), (Broken, "whole")))],
)
def test_code_compiled_for_a_plain_twin_is_not_reused_for_a_part_with_a_slot(kind, way):
    def compile_it(model: nn.Module) -> None:
        for part in [model] if way == "whole" else model.blocks:
            part.compile(backend="eager")

    twin = tower(kind=kind)
    compile_it(twin)
    twin(INPUTS)
    model = graft(tower(kind=kind), ["blocks.1.first"], example=INPUTS)
    add_seed(model, "blocks.1.first")
    expected = model(INPUTS)
    compile_it(model)
    torch.testing.assert_close(model(INPUTS), expected)


def test_like_blocks_share_compiled_code():
    backend = Counting()
    model = graft(tower(12), ["blocks.*.first"], example=INPUTS)
    again = copy.deepcopy(model)
    for network in (model, again):
        for slot in slots_of(network):
            add_seed(network, slot.name)
        expected = network(INPUTS)
        before = backend.compiled
        for block in network.blocks:
            block.compile(backend=backend)
        torch.testing.assert_close(network(INPUTS), expected)
        assert backend.compiled - before <= 3


@pytest.mark.install  # CI runs it for every change
def test_alpha_may_change_between_batches():
    backend = Counting()
    check_ramp(backend)
    assert backend.compiled <= 3  # empty, the first strength, any strength


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_alpha_may_change_between_batches_under_inductor():
    from torch._dynamo.utils import counters  # there is no public count of a real backend's compilations

    counters.clear()
    check_ramp("inductor")
    assert counters["frames"]["total"] <= 3
    assert counters["frames"]["ok"] == counters["frames"]["total"]


def check_ramp(backend: object) -> None:
    model = graft(tower(), ["blocks.0"], example=INPUTS)
    compiled = torch.compile(model, backend=backend)
    host = model(INPUTS)
    torch.testing.assert_close(compiled(INPUTS), host)
    seed = add_seed(model, "blocks.0", alpha=0.0)
    torch.testing.assert_close(compiled(INPUTS), host)
    seed.alpha.aim(1.0, 12)
    while seed.alpha.moving:
        seed.alpha.tick()
        torch.testing.assert_close(compiled(INPUTS), model(INPUTS))
    assert not torch.allclose(compiled(INPUTS), host)


@pytest.mark.slow
def test_compiled_seed_gets_the_gradients_of_an_eager_one_and_an_empty_slot_changes_no_bit():
    gradients = []
    for compiled in (False, True):
        model = graft(tower(), ["blocks.0"], example=INPUTS)
        run = torch.compile(model, backend="aot_eager") if compiled else model
        assert torch.equal(run(INPUTS), model(INPUTS))
        add_seed(model, "blocks.0", alpha=0.3)
        run(INPUTS).square().sum().backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
    torch.testing.assert_close(gradients[0], gradients[1])
