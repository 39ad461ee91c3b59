"""What is meant where two files say something? The upper one: over a mapping key by key, over all else as a whole.

``null`` takes away what the lower file says: what is left is the default. Below the settings of a component it is a
value like any other. A component that is named anew, by its name alone or by another name, begins without settings.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from esper_core.config.fields import entry_at
from esper_core.config.places import Places, Tree

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from esper_core.config.paths import KeyPath


def lay_over(upper: Tree, lower: Tree) -> Tree:
    """A tree that says what ``upper`` says, and what ``lower`` says where ``upper`` is silent. Problems of both."""
    layers = _Layers(upper, lower)
    value = layers.merged(upper.value, lower.value, ())
    left, own = layers.left_of_lower, layers.own_of_upper
    places = {path: place for path, place in lower.places.by_path.items() if left(path)}
    places |= {path: place for path, place in upper.places.by_path.items() if own(path)}
    return Tree(
        value,
        Places(places),
        [*upper.problems, *lower.problems],
        {*filter(left, lower.refused), *upper.refused},
        {*filter(left, lower.incomplete), *upper.incomplete},
    )


def move_plugins(tree: Tree, folder: PurePath) -> None:
    """Make the paths of one-file plugins, which stand in a file in ``folder``, paths from where its reader is."""
    plugins = tree.value.get("plugins")
    local = plugins.get("local") if isinstance(plugins, dict) else None
    if isinstance(local, list) and folder != PurePath():
        local[:] = [str(folder / name) if isinstance(name, str) and name else name for name in local]


@dataclass(slots=True)
class _Layers:
    """Two trees on their way to be one. ``hidden``: what of the lower is not seen; ``emptied``: nulls of the upper."""

    upper: Tree
    lower: Tree
    hidden: set[KeyPath] = field(default_factory=set)
    emptied: set[KeyPath] = field(default_factory=set)

    def merged(self, upper: Mapping[str, Any], lower: Mapping[str, Any], path: KeyPath) -> dict[str, Any]:
        """The mapping at ``path``: keys in the order of the lower one, then those that are new."""
        mapping = dict(lower)
        for key, value in upper.items():
            at = (*path, key)
            if key not in lower:
                mapping[key] = value
            elif value is None and not _is_free(at):
                del mapping[key]
                self.hidden.add(at)
                self.emptied.add(at)
            elif (beneath := self.mergeable(value, lower[key], at)) is not None:
                mapping[key] = self.merged(value, beneath, at)
            else:
                mapping[key] = value
                self.hidden.add(at)
        return mapping

    def mergeable(self, upper: Any, lower: Any, path: KeyPath) -> Mapping[str, Any] | None:
        """What of the lower value shows through the upper one; None where the upper one stands in its place."""
        if not isinstance(upper, dict):
            return None
        entry = entry_at(path)
        if entry is None or not entry.is_use:
            return lower if isinstance(lower, dict) else None
        named = lower if isinstance(lower, dict) else {"use": lower}
        if "use" in upper and not _same_component(upper["use"], named.get("use")):
            return None
        if not isinstance(lower, dict) and (place := self.lower.places.by_path.get(path)) is not None:
            self.lower.places.by_path[*path, "use"] = place
        return named

    def left_of_lower(self, path: KeyPath) -> bool:
        """Whether what stands at ``path`` in the lower tree is still there."""
        return not _at_or_below(path, self.hidden)

    def own_of_upper(self, path: KeyPath) -> bool:
        """Whether what stands at ``path`` in the upper tree is a value, and not a null that took one away."""
        return path not in self.emptied


def _is_free(path: KeyPath) -> bool:
    """Whether a component says what may stand here, so that null is its business."""
    entry = entry_at(path)
    return entry is not None and entry.kind is Any


def _same_component(one: Any, other: Any) -> bool:
    """Whether two names may be of one component: short is as good as full."""
    if not isinstance(one, str) or not isinstance(other, str) or ("/" in one) == ("/" in other):
        return bool(one == other)
    return one.rpartition("/")[2] == other.rpartition("/")[2]


def _at_or_below(path: KeyPath, among: Iterable[KeyPath]) -> bool:
    return any(path[:length] in among for length in range(len(path) + 1))
