"""Seed faults: the error of a block that raises or returns something invalid, its count, and withdrawn blueprints."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from esper_core.leyline.constants import FAULTS_UNTIL_WITHDRAWN
from esper_core.leyline.errors import PluginError, Problem
from esper_core.leyline.protocols import State
from esper_core.plugins.isolation import is_third_party, location_of, target_of

if TYPE_CHECKING:
    from collections.abc import Iterable


def describe_error(error: BaseException, maker: object = None) -> str:
    """Return the type and message of an error, and the line of its author's code, in one line.

    ``maker`` built the seed, or is its block: its package is where the author's code is, and is named if the error
    passed through none of its lines. The file has its name alone, since an event holds no path of a machine.
    """
    message = (str(error).strip().splitlines() or [""])[0][:200]
    target = None if maker is None else target_of(maker)
    file, line = location_of(error, target)
    location = f"{Path(file).name}:{line}" if file else target if target and is_third_party(target) else None
    return f"raised {type(error).__name__}: {message}" + (f" ({location})" if location else "")


class SeedFault(PluginError):
    """A seed raised, or returned something invalid.

    Attributes:
        slots: the slots whose living seeds are at fault; none for a fossil, which cannot be removed.
        what: what it did.
        number: which seed of a nursery it was; None: all that live there.
    """

    describe_error = staticmethod(describe_error)

    def __init__(self, slots: Iterable[str], what: str, *, number: int | None = None, blueprint: str = "") -> None:
        self.slots, self.what, self.number = tuple(slots), what, number
        named = f' of blueprint "{blueprint}"' if blueprint else ""
        location = f" in {', '.join(self.slots)}" if self.slots else ""
        super().__init__(Problem("E320", f"the seed{location}{named} {what}"))


class FaultBook:
    """Counts the faults of each blueprint over a run, and withdraws a blueprint after too many."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def record(self, blueprint: str) -> bool:
        """Count one fault; return whether it withdraws the blueprint."""
        self._counts[blueprint] += 1
        # Not from there on: a withdrawal is reported once.
        return self._counts[blueprint] == FAULTS_UNTIL_WITHDRAWN

    def is_withdrawn(self, blueprint: str) -> bool:
        """Return whether the blueprint is withdrawn."""
        return self._counts[blueprint] >= FAULTS_UNTIL_WITHDRAWN

    def state_dict(self) -> State:
        """Return the number of faults of each blueprint."""
        return State({"counts": dict(self._counts)})

    def load_state_dict(self, state: State) -> None:
        """Continue counting from ``state``."""
        self._counts = Counter(state.plain["counts"])
