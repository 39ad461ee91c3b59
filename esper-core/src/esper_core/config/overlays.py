"""Merge overlays over a configuration: mappings key by key, anything else replaces what was there."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from esper_core.config.fields import entry_at
from esper_core.config.overrides import replace
from esper_core.config.reading import read_document

if TYPE_CHECKING:
    from collections.abc import Mapping

    from esper_core.config.paths import KeyPath
    from esper_core.config.places import Tree


@dataclass(frozen=True, slots=True)
class Overlay:
    """A partial configuration. ``file`` is what problems call it; its paths of plugins are relative to ``folder``."""

    file: str
    source: bytes = field(repr=False)
    folder: Path


def apply_overlay(overlay: Overlay, tree: Tree, folder: Path) -> None:
    """Merge an overlay over ``tree``, whose own paths of plugins are relative to ``folder``.

    A component that the overlay names differently starts without the settings of the one it replaces. ConfigError
    where the overlay cannot be read; its other problems are added to those of the tree.
    """
    upper = read_document(overlay.source, overlay.file)
    plugins = upper.value.get("plugins")
    local = plugins.get("local") if isinstance(plugins, dict) else None
    if isinstance(local, list) and overlay.folder != folder:
        start = os.path.relpath(overlay.folder, folder)
        local[:] = [str(Path(start, name)) if isinstance(name, str) and name else name for name in local]
    _merge(upper.value, tree.value, (), upper, tree)
    tree.problems += upper.problems


def _merge(upper: Mapping[str, Any], lower: dict[str, Any], path: KeyPath, overlay: Tree, tree: Tree) -> None:
    """Merge the mapping ``upper``, which is at ``path`` of the overlay, over ``lower`` of the tree."""
    if path in overlay.incomplete:
        tree.incomplete.add(path)
    for key, value in upper.items():
        at = (*path, key)
        below = lower.get(key)
        entry = entry_at(at) if isinstance(value, dict) else None
        if entry is not None and entry.is_use:
            if isinstance(below, str):
                below = lower[key] = {"use": below}
                tree.places.by_path[*at, "use"] = tree.places.by_path[at]
            if isinstance(below, dict) and not _same_component(value.get("use"), below.get("use")):
                below = None
        if isinstance(value, dict) and isinstance(below, dict):
            _merge(value, below, at, overlay, tree)
        else:
            lower[key] = value
            replace(tree, at, overlay)


def _same_component(upper: Any, lower: Any) -> bool:
    """Whether two names can mean the same component. A name without its plugin may; no name always does."""
    if upper is None or upper == lower:
        return True
    if not isinstance(upper, str) or not isinstance(lower, str) or ("/" in upper) == ("/" in lower):
        return False
    return upper.rpartition("/")[2] == lower.rpartition("/")[2]
