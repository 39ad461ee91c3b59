"""How is a model evaluated in many configurations without computing twice what they have in common?

**Prefix replay.** There is one pass for each configuration, at the batch's full size. A module that was finished before
the first slot that differs from the pass before gives back a copy of what it put out there, and is not run. The host's
own code runs in every pass. So each number comes out of the arithmetic of a separate pass, to the bit.

The configurations are put into an order in which neighbours have the most in common. What is kept is what a later pass
will ask for, and it is dropped when it was asked for the last time.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

from esper_core.growth.tracing import copied, shadowed

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from contextlib import AbstractContextManager

    from torch import nn

    from esper_core.growth.tracing import Forward, Trace

Configuration = frozenset[str]
"""The slots whose living seeds act; every other living seed does not."""


@dataclass(frozen=True, slots=True)
class Step:
    """A call that may be replayed: ``at`` the passes' cuts where it is, ``end`` the first step that is not within."""

    module: nn.Module
    at: frozenset[int]
    end: int


@dataclass(frozen=True, slots=True)
class Plan:
    """Which passes there are, and what is done in each.

    ``order``: the configurations. ``cuts``: for each pass how many slots speak before the first that differs from the
    pass before; −1 for the first. ``later``: for each pass the cuts for which it must still keep something.
    """

    order: tuple[Configuration, ...]
    cuts: tuple[int, ...]
    later: tuple[frozenset[int], ...]
    steps: tuple[Step, ...]


def planned(trace: Trace, configurations: Collection[Configuration], main: Configuration) -> Plan:
    """The plan for ``configurations``; ``main``, in which the trace was taken, comes first where it is one of them."""
    order = sorted(configurations, key=lambda one: [(name in one) != (name in main) for name in trace.spoken])
    between = [
        next(place for place, name in enumerate(trace.spoken) if (name in one) != (name in other))
        for one, other in pairwise(order)
    ]
    later = [frozenset(accumulate(between[number:], min)) for number in range(len(order))]
    return Plan(tuple(order), (-1, *between), tuple(later), _steps(trace, sorted(set(between))))


def _steps(trace: Trace, cuts: Sequence[int]) -> tuple[Step, ...]:
    """The calls that are replayed at one of ``cuts``, and all other calls of the same modules."""
    at: list[frozenset[int]] = []
    within: list[frozenset[int]] = []
    for call in trace.calls:
        above = frozenset[int]() if call.parent is None else within[call.parent]
        finished = frozenset(cut for cut in cuts if call.skippable and call.finished <= cut)
        at.append(finished - above)
        within.append(finished | above)
    replayed = {id(call.module) for call, where in zip(trace.calls, at, strict=True) if where}
    numbers = [number for number, call in enumerate(trace.calls) if id(call.module) in replayed]
    steps_before = [0, *accumulate(id(call.module) in replayed for call in trace.calls)]
    return tuple(Step(trace.calls[n].module, at[n], steps_before[trace.calls[n].end]) for n in numbers)


class Replay:
    """The passes of one batch. ``strayed``: a pass called other modules than the plan says, and is worth nothing."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._kept: dict[int, Any] = {}
        self._cut = -1
        self._later: frozenset[int] = frozenset()
        self._next = 0
        self.strayed = False

    def in_place(self) -> AbstractContextManager[None]:
        """While this lasts, the modules of the plan answer to it."""
        return shadowed(dict.fromkeys(step.module for step in self._plan.steps), lambda *of: partial(self._call, *of))

    def run(self, number: int, pass_: Callable[[], Any]) -> Any:
        """What ``pass_`` gives when it runs as the plan's pass of this number, after all those before it."""
        self._cut, self._later, self._next = self._plan.cuts[number], self._plan.later[number], 0
        result = pass_()
        self.strayed |= self._next != len(self._plan.steps)
        return result

    @property
    def holding(self) -> int:
        """How many outputs are kept now."""
        return len(self._kept)

    def _call(self, module: nn.Module, forward: Forward, *args: Any, **named: Any) -> Any:
        """The output of the call: that of the pass before, or, where it cannot be known yet, that of ``forward``."""
        number = self._next
        step = self._plan.steps[number] if number < len(self._plan.steps) else None
        if self.strayed or step is None or step.module is not module:
            self.strayed = True
            return forward(*args, **named)
        asked_again = not step.at.isdisjoint(self._later)
        if self._cut in step.at:
            self._next = step.end
            return copied(self._kept[number]) if asked_again else self._kept.pop(number)
        self._next = number + 1
        output = forward(*args, **named)
        self.strayed |= self._next != step.end
        if asked_again and not self.strayed:
            self._kept[number] = copied(output)
        return output
