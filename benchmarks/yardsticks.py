"""Esper against programs that are not its own: ``python -m benchmarks.yardsticks``.

``by hand``: 64 networks of the default run on MNIST-1D. The loop is the shortest that torch offers for exactly this:
``vmap`` over stacked parameters, one Adam for all, and the compiler. A step is 32 batches of 100 and the validation.
Where chorus-torch is installed, which needs Python 3.13, its stacks are measured, too; elsewhere a line says so.

``airbench``: the network of airbench94 (Jordan 2024), written from its description, on random images in batches of
1,024, at 1, 4 and 16 networks, with and without a living seed; its own loop trains one. A step is 15 batches and
the validation of 4. It is measured where torch sees a CUDA device, or asked for by ``--hosts``.

All sides of a comparison step in turn; figures are medians of times as a multiple of the yardstick's.
"""

from __future__ import annotations

import argparse
import math
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, stack_module_state, vmap

from benchmarks.gpu import step, times_of, train_and_evaluate
from benchmarks.perf.workloads import NarrowConvLight, PlainLoop, activate_seeds, conv, one_d
from esper_core.settings import ComputeConfig, GrowthConfig, OptimizersConfig
from esper_core.trainer.pool import Pool
from esper_run.app.runtime import tune_allocator

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from benchmarks.perf.workloads import Workload

NETWORKS: Final = 64
TURNS, WARM_UP = 7, 2


class StackedLoop:
    """Trains networks of one structure at once, as somebody would write it by hand."""

    def __init__(self, work: Workload, networks: int, *, compiled: bool) -> None:
        self._work, self._data, self._networks = work, work.data, networks
        model = work.build_host()
        stacked, self._buffers = stack_module_state([work.build_host() for _ in range(networks)])
        self._parameters = {name: nn.Parameter(values.detach()) for name, values in stacked.items()}

        def loss(parameters: Mapping[str, Tensor], inputs: Tensor, targets: Tensor) -> Tensor:
            outputs: Tensor = functional_call(model, (dict(parameters), self._buffers), (inputs,))
            return nn.functional.cross_entropy(outputs, targets)

        def compiler(function: Callable[..., Any]) -> Callable[..., Any]:
            return torch.compile(function, dynamic=False) if compiled else function

        self._train = compiler(vmap(grad_and_value(loss)))
        self._evaluate = compiler(vmap(loss, in_dims=(0, None, None)))
        rate = OptimizersConfig().host.learning_rate
        self._optimizer = torch.optim.Adam(list(self._parameters.values()), rate, fused=True)

    def step(self) -> None:
        """Train for a step, and evaluate."""
        validation = self._data["validation"]
        values = {name: parameter.detach() for name, parameter in self._parameters.items()}
        for inputs_EN, targets_EN in batches_of(self._work, self._networks):
            gradients, _ = self._train(values, inputs_EN, targets_EN)
            for name, parameter in self._parameters.items():
                parameter.grad = gradients[name]
            self._optimizer.step()
        with torch.inference_mode():
            self._evaluate(values, validation.inputs, validation.targets)


class ChorusLoop:
    """The same networks as a stack of chorus-torch, in the loop of its README; not compiled."""

    def __init__(self, work: Workload, networks: int) -> None:
        self._chorus: Any = import_module("chorus")
        self._work, self._data, self._networks = work, work.data, networks
        self._stack = self._chorus.Stack([work.build_host() for _ in range(networks)])
        rate = OptimizersConfig().host.learning_rate
        self._optimizer = torch.optim.Adam(self._stack.parameters(), rate, fused=True)

    def step(self) -> None:
        """Train for a step, and evaluate."""
        self._stack.train()
        for inputs_EN, targets_EN in batches_of(self._work, self._networks):
            self._chorus.stacked_cross_entropy(self._stack.forward_split(inputs_EN), targets_EN).backward()
            self._optimizer.step()
            self._optimizer.zero_grad()
        self._stack.eval()
        with torch.inference_mode():
            validation = self._data["validation"]
            self._chorus.stacked_cross_entropy(self._stack(validation.inputs), validation.targets)


def batches_of(work: Workload, networks: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the batches of a step, each in an order of its own for every network."""
    train, size = work.data["train"], work.batch_size
    orders_E = [torch.randperm(len(train)) for _ in range(networks)]
    for first in range(0, work.batches * size, size):
        rows_EN = torch.stack([order[first : first + size] for order in orders_E])
        yield train.inputs[rows_EN], train.targets[rows_EN]


class Airbench(nn.Module):
    """The network of airbench94: whitening of patches, then three stages of two convolutions each."""

    def __init__(self, widths: tuple[int, int, int] = (64, 256, 256)) -> None:
        super().__init__()
        self.whiten = nn.Conv2d(3, 24, 2)
        self.whiten.weight.requires_grad = False
        self.early, self.middle, self.late = (
            nn.Sequential(*_stage(before, after)) for before, after in zip((24, *widths), widths, strict=False)
        )
        self.head = nn.Linear(widths[-1], 10, bias=False)

    def forward(self, images: Tensor) -> Tensor:
        """Return the scores (N, 10) of images (N, 3, 32, 32)."""
        features = self.late(self.middle(self.early(nn.functional.gelu(self.whiten(images)))))
        scores: Tensor = self.head(nn.functional.max_pool2d(features, 3).flatten(1)) / 9
        return scores


def _stage(before: int, after: int) -> list[nn.Module]:
    first, second = (nn.Conv2d(inputs, after, 3, padding=1, bias=False) for inputs in (before, after))
    return [first, nn.MaxPool2d(2), nn.BatchNorm2d(after), nn.GELU(), second, nn.BatchNorm2d(after), nn.GELU()]


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", nargs="+", choices=("by-hand", "airbench"), help="default: what this machine can")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, which only show that it runs")
    parsed = parser.parse_args()
    tune_allocator()
    torch.set_num_threads(1)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    print(f"{name}, torch {torch.__version__}\n{'':44}{'ms':>10}{'multiple':>10}")
    hosts = parsed.hosts or (["by-hand", "airbench"] if device.type == "cuda" else ["by-hand"])
    if "by-hand" in hosts:
        by_hand(networks=2 if parsed.quick else NETWORKS, quick=parsed.quick)
    if "airbench" in hosts:
        airbench(device, quick=parsed.quick)


def by_hand(networks: int, *, quick: bool) -> None:
    """Compare a group of a run with a loop for exactly this."""
    work = one_d(1, 500) if quick else one_d()
    with ExitStack() as pools:

        def of_pool(average: int) -> Callable[[], object]:
            recipe = work.recipe(compute=ComputeConfig())
            network = replace(recipe.network, growth=GrowthConfig(average=average))
            pool = pools.enter_context(closing(Pool(replace(recipe, network=network), ["grown"], networks)))
            pool.reset(0, 0)
            return partial(step, pool)

        sides: dict[str, Callable[[], Callable[[], object]]] = {
            "vmap, compiled": lambda: StackedLoop(work, networks, compiled=True).step,
            "vmap": lambda: StackedLoop(work, networks, compiled=False).step,
            "chorus-torch": lambda: ChorusLoop(work, networks).step,
            "Esper": partial(of_pool, 16),
            "Esper, without averages of weights": partial(of_pool, 0),
        }
        compare(f"{networks} on MNIST-1D", sides, torch.device("cpu"), turns=1 if quick else TURNS)


def airbench(device: torch.device, until: float = math.inf, *, quick: bool) -> bool:
    """Compare networks of airbench with its own loop, which trains one; return whether all sides were measured."""
    images = conv(1, 1, 8) if quick else conv(15, 4, 1024)
    work = replace(images, build_host=partial(Airbench, (8, 16, 16)) if quick else Airbench)
    on_gpu = device.type == "cuda"
    yardstick = PlainLoop(work, channels_last=True, device=device, bfloat16=on_gpu)
    compute = ComputeConfig(precision="bfloat16" if on_gpu else "float32", fused=False)
    passed = True
    for networks in (1, 2) if quick else (1, 4, 16):
        with ExitStack() as pools:

            def of_pool(seeds: int, networks: int = networks, pools: ExitStack = pools) -> Callable[[], object]:
                recipe = work.recipe(channels_last=True, device=device, seed=NarrowConvLight, compute=compute)
                pool = pools.enter_context(closing(Pool(recipe, ["grown"], networks)))
                pool.reset(0, 0)
                activate_seeds(pool, ["late"] * seeds)
                return partial(step, pool)

            sides: dict[str, Callable[[], Callable[[], object]]] = {
                "its own loop, for each network": lambda: partial(train_and_evaluate, yardstick)
            }
            sides |= {f"Esper, {seeds} living seeds": partial(of_pool, seeds) for seeds in (0, 1)}
            turns = 1 if quick else TURNS
            passed &= compare(f"airbench × {networks}", sides, device, until, turns=turns, share=networks)
    return passed


def compare(
    title: str,
    sides: Mapping[str, Callable[[], Callable[[], object]]],
    device: torch.device,
    until: float = math.inf,
    *,
    turns: int,
    share: int = 1,
) -> bool:
    """Print the times of the sides for a network, as multiples of that of the first, which trains 1/share of all.

    Return whether all were measured.
    """
    took = times_of(sides, device, until, turns, WARM_UP)
    first = next(iter(sides))
    for name, seconds in took.items():
        for_each = seconds if name == first else seconds / share
        multiple = f"{for_each / took[first]:10.2f}" if first in took else ""
        print(f"{title:20}{name:36}{1e3 * for_each:10.1f}{multiple}", flush=True)
    return len(took) == len(sides)


if __name__ == "__main__":
    main()
