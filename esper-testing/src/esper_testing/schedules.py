"""Does a schedule keep its promises? A factor for every step, the same each time, whatever the clock says.

Each check takes what builds the schedule; AssertionError where a promise is broken.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from esper_core.leyline import Schedule

Maker = Callable[[], Any]

CLOCKS: Final[tuple[tuple[int, int | None], ...]] = tuple(
    (step, steps) for steps in (1, 2, 7, 40, None) for step in (*range(min(steps or 40, 40)), 39)
)
"""Step and steps, as a run counts them, and some that stand behind the end."""


def gives_a_factor_for_every_step(make: Maker) -> None:
    """A number, finite and 0 or more, for short episodes and long ones, and where nobody knows how long it will be."""
    schedule: Schedule = make()
    for step, steps in CLOCKS:
        factor = schedule.factor(step, steps)
        number = isinstance(factor, int | float) and not isinstance(factor, bool)
        _expect(number and math.isfinite(factor) and factor >= 0, f"gives {factor!r} for step {step} of {steps}")


def is_pure(make: Maker) -> None:
    """The same step has the same factor, in whatever order the steps are asked for, and in another instance."""
    one, other = make(), make()
    forward = [one.factor(*clock) for clock in CLOCKS]
    backward = [one.factor(*clock) for clock in reversed(CLOCKS)][::-1]
    afresh = [other.factor(*clock) for clock in CLOCKS]
    for clock, first, second, third in zip(CLOCKS, forward, backward, afresh, strict=True):
        same = first == second == third
        _expect(same, f"gives {first!r}, {second!r} and {third!r} for step {clock[0]} of {clock[1]}")


def lets_something_be_learnt(make: Maker) -> None:
    """In an episode of 40 steps the factor is above 0 in one of them."""
    schedule: Schedule = make()
    _expect(any(schedule.factor(step, 40) > 0 for step in range(40)), "gives 0 for every step: nothing would learn")


PROMISES: Final = (gives_a_factor_for_every_step, is_pure, lets_something_be_learnt)


def _expect(kept: bool, broken: str) -> None:
    if not kept:
        msg = f"a schedule {broken}"
        raise AssertionError(msg)
