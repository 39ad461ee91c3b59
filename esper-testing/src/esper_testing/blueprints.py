"""Does a blueprint keep its promises? One plain function for each; it raises AssertionError where one is broken.

Each takes the factory and the spec that it is registered with, and tries them over a grid of sites of every kind that
the spec accepts. A check leaves the default generators of torch, numpy and Python where they were.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import numpy as np
import torch
from torch import Tensor, nn

from esper_core import Site
from esper_testing.formula import formula_value

if TYPE_CHECKING:
    from collections.abc import Mapping

    from esper_core import BlueprintSpec
    from esper_core.leyline import SiteKind

Factory = Callable[[Site], nn.Module]

SHAPES: Final[Mapping[SiteKind, tuple[tuple[int, ...], ...]]] = {
    "image": ((1, 4, 4), (3, 5, 7), (8, 8, 8)),
    "sequence": ((1, 8), (3, 7), (8, 40)),
    "vector": ((1,), (3,), (32,)),
    "tokens": ((4, 1), (7, 3), (5, 16)),
}
"""Shapes of one example: narrow, odd and wide. Tokens carry their width last."""

TRAINING_BATCH: Final = 16
LEARNERS: Final[Mapping[str, Callable[[list[nn.Parameter]], torch.optim.Optimizer]]] = {
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    "Adam": lambda parameters: torch.optim.Adam(parameters, lr=0.01),
}


def keeps_shape(factory: Factory, spec: BlueprintSpec) -> None:
    """Outputs have the shape, dtype and device of the inputs, in training and with a single example in evaluation."""
    for site in _sites(spec):
        for dtype in (torch.float32, torch.float64):
            with _seeded(0):
                block = factory(site).to(dtype)
                for examples in (TRAINING_BATCH, 1):
                    inputs = torch.randn(examples, *site.example_shape, dtype=dtype)
                    outputs = block.train(examples > 1)(inputs)
                    given, taken = _description(outputs), _description(inputs)
                    _expect(given == taken, site, f"gives back {given} for {taken}")


def identity_at_birth(factory: Factory, spec: BlueprintSpec) -> None:
    """A block that was just built returns its input, bit for bit up to the sign of zero, in both modes."""
    for site in _sites(spec):
        with _seeded(0):
            block = factory(site)
            inputs = _examples(site)
            for training in (True, False):
                outputs = block.train(training)(inputs)
                same = outputs.shape == inputs.shape and torch.equal(outputs, inputs)
                mode = "training" if training else "evaluation"
                _expect(same, site, f"is not the identity in {mode}: {_difference(outputs.detach(), inputs)}")


def honest_parameter_count(factory: Factory, spec: BlueprintSpec) -> None:
    """A block has as many parameters as the spec's formula says."""
    for site in _sites(spec):
        with _seeded(0):
            counted = sum(parameter.numel() for parameter in factory(site).parameters())
        told = formula_value(spec.params, site.formula_variables())
        _expect(counted == told, site, f"has {counted} parameters, but {spec.params} = {told}")


def gradient_within_two_steps(factory: Factory, spec: BlueprintSpec) -> None:
    """Every parameter that trains gets a gradient other than zero at the first step or the second, by SGD and Adam."""
    for site in _sites(spec):
        if site.channels == 1:
            continue  # a rectifier of one or two features may well be off for every example, and nothing is wrong
        for learner, build in LEARNERS.items():
            with _seeded(0):
                block = factory(site).train()
                waiting = {name: p for name, p in block.named_parameters() if p.requires_grad}
                if not waiting:
                    continue
                optimizer = build(list(waiting.values()))
                for _ in range(2):
                    _learn(block, site, optimizer)
                    waiting = {name: p for name, p in waiting.items() if p.grad is None or not p.grad.any()}
            _expect(not waiting, site, f"gives no gradient within two steps of {learner} to {', '.join(waiting)}")


def same_seed_same_weights(factory: Factory, spec: BlueprintSpec) -> None:
    """The same seed of torch builds the same block, whatever other generators say."""
    for site in _sites(spec):
        first, second = (_state(factory, site, elsewhere) for elsewhere in (1, 2))
        _expect(first.keys() == second.keys(), site, f"names its parts {list(first)}, then {list(second)}")
        others = [name for name in first if not torch.equal(first[name], second[name])]
        _expect(not others, site, f"is built differently under the same seed of torch: {', '.join(others)}")


def finite_outputs(factory: Factory, spec: BlueprintSpec) -> None:
    """Outputs are finite where all inputs are zero, tiny or large."""
    for site in _sites(spec):
        with _seeded(0):
            block = factory(site)
            for scale in (0.0, 1e-30, 1.0, 1e4):
                for training in (True, False):
                    outputs = block.train(training)(scale * _examples(site))
                    bad = int((~outputs.isfinite()).sum())
                    _expect(bad == 0, site, f"puts out {bad} numbers that are not finite for inputs of size {scale:g}")


def _sites(spec: BlueprintSpec) -> Iterator[Site]:
    if strange := set(spec.kinds) - set(SHAPES):
        msg = f"a blueprint accepts {', '.join(SHAPES)}. Received: {', '.join(sorted(strange))}"
        raise AssertionError(msg)
    for kind, shapes in SHAPES.items():
        if kind in spec.kinds:
            yield from (Site.of(kind, shape) for shape in shapes)


def _expect(kept: bool, site: Site, broken: str) -> None:
    if not kept:
        shape = tuple(site.example_shape)
        msg = f"{site.kind} {shape}: {broken}"
        raise AssertionError(msg)


@contextmanager
def _seeded(seed: int, elsewhere: int = 0) -> Iterator[None]:
    """A block with torch's generator seeded, and with ``elsewhere`` those of numpy and Python, which a blueprint must
    not use. Afterwards all three are what they were."""
    of_numpy, of_python = np.random.get_state(), random.getstate()
    np.random.seed(elsewhere)
    random.seed(elsewhere)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            yield
    finally:
        np.random.set_state(of_numpy)
        random.setstate(of_python)


def _state(factory: Factory, site: Site, elsewhere: int) -> dict[str, Tensor]:
    with _seeded(0, elsewhere):
        return {name: value.clone() for name, value in factory(site).state_dict().items()}


def _examples(site: Site) -> Tensor:
    return torch.randn(TRAINING_BATCH, *site.example_shape)


def _learn(block: nn.Module, site: Site, optimizer: torch.optim.Optimizer) -> None:
    inputs, targets = _examples(site), _examples(site)
    optimizer.zero_grad()
    (block(inputs) - targets).square().mean().backward()
    optimizer.step()


def _description(values: Tensor) -> str:
    return f"{tuple(values.shape)} {values.dtype} on {values.device}"


def _difference(outputs: Tensor, inputs: Tensor) -> str:
    if outputs.shape != inputs.shape:
        return f"{tuple(inputs.shape)} becomes {tuple(outputs.shape)}"
    return f"off by up to {float((outputs - inputs).abs().max()):g}"
