"""What does loading plugins do, from beginning to end? The steps stand below in the order in which they are taken.

Failures are data: nothing is printed, nothing is raised, and one plugin's fault is no other's.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from esper_core.leyline.errors import Problem
from esper_core.plugins.collecting import collect_components
from esper_core.plugins.discovery import PLUGIN_GROUP, discover
from esper_core.plugins.faults import summary_of
from esper_core.plugins.gate import Rules, gate, safe_mode_from_environment
from esper_core.plugins.loading import import_plugin
from esper_core.plugins.registry import Registry
from esper_core.plugins.unknown import unknown_plugin
from esper_core.plugins.validation import check_api_level, hook_manager, register_plugin, validate_plugin

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import pluggy

    from esper_core.plugins.discovery import Announcement, Damage, Distribution
    from esper_core.plugins.records import Candidate, PluginRecord


@dataclass(frozen=True, slots=True)
class Plugins:
    """What loading found: every plugin's record, the components of the active ones, and all that is wrong.

    None of the problems stops anything by itself: a name that a run uses does, when the registry is asked for it.
    ``manager`` calls the hooks of the active plugins.
    """

    records: tuple[PluginRecord, ...]
    registry: Registry
    problems: tuple[Problem, ...]
    manager: pluggy.PluginManager = field(repr=False, compare=False)


def load_plugins(
    *,
    disable: Iterable[str] = (),
    safe_mode: bool | None = None,
    distributions: Iterable[Distribution] | None = None,
) -> Plugins:
    """Loads the installed plugins.

    disable: plugin ids that are left out.
    safe_mode: whether only the project's own packages are loaded; None asks ``ESPER_SAFE_MODE``.
    distributions: packages to look at instead of the installed ones.
    """
    disable = tuple(disable)
    safe_mode = safe_mode_from_environment() if safe_mode is None else safe_mode
    manager = hook_manager()

    found, damaged = discover(PLUGIN_GROUP, distributions)
    candidates = gate(found, Rules(disable=frozenset(disable), safe_mode=safe_mode))
    candidates = [import_plugin(candidate) for candidate in candidates]
    candidates = [check_api_level(validate_plugin(manager, candidate)) for candidate in candidates]
    candidates = [register_plugin(manager, candidate) for candidate in candidates]
    candidates = [collect_components(manager, candidate) for candidate in candidates]

    records = tuple(candidate.record() for candidate in candidates)
    return Plugins(
        records=records,
        registry=_resolved(candidates, records),
        problems=(*_general(disable, found, records, damaged), *_own(records)),
        manager=manager,
    )


def _resolved(candidates: Sequence[Candidate], records: Sequence[PluginRecord]) -> Registry:
    active = [component for candidate in candidates if candidate.is_active for component in candidate.components]
    fallen = [component for candidate in candidates if not candidate.is_active for component in candidate.components]
    return Registry(active, records=records, withheld=fallen)


def _own(records: Sequence[PluginRecord]) -> list[Problem]:
    """The problems of the plugins; one that several share is told once."""
    return list(dict.fromkeys(problem for record in records for problem in record.problems))


def _general(
    disable: Sequence[str], found: Sequence[Announcement], records: Sequence[PluginRecord], damaged: Sequence[Damage]
) -> list[Problem]:
    """The problems that belong to no plugin."""
    ids = {announcement.name for announcement in found}
    problems = [
        replace(unknown_plugin(name, records), path=f"plugins.disable[{place}]")
        for place, name in enumerate(disable)
        if name not in ids
    ]
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
