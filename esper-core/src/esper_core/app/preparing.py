"""Is a run in order? Read, look up, build; each of these finds everything that is wrong before the next begins."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from esper_core.app.participation import (
    in_one_line,
    load_for,
    plugin_settings,
    problems_in_file,
    unmarked_hooks,
    unused_faults,
)
from esper_core.app.resolution import resolve
from esper_core.config import load_config
from esper_core.plugins.isolation import lent_streams

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from esper_core.app.compose import Composition
    from esper_core.leyline.errors import Problem
    from esper_core.plugins import Plugins


@dataclass(frozen=True, slots=True)
class Prepared:
    """A run that could begin: every piece is built and checked."""

    composition: Composition
    plugins: Plugins
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Of plugins, by plugin id; each an instance of the plugin's own model."""
    started_in: Path = field(default_factory=Path.cwd)
    """The current folder as it was before code of a plugin ran: a plugin may change it, and moves nothing of ours."""

    @property
    def warnings(self) -> tuple[str, ...]:
        """What is wrong beside the run and does not stop it, a line each."""
        return (*unused_faults(self.plugins), *map(in_one_line, self.unmarked))

    @property
    def unmarked(self) -> tuple[Problem, ...]:
        """The functions that a plugin which this run uses, or brings along, forgot to mark as hooks."""
        return unmarked_hooks(self.plugins, self.composition.resolution.plugins)


def prepare(
    file: Path,
    overrides: Sequence[str] = (),
    overlays: Sequence[Path] = (),
    *,
    looked: Callable[[Plugins], None] = lambda plugins: None,
) -> Prepared:
    """Make a run ready. ConfigError or PluginError with everything that is wrong and where.

    What computes is imported only when the names are known: a slip is told before torch is loaded. ``looked`` is given
    the plugins as soon as they are loaded, whatever comes of the run.
    """
    started_in = Path.cwd()
    loaded = load_config(file, overrides, overlays)
    plugins = load_for(loaded, (started_in / file).parent, looked)
    resolution = resolve(loaded, plugins.registry, problems_in_file(loaded, plugins))

    from esper_core.app.compose import compose
    from esper_core.app.runtime import one_thread

    with one_thread(), lent_streams():
        composition = compose(resolution)
    return Prepared(composition, plugins, plugin_settings(loaded, plugins), started_in)
