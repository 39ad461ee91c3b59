"""Counterfactuals: losses of a network with each acting seed left out, one at a time.

A module that finished before the slot whose seed is left out is not run again: it returns a copy of what it returned in
the pass with all seeds (prefix replay). Every number is bit for bit that of a whole pass.

A call can be skipped if it maps tensors to one new tensor, writes to no input and keeps nothing on the module. That is
observed in a traced pass whenever the seeds change, and the first replay is compared with separate passes. Where they
differ, or the model cannot be replayed for another reason, all passes are separate.
"""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor, nn

from esper_core.growth import Host, RandomStream

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from esper_core.growth import Seed

    Place = tuple[Any, Seed]
    """A seed, and its slot."""
    Forward = Callable[..., Any]
    Judge = Callable[[Any, Tensor], Tensor]
    Run = Callable[[Place | None], tuple[Any, bool]]
    """A pass without a seed: its outputs, and whether it drew random numbers."""

STATE: Final = "its buffers change in evaluation"
NOISE: Final = "it draws random numbers in evaluation"
COMPILED: Final = "it is compiled"
UNCALLED: Final = "a slot with a living seed is not called exactly once in a pass"
OTHER_CALLS: Final = "it does not call the same modules in every pass"
OTHER_BITS: Final = "a replayed pass differs from a separate one"


class Counterfactuals:
    """Measures the losses of a grafted model with each of its acting seeds left out, one at a time.

    Args:
        model: the grafted model. Nothing about it is changed.
        run: computes a pass, for example in another precision.
    """

    def __init__(
        self,
        model: nn.Module,
        run: Callable[[nn.Module, Tensor], Any] = lambda model, inputs: model(inputs),
    ) -> None:
        self.model = model
        self.reason: str | None = None
        """Why passes are not replayed, if they are not."""
        self._run = run
        self._key: Any = None
        self._trace: _Trace | None = None

    def measure(self, batches: Iterable[tuple[Any, Any]], judge: Judge) -> dict[int | None, Tensor]:
        """Return losses by the number of the seed that is left out, and under None those of the network as it is.

        ``judge`` computes one row per example from outputs and targets. The result is empty if no seed acts.
        """
        slots = list(Host(self.model).slots)
        acting = [(slot, seed) for slot in slots for seed in slot.nursery if slot.strength_of(seed) > 0.0]
        left_out = [None, *acting]
        grown = [(slot.name, [(seed.number, seed is slot.living) for seed in slot.seeds]) for slot in slots]
        if self._key != grown:
            self._key, self._trace, self.reason = grown, None, None
        rows_of_batches: list[list[Tensor]] = []
        with torch.no_grad():
            for number, (inputs, targets) in enumerate(batches if len(left_out) > 1 else ()):
                run = partial(self._pass, inputs, RandomStream.derive_seed(0, "counterfactuals", number))
                rows_of_batches.append(self._rows(left_out, run, judge, targets))
            by_seed = zip(left_out, zip(*rows_of_batches, strict=True), strict=False)
            return {place[1].number if place else None: torch.cat(rows) for place, rows in by_seed}

    def _rows(self, left_out: list[Place | None], run: Run, judge: Judge, targets: Tensor) -> list[Tensor]:
        """Return the rows of one batch, one tensor for each pass; find out first whether passes can be replayed."""
        rows: list[Tensor] = []
        try:
            if self._trace is not None:
                return [judge(outputs, targets) for outputs in self._replayed(self._trace, left_out, run)]
            rows = [judge(outputs, targets) for outputs in self._separate(left_out, run)]
            if self.reason is None:
                trace = self._traced(run)
                replayed = [judge(outputs, targets) for outputs in self._replayed(trace, left_out, run)]
                if not all(map(_same_bits, rows, replayed)):
                    raise _NoReplayError(OTHER_BITS)
                self._trace = trace
        except _NoReplayError as error:
            self._trace, self.reason = None, str(error)
        return rows or [judge(outputs, targets) for outputs in self._separate(left_out, run)]

    def _pass(self, inputs: Any, seed: int, left_out: Place | None) -> tuple[Any, bool]:
        """Return the outputs of the model without a seed, and whether it drew random numbers."""
        stream = RandomStream(seed, Host(self.model).device)
        before = stream.state_dict()
        with nullcontext() if left_out is None else left_out[0].disabled(left_out[1]), stream:
            outputs = self._run(self.model, inputs)
        pairs = zip(before, stream.state_dict(), strict=True)
        return outputs, not all(then is None or now is None or torch.equal(then, now) for then, now in pairs)

    def _separate(self, left_out: list[Place | None], run: Run) -> Iterator[Any]:
        """Yield the outputs of passes in which everything is run, each from the same buffers."""
        for place in left_out:
            with Host(self.model).evaluating():
                outputs, _ = run(place)
            yield outputs

    def _replayed(self, trace: _Trace, left_out: list[Place | None], run: Run) -> Iterator[Any]:
        """Yield the outputs of passes with prefix replay; _NoReplayError if they cannot be used."""
        replay = _Replay(trace)
        for place in left_out:
            try:
                outputs, drew = replay.run(place, run)
            except Exception as error:  # if it is the model's own fault, the separate passes raise it
                why = OTHER_CALLS if replay.diverged else f"a replayed pass raised {type(error).__name__}: {error}"
                raise _NoReplayError(why) from error
            if replay.diverged or drew:
                raise _NoReplayError(OTHER_CALLS if replay.diverged else NOISE)
            yield outputs

    def _traced(self, run: Run) -> _Trace:
        """Return the calls of a pass of the network as it is; _NoReplayError if there can be no replay."""
        if any(hasattr(module, "_orig_mod") for module in self.model.modules()):
            raise _NoReplayError(COMPILED)
        trace = _Trace(self.model)
        before = [(buffer, buffer.clone()) for buffer in self.model.buffers()]
        try:
            with Host(self.model).evaluating():
                with _replaced_forwards(_traceable(self.model), trace.watch):
                    _, drew = run(None)
                buffers = zip(self.model.buffers(), before, strict=True)
                changed = any(now is not was or not _same_bits(now, value) for now, (was, value) in buffers)
        except Exception as error:
            why = f"traced, it raised {type(error).__name__}: {error}"
            raise _NoReplayError(why) from error
        living = sorted(slot.name for slot in Host(self.model).slots if slot.nursery)
        reasons = {COMPILED: trace.compiled, STATE: changed, NOISE: drew, UNCALLED: sorted(trace.called) != living}
        if obstacles := [reason for reason, holds in reasons.items() if holds]:
            raise _NoReplayError(obstacles[0])
        return trace


class _NoReplayError(Exception):
    """The model cannot be replayed, for the reason given."""


@dataclass(slots=True)
class _Call:
    """One call of a module in a traced pass."""

    module: nn.Module
    end: int = 0
    """Number of the first later call that is not nested in this one."""
    finished: int = 0
    """How many slots with a living seed had been called when it returned."""
    skippable: bool = False


class _Trace:
    """The calls of one pass in the order in which they began, and the slots with a living seed as they were called."""

    def __init__(self, model: nn.Module) -> None:
        self.calls: list[_Call] = []
        self.called: list[str] = []
        self.compiled = False
        self._open: list[int] = []
        self._stateful: set[int] = set()
        self._lasting = [*model.parameters(), *model.buffers()]
        self._slots = {id(slot) for slot in Host(model).slots}

    def watch(self, module: nn.Module, forward: Forward) -> Forward:
        """Return a forward that records each call of ``module``."""

        def watched(*args: Any, **named: Any) -> Any:
            # Compiled code runs without this wrapper afterwards, so it could not be replayed.
            if torch.compiler.is_compiling():
                self.compiled = True
                return forward(*args, **named)
            number, call = len(self.calls), _Call(module)
            self.calls.append(call)
            self._open.append(number)
            attributes = dict(vars(module))
            arguments = args[-1:] if id(module) in self._slots else (*args, *named.values())
            copies = [_copied(argument) for argument in arguments]
            try:
                output = forward(*args, **named)
            finally:
                self._open.pop()
                call.end = len(self.calls)
            if id(module) in self._slots and module.living is not None:
                self.called.append(str(module.name))
            now = vars(module)
            if now.keys() != attributes.keys() or any(now[name] is not value for name, value in attributes.items()):
                self._stateful.update((number, *self._open))  # skipping an enclosing call would skip this one, too
            call.finished = len(self.called)
            call.skippable = number not in self._stateful and self._is_pure(arguments, copies, output)
            for nested in self.calls[number + 1 : call.end] if call.skippable else ():
                nested.skippable &= nested.finished < call.finished  # else it is skipped with this call, not by itself
            return output

        return watched

    def _is_pure(self, arguments: tuple[Any, ...], copies: list[Any], output: Any) -> bool:
        """Return whether tensors went in unchanged, and one tensor came out that shares memory with none of them."""
        are_plain = all(
            _is_plain(argument) or argument is None or isinstance(argument, bool | int | float)
            for argument in arguments
        )
        # A replay returns clones. With other strides the next layer may take another kernel, which rounds otherwise.
        if not are_plain or not _is_plain(output) or output.clone().stride() != output.stride():
            return False
        address = output.untyped_storage().data_ptr()
        tensors = (tensor for tensor in (*self._lasting, *arguments) if _is_plain(tensor))
        if any(tensor.untyped_storage().data_ptr() == address for tensor in tensors):
            return False
        return all(
            argument is copy or _same_bits(argument, copy) for argument, copy in zip(arguments, copies, strict=True)
        )


class _Replay:
    """Passes over one batch: the first, with all seeds, keeps the outputs that later ones return copies of.

    ``diverged`` turns True when a pass calls other modules than the trace: its output is then worthless.
    """

    def __init__(self, trace: _Trace) -> None:
        self.diverged = False
        self._trace = trace
        self._outputs: dict[int, Any] = {}
        self._cut = self._next = 0  # slots before the one left out, by which calls are skipped; number of the next call

    def run(self, left_out: Place | None, run: Run) -> tuple[Any, bool]:
        """Run the next pass, without a seed; the first pass leaves none out."""
        self._cut, self._next = -1 if left_out is None else self._trace.called.index(left_out[0].name), 0
        modules = dict.fromkeys(call.module for call in self._trace.calls)
        with _replaced_forwards(modules, lambda *of: partial(self._call, *of)):
            result = run(left_out)
        self.diverged |= self._next != len(self._trace.calls)
        return result

    def _call(self, module: nn.Module, forward: Forward, *args: Any, **named: Any) -> Any:
        """Return a copy of this call's output in the first pass, or run ``forward``."""
        number, calls = self._next, self._trace.calls
        if self.diverged or number == len(calls) or calls[number].module is not module:
            self.diverged = True
            return forward(*args, **named)
        call = calls[number]
        if call.skippable and call.finished <= self._cut:
            self._next = call.end
            return _copied(self._outputs[number])
        self._next = number + 1
        output = forward(*args, **named)
        self.diverged |= self._next != call.end
        if self._cut < 0 and call.skippable and call.finished < len(self._trace.called):
            self._outputs[number] = _copied(output)
        return output


@contextmanager
def _replaced_forwards(modules: Iterable[nn.Module], by: Callable[[nn.Module, Forward], Forward]) -> Iterator[None]:
    """Replace the forward of each module by ``by(module, forward)`` in the ``with`` block."""
    originals = [(module, vars(module).get("forward")) for module in modules]
    try:
        for module, _ in originals:
            module.forward = by(module, module.forward)
        yield
    finally:
        for module, forward in originals:
            vars(module).pop("forward", None)
            # Some libraries, such as accelerate, give a module a forward of its own.
            if forward is not None:
                module.forward = forward


def _traceable(model: nn.Module) -> list[nn.Module]:
    """Return all modules but the model itself, scripted ones, and those of living seeds."""
    scripted = [module for module in model.modules() if isinstance(module, torch.jit.ScriptModule)]
    seeds = [seed for slot in Host(model).slots for seed in slot.nursery]
    left_out = {id(model), *(id(part) for owner in (*scripted, *seeds) for part in owner.modules())}
    return [module for module in model.modules() if id(module) not in left_out]


def _copied(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else value


def _is_plain(value: Any) -> bool:
    return type(value) in (Tensor, nn.Parameter) and value.layout is torch.strided and not value.is_nested


def _same_bits(first: Tensor, second: Tensor) -> bool:
    """Return whether two tensors agree in every bit, NaN included. On a GPU the host waits for the result."""
    alike = first.shape == second.shape and first.dtype == second.dtype
    return alike and torch.equal(*(tensor.contiguous().reshape(-1).view(torch.uint8) for tensor in (first, second)))
