"""Is a run in order? Read, look up, build; each of these finds everything that is wrong before the next begins."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from esper_core.app.resolution import resolve
from esper_core.config import load_config
from esper_core.plugins import load_plugins

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from esper_core.app.compose import Composition
    from esper_core.plugins import Plugins


@dataclass(frozen=True, slots=True)
class Prepared:
    """A run that could begin: every piece is built and checked."""

    composition: Composition
    plugins: Plugins


def prepare(file: Path, overrides: Sequence[str] = ()) -> Prepared:
    """Make a run ready. ConfigError or PluginError with everything that is wrong and where.

    What computes is imported only when the names are known: a slip is told before torch is loaded.
    """
    loaded = load_config(file, overrides)
    plugins = load_plugins(disable=loaded.config.plugins.disable)
    resolution = resolve(loaded, plugins.registry)

    from esper_core.app.compose import compose

    return Prepared(compose(resolution), plugins)
