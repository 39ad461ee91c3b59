"""Checks of hosts: accepted data, outputs, gradients, state, and grafting.

Each check takes the host's factory, its spec and a kind of data, and tries every shape of ``GRID`` that the host
accepts. A kind of which it refuses every shape is skipped; ``accepts_some_data`` demands that one is left.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor, nn

from esper_core import HostSpec, graft
from esper_core.leyline import ConfigError, DataShape, GraftError, SiteKind
from esper_core.leyline.specs import SITE_KINDS
from esper_testing.checks import NotApplicable
from esper_testing.sites import BATCH, evaluated, largest_difference, seeded
from esper_testing.states import generator_states, through_safetensors

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
"""Shapes of one example: usual, odd and smallest ones. Tokens carry their width last."""

SLOT_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,49}")


def is_well_declared(spec: HostSpec) -> None:
    """Summary and slots are valid."""
    problems = ["a summary is one line"] if "\n" in spec.summary else []
    for name, place in spec.slots.items():
        if not SLOT_NAME.fullmatch(name):
            problems.append(f"a slot's name has letters, digits, - and _, a letter first. Received: {name}")
        if place.kind is not None and place.kind not in SITE_KINDS:
            problems.append(f'kind of slot "{name}" must be one of {", ".join(SITE_KINDS)}. Received: {place.kind}')
        if place.stack < 1:
            problems.append(f'stack of slot "{name}" must be at least 1. Received: {place.stack}')
    if problems:
        raise AssertionError("; ".join(problems))


def accepts_some_data(make: Make) -> None:
    """The host can be built for data of some usual shape."""
    if any(_host(make, shape) is not None for kind in GRID for shape in _shapes(kind)):
        return
    refusals = [_refusal(make, shape) for kind in GRID for shape in _shapes(kind)[:1]]
    msg = (
        f"accepts none of the shapes that are tried: {'; '.join(map(str, GRID.values()))}. "
        f"It reports: {'; '.join(dict.fromkeys(refusals))}. Pass settings with which it accepts one of them"
    )
    raise AssertionError(msg)


def builds_or_says_why_not(make: Make, spec: HostSpec, kind: SiteKind) -> None:
    """For each shape the factory builds a module that accepts a batch, or raises ConfigError and nothing else."""
    for shape in _shapes(kind):
        try:
            with seeded(0):
                host = make(shape)
        except ConfigError:
            continue
        except Exception as error:
            msg = f"{_words(shape)}: raised {type(error).__name__}: {error}; expected a ConfigError"
            raise AssertionError(msg) from error
        _expect(isinstance(host, nn.Module), shape, f"builds a {type(host).__name__}, not a torch.nn.Module")
        try:
            with seeded(1):
                evaluated(host, _examples(shape))
        except Exception as error:
            msg = f"{_words(shape)}: is built, but raised {type(error).__name__} at its first batch: {error}"
            raise AssertionError(msg) from error


def outputs_fit(make: Make, spec: HostSpec, kind: SiteKind) -> None:
    """Outputs are finite float32 of shape (batch, outputs), in training and evaluation mode."""
    for shape, host in _accepted(make, kind):
        for training in (True, False):
            with seeded(1), torch.no_grad():
                outputs = host.train(training)(_examples(shape))
            _expect(isinstance(outputs, Tensor), shape, f"returns a {type(outputs).__name__}, not a tensor")
            found, wanted = tuple(outputs.shape), (BATCH, shape.outputs)
            _expect(found == wanted, shape, f"returns the shape {found}, not {wanted}")
            _expect(outputs.dtype is torch.float32, shape, f"returns {outputs.dtype}, not torch.float32")
            _expect(bool(outputs.isfinite().all()), shape, "returns values that are not finite")


def takes_one_example(make: Make, spec: HostSpec, kind: SiteKind) -> None:
    """A batch of one example works in evaluation mode."""
    for shape, host in _accepted(make, kind):
        with seeded(1):
            inputs = _examples(shape, 1)
        try:
            rows = len(evaluated(host, inputs))
        except Exception as error:
            msg = f"{_words(shape)}: raised {type(error).__name__} for a batch of one example: {error}"
            raise AssertionError(msg) from error
        _expect(rows == 1, shape, f"returns {rows} rows for one example")


def same_seed_same_weights(make: Make, spec: HostSpec, kind: SiteKind) -> None:
    """The same random seed builds the same host."""
    for shape, host in _accepted(make, kind):
        first, second = host.state_dict(), _built(make, shape).state_dict()
        _expect(list(first) == list(second), shape, f"has the state {list(first)}, then {list(second)}")
        others = _differing(first, second)
        _expect(not others, shape, f"is built differently with the same random seed: {', '.join(others)}")


def leaves_generators_alone(make: Make, spec: HostSpec, kind: SiteKind) -> None:
    """Construction and forward pass do not use Python's or numpy's global generator, and do not seed torch's."""
    for shape, _ in _accepted(make, kind):
        ends = []
        for seed in (1, 2):
            with seeded(seed):
                before = generator_states()
                host = make(shape)
                host.train()(torch.zeros(BATCH, *shape.example))
                moved = [name for name, state in generator_states().items() if state != before[name]]
                _expect(not moved, shape, f"uses {' and '.join(moved)}; use torch's default generator")
                ends.append(torch.get_rng_state())
        _expect(not torch.equal(*ends), shape, "seeds torch's default generator itself")


def every_parameter_gets_a_gradient(make: Make, spec: HostSpec, kind: SiteKind) -> None:
    """There are trainable parameters, and each gets a gradient within two steps."""
    for shape, host in _accepted(make, kind):
        free = {name: parameter for name, parameter in host.named_parameters() if parameter.requires_grad}
        _expect(bool(free), shape, "has no trainable parameter")
        alive: set[str] = set()
        for step in range(2):
            _step(host, shape, seed=step)
            alive |= {name for name, one in free.items() if one.grad is not None and bool(one.grad.any())}
        dead = [name for name in free if name not in alive]
        _expect(not dead, shape, f"has parameters without a gradient after two steps: {', '.join(dead)}")


def evaluates_repeatably(make: Make, spec: HostSpec, kind: SiteKind) -> None:
    """Evaluation is repeatable, uses no random numbers and changes no state; then training works again."""
    for shape, host in _accepted(make, kind):
        _step(host, shape, seed=1)
        with seeded(2):
            inputs = _examples(shape)
            before, drawn = _state(host), torch.get_rng_state()
            first, second = evaluated(host, inputs), evaluated(host, inputs)
            _expect(torch.equal(first, second), shape, f"evaluates differently: {largest_difference(first, second)}")
            _expect(torch.equal(drawn, torch.get_rng_state()), shape, "draws random numbers in evaluation")
        changed = _differing(before, host.state_dict())
        _expect(not changed, shape, f"changes in evaluation: {', '.join(changed)}")
        _step(host, shape, seed=3)


def slots_fire_where_its_spec_says(make: Make, spec: HostSpec, kind: SiteKind) -> None:
    """The module of each slot runs once per forward pass, and its outputs are of the kind that the spec declares."""
    _demand_slots(spec)
    for shape, host in _accepted(make, kind):
        with seeded(1):
            example = _examples(shape)
        try:
            graft(host, spec.slots, example=example)
        except GraftError as error:
            said = "; ".join(_one_line(problem.message) for problem in error.problems)
            msg = f"{_words(shape)}: cannot be grafted at the slots of its spec: {said}"
            raise AssertionError(msg) from error


def grafting_changes_no_number(make: Make, spec: HostSpec, kind: SiteKind) -> None:
    """Empty slots change no outputs, gradients or buffers at all."""
    _demand_slots(spec)
    for shape, host in _accepted(make, kind):
        plain, grafted = host, _built(make, shape)
        try:
            graft(grafted, spec.slots)
        except GraftError:
            continue  # reported by slots_fire_where_its_spec_says
        wanted, found = _traces(plain, shape), _traces(grafted, shape)
        changed = [name for name in wanted if name not in found or not _same(wanted[name], found[name])]
        _expect(not changed, shape, f"changes when it is grafted: {', '.join(changed)}")


def survives_a_round_trip(make: Make, spec: HostSpec, kind: SiteKind) -> None:
    """The state dict is complete: written as safetensors and loaded, it restores the same host."""
    for shape, host in _accepted(make, kind):
        _step(host, shape, seed=1)
        state = host.state_dict()
        others = [name for name, value in state.items() if not isinstance(value, Tensor)]
        _expect(not others, shape, f"has values in its state dict that are not tensors: {', '.join(others)}")
        other = _built(make, shape, seed=5)
        other.load_state_dict(through_safetensors(state))
        with seeded(2):
            inputs = _examples(shape)
        wanted, found = evaluated(host, inputs), evaluated(other, inputs)
        _expect(torch.equal(wanted, found), shape, f"differs after save and load: {largest_difference(found, wanted)}")


def deepcopy_is_independent(make: Make, spec: HostSpec, kind: SiteKind) -> None:
    """A deep copy computes the same outputs, and training it does not change the original."""
    for shape, host in _accepted(make, kind):
        with seeded(2):
            inputs = _examples(shape)
        before, twin = evaluated(host, inputs), copy.deepcopy(host)
        _expect(torch.equal(evaluated(twin, inputs), before), shape, "differs once it is copied")
        _step(twin, shape, seed=1)
        _expect(torch.equal(evaluated(host, inputs), before), shape, "changes when its deep copy is trained")


def starts_afresh_each_time(make: Make, spec: HostSpec, kind: SiteKind) -> None:
    """A host that is built after another was trained shares nothing with it."""
    for shape, host in _accepted(make, kind):
        before = _state(host)
        _step(host, shape, seed=1)
        later = _built(make, shape)
        owned = {value.data_ptr() for value in _tensors(host).values() if value.numel()}
        shared = [name for name, value in _tensors(later).items() if value.data_ptr() in owned]
        _expect(not shared, shape, f"shares with a host that was built earlier: {', '.join(shared)}")
        others = _differing(before, later.state_dict())
        _expect(not others, shape, f"is built differently after another was trained: {', '.join(others)}")


CHECKS: Final[tuple[Callable[[Make, HostSpec, SiteKind], None], ...]] = (
    builds_or_says_why_not,
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


def _shapes(kind: SiteKind) -> list[DataShape]:
    return [DataShape(kind, example, OUTPUTS) for example in GRID[kind]]


def _accepted(make: Make, kind: SiteKind) -> list[tuple[DataShape, nn.Module]]:
    """Return each shape of this kind that the host accepts, with the host. Raises NotApplicable if there is none."""
    found = [(shape, host) for shape in _shapes(kind) if (host := _host(make, shape)) is not None]
    if not found:
        reason = f"it does not accept {kind} data: {_refusal(make, _shapes(kind)[0])}"
        raise NotApplicable(reason)
    return found


def _host(make: Make, shape: DataShape) -> nn.Module | None:
    """Return the host for this shape; None if it cannot be built or run, which ``builds_or_says_why_not`` reports."""
    try:
        host: nn.Module = _built(make, shape)
        with seeded(1):
            evaluated(_built(make, shape), _examples(shape))
    except Exception:
        return None
    return host


def _refusal(make: Make, shape: DataShape) -> str:
    """Return why the host refuses a shape."""
    try:
        with seeded(1):
            evaluated(_built(make, shape), _examples(shape))
    except ConfigError as error:
        return _one_line("; ".join(problem.message for problem in error.problems))
    except Exception as error:
        return f"{type(error).__name__}: {_one_line(str(error))}"
    return f"{_words(shape)} is accepted"


def _built(make: Make, shape: DataShape, seed: int = 0) -> Any:
    """Return a host that is built with a random seed, as the core does."""
    with seeded(seed):
        return make(shape)


def _examples(shape: DataShape, count: int = BATCH) -> Tensor:
    return torch.randn(count, *shape.example)


def _step(host: nn.Module, shape: DataShape, seed: int) -> None:
    """One step on random inputs towards random outputs; gradients are left where they are."""
    with seeded(10 + seed):
        host.train().zero_grad()
        (host(_examples(shape)) - torch.randn(BATCH, shape.outputs)).square().mean().backward()
    with torch.no_grad():
        for parameter in host.parameters():
            if parameter.grad is not None:
                parameter.sub_(0.05 * parameter.grad)


def _traces(host: nn.Module, shape: DataShape) -> dict[str, Tensor | None]:
    """Return outputs in both modes, gradients, and the state after a training step."""
    with seeded(4):
        trained = host.train()(_examples(shape))
    _step(host, shape, seed=4)
    with seeded(4):
        outputs = evaluated(host, _examples(shape))
    gradients = {f"gradient of {name}": one.grad for name, one in host.named_parameters()}
    return {"outputs in training": trained, "outputs in evaluation": outputs, **gradients, **_state(host)}


def _state(host: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in _tensors(host).items()}


def _tensors(host: nn.Module) -> dict[str, Tensor]:
    return {name: value for name, value in host.state_dict().items() if isinstance(value, Tensor)}


def _differing(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Return the names of tensors that are not exactly equal."""
    return [name for name, value in one.items() if isinstance(value, Tensor) and not _same(value, other.get(name))]


def _same(one: Tensor | None, other: Any) -> bool:
    if one is None or other is None:
        return one is other
    return one.shape == other.shape and torch.equal(one, other)


def _demand_slots(spec: HostSpec) -> None:
    if not spec.slots:
        reason = "its spec has no slots"
        raise NotApplicable(reason)


def _expect(kept: bool, shape: DataShape, broken: str) -> None:
    if not kept:
        msg = f"{_words(shape)}: {broken}"
        raise AssertionError(msg)


def _words(shape: DataShape) -> str:
    return f"{shape.kind} {shape.example}"


def _one_line(text: str) -> str:
    return " ".join(text.split())[:200]
