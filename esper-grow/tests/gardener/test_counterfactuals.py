"""Counterfactuals: a replayed pass is bit for bit a separate one, runs fewer modules, and leaves nothing behind."""

import copy
from collections import Counter
from collections.abc import Callable
from itertools import combinations
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, dropout

from esper_core.growth import RandomStream, SeedFault, derive_seed, graft, slots_of
from esper_core.leyline.lifecycle import Stage
from esper_grow.gardener import Counterfactuals, counterfactuals as reasons
from tests.support.core_worlds import Net, add_seed, slow

Batches = list[tuple[Tensor, Tensor]]
RUNS: Counter[str] = Counter()
BATCHES: Batches = [
    (torch.randn(6, 8, generator=torch.Generator().manual_seed(number)), torch.arange(6) % 3) for number in range(3)
]
SEEDS = ["one", "three", "two"]


class Counted(nn.Linear):
    def __init__(self, name: str, outputs: int = 8) -> None:
        super().__init__(8, outputs)
        self.name = name

    def forward(self, inputs: Tensor) -> Tensor:
        RUNS[self.name] += 1
        return super().forward(inputs)


class Chain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.one = nn.Sequential(Counted("in stem"), nn.Tanh()), Counted("one")
        self.mid, self.two, self.three = Counted("mid"), Counted("two"), Counted("three")
        self.head = Counted("head", 3)

    def forward(self, inputs: Tensor) -> Tensor:
        RUNS["root"] += 1
        return self.head(self.three(self.two(self.mid(self.one(self.stem(inputs))))))


class Noisy(Chain):
    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(dropout(inputs, 0.3, training=True))


class Tallying(Chain):
    """Counts its passes in a buffer, which changes its outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("passes", torch.zeros(()))

    def forward(self, inputs: Tensor) -> Tensor:
        self.passes += 1
        return super().forward(inputs) * self.passes


class Choosing(Chain):
    """Takes another way for some batches."""

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.one(self.stem(inputs))
        if torch.equal(inputs[0], BATCHES[1][0][0]):
            hidden = self.mid(hidden)
        return self.head(self.three(self.two(self.mid(hidden))))


class Boxed(Counted):
    """Keeps a tensor in a list, where it is neither a buffer nor an attribute."""

    def __init__(self) -> None:
        super().__init__("boxed")
        self.box = [torch.zeros(())]

    def forward(self, inputs: Tensor) -> Tensor:
        outputs = super().forward(inputs)
        self.box[0] = outputs.mean().detach()
        return outputs


class Sly(Chain):
    """Reads what a module stored at its first call, and calls this module again behind the slots."""

    def __init__(self) -> None:
        super().__init__()
        self.boxed = Boxed()

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.boxed(inputs)
        kept = self.boxed.box[0]
        return super().forward(hidden) * kept + self.boxed(hidden)[:, :3]


class Demanding(Sly):
    """Fails if the first call of its module is skipped in a pass."""

    def forward(self, inputs: Tensor) -> Tensor:
        self.boxed.box.clear()
        self.boxed.box.append(None)
        return super().forward(inputs)


def judge(outputs: Tensor, targets: Tensor) -> Tensor:
    return cross_entropy(outputs, targets, reduction="none")


def network(build: type[nn.Module] = Chain) -> nn.Module:
    torch.manual_seed(3)
    model = graft(build(), ["one", "two", "three"], example=BATCHES[0][0][:2])
    for number, name in enumerate(SEEDS):
        add_seed(model, name, alpha=0.9, seed=number, number=number)
    RUNS.clear()
    return model.eval()


def separate(model: nn.Module, left_out: int | None, batches: Batches = BATCHES) -> Tensor:
    """Return the losses of a copy of the network in which one seed has strength 0, with random numbers per batch."""
    rows = []
    for number, (inputs, targets) in enumerate(batches):
        twin = copy.deepcopy(model)
        for slot in slots_of(twin):
            for seed in slot.nursery:
                seed.alpha.aim(0.0 if seed.number == left_out else seed.alpha.value, 0)
        with torch.no_grad(), RandomStream(derive_seed(0, "counterfactuals", number)):
            rows.append(judge(twin(inputs), targets))
    return torch.cat(rows)


def are_right(model: nn.Module, measured: dict[int | None, Tensor], batches: Batches = BATCHES) -> bool:
    pairs = [(rows, separate(model, left_out, batches)) for left_out, rows in measured.items()]
    return bool(measured) and all(torch.equal(a.view(torch.int32), b.view(torch.int32)) for a, b in pairs)


def test_only_modules_behind_a_left_out_seed_run_again():
    counterfactuals = Counterfactuals(network())
    counterfactuals.measure(BATCHES[:1], judge)
    assert RUNS["root"] == 9, "at first one pass that is traced, four separate, four replayed"
    assert RUNS["in stem"] == 6
    RUNS.clear()
    counterfactuals.measure(BATCHES, judge)
    assert {name: runs / len(BATCHES) for name, runs in RUNS.items()} == {
        "root": 4, "in stem": 1, "one": 1, "mid": 2, "two": 2, "three": 3, "head": 4,
    }  # fmt: skip


def test_run_11_unmeasured_seed_has_no_value():
    model = network()
    slots_of(model).named("two").living.alpha.aim(0.0, 0)
    counterfactuals = Counterfactuals(model)
    for expected in (7, 3):  # the first batch is traced, with two passes for each seed
        RUNS.clear()
        measured = counterfactuals.measure(BATCHES[:1], judge)
        assert RUNS["root"] == expected
        assert measured.keys() == {None, SEEDS.index("one"), SEEDS.index("three")}
    assert counterfactuals.measure([], judge) == {}
    for name in SEEDS:
        slots_of(model).named(name).living.alpha.aim(0.0, 0)
    RUNS.clear()
    assert counterfactuals.measure(BATCHES, judge) == {}
    assert not RUNS


def draw_in_a_seed(model: nn.Module) -> None:
    block = slots_of(model).named("two").living.block
    block.register_forward_hook(lambda module, args, output: dropout(output, 0.3, training=True))


def compile_a_part(model: nn.Module) -> None:
    model.mid = torch.compile(model.mid, backend="eager")


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize(
    ("build", "prepare", "reason"),
    [
        pytest.param(Noisy, None, reasons.NOISE, id="random numbers"),
        pytest.param(Tallying, None, reasons.STATE, id="buffers"),
        pytest.param(Choosing, None, reasons.OTHER_CALLS, id="another way"),
        pytest.param(Sly, None, reasons.OTHER_BITS, id="kept unseen"),
        pytest.param(Demanding, None, "a replayed pass raised TypeError", id="demands"),
        pytest.param(Chain, draw_in_a_seed, reasons.NOISE, id="a seed has the same random numbers in every pass"),
        pytest.param(Chain, compile_a_part, reasons.COMPILED, id="a compiled part"),
        slow(Chain, lambda model: model.compile(backend="eager"), reasons.COMPILED, id="in place"),
        slow(Chain, lambda model: model.mid.compile(backend="eager"), reasons.COMPILED, id="part in place"),
    ],
)
def test_host_that_cannot_be_replayed_runs_in_separate_passes(build, prepare, reason):
    torch.compiler.reset()
    model = network(build)
    if prepare is not None:
        prepare(model)
    counterfactuals = Counterfactuals(model)
    for _ in range(2):
        measured = counterfactuals.measure(BATCHES, judge)
        assert counterfactuals.reason.partition(": ")[0] == reason
        assert are_right(model, measured)
    torch.compiler.reset()


def everything(model: nn.Module) -> list[Any]:
    """Return everything that an evaluation could change."""
    modules = list(model.modules())
    return [
        [{name: id(value) for name, value in vars(module).items()} for module in modules],
        [[id(hook) for hook in module._forward_hooks.values()] + [*module._forward_pre_hooks] for module in modules],
        [module.training for module in modules],
        [(id(buffer), buffer.tolist()) for buffer in model.buffers()],
        [(parameter.tolist(), parameter.grad) for parameter in model.parameters()],
        [slot.strength for slot in slots_of(model)],
        torch.get_rng_state().tolist(),
        torch.is_grad_enabled(),
    ]


@pytest.mark.parametrize("build", [Chain, Noisy, Sly])
@pytest.mark.parametrize(("looked", "raising"), [(False, None), (False, 2), (False, 6), (True, 2)])
def test_measuring_leaves_nothing_behind_even_if_it_raises(build, looked, raising):
    model = network(build)
    model.mid.eval().requires_grad_(False)
    model.head.train()
    forward = model.stem[0].forward
    model.stem[0].forward = lambda inputs: forward(inputs)
    slots_of(model).named("one").living.stage = Stage.TRAINING
    slots_of(model).named("one").living.alpha.aim(0.0, 0)
    counterfactuals = Counterfactuals(model)
    if looked:
        counterfactuals.measure(BATCHES, judge)
    before, calls = everything(model), Counter[str]()

    def raise_once(outputs: Tensor, targets: Tensor) -> Tensor:
        calls["judge"] += 1
        if calls["judge"] == raising:
            raise ArithmeticError("in the middle")
        return judge(outputs, targets)

    if raising is None:
        counterfactuals.measure(BATCHES, raise_once)
    else:
        with pytest.raises(ArithmeticError, match="in the middle"):
            counterfactuals.measure(BATCHES, raise_once)
    assert everything(model) == before


@pytest.mark.parametrize("looked", [False, True])
def test_seed_that_raises_is_named_and_nothing_is_left_behind(looked):
    model = network()
    counterfactuals = Counterfactuals(model)
    if looked:
        counterfactuals.measure(BATCHES, judge)
        assert counterfactuals.reason is None
    slots_of(model).named("two").living.block.mix.bias = None
    slots_of(model).named("two").living.block.mix.weight = nn.Parameter(torch.zeros(3, 3))
    before = everything(model)
    with pytest.raises(SeedFault, match="the seed in two"):
        counterfactuals.measure(BATCHES, judge)
    assert everything(model) == before


# --- hosts of many kinds


def residual() -> nn.Module:
    """Writes into the output of a slot, and into that of a module before it."""

    def compute(net: Any, inputs: Tensor) -> Tensor:
        hidden = net.stem(inputs)
        out = net.one(hidden)
        out += hidden
        if not net.training:  # autograd would need the hidden values from before
            hidden *= 0.5
        out = net.act(out)
        deeper = net.two(out)
        deeper += out
        deeper += hidden
        return net.head(deeper.mean((2, 3)))

    parts = {name: nn.Conv2d(4 if name != "stem" else 2, 4, 3, padding=1) for name in ("stem", "one", "two")}
    return Net(compute, **parts, act=nn.ReLU(inplace=True), head=nn.Linear(4, 3))


def tied() -> nn.Module:
    """One linear layer in both halves, called twice in each, and once more at the end."""
    shared = nn.Linear(8, 8)

    def half() -> nn.Module:
        def compute(net: Any, inputs: Tensor) -> Tensor:
            return net.shared(torch.tanh(net.own(torch.tanh(net.shared(inputs)))))

        return Net(compute, shared=shared, own=nn.Linear(8, 8))

    def compute(net: Any, inputs: Tensor) -> Tensor:
        return net.head(torch.tanh(net.shared(net.second(net.first(net.shared(inputs))))))

    return Net(compute, shared=shared, first=half(), second=half(), head=nn.Linear(8, 3))


def recurrent() -> nn.Module:
    def compute(net: Any, inputs: Tensor) -> Tensor:
        run, (state, _) = net.cell(net.inwards(inputs))
        later, state = net.again(net.between(run), (state, torch.zeros_like(state)))
        return net.head(torch.cat([later[:, -1], state[1][0]], 1))

    cell, again = nn.LSTM(8, 8, batch_first=True), nn.LSTM(8, 8, batch_first=True)
    inwards, between, head = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(16, 3)
    return Net(compute, inwards=inwards, cell=cell, again=again, between=between, head=head)


def around() -> nn.Module:
    """Slots are in nested blocks, and data also passes beside them in a tuple with a dict."""

    def block() -> nn.Module:
        def compute(net: Any, inputs: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
            first = net.first(inputs)
            return net.last(net.inner(first)), {"around": first, "inputs": inputs}

        inner = nn.Sequential(nn.Linear(8, 8), nn.Tanh())
        return Net(compute, first=nn.Linear(8, 8), inner=inner, last=nn.Linear(8, 8))

    def compute(net: Any, inputs: Tensor) -> Tensor:
        hidden, total = inputs, torch.zeros_like(inputs)
        for part in net.blocks:
            hidden, other = part(hidden)
            total = total + other["around"] * 0.3 + other["inputs"]
        return net.head(hidden + total)

    return Net(compute, blocks=nn.ModuleList(block() for _ in range(2)), head=nn.Linear(8, 3))


def odd() -> nn.Module:
    """A host with all side effects that a module may have."""

    def remember(net: Any, inputs: Tensor) -> Tensor:
        """Store the inputs, which another module reads."""
        net.weights = torch.softmax(net.mix(inputs), -1).detach()
        return inputs * net.weights

    def scribble(net: Any, inputs: Tensor, log: list[Tensor]) -> tuple[Tensor, Tensor]:
        """Write into the input and into the list, and return the input."""
        if not net.training:  # autograd would need the inputs from before
            inputs += 0.1
        log.append(net.mix(inputs))
        return inputs, inputs[:, :4]

    def compute(net: Any, inputs: Tensor) -> Tensor:
        log: list[Tensor] = []
        hidden = net.remembering(inputs)
        same = net.drop(hidden)
        same += 1.0  # in evaluation this is hidden itself
        scribbled, part = net.scribbling(hidden, log)
        if not net.training:
            part *= 2.0
        hidden = net.one(scribbled + hidden)
        act = net.nothing(net.act(hidden)) * net.remembering.weights
        return net.head(net.two(act + hidden) + net.remembering(log[0]) * net.remembering.weights)

    layers = {name: nn.Linear(8, 8) for name in ("one", "two")}
    parts = {
        name: Net(does, mix=nn.Linear(8, 8)) for name, does in (("remembering", remember), ("scribbling", scribble))
    }
    more = {"act": nn.ReLU(inplace=True), "drop": nn.Dropout(), "nothing": nn.Identity(), "head": nn.Linear(8, 3)}
    return Net(compute, **parts, **layers, **more)


HOSTS: dict[str, tuple[Callable[[], nn.Module], list[str], tuple[int, ...]]] = {
    "residual": (residual, ["stem", "one", "two"], (2, 8, 8)),
    "tied": (tied, ["first", "first.own", "second"], (8,)),
    "recurrent": (recurrent, ["inwards", "between"], (5, 8)),
    "around": (around, ["blocks.0.inner.0", "blocks.0.last", "blocks.1.inner"], (8,)),
    "structured": (around, ["blocks.0", "blocks.0.last", "blocks.1"], (8,)),
    "cells": (recurrent, ["inwards", "cell"], (5, 8)),
    "odd": (odd, ["one", "two"], (8,)),
}


def grown(name: str) -> tuple[nn.Module, Batches, list[str]]:
    """A host with a trained seed in each slot, and batches of which the last is smaller."""
    build, slots, shape = HOSTS[name]
    inputs = torch.randn(29, *shape, generator=torch.Generator().manual_seed(0))
    targets = torch.arange(29) % 3
    torch.manual_seed(1)
    model = graft(build(), slots, example=inputs[:3])
    names = [slot.name for slot in slots_of(model)]
    for number, slot in enumerate(names):
        seed = add_seed(model, slot, alpha=1.0 - 0.1 * number, seed=number, number=number)
        with torch.no_grad():
            seed.block.mix.weight.mul_(4.0)
    optimizer = torch.optim.Adam(model.parameters(), 0.02)
    for _ in range(12):
        optimizer.zero_grad()
        judge(model(inputs), targets).mean().backward()
        optimizer.step()
    optimizer.zero_grad()
    return model.eval(), list(zip(inputs.split(12), targets.split(12), strict=True)), names


@pytest.mark.parametrize("name", HOSTS)
def test_each_replayed_pass_is_bit_for_bit_a_separate_one(name):
    model, batches, _ = grown(name)
    numbers = [slot.living.number for slot in slots_of(model)]
    expected = {left_out: separate(model, left_out, batches) for left_out in (None, *numbers)}
    assert all((expected[left_out].mean() - expected[None].mean()).abs() > 1e-2 for left_out in numbers)
    assert all((first - second).abs().max() > 1e-2 for first, second in combinations(expected.values(), 2))
    counterfactuals = Counterfactuals(model)
    for _ in range(2):  # traced in the first batch, and replayed from it on
        measured = counterfactuals.measure(batches, judge)
        assert counterfactuals.reason is None
        assert measured.keys() == expected.keys()
        assert are_right(model, measured, batches)


@pytest.mark.parametrize(
    ("name", "mode"), [("residual", torch.no_grad), ("odd", torch.inference_mode), ("odd", torch.enable_grad)]
)
def test_fossils_act_and_incubating_seeds_do_not_in_any_autograd_mode(name, mode):
    model, batches, names = grown(name)
    fossil, incubating = slots_of(model).named(names[0]).living, slots_of(model).named(names[-1]).living
    fossil.stage, incubating.stage = Stage.FOSSILISED, Stage.TRAINING
    incubating.alpha.aim(0.0, 0)
    add_seed(model, names[0], alpha=0.7, seed=7, number=7)
    counterfactuals = Counterfactuals(model)
    for _ in range(2):
        with mode():
            measured = counterfactuals.measure(batches, judge)
        assert counterfactuals.reason is None
        assert measured.keys() == {None, 7, *range(1, len(names) - 1)}
        assert are_right(model, measured, batches)
        assert not any(rows.requires_grad for rows in measured.values())
