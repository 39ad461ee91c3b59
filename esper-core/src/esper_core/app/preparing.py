"""Is a run in order? Read, look up, build; each of these finds everything that is wrong before the next begins."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from esper_core.app.participation import load_for, plugin_settings, problems_in_file, unused_faults
from esper_core.app.resolution import resolve
from esper_core.config import load_config

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from esper_core.app.compose import Composition
    from esper_core.plugins import Plugins


@dataclass(frozen=True, slots=True)
class Prepared:
    """A run that could begin: every piece is built and checked."""

    composition: Composition
    plugins: Plugins
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Of plugins, by plugin id; each an instance of the plugin's own model."""

    @property
    def warnings(self) -> tuple[str, ...]:
        """What is wrong beside the run and does not stop it, a line each."""
        return unused_faults(self.plugins)


def prepare(file: Path, overrides: Sequence[str] = ()) -> Prepared:
    """Make a run ready. ConfigError or PluginError with everything that is wrong and where.

    What computes is imported only when the names are known: a slip is told before torch is loaded.
    """
    loaded = load_config(file, overrides)
    plugins = load_for(loaded, file.parent)
    resolution = resolve(loaded, plugins.registry, problems_in_file(loaded, plugins))

    from esper_core.app.compose import compose

    return Prepared(compose(resolution), plugins, plugin_settings(loaded, plugins))
