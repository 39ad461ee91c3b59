"""What can be chosen of how a thing is done, and what is fixed? Heads with one option are no heads."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from esper_core.leyline import ARGUMENTS, Action, Blend, Curve

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass(frozen=True, slots=True)
class Options:
    """For each detail of an action its options, by the name of the action's field."""

    blend: tuple[Blend, ...]
    speed: tuple[int, ...]
    curve: tuple[Curve, ...]
    target: tuple[float, ...]

    @classmethod
    def of(
        cls, blends: Sequence[str], speeds: Sequence[int], curves: Sequence[str], targets: Sequence[float]
    ) -> Options:
        """As settings have them."""
        return cls(tuple(map(Blend, blends)), tuple(speeds), tuple(map(Curve, curves)), tuple(targets))

    @property
    def heads(self) -> dict[str, int]:
        """Those among which there is something to choose, with how many options."""
        return {name: len(self._of(name)) for name in ("blend", "speed", "curve", "target") if len(self._of(name)) > 1}

    @property
    def choices(self) -> dict[str, list[Any]]:
        """The options of each head among which there is something to choose, as JSON has them."""
        return {name: [getattr(one, "value", one) for one in self._of(name)] for name in self.heads}

    def detailed(self, action: Action, numbers: Mapping[str, int]) -> Action:
        """The action with its details: what the numbers choose, and what is fixed."""
        details: dict[str, Any] = {
            name: self._of(name)[numbers.get(name, 0)]
            for name in ("blend", "speed", "curve", "target")
            if name in ARGUMENTS[action.op]
        }
        return replace(action, **details)

    def numbers(self, action: Action) -> dict[str, int] | None:
        """Which options an action has; None where it has others. What its op does not read counts as the first."""
        found = {}
        for name in self.heads:
            own = getattr(action, name)
            if name not in ARGUMENTS[action.op]:
                own = self._of(name)[0]
            if own not in self._of(name):
                return None
            found[name] = self._of(name).index(own)
        return found

    def _of(self, name: str) -> tuple[Any, ...]:
        return tuple(getattr(self, name))
