"""What does loading plugins do, from beginning to end? The steps stand below in the order in which they are taken.

Failures are data: nothing is printed, nothing is raised, and one plugin's fault is no other's.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from esper_core.leyline.errors import Problem
from esper_core.leyline.markup import counted, notebook, printable, table
from esper_core.plugins.calling import missing_component
from esper_core.plugins.collecting import collect_components
from esper_core.plugins.discovery import PLUGIN_GROUP, discover
from esper_core.plugins.faults import summary_of
from esper_core.plugins.gate import Rules, gate, safe_mode_from_environment
from esper_core.plugins.loading import import_plugin
from esper_core.plugins.local import read_local
from esper_core.plugins.registry import Registry
from esper_core.plugins.tracing import trace_hooks, tracing_from_environment
from esper_core.plugins.unknown import required_missing, unknown_plugin
from esper_core.plugins.validation import (
    check_api_level,
    hook_manager,
    read_settings_model,
    register_plugin,
    validate_plugin,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    import pluggy
    from pydantic import BaseModel

    from esper_core.leyline.specs import ComponentKind
    from esper_core.plugins.discovery import Damage, Distribution
    from esper_core.plugins.local import LocalFile
    from esper_core.plugins.records import Candidate, PluginRecord


@dataclass(frozen=True, slots=True)
class Plugins:
    """What loading found: every plugin's record, the components of the active ones, and all that is wrong.

    None of the problems stops anything by itself: a name that a run uses does, when the registry is asked for it.
    ``manager`` calls the hooks of the active plugins. ``files`` are the one-file plugins that were read.
    ``settings`` has the pydantic model of each active plugin that names one, by its id.
    """

    records: tuple[PluginRecord, ...]
    registry: Registry
    problems: tuple[Problem, ...]
    manager: pluggy.PluginManager = field(repr=False, compare=False)
    files: tuple[LocalFile, ...] = field(default=(), repr=False, compare=False)
    settings: Mapping[str, type[BaseModel]] = field(default_factory=dict, repr=False, compare=False)

    def __repr__(self) -> str:
        return f"<{printable(self._counted())}; {self.registry!r}>"

    def _repr_html_(self) -> str:
        """What a notebook shows of it: each plugin, what it brings, and what is wrong with it."""
        rows = [
            (one.id, one.source, one.status, str(len(one.components)), "; ".join(told.message for told in one.problems))
            for one in self.records
        ]
        head = ["plugin", "package", "status", "components", "what is wrong"]
        return notebook(self._counted(), table(head, rows, numbers=("components",)))

    def _counted(self) -> str:
        problems = f", {counted(len(self.problems), 'problem')}" if self.problems else ""
        return counted(len(self.records), "plugin") + problems


def load_plugins(
    *,
    disable: Iterable[str] = (),
    require: Mapping[str, str] | None = None,
    local: Iterable[Path] = (),
    safe_mode: bool | None = None,
    distributions: Iterable[Distribution] | None = None,
) -> Plugins:
    """Loads the installed plugins.

    disable: plugin ids that are left out.
    require: plugin ids that have to be there, each with the versions of its package that will do: ``">=0.2,<0.3"``.
    local: one-file plugins.
    safe_mode: whether only the project's own packages are loaded; None asks ``ESPER_SAFE_MODE``.
    distributions: packages to look at instead of the installed ones.
    """
    disable = tuple(disable)
    safe_mode = safe_mode_from_environment() if safe_mode is None else safe_mode
    require = dict(require or {})
    manager = hook_manager()
    if tracing_from_environment():
        trace_hooks(manager)

    found, damaged = discover(PLUGIN_GROUP, distributions)
    files, unusable = read_local(local)
    found = (*found, *(file.announcement for file in files))
    candidates = gate(found, Rules(disable=frozenset(disable), require=require, safe_mode=safe_mode))
    candidates = [import_plugin(candidate, files) for candidate in candidates]
    candidates = [check_api_level(validate_plugin(manager, candidate)) for candidate in candidates]
    candidates = [read_settings_model(candidate) for candidate in candidates]
    candidates = [register_plugin(manager, candidate) for candidate in candidates]
    candidates = [collect_components(manager, candidate) for candidate in candidates]

    records = tuple(candidate.record() for candidate in candidates)
    return Plugins(
        records=records,
        registry=_resolved(candidates, records, partial(missing_component, manager, records)),
        problems=(*_named(disable, require, records), *unusable, *_damaged(damaged), *_own(records)),
        manager=manager,
        files=files,
        settings={one.id: one.settings for one in candidates if one.is_active and one.settings is not None},
    )


def _resolved(
    candidates: Sequence[Candidate],
    records: Sequence[PluginRecord],
    missing: Callable[[ComponentKind, str], str | None],
) -> Registry:
    active = [component for candidate in candidates if candidate.is_active for component in candidate.components]
    fallen = [component for candidate in candidates if not candidate.is_active for component in candidate.components]
    return Registry(active, records=records, withheld=fallen, missing=missing)


def _own(records: Sequence[PluginRecord]) -> list[Problem]:
    """The problems of the plugins; one that several share is told once."""
    return list(dict.fromkeys(problem for record in records for problem in record.problems))


def _named(disable: Sequence[str], require: Mapping[str, str], records: Sequence[PluginRecord]) -> list[Problem]:
    """What is wrong with the ids that the user names: not installed, or required and not there."""
    ids = {record.id for record in records}
    problems = [
        replace(unknown_plugin(name, records), path=f"plugins.disable[{place}]")
        for place, name in enumerate(disable)
        if name not in ids
    ]
    for name, pin in require.items():
        if name not in ids:
            problems.append(required_missing(name, pin, records))
    return problems


def _damaged(damaged: Sequence[Damage]) -> list[Problem]:
    """The problems of packages whose metadata cannot be read."""
    problems = []
    for damage in damaged:
        name = f'package "{damage.package}"' if damage.package else "an installed package"
        problems.append(
            Problem(
                "E223",
                f"the metadata of {name} cannot be read: {summary_of(damage.error)}",
                hint=f"Install it anew:  pip install --force-reinstall {damage.package or 'PACKAGE'}",
            )
        )
    return problems
