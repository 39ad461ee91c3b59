"""Are a plugin's functions the hooks that its author takes them for?

pluggy accepts a misspelt hook and never calls it, and never gives a value to an argument with a default. Such a plugin
would do nothing, without a word; here it is told, with the author's own line.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import pluggy

from esper_core._version import __version__
from esper_core.hooks import PROJECT, spec
from esper_core.leyline.constants import API_LEVEL
from esper_core.leyline.errors import Problem, suggestion
from esper_core.leyline.specs import PluginInfo
from esper_core.plugins.isolation import attempt, place_of
from esper_core.plugins.records import raised

if TYPE_CHECKING:
    from collections.abc import Mapping

    from esper_core.plugins.records import Candidate, Hook

OLDEST_API_LEVEL: Final = 1
"""The lowest API level whose plugins still work."""

_PREFIX: Final = "esper_"


def hook_manager() -> pluggy.PluginManager:
    """A pluggy manager that knows our hooks and no plugin."""
    manager = pluggy.PluginManager(PROJECT)
    manager.add_hookspecs(spec)
    return manager


def known_hooks() -> Mapping[str, tuple[str, ...]]:
    """Each hook with the names of its arguments."""
    return {
        name: tuple(inspect.signature(hook).parameters)
        for name, hook in vars(spec).items()
        if name.startswith(_PREFIX) and inspect.isfunction(hook)
    }


def validate_plugin(manager: pluggy.PluginManager, candidate: Candidate) -> Candidate:
    """The candidate with its hooks; fallen where one of them is not what it seems."""
    if not candidate.is_active:
        return candidate
    tried = attempt(lambda: _examined(manager, candidate.plugin))
    if tried.value is None:
        assert tried.error is not None
        return candidate.fallen(
            "broken", raised("E221", candidate, "failed when its hooks were looked for", tried.error)
        )
    hooks, notes = tried.value
    problems = [_problem(candidate, note) for note in notes]
    candidate = replace(candidate, hooks=hooks)
    if any(problem.code != "E222" for problem in problems):
        return candidate.fallen("broken", *problems)
    return replace(candidate, problems=(*candidate.problems, *problems))


def check_api_level(candidate: Candidate) -> Candidate:
    """The candidate with the API level that it was written for; fallen where that is not one of ours.

    A plugin without ``esper_plugin_info`` is taken to be of the oldest level.
    """
    if not candidate.is_active:
        return candidate
    hook = candidate.hooks.get("esper_plugin_info")
    if hook is None:
        return replace(candidate, api=OLDEST_API_LEVEL)
    tried = attempt(hook)
    if tried.error is not None:
        return candidate.fallen("broken", raised("E221", candidate, "failed in esper_plugin_info", tried.error))
    info, (file, line) = tried.value, place_of(hook)
    if not isinstance(info, PluginInfo) or type(info.api) is not int or info.api < 1:
        received = f"api={info.api!r}" if isinstance(info, PluginInfo) else type(info).__name__
        problem = Problem(
            "E215",
            f"{candidate.title} does not say what it is: esper_plugin_info returned {received}",
            file=file,
            line=line,
            hint=f"Return PluginInfo(api={API_LEVEL}, summary=...).",
        )
        return candidate.fallen("broken", problem)
    if OLDEST_API_LEVEL <= info.api <= API_LEVEL:
        return replace(candidate, api=info.api)
    direction = "esper-core" if info.api > API_LEVEL else candidate.announcement.package
    levels = str(API_LEVEL) if API_LEVEL == OLDEST_API_LEVEL else f"{OLDEST_API_LEVEL} to {API_LEVEL}"
    problem = Problem(
        "E215",
        f"{candidate.title} was written for API level {info.api}, and esper-core {__version__} has {levels}",
        file=file,
        line=line,
        hint=f"Bring them together:  pip install --upgrade {direction}",
    )
    return replace(candidate, api=info.api).fallen("rejected", problem)


def read_settings_model(candidate: Candidate) -> Candidate:
    """The candidate with the model of its own settings; fallen where what it names is none."""
    hook = candidate.hooks.get("esper_settings_model")
    if not candidate.is_active or hook is None:
        return candidate
    tried = attempt(hook)
    if tried.error is not None:
        return candidate.fallen("broken", raised("E221", candidate, "failed in esper_settings_model", tried.error))
    from pydantic import BaseModel  # the plugin imported it already, if it is right

    if isinstance(tried.value, type) and issubclass(tried.value, BaseModel):
        return replace(candidate, settings=tried.value)
    file, line = place_of(hook)
    received = tried.value.__name__ if isinstance(tried.value, type) else type(tried.value).__name__
    message = f"{candidate.title} has settings that are no pydantic model: esper_settings_model returned {received}"
    hint = "Return a class that derives from pydantic.BaseModel."
    return candidate.fallen("broken", Problem("E217", message, file=file, line=line, hint=hint))


def register_plugin(manager: pluggy.PluginManager, candidate: Candidate) -> Candidate:
    """Gives the candidate's hooks to pluggy; fallen where pluggy finds fault with them."""
    if not candidate.is_active:
        return candidate
    tried = attempt(lambda: manager.register(Face(candidate.hooks), name=candidate.id))
    if tried.error is None:
        return candidate
    return candidate.fallen("broken", raised("E221", candidate, "failed when its hooks were registered", tried.error))


class Face:
    """What pluggy sees of a plugin: its valid hooks and nothing else, so that an odd object can do no harm."""

    def __init__(self, hooks: Mapping[str, Hook]) -> None:
        self.__dict__.update(hooks)


@dataclass(frozen=True, slots=True)
class _Note:
    code: str
    what: str
    function: Any
    hint: str


def _examined(manager: pluggy.PluginManager, plugin: Any) -> tuple[dict[str, Hook], list[_Note]]:
    known = known_hooks()
    hooks: dict[str, Hook] = {}
    notes: list[_Note] = []
    for name in dir(plugin):
        options = manager.parse_hookimpl_opts(plugin, name)
        if options is None:
            notes.extend(_unmarked(plugin, name, known))
            continue
        hook, function = options.get("specname") or name, getattr(plugin, name)
        if hook in hooks:
            notes.append(_Note("E214", f"has two functions for {hook}", function, "Make one of them."))
        elif hook in known:
            notes.extend(_misfits(plugin, hook, function, known[hook], wraps=_wraps(options)))
            hooks[hook] = function
        elif not options.get("optionalhook"):
            what = f"implements a hook that does not exist: {hook}"
            notes.append(_Note("E213", what, function, suggestion(hook, known)))
    return hooks, notes


def _wraps(options: Mapping[str, Any]) -> bool:
    return bool(options.get("wrapper") or options.get("hookwrapper"))


def _unmarked(plugin: Any, name: str, known: Mapping[str, Any]) -> list[_Note]:
    """A function that is named like a hook, stands in the plugin itself, and is not marked as one."""
    if not name.startswith(_PREFIX):
        return []
    function = inspect.getattr_static(plugin, name)
    function = getattr(function, "__func__", function)
    home = plugin.__name__ if inspect.ismodule(plugin) else type(plugin).__module__
    if not inspect.isfunction(function) or function.__module__ != home:
        return []
    what = f"has a function {name} that is not marked as a hook, so it is never called"
    close = "" if name in known else f"\n{suggestion(name, known)}"
    return [_Note("E222", what, function, f"Put @hookimpl above it, or give it another name.{close}")]


def _misfits(plugin: Any, hook: str, function: Hook, arguments: tuple[str, ...], *, wraps: bool) -> list[_Note]:
    notes: list[_Note] = []
    right = f"The hook is {hook}({', '.join(arguments)}); arguments are given by name, and may be left out."
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        notes.append(_Note("E214", f"has an async hook {hook}, which nobody would await", function, "Write def."))
    elif inspect.isgeneratorfunction(function) and not wraps:
        hint = "Return instead, or mark it with @hookimpl(wrapper=True)."
        notes.append(_Note("E214", f"has a hook {hook} that yields, so its body would never run", function, hint))
    elif hook == "esper_run" and not wraps:
        hint = "Mark it with @hookimpl(wrapper=True), and yield where the run is to be."
        notes.append(_Note("E214", f"has a hook {hook} that does not wrap, so it is never called", function, hint))
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        has_default = parameter.default is not parameter.empty
        if parameter.name in arguments and parameter.kind is parameter.KEYWORD_ONLY:
            fault = "that may only be given by keyword, which pluggy does not do"
        elif parameter.name in arguments and has_default:
            fault = "with a default, so its value would never be given"
        elif parameter.name not in arguments and not has_default:
            fault = "that the hook does not have"
        else:
            continue
        what = f'has an argument "{parameter.name}" in {hook} {fault}'
        unbound = inspect.isclass(plugin) and parameter.name == "self"
        hint = "The entry point names a class: name an instance of it." if unbound else right
        notes.append(_Note("E214", what, function, hint))
    return notes


def _problem(candidate: Candidate, note: _Note) -> Problem:
    file, line = place_of(note.function)
    return Problem(note.code, f"{candidate.title} {note.what}", file=file, line=line, hint=note.hint)
