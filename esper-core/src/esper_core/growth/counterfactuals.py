"""Counterfactuals: a network's losses with some of its acting seeds left out.

A configuration is a set of slots whose living seeds act. Each is evaluated in a pass of its own at full batch size, but
a module that finished before the first slot in which this pass differs from the previous one is not run again: it
returns a copy of what it returned there (prefix replay). So every number is bit for bit that of a separate pass.

A call can be skipped if it maps tensors to one new tensor, writes to no input and keeps nothing on the module. That is
observed in a traced pass whenever the seeds change. Its batch is also evaluated in separate passes and compared; where
the two differ, or the model cannot be replayed for another reason, all passes are separate, and the reason is reported.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor, nn

from esper_core.growth.dry_runs import KeptBuffers, device_of
from esper_core.growth.random_streams import RandomStream, derive_seed
from esper_core.growth.seeds import SeedFault, in_words
from esper_core.growth.serialization import decode_state, encode_state
from esper_core.growth.slots import Slot
from esper_core.leyline.errors import GrowthError, Problem, suggestion

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

    from esper_core.leyline.protocols import State

    Forward = Callable[..., Any]
    Judge = Callable[[Any, Tensor], Tensor]
    Configuration = frozenset[str]
    Rows = dict[Configuration, Tensor]

STATE: Final = "its buffers change in evaluation"
NOISE: Final = "it draws random numbers in evaluation"
COMPILED: Final = "it is compiled"
UNCALLED: Final = "a slot with a living seed is not called exactly once in a pass"
OTHER_CALLS: Final = "it does not call the same modules in every pass"
OTHER_BITS: Final = "a replayed pass differs from a separate one"


@dataclass(frozen=True, slots=True)
class CounterfactualResult:
    """What was measured.

    ``acting`` is the configuration that the network is in. ``rows`` holds for each configuration what the judge
    returned, one row per example, on the device. ``separate`` says why passes were separate; None: they were replayed.
    """

    acting: Configuration
    rows: Mapping[Configuration, Tensor]
    separate: str | None


def each_left_out(acting: Configuration) -> list[Configuration]:
    """Return ``acting``, and ``acting`` without each of its slots."""
    return [acting, *(acting - {name} for name in sorted(acting))]


class Counterfactuals:
    """Evaluates configurations of one grafted model, in its current modes, and leaves it as it was.

    Args:
        model: grafted. Its gradients, buffers, modes and random numbers stay what they are.
        seed: of the random numbers that the model may draw: the same in every pass over a batch.
        quiet: the model is known to draw none.
        run: computes a pass, for example in another precision.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        seed: int = 0,
        quiet: bool = False,
        run: Callable[[nn.Module, Tensor], Any] = lambda model, inputs: model(inputs),
    ) -> None:
        self.model = model
        self._run, self._seed, self._quiet = run, seed, quiet
        self._key: Any = None
        self._known: _Trace | str | None = None

    def state_dict(self) -> State:
        """Return why there is no replay, and for which seeds, if there is none. A trace is made again."""
        return encode_state({"why": self.reason, "key": None if self.reason is None else self._key})

    def load_state_dict(self, state: State) -> None:
        """Continue from ``state``: what could not be replayed is not tried again."""
        known = decode_state(state)
        self._known, self._key = known["why"], known["key"]

    @property
    def reason(self) -> str | None:
        """Why passes are not replayed; None where they are, or nothing was measured yet."""
        return self._known if isinstance(self._known, str) else None

    def acting(self) -> Configuration:
        """Return the slots whose living seeds act now."""
        return frozenset(slot.name for slot in _slots(self.model) if slot.strength > 0.0)

    def measure(
        self, configurations: Iterable[Configuration], batches: Iterable[tuple[Tensor, Tensor]], judge: Judge
    ) -> CounterfactualResult:
        """Evaluate ``configurations`` and the network as it is now on all batches of inputs and targets.

        Args:
            configurations: for each the slots whose living seeds act, a subset of ``acting()``.
            batches: inputs and targets.
            judge: computes one row per example from outputs and targets, for example its loss.

        Raises:
            GrowthError: no seed acts in one of the slots.
            SeedFault: a seed raised.
        """
        acting = self.acting()
        wanted = list(dict.fromkeys([acting, *map(frozenset, configurations)]))
        for name in sorted(frozenset().union(*wanted) - acting):
            hint = suggestion(name, acting) or f"Acting: {', '.join(sorted(acting)) or 'none'}"
            raise GrowthError(Problem("E302", f'there is no slot "{name}" with a living seed that acts', hint=hint))
        found: list[Rows] = []
        reasons: list[str] = []
        with torch.no_grad():
            for number, batch in enumerate(batches):
                stream = partial(RandomStream, derive_seed(self._seed, "counterfactuals", number), idle=self._quiet)
                rows, why = self._measure_batch(_Passes(self.model, acting, batch, judge, stream, self._run), wanted)
                found.append(rows)
                reasons += [why] if why else []
            joined = {one: torch.cat([rows[one] for rows in found]) for one in wanted} if found else {}
        return CounterfactualResult(acting, joined, reasons[0] if reasons else None)

    def _measure_batch(self, passes: _Passes, wanted: list[Configuration]) -> tuple[Rows, str | None]:
        """Return the rows of each configuration, and why they come from separate passes, if they do."""
        if len(wanted) == 1:
            return passes.separate(wanted)[0], None
        stacks = ((slot, slot.stack) for slot in _slots(self.model))
        grown = tuple((slot.name, *((seed.number, seed is slot.living) for seed in stack)) for slot, stack in stacks)
        if self._key != (self.model.training, grown):
            rows, self._known = passes.traced(wanted)
            self._key = self.model.training, grown
            return rows, self.reason
        if isinstance(self._known, _Trace):
            replayed = passes.replayed(self._known, wanted)
            if not isinstance(replayed, str):
                return replayed, None
            self._known = replayed
        return passes.separate(wanted)[0], self.reason


def _slots(model: nn.Module) -> list[Slot]:
    return [module for module in model.modules() if isinstance(module, Slot)]


@dataclass(frozen=True, slots=True)
class _Passes:
    """All passes over one batch, each with the same random numbers."""

    model: nn.Module
    acting: Configuration
    batch: tuple[Tensor, Tensor]
    judge: Judge
    new_stream: Callable[[torch.device], RandomStream]
    run: Callable[[nn.Module, Tensor], Any]

    def outputs(self, configuration: Configuration) -> tuple[Any, bool]:
        """Return what the model puts out, and whether it drew random numbers."""
        stream = self.new_stream(device_of(self.model))
        before = stream.state_dict()
        with ExitStack() as disabled:
            for slot in _slots(self.model):
                if slot.name in self.acting - configuration:
                    disabled.enter_context(slot.disabled())
            with stream:
                outputs = self.run(self.model, self.batch[0])
        pairs = zip(before, stream.state_dict(), strict=True)
        return outputs, not all(then is None or now is None or torch.equal(then, now) for then, now in pairs)

    def separate(self, configurations: Collection[Configuration]) -> tuple[Rows, bool]:
        """Run a separate pass per configuration, each from the same buffers; also whether one drew random numbers."""
        kept = KeptBuffers(self.model)
        rows: Rows = {}
        noisy = False
        for one in configurations:
            try:
                outputs, drew = self.outputs(one)
                rows[one] = self.judge(outputs, self.batch[1])
            finally:
                kept.put_back()
            noisy |= drew
        return rows, noisy

    def replayed(self, trace: _Trace, configurations: Collection[Configuration]) -> Rows | str:
        """Run a pass per configuration with prefix replay; or return why the result cannot be used."""
        replay = _Replay(trace, configurations, self.acting)
        rows: Rows = {}
        for cut, one in zip(replay.cuts, replay.order, strict=True):
            try:
                outputs, drew = replay.run(cut, partial(self.outputs, one))
            except SeedFault:
                raise
            except Exception as error:  # if it is the model's own fault, the separate passes raise it
                return OTHER_CALLS if replay.diverged else f"a replayed pass {in_words(error)}"
            if replay.diverged or drew:
                return OTHER_CALLS if replay.diverged else NOISE
            rows[one] = self.judge(outputs, self.batch[1])
        return rows

    def traced(self, configurations: Collection[Configuration]) -> tuple[Rows, _Trace | str]:
        """Return rows of separate passes, and the trace to replay from now on, or why there can be no replay."""
        trace = self._trace()
        rows, noisy = self.separate(configurations)
        if noisy or isinstance(trace, str):
            return rows, trace if isinstance(trace, str) else NOISE
        replayed = self.replayed(trace, configurations)
        if isinstance(replayed, str):
            return rows, replayed
        return rows, trace if all(_same_bits(rows[one], replayed[one]) for one in configurations) else OTHER_BITS

    def _trace(self) -> _Trace | str:
        """Return the calls of a pass of the network as it is, or why there can be no replay."""
        if any(hasattr(module, "_orig_mod") for module in self.model.modules()):
            return COMPILED
        trace, kept = _Trace(self.model), KeptBuffers(self.model)
        before = [(buffer, buffer.clone()) for buffer in self.model.buffers()]
        try:
            with _replaced_forwards(_traceable(self.model), trace.watch):
                _, drew = self.outputs(self.acting)
            pairs = zip(self.model.buffers(), before, strict=True)
            changed = any(now is not was or not _same_bits(now, value) for now, (was, value) in pairs)
        except SeedFault:
            raise
        except Exception as error:  # if it is the model's own fault, the separate passes raise it
            return f"it does not run while its modules are traced: it {in_words(error)}"
        finally:
            kept.put_back()
        living = sorted(slot.name for slot in _slots(self.model) if slot.living is not None)
        why = {COMPILED: trace.compiled, STATE: changed, NOISE: drew, UNCALLED: sorted(trace.called) != living}
        return next((reason for reason, holds in why.items() if holds), trace)


@dataclass(slots=True)
class _Call:
    """One call of a module in a traced pass.

    ``parent`` is the number of the enclosing call, ``end`` that of the first later call that is not nested in this one,
    ``finished`` how many slots with a living seed had been called when it returned.
    """

    module: nn.Module
    parent: int | None
    end: int = 0
    finished: int = 0
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

    def watch(self, module: nn.Module, forward: Forward) -> Forward:
        """Return a forward that records each call of ``module``."""

        def watched(*args: Any, **named: Any) -> Any:
            if torch.compiler.is_compiling():
                self.compiled = True
                return forward(*args, **named)
            number, call = len(self.calls), _Call(module, self._open[-1] if self._open else None)
            self.calls.append(call)
            self._open.append(number)
            attributes = dict(vars(module))
            given = args[-1:] if isinstance(module, Slot) else (*args, *named.values())
            copies = [one.clone() if isinstance(one, Tensor) else one for one in given]
            try:
                output = forward(*args, **named)
            finally:
                self._open.pop()
                call.end = len(self.calls)
            if isinstance(module, Slot) and module.living is not None:
                self.called.append(module.name)
            now = vars(module)
            if now.keys() != attributes.keys() or any(now[name] is not value for name, value in attributes.items()):
                self._stateful.update((number, *self._open))  # skipping an enclosing call would skip this one, too
            call.finished = len(self.called)
            call.skippable = number not in self._stateful and self._is_pure(given, copies, output)
            return output

        return watched

    def _is_pure(self, given: tuple[Any, ...], copies: list[Any], output: Any) -> bool:
        """Whether tensors went in unchanged, and one tensor came out that shares its memory with nothing."""
        if not all(_is_plain(one) or one is None or isinstance(one, bool | int | float) for one in given):
            return False
        if not _is_plain(output) or output.clone().stride() != output.stride():
            return False
        others = [*self._lasting, *(one for one in given if isinstance(one, Tensor))]
        address = output.untyped_storage().data_ptr()
        if any(_is_plain(other) and other.untyped_storage().data_ptr() == address for other in others):
            return False
        return all(one is copy or _same_bits(one, copy) for one, copy in zip(given, copies, strict=True))


class _Replay:
    """The passes of one batch, ordered so that neighbours share the longest prefix.

    ``cuts`` holds for each pass how many slots are called before the first that differs from the pass before.
    ``diverged`` turns True when a pass calls other modules than the trace: its output is then worthless.
    """

    def __init__(self, trace: _Trace, configurations: Collection[Configuration], acting: Configuration) -> None:
        slots = trace.called
        self.order = sorted(configurations, key=lambda one: [(name in one) != (name in acting) for name in slots])
        differ = ([(name in one) != (name in other) for name in slots] for one, other in pairwise(self.order))
        self.cuts = [-1, *(places.index(True) for places in differ)]
        self.diverged = False
        self._calls = trace.calls
        self._skipped_at: list[frozenset[int]] = []
        """For each call the cuts at which it is skipped, and no call around it is."""
        self._outputs: dict[int, Any] = {}
        self._cut = self._next = 0
        within: list[frozenset[int]] = []
        for call in trace.calls:
            above = frozenset[int]() if call.parent is None else within[call.parent]
            finished = frozenset(cut for cut in self.cuts if call.skippable and call.finished <= cut)
            self._skipped_at.append(finished - above)
            within.append(finished | above)

    def run(self, cut: int, pass_: Callable[[], Any]) -> Any:
        """Run ``pass_`` as the next pass, which differs from the last one from slot ``cut`` on."""
        self._cut, self._next = cut, 0
        modules = dict.fromkeys(call.module for call in self._calls)
        with _replaced_forwards(modules, lambda *of: partial(self._call, *of)):
            result = pass_()
        self.diverged |= self._next != len(self._calls)
        return result

    def _call(self, module: nn.Module, forward: Forward, *args: Any, **named: Any) -> Any:
        """Return a copy of this call's last output, or run ``forward``."""
        number = self._next
        if self.diverged or number == len(self._calls) or self._calls[number].module is not module:
            self.diverged = True
            return forward(*args, **named)
        end = self._calls[number].end
        if self._cut in self._skipped_at[number]:
            self._next = end
            return _copied(self._outputs[number])
        self._next = number + 1
        output = forward(*args, **named)
        self.diverged |= self._next != end
        if self._skipped_at[number] and not self.diverged:
            self._outputs[number] = _copied(output)
        return output


@contextmanager
def _replaced_forwards(modules: Iterable[nn.Module], by: Callable[[nn.Module, Forward], Forward]) -> Iterator[None]:
    """Within the block ``by(module, forward)`` stands in for the forward of each module."""
    own = [(module, vars(module).get("forward")) for module in modules]
    try:
        for module, _ in own:
            module.forward = by(module, module.forward)
        yield
    finally:
        for module, forward in own:
            vars(module).pop("forward", None)
            if forward is not None:
                module.forward = forward


def _traceable(model: nn.Module) -> list[nn.Module]:
    """Return all modules but the model itself, scripted ones, and those of living seeds."""
    scripted = [module for module in model.modules() if isinstance(module, torch.jit.ScriptModule)]
    seeds = [seed for slot in _slots(model) for seed in slot.nursery]
    left_out = {id(model), *(id(part) for whole in (*scripted, *seeds) for part in whole.modules())}
    return [module for module in model.modules() if id(module) not in left_out]


def _copied(output: Any) -> Any:
    """Return a clone of a tensor; a slot without an acting seed returns None."""
    return output.clone() if isinstance(output, Tensor) else output


def _is_plain(value: Any) -> bool:
    return type(value) in (Tensor, nn.Parameter) and value.layout is torch.strided and not value.is_nested


def _same_bits(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors agree in every bit, NaN included. On a GPU the host waits for the result."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    return torch.equal(*(tensor.contiguous().reshape(-1).view(torch.uint8) for tensor in (one, other)))
