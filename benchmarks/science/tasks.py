"""Train networks on the tasks, with and without what they lack, and print their metrics on validation.

    python -m benchmarks.science.tasks [--only images mnist1d marked-sum bytes]

Each figure is a mean over three RNG seeds, on one thread; what is added to a network follows the comma in its name.
The output is stored in ``tasks.txt``, for the page on tasks and for docstrings. The text of ``bytes`` differs between
versions of Python; ``WITH`` is the one that printed the figures.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor, nn
from torch.nn import functional

from esper_tasks.byte_text import byte_text
from esper_tasks.hosts import Mlp, TokenMlp, Transformer, cnn1d, cnn2d
from esper_tasks.images_synthetic import images_synthetic
from esper_tasks.marked_sum import marked_sum
from esper_tasks.mnist1d import mnist1d

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Build = Callable[[Any], nn.Module]

SEEDS: Final = 3
RATE: Final = 3e-3
WITH: Final = (3, 11)


class Beside(nn.Module):
    """A kept seed: its layers, the last of which starts at zero, are added to the input."""

    def __init__(self, layers: nn.Module, last: Any) -> None:
        super().__init__()
        self.layers = layers
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the inputs plus the layers' output."""
        added: Tensor = self.layers(inputs)
        return inputs + added


class Attention(nn.Module):
    """Self-attention of four heads."""

    def __init__(self, width: int, out: nn.Module) -> None:
        super().__init__()
        self.norm, self.in_, self.out = nn.LayerNorm(width), nn.Linear(width, 3 * width), out

    def forward(self, inputs: Tensor) -> Any:
        """Return what each token reads from all others."""
        heads = self.in_(self.norm(inputs)).unflatten(2, (3, 4, -1)).permute(2, 0, 3, 1, 4)
        return self.out(functional.scaled_dot_product_attention(*heads).transpose(1, 2).flatten(2))


class Gru(nn.Module):
    """A recurrent layer."""

    def __init__(self, width: int, out: nn.Module) -> None:
        super().__init__()
        self.gru, self.out = nn.GRU(width, width, batch_first=True), out

    def forward(self, inputs: Tensor) -> Any:
        """Return what each token reads from those before it."""
        return self.out(self.gru(inputs)[0])


def two_convolutions(layer: Any, channels: int) -> Beside:
    """Return two convolutions of width 5."""
    last = layer(channels, channels, 5, padding=2)
    return Beside(nn.Sequential(layer(channels, channels, 5, padding=2), nn.ReLU(), last), last)


def two_layers(width: int) -> Beside:
    """Return two linear layers."""
    last = nn.Linear(2 * width, width)
    return Beside(nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(), last), last)


def over_tokens(kind: Callable[[int, nn.Module], nn.Module], width: int) -> Beside:
    """Return attention or recurrence over tokens."""
    last = nn.Linear(width, width)
    return Beside(kind(width, last), last)


def grown(host: nn.Module, name: str, module: nn.Module) -> nn.Module:
    """Return the host with a module behind the one of this name."""
    setattr(host, name, nn.Sequential(getattr(host, name), module))
    return host


def grown_block(shape: Any, module: nn.Module) -> nn.Module:
    """Return a causal transformer with a module behind its first block."""
    host = Transformer(shape, causal=True)
    host.blocks[0] = nn.Sequential(host.blocks[0], module)
    return host


def metric(task: Any, build: Build, *, epochs: int, batch_size: int, batches: int | None = None) -> float:
    """Return the mean metric on validation over the RNG seeds after Adam."""
    train, validation = task.split("train"), task.split("validation")
    found = []
    with torch.random.fork_rng(devices=[]):
        for seed in range(SEEDS):
            torch.manual_seed(seed)
            model = build(task.shape)
            optimizer = torch.optim.Adam(model.parameters(), RATE)
            for _ in range(epochs):
                for batch in torch.randperm(len(train)).split(batch_size)[:batches]:
                    optimizer.zero_grad()
                    task.losses(model(train.inputs[batch]), train.targets[batch]).mean().backward()
                    optimizer.step()
            model.eval()
            with torch.no_grad():
                found.append(task.scores(model(validation.inputs), validation.targets).mean().item())
    return float(sum(found)) / SEEDS


IMAGES: Final[Mapping[str, Build]] = {
    "linear": lambda shape: nn.Sequential(nn.Flatten(), nn.Linear(3 * 16 * 16, shape.outputs)),
    "mlp": Mlp,
    "cnn2d": cnn2d,
    "cnn2d, convolutions": lambda shape: grown(cnn2d(shape), "early", two_convolutions(nn.Conv2d, 8)),
    "kernel 1": lambda shape: cnn2d(shape, kernel=1),
    "kernel 1, convolutions": lambda shape: grown(cnn2d(shape, kernel=1), "early", two_convolutions(nn.Conv2d, 8)),
}
SEQUENCES: Final[Mapping[str, Build]] = {
    "mlp": Mlp,
    "mlp, two layers": lambda shape: grown(Mlp(shape), "first", two_layers(32)),
    "cnn1d": cnn1d,
    "cnn1d, convolutions": lambda shape: grown(cnn1d(shape), "early", two_convolutions(nn.Conv1d, 4)),
    "kernel 1": lambda shape: cnn1d(shape, kernel=1),
    "kernel 1, convolutions": lambda shape: grown(cnn1d(shape, kernel=1), "early", two_convolutions(nn.Conv1d, 4)),
}
SUMS: Final[Mapping[str, Build]] = {
    "token-mlp": TokenMlp,
    "token-mlp, two layers": lambda shape: grown(TokenMlp(shape), "embed", two_layers(16)),
    "token-mlp, attention": lambda shape: grown(TokenMlp(shape), "embed", over_tokens(Attention, 16)),
    "token-mlp, gru": lambda shape: grown(TokenMlp(shape), "embed", over_tokens(Gru, 16)),
    "transformer": Transformer,
}
TEXTS: Final[Mapping[str, Build]] = {
    "transformer": lambda shape: Transformer(shape, causal=True),
    "transformer, untied": lambda shape: Transformer(shape, causal=True, tied=False),
    "transformer, gru": lambda shape: grown_block(shape, over_tokens(Gru, 32)),
    "transformer, looks ahead": lambda shape: grown_block(shape, over_tokens(Attention, 32)),
}
STUDIES: Final[Mapping[str, tuple[Callable[[], Any], Mapping[str, Build], dict[str, int]]]] = {
    "images": (images_synthetic, IMAGES, {"epochs": 12, "batch_size": 100}),
    "mnist1d": (mnist1d, SEQUENCES, {"epochs": 20, "batch_size": 100}),
    "marked-sum": (marked_sum, SUMS, {"epochs": 30, "batch_size": 50}),
    "bytes": (lambda: byte_text(metric="bits"), TEXTS, {"epochs": 16, "batch_size": 16, "batches": 25}),
}


def by_count(task: Any) -> float:
    """Return the bits per byte of the frequencies of bytes in the training data."""
    counts = task.split("train").targets.flatten().bincount(minlength=256).double() + 1
    bits = -(counts / counts.sum()).log2()
    return float(bits[task.split("validation").targets].mean())


def study(name: str) -> tuple[str, dict[str, float]]:
    """Train the networks of a task; return a heading with the settings, and the metric of each network."""
    make, networks, training = STUDIES[name]
    task = make()
    found = {network: metric(task, build, **training) for network, build in networks.items()}
    return f"by count alone {by_count(task):.3f}\n{training}" if name == "bytes" else str(training), found


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--only", nargs="+", choices=STUDIES, default=list(STUDIES), help="the tasks to train on")
    torch.set_num_threads(1)
    for name in parser.parse_args().only:
        heading, found = study(name)
        print(f"\n{heading}", *(f"  {network:<28} {figure:.3f}" for network, figure in found.items()), sep="\n")


if __name__ == "__main__":
    main()
