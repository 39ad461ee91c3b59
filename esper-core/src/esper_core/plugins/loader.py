"""What does loading plugins do, from beginning to end? The steps stand below in the order in which they are taken.

Failures are data: nothing is printed, nothing is raised, and one plugin's fault is no other's.

How does a plugin's code get into memory without its faults getting out? Imported by its target, timed, contained.

What does each plugin bring? Its registration hooks are called, one plugin at a time.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from esper_core.leyline.errors import PluginError, Problem
from esper_core.leyline.text import plural, printable
from esper_core.plugins.discovery import (
    PLUGIN_GROUP,
    Rules,
    digest,
    discover,
    gate,
    import_local,
    read_local,
    safe_mode_from_environment,
)
from esper_core.plugins.isolation import attempt, import_target, place_of, summary_of
from esper_core.plugins.lookup_errors import missing_component, required_missing, unknown_plugin
from esper_core.plugins.records import raised
from esper_core.plugins.registry import Registrar, Registry
from esper_core.plugins.tracing import trace_hooks, tracing_from_environment
from esper_core.plugins.validation import (
    check_api_level,
    hook_manager,
    read_settings_model,
    register_plugin,
    validate_plugin,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    import pluggy
    from pydantic import BaseModel

    from esper_core.leyline.specs import ComponentKind
    from esper_core.plugins.discovery import Damage, Distribution, LocalFile
    from esper_core.plugins.records import Candidate, Component, PluginRecord


def import_plugin(candidate: Candidate, files: Sequence[LocalFile] = ()) -> Candidate:
    """The candidate with its module or object, and the time that took; fallen with E210 where importing it failed."""
    if not candidate.is_active:
        return candidate
    announcement = candidate.announcement
    own = [file for file in files if file.announcement == announcement]
    tried = attempt(lambda: import_local(own[0]) if own else import_target(announcement.target))
    hashed = digest(own[0].source) if own else _hash_of(announcement.target)
    candidate = replace(candidate, plugin=tried.value, load_ms=tried.milliseconds, sha256=hashed)
    if tried.error is None:
        return candidate
    return candidate.fallen("broken", raised("E210", candidate, "cannot be imported", tried.error))


def _hash_of(target: str) -> str | None:
    """Of the file that the target's module is in; None where it is in none."""
    file = getattr(sys.modules.get(target.partition(":")[0].strip()), "__file__", None)
    try:
        return digest(Path(file).read_bytes()) if isinstance(file, str) else None
    except OSError:  # it was imported all the same: from an archive, or by a loader of its own
        return None


REGISTRATION_HOOKS: Final[Mapping[str, ComponentKind]] = {
    "esper_register_blueprints": "blueprint",
    "esper_register_hosts": "host",
    "esper_register_policies": "policy",
    "esper_register_rewards": "reward",
    "esper_register_schedules": "schedule",
    "esper_register_sinks": "sink",
    "esper_register_tasks": "task",
}
"""The hooks that add components, each with the kind that it adds."""


def collect_components(manager: pluggy.PluginManager, candidate: Candidate) -> Candidate:
    """The candidate with its components.

    A fault in one of its hooks makes it fall, with every fault of the others too, and pluggy forgets it. What it could
    add is kept with it, so that a run which names one of these components can be told why it is not there.
    """
    if not candidate.is_active:
        return candidate
    components: list[Component] = []
    problems: list[Problem] = []
    for hook, kind in REGISTRATION_HOOKS.items():
        if hook in candidate.hooks:
            found, faults = _called(manager, candidate, hook, kind)
            components.extend(found)
            problems.extend(faults)
    candidate = replace(candidate, components=tuple(components))
    if not problems:
        return candidate
    manager.unregister(name=candidate.id)
    return candidate.fallen("broken", *problems)


def _called(
    manager: pluggy.PluginManager, candidate: Candidate, hook: str, kind: ComponentKind
) -> tuple[tuple[Component, ...], list[Problem]]:
    registrar: Registrar[Any] = Registrar(candidate, kind)
    others = [plugin for name, plugin in manager.list_name_plugin() if name != candidate.id]
    call = manager.subset_hook_caller(hook, remove_plugins=others)
    tried = attempt(lambda: call(registry=registrar))
    registrar.close()
    problems = list(registrar.problems)
    if tried.error is not None:
        refused = isinstance(tried.error, PluginError) and any(one in problems for one in tried.error.problems)
        if not refused:
            problems.append(raised("E221", candidate, f"failed in {hook}", tried.error))
    elif tried.value:
        file, line = place_of(candidate.hooks[hook])
        received = type(tried.value[0]).__name__
        message = f"{candidate.title} returns {received} from {hook}, which returns nothing"
        problems.append(Problem("E221", message, file=file, line=line, hint="Add to the registry, and return nothing."))
    return registrar.components, problems


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

    def _counted(self) -> str:
        problems = f", {plural(len(self.problems), 'problem')}" if self.problems else ""
        return plural(len(self.records), "plugin") + problems


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
