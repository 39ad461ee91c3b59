"""Counterfactuals on hosts of many kinds: a replayed pass is bit for bit a separate one."""

from __future__ import annotations

import copy
from collections.abc import Callable
from itertools import combinations
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from esper_core.growth import graft, slots_of
from esper_core.growth.counterfactuals import Counterfactuals
from esper_core.growth.seeds import Seed
from esper_core.leyline.lifecycle import Stage

EXAMPLES = 12
CLASSES = 3
STEPS = 12


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


class Residual(nn.Module):
    """Writes into what leaves a slot, and into what a module before it put out."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(2, 4, 3, padding=1)
        self.one = nn.Conv2d(4, 4, 3, padding=1)
        self.two = nn.Conv2d(4, 4, 3, padding=1)
        self.act = nn.ReLU(inplace=True)
        self.head = nn.Linear(4, CLASSES)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.stem(inputs)
        out = self.one(hidden)
        out += hidden
        if not self.training:  # a gradient would want the hidden that was
            hidden *= 0.5
        out = self.act(out)
        deeper = self.two(out)
        deeper += out
        deeper += hidden
        return self.head(deeper.mean((2, 3)))


class Turned(nn.Module):
    """A slot sees the batch first, and attention the sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.attention = nn.ModuleList(nn.MultiheadAttention(8, 2) for _ in range(3))
        self.head = nn.Linear(8, CLASSES)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = inputs.transpose(0, 1)
        for block, attention in zip(self.blocks, self.attention, strict=True):
            mixed, _ = attention(hidden, hidden, hidden)
            hidden = hidden + block(mixed.transpose(0, 1)).transpose(0, 1)
        return self.head(hidden.mean(0))


class Half(nn.Module):
    def __init__(self, shared: nn.Linear) -> None:
        super().__init__()
        self.shared = shared
        self.own = nn.Linear(8, 8)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.shared(torch.tanh(self.own(torch.tanh(self.shared(inputs)))))


class Tied(nn.Module):
    """One linear layer in both halves, called twice in each, and once more at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.shared = nn.Linear(8, 8)
        self.first, self.second = Half(self.shared), Half(self.shared)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(torch.tanh(self.shared(self.second(self.first(self.shared(inputs))))))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inwards = nn.Linear(8, 8)
        self.cell, self.again = nn.LSTM(8, 8, batch_first=True), nn.LSTM(8, 8, batch_first=True)
        self.between = nn.Linear(8, 8)
        self.head = nn.Linear(16, CLASSES)

    def forward(self, inputs: Tensor) -> Tensor:
        run, (state, _) = self.cell(self.inwards(inputs))
        later, state = self.again(self.between(run), (state, torch.zeros_like(state)))
        return self.head(torch.cat([later[:, -1], state[1][0]], 1))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.inner, self.last = nn.Linear(8, 8), nn.Sequential(nn.Linear(8, 8), nn.Tanh()), nn.Linear(8, 8)

    def forward(self, inputs: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        first = self.first(inputs)
        return self.last(self.inner(first)), {"around": first, "inputs": inputs}


class Around(nn.Module):
    """Slots lie in nested blocks, and data flows past them in a tuple with a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(8, CLASSES)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden, total = inputs, torch.zeros_like(inputs)
        for block in self.blocks:
            hidden, other = block(hidden)
            total = total + other["around"] * 0.3 + other["inputs"]
        return self.head(hidden + total)


class Remembering(nn.Module):
    """Keeps what it saw, and another module reads it."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(8, 8)

    def forward(self, inputs: Tensor) -> Tensor:
        self.weights = torch.softmax(self.mix(inputs), -1).detach()
        return inputs * self.weights


class Scribbling(nn.Module):
    """Writes into its input, into the list that it is given, and hands on what it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(8, 8)

    def forward(self, inputs: Tensor, log: list[Tensor]) -> tuple[Tensor, Tensor]:
        if not self.training:  # a gradient would want the inputs that were
            inputs += 0.1
        log.append(self.mix(inputs))
        return inputs, inputs[:, :4]


class Odd(nn.Module):
    """All at once that a module may do beside putting something out."""

    def __init__(self) -> None:
        super().__init__()
        self.remembering, self.scribbling = Remembering(), Scribbling()
        self.act, self.drop, self.nothing = nn.ReLU(inplace=True), nn.Dropout(), nn.Identity()
        self.one, self.two = nn.Linear(8, 8), nn.Linear(8, 8)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, inputs: Tensor) -> Tensor:
        log: list[Tensor] = []
        hidden = self.remembering(inputs)
        same = self.drop(hidden)
        same += 1.0  # in evaluation this is hidden itself
        whole, part = self.scribbling(hidden, log)
        if not self.training:
            part *= 2.0
        hidden = self.one(whole + hidden)
        act = self.act(hidden)
        act = self.nothing(act) * self.remembering.weights
        return self.head(self.two(act + hidden) + self.remembering(log[0]) * self.remembering.weights)


HOSTS: dict[str, tuple[Callable[[], nn.Module], list[str], tuple[int, ...]]] = {
    "residual": (Residual, ["stem", "one", "two"], (2, 8, 8)),
    "turned": (Turned, ["blocks.*"], (5, 8)),
    "tied": (Tied, ["first", "first.own", "second"], (8,)),
    "recurrent": (Recurrent, ["inwards", "between"], (5, 8)),
    "around": (Around, ["blocks.0.inner.0", "blocks.0.last", "blocks.1.inner"], (8,)),
    "structured": (Around, ["blocks.0", "blocks.0.last", "blocks.1"], (8,)),
    "cells": (Recurrent, ["inwards", "cell"], (5, 8)),
    "odd": (Odd, ["one", "two"], (8,)),
}


def judge(outputs: Tensor, targets: Tensor) -> Tensor:
    return cross_entropy(outputs, targets, reduction="none")


def grown(name: str, add_seed: Callable[..., Seed]) -> tuple[nn.Module, list[tuple[Tensor, Tensor]], list[str]]:
    """A host with a trained seed in each slot, and batches of which the last is smaller."""
    build, slots, shape = HOSTS[name]
    inputs = draw(2 * EXAMPLES + 5, *shape)
    targets = torch.arange(len(inputs)) % CLASSES
    torch.manual_seed(1)
    model = graft(build(), slots, example=inputs[:3])
    for number, slot in enumerate(slots_of(model).each()):
        seed = add_seed(model, slot.name, alpha=1.0 - 0.1 * number, seed=number)
        with torch.no_grad():
            seed.block.mix.weight.mul_(4.0)
    optimizer = torch.optim.Adam(model.parameters(), 0.02)
    for _ in range(STEPS):
        optimizer.zero_grad()
        judge(model(inputs), targets).mean().backward()
        optimizer.step()
    optimizer.zero_grad()
    names = [slot.name for slot in slots_of(model).each()]
    batches = list(zip(inputs.split(EXAMPLES), targets.split(EXAMPLES), strict=True))
    return model.eval(), batches, names


def alone(model: nn.Module, left_out: str | None, batches: list[tuple[Tensor, Tensor]]) -> Tensor:
    """The losses of a copy of the network in which one seed has no strength."""
    model = copy.deepcopy(model)
    for slot in slots_of(model).each():
        if slot.name == left_out:
            slot.living.alpha.aim(0.0, 0)
    with torch.no_grad():
        return torch.cat([judge(model(inputs), targets) for inputs, targets in batches])


def same(one: Tensor, other: Tensor) -> bool:
    return torch.equal(one.view(torch.int32), other.view(torch.int32))


@pytest.mark.parametrize("name", HOSTS)
def test_each_replayed_pass_is_bit_for_bit_a_separate_one(name: str, add_seed: Callable[..., Seed]) -> None:
    model, batches, names = grown(name, add_seed)
    expected = {one: alone(model, one, batches) for one in (None, *names)}
    assert all((expected[one].mean() - expected[None].mean()).abs() > 1e-2 for one in names)
    assert all((one - other).abs().max() > 1e-2 for one, other in combinations(expected.values(), 2))
    counterfactuals = Counterfactuals(model)
    for _ in range(2):  # at first it is looked at, then replayed from the first batch on
        found = counterfactuals.measure(batches, judge)
        assert counterfactuals.reason is None
        assert {one: same(losses, expected[one]) for one, losses in found.items()} == dict.fromkeys(expected, True)


@pytest.mark.parametrize("name", ["residual", "odd"])
def test_fossils_act_and_incubating_seeds_do_not(name: str, add_seed: Callable[..., Seed]) -> None:
    model, batches, names = grown(name, add_seed)
    fossil, incubating = slots_of(model).named(names[0]).living, slots_of(model).named(names[-1]).living
    assert fossil is not None
    assert incubating is not None
    fossil.stage, incubating.stage = Stage.FOSSILISED, Stage.TRAINING
    incubating.alpha.aim(0.0, 0)
    add_seed(model, names[0], alpha=0.7, seed=7)
    expected = {one: alone(model, one, batches) for one in (None, *names[:-1])}
    counterfactuals = Counterfactuals(model)
    for _ in range(2):
        found = counterfactuals.measure(batches, judge)
        assert counterfactuals.reason is None
        assert {one: same(losses, expected[one]) for one, losses in found.items()} == dict.fromkeys(expected, True)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_measuring_works_in_every_autograd_mode(mode: Callable[[], Any], add_seed: Callable[..., Seed]) -> None:
    model, batches, names = grown("residual", add_seed)
    counterfactuals = Counterfactuals(model)
    for _ in range(2):
        with mode():
            found = counterfactuals.measure(batches, judge)
        assert counterfactuals.reason is None
        assert found.keys() == {None, *names}
        assert all(same(rows, alone(model, one, batches)) for one, rows in found.items())
        assert not any(rows.requires_grad for rows in found.values())
