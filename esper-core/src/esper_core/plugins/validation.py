"""Validation: check that a plugin's functions are the hooks that its author takes them for.

pluggy accepts a misspelt hook and never calls it, and it never passes a value to an argument with a default. Such a
plugin would silently do nothing. Here it is reported, with the author's own line.
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
from esper_core.plugins.isolation import attempt, definition_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from esper_core.plugins.records import Hook, PluginCandidate

OLDEST_API_LEVEL: Final = 1
"""The lowest API level whose plugins still work."""

_PREFIX: Final = "esper_"


@dataclass(frozen=True, slots=True)
class _Finding:
    """Something wrong with a function of a plugin: the message goes behind the plugin's title."""

    code: str
    message: str
    function: Any
    hint: str


class HookCollection:
    """The valid hooks of a plugin, which is all that pluggy sees of it, whatever else the object does."""

    def __init__(self, hooks: Mapping[str, Hook]) -> None:
        self.__dict__.update(hooks)


def hook_manager() -> pluggy.PluginManager:
    """Return a pluggy manager with Esper's hook specifications and no plugin."""
    manager = pluggy.PluginManager(PROJECT)
    manager.add_hookspecs(spec)
    return manager


def known_hooks() -> Mapping[str, tuple[str, ...]]:
    """Return the names of the arguments of each hook."""
    return {
        name: tuple(inspect.signature(hook).parameters)
        for name, hook in vars(spec).items()
        if name.startswith(_PREFIX) and inspect.isfunction(hook)
    }


def validate_hooks(manager: pluggy.PluginManager, candidate: PluginCandidate) -> PluginCandidate:
    """Return the candidate with its hooks; stopped if one of them would not work."""
    if not candidate.is_active:
        return candidate
    examined = attempt(lambda: _examine(manager, candidate.plugin))
    if examined.value is None:
        assert examined.error is not None
        return candidate.broken_by("E221", "failed while its hooks were looked up", examined.error)
    hooks, findings = examined.value
    problems = []
    for finding in findings:
        file, line = definition_of(finding.function)
        message = f"{candidate.title} {finding.message}"
        problems.append(Problem(finding.code, message, file=file, line=line, hint=finding.hint))
    candidate = replace(candidate, hooks=hooks)
    if any(problem.code != "E222" for problem in problems):
        return candidate.stopped("broken", *problems)
    return replace(candidate, problems=(*candidate.problems, *problems))


def check_api_level(candidate: PluginCandidate) -> PluginCandidate:
    """Return the candidate with the API level that it was written for; stopped if this core does not support it.

    A plugin without ``esper_plugin_info`` has the oldest level.
    """
    hook = candidate.hooks.get("esper_plugin_info")
    if not candidate.is_active or hook is None:
        return replace(candidate, api=OLDEST_API_LEVEL) if candidate.is_active else candidate
    called = attempt(hook)
    if called.error is not None:
        return candidate.broken_by("E221", "failed in esper_plugin_info", called.error)
    info, (file, line) = called.value, definition_of(hook)
    if not isinstance(info, PluginInfo) or type(info.api) is not int or info.api < 1:
        received = f"api={info.api!r}" if isinstance(info, PluginInfo) else type(info).__name__
        message = f"{candidate.title} does not describe itself: esper_plugin_info returned {received}"
        hint = f"Return PluginInfo(api={API_LEVEL}, summary=...)."
        return candidate.stopped("broken", Problem("E215", message, file=file, line=line, hint=hint))
    candidate = replace(candidate, api=info.api)
    if OLDEST_API_LEVEL <= info.api <= API_LEVEL:
        return candidate
    upgrade = "esper-core" if info.api > API_LEVEL else candidate.entry_point.package
    levels = str(API_LEVEL) if API_LEVEL == OLDEST_API_LEVEL else f"{OLDEST_API_LEVEL} to {API_LEVEL}"
    message = f"{candidate.title} was written for API level {info.api}; esper-core {__version__} supports {levels}"
    hint = f"Bring them together:  pip install --upgrade {upgrade}"
    return candidate.stopped("rejected", Problem("E215", message, file=file, line=line, hint=hint))


def read_settings_model(candidate: PluginCandidate) -> PluginCandidate:
    """Return the candidate with the model of its own settings; stopped if it returns something else."""
    hook = candidate.hooks.get("esper_settings_model")
    if not candidate.is_active or hook is None:
        return candidate
    called = attempt(hook)
    if called.error is not None:
        return candidate.broken_by("E221", "failed in esper_settings_model", called.error)
    from pydantic import BaseModel  # imported late: a plugin with settings has imported it already

    if isinstance(called.value, type) and issubclass(called.value, BaseModel):
        return replace(candidate, settings=called.value)
    file, line = definition_of(hook)
    received = called.value.__name__ if isinstance(called.value, type) else type(called.value).__name__
    message = f"{candidate.title} has settings that are not a pydantic model: esper_settings_model returned {received}"
    hint = "Return a class that derives from pydantic.BaseModel."
    return candidate.stopped("broken", Problem("E217", message, file=file, line=line, hint=hint))


def register_hooks(manager: pluggy.PluginManager, candidate: PluginCandidate) -> PluginCandidate:
    """Register the candidate's hooks with pluggy; return it stopped if pluggy refuses them."""
    if not candidate.is_active:
        return candidate
    registered = attempt(lambda: manager.register(HookCollection(candidate.hooks), name=candidate.id))
    if registered.error is None:
        return candidate
    return candidate.broken_by("E221", "failed while its hooks were registered", registered.error)


def _examine(manager: pluggy.PluginManager, plugin: Any) -> tuple[dict[str, Hook], list[_Finding]]:
    """Return the hooks that a plugin implements and what is wrong with its functions."""
    known = known_hooks()
    hooks: dict[str, Hook] = {}
    findings: list[_Finding] = []
    for name in dir(plugin):
        options = manager.parse_hookimpl_opts(plugin, name)
        if options is None:
            findings.extend(_check_unmarked(plugin, name, known))
            continue
        hook, function = options.get("specname") or name, getattr(plugin, name)
        if hook in hooks:
            findings.append(_Finding("E214", f"has two functions for {hook}", function, "Make one of them."))
        elif hook in known:
            is_wrapper = bool(options.get("wrapper") or options.get("hookwrapper"))
            findings.extend(_check_form(hook, function, is_wrapper=is_wrapper))
            findings.extend(_check_arguments(plugin, hook, function, known[hook]))
            hooks[hook] = function
        elif not options.get("optionalhook"):
            message = f"implements a hook that does not exist: {hook}"
            findings.append(_Finding("E213", message, function, suggestion(hook, known)))
    return hooks, findings


def _check_unmarked(plugin: Any, name: str, known: Mapping[str, Any]) -> list[_Finding]:
    """Report a function that is named like a hook, is defined in the plugin, and is not marked as one."""
    if not name.startswith(_PREFIX):
        return []
    function = inspect.getattr_static(plugin, name)
    function = getattr(function, "__func__", function)
    module = plugin.__name__ if inspect.ismodule(plugin) else type(plugin).__module__
    if not inspect.isfunction(function) or function.__module__ != module:
        return []
    message = f"has a function {name} that is not marked as a hook, so it is never called"
    close = "" if name in known else f"\n{suggestion(name, known)}"
    return [_Finding("E222", message, function, f"Put @hookimpl above it, or give it another name.{close}")]


def _check_form(hook: str, function: Hook, *, is_wrapper: bool) -> list[_Finding]:
    """Report a hook that is async, or a generator without being a wrapper, or the other way round."""
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        return [_Finding("E214", f"has an async hook {hook}, which is never awaited", function, "Write def.")]
    if inspect.isgeneratorfunction(function) and not is_wrapper:
        hint = "Return instead, or mark it with @hookimpl(wrapper=True)."
        return [_Finding("E214", f"has a hook {hook} that yields, so its body would never run", function, hint)]
    if hook == "esper_run" and not is_wrapper:
        hint = "Mark it with @hookimpl(wrapper=True), and yield where the run is to be."
        return [_Finding("E214", f"has a hook {hook} that is not a wrapper, so it is never called", function, hint)]
    return []


def _check_arguments(plugin: Any, hook: str, function: Hook, arguments: tuple[str, ...]) -> list[_Finding]:
    """Report arguments to which pluggy would pass no value."""
    findings: list[_Finding] = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        has_default = parameter.default is not parameter.empty
        if parameter.name in arguments and parameter.kind is parameter.KEYWORD_ONLY:
            fault = "that is keyword-only, which pluggy does not support"
        elif parameter.name in arguments and has_default:
            fault = "with a default, so its value would never be passed"
        elif parameter.name not in arguments and not has_default:
            fault = "that the hook does not have"
        else:
            continue
        hint = f"The hook is {hook}({', '.join(arguments)}); arguments are passed by name, and may be left out."
        if inspect.isclass(plugin) and parameter.name == "self":
            hint = "The entry point names a class: name an instance of it."
        message = f'has an argument "{parameter.name}" in {hook} {fault}'
        findings.append(_Finding("E214", message, function, hint))
    return findings
