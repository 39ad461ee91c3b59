"""Programs: what several networks compute at once is what each computes alone, whatever their number."""

import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from esper_core.fused import HostTensors, Program, Stacks, Training, why_different
from esper_core.fused.blocks import Updates
from esper_core.leyline import DataShape
from tests.support.core_worlds import Net

SEQUENCE, VECTOR, TOKENS = (
    DataShape("sequence", (3, 21), 5),
    DataShape("vector", (11,), 5),
    DataShape("tokens", (7, 4), 5),
)


def of_task(name: str, *arguments: Any, **settings: Any) -> Callable[[], nn.Module]:
    """Return how a host of esper-tasks is built, which need not be installed."""
    return lambda: getattr(pytest.importorskip("esper_tasks.hosts"), name)(*arguments, **settings)


def normalised() -> nn.Module:
    """Return a host with the other layers of the table, and a residual."""

    def compute(net: Any, inputs: Tensor) -> Tensor:
        hidden = net.group(net.conv(inputs))
        hidden = hidden + torch.lerp(torch.tanh(hidden), hidden.clone().mul_(0.5), 0.3) * net.gain
        hidden = net.wide(hidden)
        hidden.mul_(0.5)
        hidden = net.layer(net.pool(hidden).movedim(1, -1))
        return net.head(nn.functional.silu(hidden)[:, 1:].reshape(len(inputs), -1))

    return Net(
        compute,
        conv=nn.Conv1d(3, 8, 5, stride=2, padding=2),
        group=nn.GroupNorm(2, 8),
        gain=nn.Parameter(torch.tensor(0.7)),
        wide=nn.Conv1d(8, 8, 5, padding=2),
        pool=nn.AvgPool1d(3),
        layer=nn.LayerNorm(8),
        head=nn.Linear(16, 5),
    )


def embedded() -> nn.Module:
    def compute(net: Any, inputs: Tensor) -> Tensor:
        return net.head(net.act(net.mix(net.embed(inputs))).sum(dim=1))

    mix = nn.Linear(6, 9, bias=False)
    return Net(compute, embed=nn.Embedding(5, 6), mix=mix, act=nn.GELU(), head=nn.Linear(9, 5))


def wide() -> nn.Module:
    """Return a host whose convolutions take the grouped kernel."""
    first = nn.Conv1d(3, 8, 3, padding=1), nn.ReLU(inplace=True), nn.Conv1d(8, 16, 5, bias=False)
    last = nn.ReLU(inplace=True), nn.Conv1d(16, 8, 3, padding=1), nn.MaxPool1d(2), nn.GELU(), nn.MaxPool1d(3)
    return nn.Sequential(*first, *last, nn.Flatten(), nn.Linear(16, 5))


def gated() -> nn.Module:
    """Return a host with what blueprints add to the table."""

    def compute(net: Any, inputs: Tensor) -> Tensor:
        hidden = net.far(nn.functional.relu(net.look(net.conv(inputs))))
        hidden = hidden + net.gain * nn.functional.rms_norm(hidden, hidden.shape[1:], eps=1e-5)
        summary = hidden.mean((2,), keepdim=True)
        hidden = hidden * torch.sigmoid(net.gate(summary.flatten(start_dim=1))).view_as(summary)
        return net.head(net.narrow(hidden).flatten(1))

    return Net(
        compute,
        conv=nn.Conv1d(3, 8, 1),
        look=nn.Conv1d(8, 8, 5, padding=2, groups=8),
        far=nn.Conv1d(8, 8, 3, padding=9, dilation=9),
        gain=nn.Parameter(torch.full((8, 1), 0.7)),
        gate=nn.Linear(8, 8),
        narrow=nn.Conv1d(8, 2, 2, dilation=3),
        head=nn.Linear(36, 5),
    )


def sliced() -> nn.Module:
    """Return a host whose products get slices of features and of channels."""
    conv, mix, head = nn.Conv1d(3, 9, 1), nn.Conv1d(7, 8, 1), nn.Linear(167, 5)
    return Net(
        lambda net, inputs: net.head(net.mix(net.conv(inputs).relu()[:, 1:8]).flatten(1)[:, 1:]),
        conv=conv, mix=mix, head=head,
    )  # fmt: skip


HOSTS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "pointwise": (of_task("PointwiseMlp", SEQUENCE), (3, 21)),
    "kernel 3": (of_task("PointwiseMlp", SEQUENCE, kernel=3, channels=5, hidden=9), (3, 21)),
    "cnn1d": (of_task("cnn1d", SEQUENCE), (3, 21)),
    "mlp": (of_task("Mlp", VECTOR, hidden=13), (11,)),
    "tokens": (of_task("TokenMlp", TOKENS, width=6), (7, 4)),
    "normalised": (normalised, (3, 21)),
    "embedded": (embedded, ()),
    "batch norm": (lambda: nn.Sequential(nn.Linear(11, 10), nn.BatchNorm1d(10), nn.ReLU(), nn.Linear(10, 5)), (11,)),
    "wide": (wide, (3, 21)),
    "gated": (gated, (3, 21)),
    "sliced": (sliced, (3, 21)),
}


def losses(outputs: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(outputs, targets, reduction="none")


def make(name: str, count: int, examples: int = 10) -> tuple[list[nn.Module], Tensor, Tensor]:
    """Return networks with different weights, and a batch for each."""
    torch.manual_seed(0)
    build, shape = HOSTS[name]
    networks = [build() for _ in range(count)]
    symbols = name == "embedded"
    inputs = torch.randint(5, (count, examples, 4)) if symbols else torch.randn(count, examples, *shape)
    return networks, inputs, torch.randint(5, (count, examples))


def compute(
    networks: list[nn.Module], inputs: Tensor, targets: Tensor, held_out: Tensor | None = None
) -> list[list[Tensor]]:
    """Return, for each network, loss, gradients and buffers of a training pass, and outputs in evaluation."""
    held_out = inputs[0] if held_out is None else held_out
    program, tensors = Program(networks[0]), [HostTensors.of(network) for network in networks]
    training = Training(program, tensors)
    training.compute(inputs, targets, losses)
    again = training.compute(inputs, targets, losses)
    with torch.inference_mode():
        (outputs,) = program.outputs(Stacks.of(tensors), held_out.expand(len(networks), *held_out.shape))
    (block,) = training.blocks
    gradients = block.layout.views(block.gradients)[: len(block.leaves)]
    stacks = [again, *gradients, *block.after, outputs]
    return [list(of_network) for of_network in zip(*stacks, strict=True)]


@pytest.mark.parametrize(("name", "examples"), [*((name, 10) for name in HOSTS), ("wide", 11)])
def test_each_network_of_a_group_has_the_bits_that_it_has_in_a_group_of_any_size(name: str, examples: int) -> None:
    networks, inputs, targets = make(name, 32, examples)
    together = compute(networks, inputs, targets)
    for first, size in ((0, 1), (0, 2), (0, 3), (0, 8), (1, 1), (2, 2), (5, 3)):
        part = slice(first, first + size)
        alone = compute(networks[part], inputs[part].clone(), targets[part].clone(), inputs[0])
        for number, (row, expected) in enumerate(zip(alone, together[part], strict=True)):
            for place, (tensor, other) in enumerate(zip(row, expected, strict=True)):
                assert torch.equal(tensor, other), f"group of {size} from {first}, network {number}, tensor {place}"


@pytest.mark.parametrize("name", HOSTS)
def test_a_trial_finds_no_difference(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("esper_core.fused.programs.TOLERANCE", 1e-5)  # other networks may need more
    (network,), inputs, targets = make(name, 1, 20)
    assert why_different(network, Program(network), inputs[0], targets[0], losses) is None


def test_a_trial_compares_a_step_of_the_optimizer(monkeypatch: pytest.MonkeyPatch) -> None:
    (network,), inputs, targets = make("normalised", 1, 20)
    monkeypatch.setattr(Updates, "step", lambda self: self._block.values.mul_(1.1))
    why = why_different(network, Program(network), inputs[0], targets[0], losses)
    assert why == "another step than one after another"


def of_its_class(outputs: Tensor, targets: Tensor) -> Tensor:
    return functional.softplus(-outputs[torch.arange(len(outputs)), targets])


def of_one_class(outputs: Tensor, targets: Tensor) -> Tensor:
    return functional.binary_cross_entropy_with_logits(outputs.mean(1), (targets == 0).float(), reduction="none")


@pytest.mark.parametrize("by_hand", [of_its_class, of_one_class])
def test_a_trial_finds_losses_whose_bits_depend_on_how_many_networks_there_are(
    by_hand: Callable[[Tensor, Tensor], Tensor],
) -> None:
    """Or whose gradients do."""
    (network,), inputs, targets = make("mlp", 1, 34)
    why = why_different(network, Program(network), inputs[0], targets[0], by_hand)
    assert why == "other losses among others than alone, by rounding"


@pytest.mark.parametrize("symbol", [-1, 5])
def test_no_symbol_is_looked_up_in_the_table_of_another_network(symbol: int) -> None:
    networks, inputs, targets = make("embedded", 3)
    inputs[1, 2, 0] = symbol
    with pytest.raises(IndexError):
        compute(networks, inputs, targets)


class LivingResults(TorchFunctionMode):
    """Counts the results of torch's calls that are alive at once."""

    def __init__(self) -> None:
        super().__init__()
        self._results: list[weakref.ref[Tensor]] = []
        self.most = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor):
            self._results.append(weakref.ref(result))
            self.most = max(self.most, sum(living() is not None for living in self._results))
        return result


@torch.inference_mode()
def test_an_evaluation_keeps_no_result_for_longer_than_later_layers_need_it() -> None:
    network = nn.Sequential(*(nn.Linear(4, 4) for _ in range(30)))
    program, stacks, inputs = Program(network), Stacks.of([HostTensors.of(network)]), torch.randn(1, 8, 4)
    recorded = program.outputs(stacks, inputs)
    with LivingResults() as results:
        repeated = program.outputs(stacks, inputs)
    assert torch.equal(*recorded, *repeated)
    assert results.most < 10
