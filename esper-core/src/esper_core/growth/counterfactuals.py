"""What would the loss be if other seeds acted? A network's losses on one split, in every configuration asked for.

Each distinct configuration is evaluated once, the network as it is (``main``) among them. What configurations have in
common is computed once, by prefix replay (``replay``), after it was seen that it gives what separate passes give.
Where it does not, there are separate passes, and it is said why. What was not evaluated is not in the result.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from esper_core.growth.faults import SeedFault, in_words
from esper_core.growth.keeping import KeptBuffers
from esper_core.growth.memory import heard, told
from esper_core.growth.probe import device_of
from esper_core.growth.randomness import RandomStream, derive_seed
from esper_core.growth.replay import Replay, planned
from esper_core.growth.slot import Slot
from esper_core.growth.tracing import Trace, same_bits, shadowed, watchable
from esper_core.leyline.errors import GrowthError, Problem, suggestion

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from esper_core.growth.replay import Configuration, Plan
    from esper_core.leyline.protocols import State

    Judge = Callable[[Any, Tensor], Tensor]
    Batch = tuple[Tensor, Tensor]
    Run = Callable[[nn.Module, Tensor], Any]

STATE = "its buffers change in evaluation"
NOISE = "it draws random numbers in evaluation"
COMPILED = "it is compiled"
SPREAD = "it is spread over devices by a wrapper of torch's"
MUTE = "a slot with a living seed is not called once in a pass"
OTHER_CALLS = "it does not call the same modules in every pass"
OTHER_BITS = "a replayed pass was not a separate one to the bit"


@dataclass(frozen=True, slots=True)
class Measured:
    """What came out.

    ``main`` is the configuration in which the network is now, ``rows`` has for each configuration what the judge said,
    a row for each example, on the device. ``separate`` says why some or all passes were separate ones; None: they were
    replayed. ``news`` is that reason where it has not been given before.
    """

    main: Configuration
    rows: Mapping[Configuration, Tensor]
    separate: str | None
    news: str | None


class Counterfactuals:
    """Evaluates one grafted model, in the modes that it is in, and leaves it as it was.

    Args:
        model: grafted. Its gradients, buffers, modes and random numbers stay what they are.
        seed: of the random numbers, should the model draw any: the same in every pass over a batch.
        quiet: it is known that the model draws none.
        run: how a pass is computed: in which precision, say.
    """

    def __init__(
        self, model: nn.Module, *, seed: int = 0, quiet: bool = False, run: Run = lambda model, inputs: model(inputs)
    ) -> None:
        self.model = model
        self._run = run
        self._seed = seed
        self._quiet = quiet
        self.reset()

    def reset(self) -> None:
        """Forget what was seen of the model: it is looked at anew."""
        self._key: Any = None
        self._known: Trace | str | None = None
        self._told: set[str] = set()

    def state(self) -> State:
        """What was told, and why there is no replay, where there is none. How one goes is found out again."""
        why = self._known if isinstance(self._known, str) else None
        return told({"told": sorted(self._told), "why": why, "key": None if why is None else self._key})

    def load(self, state: State) -> None:
        """Tell nothing twice, and replay nothing that another one had seen not to go."""
        known = heard(state)
        self._told, self._known, self._key = set(known["told"]), known["why"], known["key"]

    def main(self) -> Configuration:
        """The slots whose living seeds act now."""
        return frozenset(name for name, slot in self._living().items() if slot.strength > 0.0)

    def possible(self) -> Configuration:
        """The slots whose living seeds act now, or would if they were tried."""
        return self.main() | {name for name, slot in self._living().items() if _can_act(slot)}

    def measure(self, configurations: Iterable[Configuration], batches: Iterable[Batch], judge: Judge) -> Measured:
        """Evaluate ``configurations`` and ``main`` on all batches.

        Args:
            configurations: for each the slots whose living seeds act: as they do now, or, where one does not act
                now, as it would if it were tried. Configurations that come to the same are evaluated once.
            batches: inputs and targets, of one size from the first to the last but one.
            judge: from outputs and targets one row for each example: its loss, say.

        Raises:
            GrowthError: there is no such slot, or no living seed in it.
            SeedFault: a seed raised.
        """
        main = self.main()
        effective = {one: self._effective(one) for one in map(frozenset, configurations)} | {main: main}
        distinct = frozenset(effective.values())
        found: dict[Configuration, list[Tensor]] = {one: [] for one in distinct}
        reasons: list[str] = []
        with torch.no_grad():
            for number, batch in enumerate(batches):
                stream = partial(RandomStream, derive_seed(self._seed, "counterfactuals", number), idle=self._quiet)
                passes = _Passes(self.model, self._living(), batch, judge, stream, self._run)
                rows, why = self._measured(passes, distinct, main)
                for one in distinct:
                    found[one].append(rows[one])
                reasons += [why] if why else []
            joined = {one: torch.cat(rows) for one, rows in found.items() if rows}
        separate = reasons[0] if reasons else None
        news = separate if separate not in self._told else None
        self._told.update(reasons)
        return Measured(main, {one: joined[to] for one, to in effective.items() if to in joined}, separate, news)

    def _effective(self, configuration: Configuration) -> Configuration:
        living = self._living()
        for name in sorted(configuration - living.keys()):
            hint = suggestion(name, living) or f"Received: {sorted(configuration)}"
            raise GrowthError(Problem("E302", f'there is no slot "{name}" with a living seed', hint=hint))
        return configuration & self.possible()

    def _living(self) -> dict[str, Slot]:
        slots = (module for module in self.model.modules() if isinstance(module, Slot))
        return {slot.name: slot for slot in slots if slot.living is not None}

    # One batch.

    def _measured(
        self, passes: _Passes, distinct: Collection[Configuration], main: Configuration
    ) -> tuple[dict[Configuration, Tensor], str | None]:
        """Rows for each configuration, and why they come from separate passes; None where they were replayed."""
        if len(distinct) == 1:
            return {main: passes.judged(main)[0]}, None
        key = self._signature()
        if self._key != key:
            rows, self._known = _looked_at(passes, distinct, main)
            self._key = key
            return rows, self._known if isinstance(self._known, str) else None
        if not isinstance(self._known, Trace):
            return passes.separately(distinct)[0], self._known
        outcome = passes.replayed(planned(self._known, distinct, main))
        return (passes.separately(distinct)[0], outcome) if isinstance(outcome, str) else (outcome, None)

    def _signature(self) -> Any:
        """What the order of the calls may depend on, as far as growth goes."""
        slots = [module for module in self.model.modules() if isinstance(module, Slot)]
        grown = tuple((slot.name, *((seed.number, seed is slot.living) for seed in slot.stack)) for slot in slots)
        return self.model.training, grown


def _can_act(slot: Slot) -> bool:
    with slot.switched(on=True):
        return slot.strength > 0.0


def _looked_at(
    passes: _Passes, distinct: Collection[Configuration], main: Configuration
) -> tuple[dict[Configuration, Tensor], Trace | str]:
    """Rows from separate passes, and what to go by from now on: the trace, or why there can be no replay."""
    traced = _traced(passes, main)
    if isinstance(traced, str):
        return passes.separately(distinct)[0], traced
    trace, first = traced
    rows, drew = passes.separately([one for one in distinct if one != main])
    rows[main] = first
    if drew:
        return rows, NOISE
    again = passes.replayed(planned(trace, distinct, main))
    if isinstance(again, str):
        return rows, again
    return rows, trace if all(same_bits(rows[one], again[one]) for one in distinct) else OTHER_BITS


def _traced(passes: _Passes, main: Configuration) -> tuple[Trace, Tensor] | str:
    """The trace of a pass in ``main`` and its rows, or why there can be no replay."""
    model = passes.model
    for module in model.modules():
        if isinstance(module, nn.DataParallel | nn.parallel.DistributedDataParallel):
            return SPREAD
        if any(name == "_orig_mod" for name, _ in module.named_children()):
            return COMPILED
    trace, kept = Trace(model), KeptBuffers(model)
    before = [(buffer, buffer.clone()) for buffer in model.buffers()]
    try:
        with shadowed(watchable(model), trace.watching):
            outputs, drew = passes.outputs(main)
        after = list(model.buffers())
        changed = any(
            now is not was or not same_bits(now, value) for now, (was, value) in zip(after, before, strict=True)
        )
    except SeedFault:
        raise
    except Exception as error:  # if it is the model's own fault, the separate passes bring it to light
        return f"it does not run while its modules are watched: it {in_words(error)}"
    finally:
        kept.put_back()
    why = {
        COMPILED: trace.compiled,
        STATE: changed,
        NOISE: drew,
        MUTE: sorted(trace.spoken) != sorted(passes.living),
    }
    return next((reason for reason, holds in why.items() if holds), None) or (trace, passes.judge(outputs))


@dataclass(frozen=True, slots=True)
class _Passes:
    """All passes over one batch: each with the same random numbers."""

    model: nn.Module
    living: Mapping[str, Slot]
    batch: Batch
    verdict: Judge
    new_stream: Callable[[torch.device], RandomStream]
    run: Run

    def outputs(self, configuration: Configuration) -> tuple[Any, bool]:
        """What the model puts out, and whether it drew random numbers."""
        stream = self.new_stream(device_of(self.model))
        before = stream.state()
        with ExitStack() as switches:
            for name, slot in self.living.items():
                if (on := name in configuration) != (slot.strength > 0.0):
                    switches.enter_context(slot.switched(on=on))
            with stream:
                outputs = self.run(self.model, self.batch[0])
        pairs = zip(before, stream.state(), strict=True)
        return outputs, not all(then is None or now is None or torch.equal(then, now) for then, now in pairs)

    def judge(self, outputs: Any) -> Tensor:
        """A row for each example."""
        return self.verdict(outputs, self.batch[1])

    def judged(self, configuration: Configuration) -> tuple[Tensor, bool]:
        """The rows of a pass of its own, and whether it drew random numbers."""
        outputs, drew = self.outputs(configuration)
        return self.judge(outputs), drew

    def separately(self, configurations: Collection[Configuration]) -> tuple[dict[Configuration, Tensor], bool]:
        """A pass of its own for each configuration, from the same buffers; and whether one drew random numbers."""
        kept = KeptBuffers(self.model)
        rows: dict[Configuration, Tensor] = {}
        noisy = False
        for one in configurations:
            try:
                rows[one], drew = self.judged(one)
            finally:
                kept.put_back()
            noisy |= drew
        return rows, noisy

    def replayed(self, plan: Plan) -> dict[Configuration, Tensor] | str:
        """The plan's passes, or why they are worth nothing."""
        replay = Replay(plan)
        rows: dict[Configuration, Tensor] = {}
        for number, one in enumerate(plan.order):
            try:
                with replay.in_place():
                    outputs, drew = replay.run(number, partial(self.outputs, one))
            except SeedFault:
                raise
            except Exception as error:  # if it is the model's own fault, the separate passes bring it to light
                return OTHER_CALLS if replay.strayed else f"a replayed pass {in_words(error)}"
            if replay.strayed or drew:
                return OTHER_CALLS if replay.strayed else NOISE
            rows[one] = self.judge(outputs)
        return rows
