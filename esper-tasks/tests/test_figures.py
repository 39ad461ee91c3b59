"""The figures of the page on tasks and of docstrings hold.

``pytest esper-tasks/tests/test_figures.py -s`` prints them: means over three RNG seeds, on validation, one thread. Its
output is stored in ``figures.txt``; the tests compare new figures with it, within five points of accuracy or 0.15 bits,
since another processor rounds otherwise.
"""

import re
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional

from esper_tasks.byte_text import byte_text
from esper_tasks.hosts import Mlp, TokenMlp, Transformer, cnn1d, cnn2d
from esper_tasks.images_synthetic import images_synthetic
from esper_tasks.marked_sum import marked_sum
from esper_tasks.mnist1d import mnist1d

pytestmark = pytest.mark.slow

SEEDS = 3
PRINTED = Path(__file__).with_name("figures.txt")
WITH = (3, 11)
"""The version of Python that printed the figures: the text of ``bytes`` differs between versions."""


class Beside(nn.Module):
    """A kept seed: its layers, the last of which starts at zero, are added to the input."""

    def __init__(self, layers, last):
        super().__init__()
        self.layers = layers
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)

    def forward(self, inputs):
        return inputs + self.layers(inputs)


class Attention(nn.Module):
    def __init__(self, width, out):
        super().__init__()
        self.norm, self.in_, self.out = nn.LayerNorm(width), nn.Linear(width, 3 * width), out

    def forward(self, inputs):
        heads = self.in_(self.norm(inputs)).unflatten(2, (3, 4, -1)).permute(2, 0, 3, 1, 4)
        return self.out(functional.scaled_dot_product_attention(*heads).transpose(1, 2).flatten(2))


class Gru(nn.Module):
    def __init__(self, width, out):
        super().__init__()
        self.gru, self.out = nn.GRU(width, width, batch_first=True), out

    def forward(self, inputs):
        return self.out(self.gru(inputs)[0])


def two_convolutions(layer, channels):
    last = layer(channels, channels, 5, padding=2)
    return Beside(nn.Sequential(layer(channels, channels, 5, padding=2), nn.ReLU(), last), last)


def two_layers(width):
    last = nn.Linear(2 * width, width)
    return Beside(nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(), last), last)


def over_tokens(kind, width):
    last = nn.Linear(width, width)
    return Beside(kind(width, last), last)


def grown(host, name, module):
    """The host with a module behind the one of this name."""
    setattr(host, name, nn.Sequential(getattr(host, name), module))
    return host


def grown_block(shape, module):
    """A causal transformer with a module behind its first block."""
    host = Transformer(shape, causal=True)
    host.blocks[0] = nn.Sequential(host.blocks[0], module)
    return host


def metric(task, build, *, epochs, batch_size, batches=None):
    """Mean metric on validation over the seeds after Adam with 3e-3."""
    train, validation = task.split("train"), task.split("validation")
    found = []
    with torch.random.fork_rng(devices=[]):
        for seed in range(SEEDS):
            torch.manual_seed(seed)
            model = build(task.shape)
            optimizer = torch.optim.Adam(model.parameters(), 3e-3)
            for _ in range(epochs):
                for batch in torch.randperm(len(train)).split(batch_size)[:batches]:
                    optimizer.zero_grad()
                    task.losses(model(train.inputs[batch]), train.targets[batch]).mean().backward()
                    optimizer.step()
            model.eval()
            with torch.no_grad():
                found.append(task.scores(model(validation.inputs), validation.targets).mean().item())
    return sum(found) / SEEDS


def table(task, networks, **training):
    """The metric of each network, printed."""
    figures = {name: metric(task, build, **training) for name, build in networks.items()}
    print(f"\n{training}", *(f"  {name:<28} {figure:.3f}" for name, figure in figures.items()), sep="\n")
    if task.metric.name == "accuracy" or sys.version_info[:2] == WITH:
        assert figures == pytest.approx(printed(training), abs=0.05 if task.metric.name == "accuracy" else 0.15)
    return figures


def printed(training):
    """Return the stored figures for these settings, by network."""
    _, _, behind = PRINTED.read_text(encoding="utf-8").partition(f"{training}\n")
    lines = re.findall(r"^  (\S.*?) +(\d\.\d{3})$", behind.partition("\n\n")[0], re.MULTILINE)
    return {name: float(figure) for name, figure in lines}


def test_images_need_convolutions():
    found = table(
        images_synthetic(),
        {
            "linear": lambda shape: nn.Sequential(nn.Flatten(), nn.Linear(3 * 16 * 16, shape.outputs)),
            "mlp": Mlp,
            "cnn2d": cnn2d,
            "cnn2d, convolutions": lambda shape: grown(cnn2d(shape), "early", two_convolutions(nn.Conv2d, 8)),
            "kernel 1": lambda shape: cnn2d(shape, kernel=1),
            "kernel 1, convolutions": lambda shape: grown(
                cnn2d(shape, kernel=1), "early", two_convolutions(nn.Conv2d, 8)
            ),
        },
        epochs=12,
        batch_size=100,
    )
    assert found["linear"] < 1 / 8 + 0.06
    assert found["mlp"] + 0.2 < found["cnn2d"]
    assert found["kernel 1"] + 0.3 < found["kernel 1, convolutions"]
    assert found["cnn2d"] + 0.02 < found["cnn2d, convolutions"]


def test_mnist1d_needs_neighbours():
    found = table(
        mnist1d(),
        {
            "mlp": Mlp,
            "mlp, two layers": lambda shape: grown(Mlp(shape), "first", two_layers(32)),
            "cnn1d": cnn1d,
            "cnn1d, convolutions": lambda shape: grown(cnn1d(shape), "early", two_convolutions(nn.Conv1d, 4)),
            "kernel 1": lambda shape: cnn1d(shape, kernel=1),
            "kernel 1, convolutions": lambda shape: grown(
                cnn1d(shape, kernel=1), "early", two_convolutions(nn.Conv1d, 4)
            ),
        },
        epochs=20,
        batch_size=100,
    )
    assert found["cnn1d, convolutions"] < found["cnn1d"] + 0.03
    assert found["kernel 1"] + 0.2 < found["kernel 1, convolutions"]
    assert found["mlp, two layers"] < found["mlp"] + 0.03


def test_a_marked_sum_needs_attention_or_recurrence():
    found = table(
        marked_sum(),
        {
            "token-mlp": TokenMlp,
            "token-mlp, two layers": lambda shape: grown(TokenMlp(shape), "embed", two_layers(16)),
            "token-mlp, attention": lambda shape: grown(TokenMlp(shape), "embed", over_tokens(Attention, 16)),
            "token-mlp, gru": lambda shape: grown(TokenMlp(shape), "embed", over_tokens(Gru, 16)),
            "transformer": Transformer,
        },
        epochs=30,
        batch_size=50,
    )
    assert max(found["token-mlp"], found["token-mlp, two layers"]) < 1 / 4 + 0.06
    assert min(found["token-mlp, attention"], found["token-mlp, gru"]) > 0.9


def test_a_transformer_predicts_bytes_better_than_their_frequencies():
    task = byte_text(metric="bits")
    counts = task.split("train").targets.flatten().bincount(minlength=256).double() + 1
    bits = -(counts / counts.sum()).log2()
    by_count = bits[task.split("validation").targets].mean().item()
    print(f"\nby count alone {by_count:.3f}")
    assert sys.version_info[:2] != WITH or f"by count alone {by_count:.3f}\n" in PRINTED.read_text(encoding="utf-8")
    found = table(
        task,
        {
            "transformer": lambda shape: Transformer(shape, causal=True),
            "transformer, untied": lambda shape: Transformer(shape, causal=True, tied=False),
            "transformer, gru": lambda shape: grown_block(shape, over_tokens(Gru, 32)),
            "transformer, looks ahead": lambda shape: grown_block(shape, over_tokens(Attention, 32)),
        },
        epochs=16,
        batch_size=16,
        batches=25,
    )
    assert found["transformer"] < by_count - 1
    assert found["transformer, gru"] < found["transformer"] - 0.1
    assert found["transformer, looks ahead"] < found["transformer, gru"] - 0.5
