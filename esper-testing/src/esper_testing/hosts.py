"""Checks of hosts: accepted data, outputs, gradients, state, and grafting.

Each check takes the host's factory, its spec and a kind of data, and tries every shape of ``GRID`` that the host
accepts. If the host refuses every shape of a kind, only ``builds_or_says_why_not`` applies to that kind;
``accepts_some_data`` fails if the host refuses every kind.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor, nn

from esper_core import HostSpec, graft
from esper_core.leyline import ConfigError, DataShape, GraftError, SiteKind
from esper_core.leyline.errors import one_line
from esper_core.leyline.specs import SITE_KINDS
from esper_testing.checks import applies_if, demand, demand_no_error
from esper_testing.sites import (
    BATCH,
    built,
    differing,
    evaluated,
    examples,
    expect,
    expect_equal,
    expect_independent_copy,
    expect_round_trip,
    expect_same_weights,
    expect_torch_generator,
    seeded,
    words,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

Make = Callable[[DataShape], Any]

OUTPUTS: Final = 3
GRID: Final[Mapping[SiteKind, tuple[tuple[int, ...], ...]]] = {
    "image": ((1, 8, 8), (1, 28, 28), (3, 32, 32), (2, 9, 7), (1, 1, 1)),
    "sequence": ((1, 16), (1, 40), (3, 64), (2, 9), (1, 1)),
    "vector": ((8,), (64,), (3,), (1,)),
    "tokens": ((6, 16), (16, 64), (5, 3), (1, 1)),
}
"""Shapes of one example: usual, odd and smallest ones. The width of tokens is their last dimension."""

SLOT_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,49}")


def is_well_declared(spec: HostSpec) -> None:
    """Check that summary and slots are valid."""
    problems = ["a summary is one line"] if "\n" in spec.summary else []
    for name, place in spec.slots.items():
        if not SLOT_NAME.fullmatch(name):
            problems.append(f"a slot's name has letters, digits, - and _, a letter first. Received: {name}")
        if place.kind is not None and place.kind not in SITE_KINDS:
            problems.append(f'kind of slot "{name}" must be one of {", ".join(SITE_KINDS)}. Received: {place.kind}')
        if place.stack < 1:
            problems.append(f'stack of slot "{name}" must be at least 1. Received: {place.stack}')
    demand(not problems, "; ".join(problems))


def accepts_some_data(make: Make) -> None:
    """Check that the host can be built for data of some usual shape."""
    refusals = []
    for kind in GRID:
        attempts = [_attempt(make, shape) for shape in _shapes(kind)]
        if not all(isinstance(attempt, str) for attempt in attempts):
            return
        refusals.append(str(attempts[0]))
    msg = (
        f"accepts none of the shapes that are tried: {'; '.join(map(str, GRID.values()))}. "
        f"It reports: {'; '.join(dict.fromkeys(refusals))}. Pass settings with which it accepts one of them"
    )
    raise AssertionError(msg)


def accepts(make: Make, kind: SiteKind) -> bool:
    """Return whether the host can be built and run for some shape of this kind."""
    return any(not isinstance(_attempt(make, shape), str) for shape in _shapes(kind))


def builds_or_says_why_not(make: Make, spec: HostSpec, kind: SiteKind) -> None:
    """Check that the factory, for each shape, builds a module that accepts a batch, or raises ConfigError."""
    for shape in _shapes(kind):
        with demand_no_error(f"for {words(shape)}; expected a ConfigError"):
            try:
                host = built(make, shape)
            except ConfigError:
                continue
        expect(isinstance(host, nn.Module), shape, f"builds a {type(host).__name__}, not a torch.nn.Module")
        with demand_no_error(f"at the first batch of {words(shape)}"), seeded(1):
            evaluated(host, examples(shape))


def outputs_fit(make: Make, spec: HostSpec, kind: SiteKind) -> None:
    """Check that outputs are finite float32 of shape (batch, outputs), in training and evaluation mode."""
    for shape, host in _accepted(make, kind):
        for training in (True, False):
            with seeded(1), torch.no_grad():
                outputs = host.train(training)(examples(shape))
            expect(isinstance(outputs, Tensor), shape, f"returns a {type(outputs).__name__}, not a tensor")
            returned, expected = tuple(outputs.shape), (BATCH, shape.outputs)
            expect(returned == expected, shape, f"returns the shape {returned}, not {expected}")
            expect(outputs.dtype is torch.float32, shape, f"returns {outputs.dtype}, not torch.float32")
            expect(bool(outputs.isfinite().all()), shape, "returns values that are not finite")


def takes_one_example(make: Make, spec: HostSpec, kind: SiteKind) -> None:
    """Check that a batch of one example works in evaluation mode."""
    for shape, host in _accepted(make, kind):
        with demand_no_error(f"for a batch of one example of {words(shape)}"), seeded(1):
            rows = len(evaluated(host, examples(shape, 1)))
        expect(rows == 1, shape, f"returns {rows} rows for one example")


def same_seed_same_weights(make: Make, spec: HostSpec, kind: SiteKind) -> None:
    """Check that the same RNG seed builds the same host."""
    for shape, _ in _accepted(make, kind):
        expect_same_weights(make, shape)


def leaves_generators_alone(make: Make, spec: HostSpec, kind: SiteKind) -> None:
    """Check that building and running a host leaves the global generators of Python, numpy and torch alone."""
    for shape, _ in _accepted(make, kind):
        inputs = torch.zeros(BATCH, *shape.example)
        expect_torch_generator(shape, lambda shape=shape, inputs=inputs: make(shape).train()(inputs))  # type: ignore[misc]


def every_parameter_gets_a_gradient(make: Make, spec: HostSpec, kind: SiteKind) -> None:
    """Check that there are trainable parameters, and that each gets a gradient within two steps."""
    for shape, host in _accepted(make, kind):
        free = {name: parameter for name, parameter in host.named_parameters() if parameter.requires_grad}
        expect(bool(free), shape, "has no trainable parameter")
        alive: set[str] = set()
        for step in range(2):
            _step(host, shape, seed=step)
            alive |= {
                name for name, parameter in free.items() if parameter.grad is not None and bool(parameter.grad.any())
            }
        dead = [name for name in free if name not in alive]
        expect(not dead, shape, f"has parameters without a gradient after two steps: {', '.join(dead)}")


def evaluates_repeatably(make: Make, spec: HostSpec, kind: SiteKind) -> None:
    """Check that evaluation is repeatable, deterministic and stateless, and that training works after it."""
    for shape, host in _accepted(make, kind):
        _step(host, shape, seed=1)
        with seeded(2):
            inputs = examples(shape)
            before, drawn = _state(host), torch.get_rng_state()
            first, second = evaluated(host, inputs), evaluated(host, inputs)
            expect_equal(first, second, shape, "evaluates differently")
            expect(torch.equal(drawn, torch.get_rng_state()), shape, "draws random numbers in evaluation")
        changed = differing(before, host.state_dict())
        expect(not changed, shape, f"changes in evaluation: {', '.join(changed)}")
        _step(host, shape, seed=3)


def _has_slots(make: Make, spec: HostSpec, kind: SiteKind) -> bool:
    return bool(spec.slots)


@applies_if(_has_slots)
def slots_fire_where_its_spec_says(make: Make, spec: HostSpec, kind: SiteKind) -> None:
    """Check that each slot's module runs once per forward pass and outputs what the spec declares."""
    for shape, host in _accepted(make, kind):
        with seeded(1):
            example = examples(shape)
        try:
            graft(host, spec.slots, example=example)
        except GraftError as error:
            problems = "; ".join(one_line(problem.message) for problem in error.problems)
            expect(False, shape, f"cannot be grafted at the slots of its spec: {problems}")


@applies_if(_has_slots)
def grafting_changes_no_number(make: Make, spec: HostSpec, kind: SiteKind) -> None:
    """Check that empty slots change no outputs, gradients or buffers at all."""
    for shape, host in _accepted(make, kind):
        plain, grafted = host, built(make, shape)
        try:
            graft(grafted, spec.slots)
        except GraftError:
            continue  # reported by slots_fire_where_its_spec_says
        changed = differing(_traces(plain, shape), _traces(grafted, shape))
        expect(not changed, shape, f"changes when it is grafted: {', '.join(changed)}")


def survives_a_round_trip(make: Make, spec: HostSpec, kind: SiteKind) -> None:
    """Check that the state dict is complete: saved as safetensors and loaded, it restores the same host."""
    for shape, host in _accepted(make, kind):
        _step(host, shape, seed=1)
        with seeded(2):
            inputs = examples(shape)
        expect_round_trip(host, built(make, shape, seed=5), inputs, shape)


def deepcopy_is_independent(make: Make, spec: HostSpec, kind: SiteKind) -> None:
    """Check that a deep copy computes the same outputs, and that training it does not change the original."""
    for shape, host in _accepted(make, kind):
        with seeded(2):
            inputs = examples(shape)
        expect_independent_copy(host, inputs, shape, partial(_step, shape=shape, seed=1))


def starts_afresh_each_time(make: Make, spec: HostSpec, kind: SiteKind) -> None:
    """Check that a host shares nothing with one that was built and trained before it."""
    for shape, host in _accepted(make, kind):
        before = _state(host)
        _step(host, shape, seed=1)
        later = built(make, shape)
        owned = {value.data_ptr() for value in _tensors(host).values() if value.numel()}
        shared = [name for name, value in _tensors(later).items() if value.data_ptr() in owned]
        expect(not shared, shape, f"shares with a host that was built earlier: {', '.join(shared)}")
        changed = differing(before, later.state_dict())
        expect(not changed, shape, f"is built differently after another was trained: {', '.join(changed)}")


CHECKS: Final = (
    outputs_fit,
    takes_one_example,
    same_seed_same_weights,
    leaves_generators_alone,
    every_parameter_gets_a_gradient,
    evaluates_repeatably,
    slots_fire_where_its_spec_says,
    grafting_changes_no_number,
    survives_a_round_trip,
    deepcopy_is_independent,
    starts_afresh_each_time,
)
"""The checks of a kind of data that the host accepts."""


def _shapes(kind: SiteKind) -> list[DataShape]:
    return [DataShape(kind, example, OUTPUTS) for example in GRID[kind]]


def _accepted(make: Make, kind: SiteKind) -> list[tuple[DataShape, nn.Module]]:
    """Return each shape of this kind that the host accepts, with the host."""
    attempts = {shape: _attempt(make, shape) for shape in _shapes(kind)}
    return [(shape, host) for shape, host in attempts.items() if not isinstance(host, str)]


def _attempt(make: Make, shape: DataShape) -> nn.Module | str:
    """Return the host for this shape, or why it cannot be built or run; ``builds_or_says_why_not`` reports errors."""
    try:
        host: nn.Module = built(make, shape)
        with seeded(1):
            evaluated(built(make, shape), examples(shape))
    except ConfigError as error:
        return one_line("; ".join(problem.message for problem in error.problems))
    except Exception as error:
        return one_line(f"{type(error).__name__}: {error}")
    return host


def _step(host: nn.Module, shape: DataShape, seed: int) -> None:
    """Train one step on random inputs and targets; keep the gradients."""
    with seeded(10 + seed):
        host.train().zero_grad()
        (host(examples(shape)) - torch.randn(BATCH, shape.outputs)).square().mean().backward()
    with torch.no_grad():
        for parameter in host.parameters():
            if parameter.grad is not None:
                parameter.sub_(0.05 * parameter.grad)


def _traces(host: nn.Module, shape: DataShape) -> dict[str, Tensor]:
    """Return outputs in both modes, gradients, and the state after a training step."""
    with seeded(4):
        trained = host.train()(examples(shape))
    _step(host, shape, seed=4)
    with seeded(4):
        outputs = evaluated(host, examples(shape))
    missing = torch.empty(0)
    gradients = {
        f"gradient of {name}": missing if parameter.grad is None else parameter.grad
        for name, parameter in host.named_parameters()
    }
    return {"outputs in training": trained, "outputs in evaluation": outputs, **gradients, **_state(host)}


def _state(host: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in _tensors(host).items()}


def _tensors(host: nn.Module) -> dict[str, Tensor]:
    return {name: value for name, value in host.state_dict().items() if isinstance(value, Tensor)}
