"""Which plugins take part in this run, and are they as its file wants them? Nothing of torch is imported here."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from esper_core.config import parse_path, settings_problems
from esper_core.leyline.errors import ConfigError, PluginError, Problem
from esper_core.plugins import load_plugins
from esper_core.plugins.lookup_errors import unknown_plugin

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping
    from pathlib import Path

    from esper_core.config import LoadedConfig
    from esper_core.plugins import PluginRecord, Plugins

_IN_FILE = ("E208", "E227")
"""Problems that are the file's: a name that stands for nothing."""


def load_for(loaded: LoadedConfig, folder: Path, looked: Callable[[Plugins], None] = lambda plugins: None) -> Plugins:
    """The plugins of a configuration, whose one-file plugins are looked for in ``folder``. ``looked`` is given them.

    PluginError where one that it requires, or brings along, is missing or at fault.
    """
    own = loaded.config.plugins
    plugins = load_plugins(disable=own.disable, require=own.require, local=[folder / name for name in own.local])
    looked(plugins)
    problems = [_placed(loaded, problem) for problem in plugins.problems if problem.code == "E226"]
    for record in plugins.records:
        if record.id in own.require and record.status != "active":
            problems += _unmet(loaded, record)
        elif _is_local(plugins, record) and record.status in ("broken", "rejected"):
            problems += record.problems
    if problems:
        raise PluginError(list(dict.fromkeys(problems)))
    return plugins


def problems_in_file(loaded: LoadedConfig, plugins: Plugins) -> list[Problem]:
    """What the file says of plugins that cannot be: ids and files that are not there, settings that are refused."""
    named = [_placed(loaded, problem) for problem in plugins.problems if problem.code in _IN_FILE]
    return [*named, *_settings(loaded, plugins)[1]]


def plugin_settings(loaded: LoadedConfig, plugins: Plugins) -> Mapping[str, Any]:
    """For each active plugin that names a model what the file makes of it; ConfigError where the model refuses it."""
    settings, problems = _settings(loaded, plugins)
    if problems:
        raise ConfigError(problems)
    return settings


def unused_faults(plugins: Plugins) -> tuple[str, ...]:
    """A line for each plugin that is at fault and that nothing in this run needs."""
    lines = [
        f'plugin "{record.id}" ({record.source}) is {record.status}, and not used: {_first(record.problems)}'
        f"  More:  esper plugins show {record.id}"
        for record in plugins.records
        if record.status in ("broken", "rejected")
    ]
    return (*lines, *(f"{one.message}  {one.hint}" for one in plugins.problems if one.code == "E223"))


def unmarked_hooks(plugins: Plugins, used: Collection[str] | None = None) -> tuple[Problem, ...]:
    """The functions that active plugins forgot to mark as hooks (E222).

    used: ids of the installed plugins that count; None: all of them. A one-file plugin counts always.
    """
    found = [
        problem
        for record in plugins.records
        if record.status == "active" and (used is None or record.id in used or _is_local(plugins, record))
        for problem in record.problems
        if problem.code == "E222"
    ]
    return tuple(dict.fromkeys(found))


def in_one_line(problem: Problem) -> str:
    """A problem as a warning tells it: code, message, place, and way out."""
    return "  ".join(filter(None, [f"{problem.code} {problem.message}", problem.where(), *_lines(problem.hint)]))


def _settings(loaded: LoadedConfig, plugins: Plugins) -> tuple[dict[str, Any], list[Problem]]:
    given = loaded.config.plugins.settings
    active = {record.id: record for record in plugins.records if record.status == "active"}
    found: dict[str, Any] = {}
    problems: list[Problem] = []
    for id_, model in plugins.settings.items():
        path = ("plugins", "settings", id_)
        try:
            found[id_] = model.model_validate(given.get(id_, {}))
        except ValidationError as error:
            problems += settings_problems(loaded, error, model, path)
    for id_, values in given.items():
        path = ("plugins", "settings", id_)
        if id_ not in {record.id for record in plugins.records}:
            unknown = unknown_plugin(id_, plugins.records)
            problems.append(loaded.places.problem(unknown.code, path, unknown.message, unknown.hint, key=True))
        elif id_ in active and id_ not in plugins.settings and values:
            message = f'plugin "{id_}" ({active[id_].source}) has no settings'
            problems.append(loaded.places.problem("E121", path, message, "Delete them.", key=True))
    return found, problems


def _unmet(loaded: LoadedConfig, record: PluginRecord) -> list[Problem]:
    path = ("plugins", "require", record.id)
    if any(problem.code == "E226" for problem in record.problems):
        return []
    message = f'plugin "{record.id}" ({record.source}) is required, and it is '
    if record.status == "disabled":
        hint = f'Take "{record.id}" out of plugins.disable, or out of plugins.require.'
        return [loaded.problem("E226", path, message + "disabled", hint)]
    if record.status == "not-listed":
        return [loaded.problem("E226", path, message + "left out in safe mode", "Unset ESPER_SAFE_MODE.")]
    hint = f"More:  esper plugins show {record.id}"
    return [loaded.problem("E226", path, message + record.status, hint), *record.problems]


def _placed(loaded: LoadedConfig, problem: Problem) -> Problem:
    """The problem with the place of the value that its path names."""
    path = parse_path(problem.path or "")
    return replace(loaded.problem(problem.code, path, problem.message, problem.hint), path=problem.path)


def _is_local(plugins: Plugins, record: PluginRecord) -> bool:
    return any(file.announcement.file == record.origin for file in plugins.files)


def _lines(text: str | None) -> list[str]:
    return [] if text is None else text.splitlines()


def _first(problems: Iterable[Problem]) -> str:
    return next((f"{one.code} {one.message}" for one in problems), "no reason is known")
