"""Dry runs: run a model without leaving a trace, and observe what its modules return.

``observe_places`` runs a model once in training and once in evaluation and reports what is at each given module.
Buffers, modes, gradients and random numbers are afterwards what they were.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch
from torch import Tensor, nn

from esper_core.growth.examples import OutputPart, items_of
from esper_core.growth.random_streams import RandomStream
from esper_core.leyline.errors import GraftError, Problem
from esper_core.leyline.specs import Site, SlotPlace
from esper_core.plugins.process_state import Guard, Scope

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from esper_core.growth.examples import Example
    from esper_core.leyline.specs import SiteKind

HOME: Final = "_esper"
"""Name of the child that a graft adds to a module: its slot."""

_FEATURES_LAST: Final = (nn.Linear, nn.Embedding, nn.LayerNorm, nn.RMSNorm, nn.RNNBase, nn.MultiheadAttention)
DIMENSIONS: Final = {"vector": 2, "sequence": 3, "tokens": 3, "image": 4}
"""Dimensions of a batch by the kind of its site."""

_FIXED_BUFFERS: Final = ("torch.nn.", "esper_core.")
"""Packages whose modules have all of their buffers from the beginning."""


class KeptBuffers:
    """The buffers of a model as they were when this was made, without those of the modules in ``without``.

    Some layers fill a buffer, some replace it by another tensor, and some have none until the first pass; ``put_back``
    undoes each of these, and so does the end of a ``with`` block.
    """

    def __init__(self, model: nn.Module, *, without: Iterable[nn.Module] = ()) -> None:
        left_out = {id(module) for part in without for module in part.modules()}
        modules = [module for module in model.modules() if id(module) not in left_out]
        self._kept = [
            (module, name, buffer, buffer.detach().clone() if is_plain(buffer) else None)
            for module in modules
            for name, buffer in module.named_buffers(recurse=False)
        ]
        self._attributes = [
            (module, frozenset(dir(module)))
            for module in modules
            if not type(module).__module__.startswith(_FIXED_BUFFERS)
        ]

    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: object) -> None:
        self.put_back()

    def put_back(self) -> None:
        """Restore every buffer: the object and its value."""
        with torch.no_grad():
            for module, name, buffer, value in self._kept:
                if value is not None:
                    buffer.copy_(value)
                if getattr(module, name) is not buffer:
                    setattr(module, name, buffer)
        kept = {(id(module), name) for module, name, _, _ in self._kept}
        for module, attributes in self._attributes:
            for name in [name for name, _ in module.named_buffers(recurse=False) if (id(module), name) not in kept]:
                if name in attributes:
                    setattr(module, name, None)  # it was registered without a value
                else:
                    delattr(module, name)


def home_of(at: str) -> str:
    """Return the name of the slot behind the module of this name.

    >>> home_of("layer.0"), home_of("")
    ('layer.0._esper', '_esper')
    """
    return f"{at}.{HOME}" if at else HOME


def is_grown(key: str) -> bool:
    """Return whether a module, a parameter or a key of a state dict is part of a slot.

    >>> is_grown("layer.0._esper.seeds.0.block.weight"), is_grown("layer.0.weight")
    (True, False)
    """
    return HOME in key.split(".")


def host_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return a model's own parameters by name, without those of seeds."""
    return {name: parameter for name, parameter in model.named_parameters() if not is_grown(name)}


def split_state(state: Mapping[str, Any], prefix: str = "") -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the items of a state dict that are the host's, and those of what grew, below ``prefix``."""
    grown = {key: value for key, value in state.items() if key.startswith(prefix) and is_grown(key)}
    return {key: value for key, value in state.items() if key not in grown}, grown


@contextmanager
def untouched(model: nn.Module) -> Iterator[None]:
    """Run the ``with`` block without gradients; restore buffers, random generators and torch's settings after it."""
    # Else a model that draws from Python's generator would differ from itself from pass to pass.
    guard = Guard("", Scope.PROCESS, report=lambda _: None)
    with torch.no_grad(), RandomStream(0, device_of(model)), guard, KeptBuffers(model):
        yield


@contextmanager
def in_mode(model: nn.Module, *, training: bool) -> Iterator[None]:
    """Set the whole model to training or evaluation mode for the ``with`` block; restore each module's mode."""
    before = [(module, module.training) for module in model.modules()]
    model.train(training)
    try:
        yield
    finally:
        model.train(before[0][1])  # for layers in which it does more, such as LoRA that is merged in evaluation
        for module, mode in before:
            # ``train`` has set all modules alike, and a model may override it.
            module.training = mode


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Run the ``with`` block in evaluation mode; restore each module's mode, and the buffers, after it."""
    with KeptBuffers(model), in_mode(model, training=False):
        yield


def device_of(model: nn.Module) -> torch.device:
    """Return the device of the model's first parameter or buffer; the CPU if it has none."""
    tensor = next(chain(model.parameters(), model.buffers()), None)
    return torch.device("cpu") if tensor is None else tensor.device


PLAIN: Final = (Tensor, nn.Parameter)
"""Torch's own classes of tensors. Others, such as quantised ones, may have no bits to read, and no clone."""


def is_plain(tensor: Tensor) -> bool:
    """Return whether the bits of a tensor can be read and copied: it is of torch's own classes, and dense."""
    return type(tensor) in PLAIN and tensor.layout is torch.strided


_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}
"""The dtype as which values of so many bytes are summed up; larger ones as int64."""


def checksum_of(tensor: Tensor) -> Tensor:
    """Return the sum of its bits read as integers: the same on every device, and other after any single change."""
    flat = tensor.contiguous().reshape(-1)
    # Integers wrap around, so their sum is the same in any order; that of floats depends on the device.
    return flat.view(_BITS.get(flat.element_size(), torch.int64)).sum(dtype=torch.int64)


@contextmanager
def refuse_changes(model: nn.Module) -> Iterator[None]:
    """Raise GraftError (E318) if the ``with`` block changes a parameter, as a pass of some codebooks does."""

    def seen() -> dict[str, float]:
        return {
            name: checksum_of(tensor.detach()).item() for name, tensor in model.named_parameters() if is_plain(tensor)
        }

    before = seen()
    yield
    after = seen()
    if changed := [name for name, bits in before.items() if after.get(name, bits) != bits]:
        hint = "Passes of seeds and of validation would, too: register it as a buffer, or change it in the loop."
        raise GraftError(Problem("E318", f'a pass of the model changes its parameter "{changed[0]}"', hint=hint))


def dtype_of(model: nn.Module) -> torch.dtype:
    """Return the dtype of the model's first floating-point parameter, or torch's default."""
    kinds = (parameter.dtype for parameter in model.parameters() if parameter.is_floating_point())
    return next(kinds, torch.get_default_dtype())


@dataclass(frozen=True, slots=True)
class Observed:
    """What is at a place: the site, the dtype there, and the part of the module's output that it is."""

    site: Site
    dtype: torch.dtype
    part: OutputPart | None


def observe_places(model: nn.Module, places: Mapping[str, SlotPlace], example: Example) -> list[Observed]:
    """Run ``model`` on one batch in both modes and return what is at each of ``places``, by slot name.

    Raises:
        GraftError: a module is not called exactly once in each mode, or returns no batch of numbers that could be
            told from the rest of its output, or another shape in one mode than in the other.
    """
    problems: dict[str, Problem] = {}
    observed: dict[str, Observed] = {}
    for training in (True, False):
        calls = _calls_at(model, places, example, training=training)
        for name, place in places.items():
            outcome = _observed(model, name, place, calls[name], training=training, example=example)
            if isinstance(outcome, Problem):
                problems.setdefault(name, outcome)
                continue
            first = observed.setdefault(name, outcome)
            if first.site.inputs != outcome.site.inputs:  # dropout returns what it gets, but not in training
                first, outcome = (
                    replace(observation, site=replace(observation.site, inputs=0)) for observation in (first, outcome)
                )
            if (first.site, first.part) != (outcome.site, outcome.part):
                why = "returns another shape in training than in evaluation"
                problems.setdefault(name, _refusal(name, place, why))
            observed[name] = outcome
    if not problems:
        problems = _batch_elsewhere(model, places, observed, example)
    if problems:
        refused = {place.at: problems[name] for name, place in places.items() if name in problems}
        fitting = [name for name in _fitting_modules(model, example) if name not in refused]
        raise GraftError([_with_nearest(problem, at, model, fitting) for at, problem in refused.items()])
    return [observed[name] for name in places]


def _fitting_modules(model: nn.Module, example: Example) -> list[str]:
    """Return the names of the modules that can have a slot, as far as one pass in evaluation shows."""
    called = {name: SlotPlace(name) for name, module in model.named_modules() if name and not is_grown(name)}
    try:
        calls = _calls_at(model, called, example, training=False)
    except Exception:
        return []  # a hook on every module can break one that calls another by itself
    fits = partial(_observed, model, example=example)
    return [name for name in called if isinstance(fits(name, called[name], calls[name]), Observed)]


def _with_nearest(problem: Problem, at: str, model: nn.Module, fitting: list[str]) -> Problem:
    """Add to the hint the modules beside the one at ``at`` that can have a slot."""
    order = list(dict(model.named_modules()))
    nearest = sorted(fitting, key=lambda name: abs(order.index(name) - order.index(at)))[:3]
    beside = f"Modules near it that can have a slot: {', '.join(nearest)}" if nearest else None
    return replace(problem, hint="\n".join(filter(None, [problem.hint, beside])) or None)


class _Call(NamedTuple):
    """What a module got as its first argument, and what it returned."""

    argument: Any
    output: Any


def _calls_at(
    model: nn.Module, places: Mapping[str, SlotPlace], example: Example, *, training: bool
) -> dict[str, list[_Call]]:
    """Return the calls of the modules in one pass. Others get no hook: some layers run other code if they have one."""
    calls: dict[str, list[_Call]] = {name: [] for name in places}

    def record(name: str, module: nn.Module, args: Any, output: Any) -> None:
        calls[name].append(_Call(args[0] if args else None, output))

    with untouched(model), in_mode(model, training=training), ExitStack() as stack:
        for name, place in places.items():
            # Before other hooks: in a grafted model the slot's own is there already, and would show its seeds.
            handle = model.get_submodule(place.at).register_forward_hook(partial(record, name), prepend=True)
            stack.callback(handle.remove)
        batch = example.copy()
        example.run(model, batch)
    if not example.equals(batch):
        raise GraftError(Problem("E318", "the model modifies its input", hint="Copy it first: x = x.clone()"))
    return calls


def _batch_elsewhere(
    model: nn.Module, places: Mapping[str, SlotPlace], observed: Mapping[str, Observed], example: Example
) -> dict[str, Problem]:
    """Find places whose first dimension only happened to be as long as the batch, by a pass with one example less."""
    fewer = example.without_last()
    doubtful = {name: place for name, place in places.items() if example.size in observed[name].site.example_shape}
    if not doubtful or not fewer.size:
        return {}
    calls = _calls_at(model, doubtful, fewer, training=False)
    again = {name: _observed(model, name, place, calls[name], example=fewer) for name, place in doubtful.items()}
    return {name: outcome for name, outcome in again.items() if isinstance(outcome, Problem)}


def _observed(
    model: nn.Module, name: str, place: SlotPlace, calls: list[_Call], *, training: bool = False, example: Example
) -> Observed | Problem:
    mode = "training" if training else "evaluation"
    if not calls:
        return _refusal(name, place, f"is not called in {mode}")
    if len(calls) > 1:
        hint = "A seed would act several times; put the slot behind a module that is called once."
        return _refusal(name, place, f"is called {len(calls)} times in one pass", hint)
    argument, output = calls[0]
    part = _part(name, place, output, batch := example.size)
    if isinstance(part, Problem):
        return part
    hidden = output if part is None else part.of(output)
    if hidden.is_nested:
        hint = "A TransformerEncoder packs padded batches in evaluation: build it with enable_nested_tensor=False."
        return _refusal(name, place, "returns a nested tensor, not rows of one length", hint)
    received = f"Received: {_form(hidden)} for a batch of {batch}"
    if not _has_rows(hidden, batch):
        # Counted by losses, the batch may have other than its first tensor has rows.
        if batch != (rows := example.of(example.batch).size) and _has_rows(hidden, rows):
            why = f"returns {rows} rows, as the batch has, and the loss function {batch} losses"
            hint = "It has to return one loss for each example: see E342. If rows are parts, as of graphs: the mean."
            return _refusal(name, place, why, hint)
        why = "does not return one row of numbers per example"
        return _refusal(name, place, why, f"Put the batch first. {received}")
    kind = place.kind or _kind(model, place.at, hidden)
    if kind is None or hidden.ndim != DIMENSIONS[kind]:
        hint = f"Received: shape {tuple(hidden.shape)}"
        if kind is None and hidden.ndim == 4:
            hint += ". An image is (N, C, H, W), and here the features seem to come last"
        return _refusal(name, place, f"does not return a {kind or 'vector, sequence or image'}", hint)
    if kind in ("vector", "tokens"):
        inputs = _features(argument, hidden)
    else:
        inputs = _features(argument, hidden, 1) if is_pointwise(model.get_submodule(place.at)) else 0
    return Observed(Site.of(kind, tuple(hidden.shape[1:]), inputs), hidden.dtype, part)


def is_pointwise(layer: nn.Module) -> bool:
    """Return whether a layer is a 1×1 convolution: a linear map of the features at each position.

    >>> [is_pointwise(layer) for layer in (nn.Conv2d(4, 8, 1), nn.Conv2d(4, 8, 3), nn.Conv2d(4, 8, 1, padding=1))]
    [True, False, False]
    """
    layer = getattr(layer, "base_layer", layer)  # PEFT's adapters wrap a layer
    if not isinstance(layer, nn.Conv1d | nn.Conv2d) or {layer.groups, *layer.kernel_size, *layer.stride} != {1}:
        return False
    return isinstance(layer.padding, str) or not any(layer.padding)  # of width 1 a named padding is none


def _features(argument: Any, hidden: Tensor, axis: int = -1) -> int:
    """Return the features of what a module got, if it is laid out as its output and not overwritten by it; else 0."""
    if not isinstance(argument, Tensor) or argument.is_nested or not argument.is_floating_point() or not argument.ndim:
        return 0
    overwritten = argument.untyped_storage().data_ptr() == hidden.untyped_storage().data_ptr()
    same = argument.movedim(axis, -1).shape[:-1] == hidden.movedim(axis, -1).shape[:-1]
    return argument.shape[axis] if same and not overwritten else 0


def _part(name: str, place: SlotPlace, output: Any, batch: int) -> OutputPart | Problem | None:
    """Return the item of an output on which the slot acts, a tensor; None for the output itself."""
    if isinstance(output, Tensor):
        if place.output is None:
            return None
        return _refusal(name, place, f"returns one tensor, and no output {place.output!r}", "Omit output.")
    structure = items_of(output)
    if structure is None:
        return _refusal(name, place, f"returns a {type(output).__name__}, not one tensor")
    container, items = structure
    hint = f"It returns {', '.join(f'{key!r}: {_form(value)}' for key, value in items.items()) or 'nothing'}"
    kind, key = type(output).__name__, place.output
    if key is None:
        rows = [output_key for output_key, value in items.items() if _has_rows(value, batch)]
        alike = [output_key for output_key in rows if items[output_key].shape == items[rows[0]].shape]
        if not alike:
            return _refusal(name, place, f"returns a {kind} without a row of numbers per example", hint)
        if len(alike) > 1:
            message, key = f"returns a {kind} with {len(alike)} tensors of one shape", alike[0]
            named = f'Name one:  SlotPlace("{place.at}", output={key!r}), or  output: {key}  below the slot in a file'
            return _refusal(name, place, message, f"{hint}\n{named}")
        key = alike[0]
    elif key not in items and isinstance(key, int) and -len(items) <= key < len(items):
        key = list(items)[key]
    if not isinstance(items.get(key), Tensor):
        return _refusal(name, place, f"returns a {kind} without a tensor {key!r}", hint)
    return OutputPart(container, key)


def _has_rows(output: Any, batch: int) -> bool:
    if not isinstance(output, Tensor) or output.is_nested or not output.is_floating_point():
        return False
    return output.ndim >= 2 and output.shape[0] == batch


def _form(output: Any) -> str:
    if not isinstance(output, Tensor):
        return "None" if output is None else type(output).__name__
    if output.is_nested:
        return "a nested tensor"
    return f"{output.dtype}, shape {tuple(output.shape)}"


def _kind(model: nn.Module, at: str, hidden: Tensor) -> SiteKind | None:
    """Return the layout of a module's output; None for one that no kind has, such as (N, H, W, C).

    Shapes do not tell tokens (N, T, D) from a sequence (N, C, L), nor (N, H, W, C) from an image (N, C, H, W). The last
    layer with parameters does, inside the module or before it: which dimension is as long as its parameters.
    """
    if hidden.ndim not in (3, 4):
        return "vector" if hidden.ndim == 2 else None
    modules = [(name, module) for name, module in model.named_modules() if not is_grown(name)]
    start = next(place for place, (name, _) in enumerate(modules) if name == at)
    end = start + sum(name.startswith(f"{at}.") for name, _ in modules)
    before = (layer for _, layer in reversed(modules[: end + 1]))
    layer = next((layer for layer in before if next(layer.parameters(recurse=False), None) is not None), None)
    sizes = (
        {size for parameter in layer.parameters(recurse=False) for size in parameter.shape}
        if layer is not None
        else set()
    )
    if isinstance(layer, nn.RNNBase):
        sizes |= {layer.hidden_size, 2 * layer.hidden_size}  # one direction, or both
    first_fits, last_fits = hidden.shape[1] in sizes, hidden.shape[-1] in sizes
    features_last = isinstance(layer, _FEATURES_LAST)
    if hidden.ndim == 4:
        return None if features_last and last_fits and not first_fits else "image"
    return "tokens" if last_fits and (features_last or not first_fits) else "sequence"


def _refusal(name: str, place: SlotPlace, why: str, hint: str | None = None) -> Problem:
    return Problem("E317", f'slot "{name}": module "{place.at}" {why}', path=name, hint=hint)
