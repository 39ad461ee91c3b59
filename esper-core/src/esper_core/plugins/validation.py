"""Validation: check that a plugin's hooks exist and have valid signatures.

pluggy accepts a misspelt hook and never calls it, and it never passes a value to an argument with a default. Such a
plugin would silently do nothing. Here it is reported, with the author's own line.
"""

from __future__ import annotations

import inspect
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import pluggy

from esper_core.hooks import PROJECT, spec
from esper_core.leyline.errors import Problem, suggestion
from esper_core.plugins.isolation import attempt, definition_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from esper_core.plugins.plugin_records import Hook, PluginCandidate

_PREFIX: Final = "esper_"


class HookCollection:
    """The valid hooks of a plugin, which is all that pluggy sees of it, whatever else the object does."""

    def __init__(self, hooks: Mapping[str, Hook]) -> None:
        self.__dict__.update(hooks)


def hook_manager() -> pluggy.PluginManager:
    """Return a pluggy manager with Esper's hook specifications and no plugin."""
    manager = pluggy.PluginManager(PROJECT)
    manager.add_hookspecs(spec)
    return manager


def validate_hooks(manager: pluggy.PluginManager, candidate: PluginCandidate) -> PluginCandidate:
    """Return the candidate with its hooks; stopped if one of them would not work."""
    examined = attempt(lambda: _examine(manager, candidate))
    if examined.value is None:
        assert examined.error is not None
        return candidate.broken_by("E221", "failed while its hooks were looked up", examined.error)
    hooks, problems = examined.value
    candidate = replace(candidate, hooks=hooks)
    # E222 only warns, because a function of that name may be meant to be no hook.
    is_broken = any(problem.code != "E222" for problem in problems)
    return candidate.stopped("broken" if is_broken else "active", *problems)


def register_hooks(manager: pluggy.PluginManager, candidate: PluginCandidate) -> PluginCandidate:
    """Register the candidate's hooks with pluggy; return it stopped if pluggy refuses them."""
    registered = attempt(lambda: manager.register(HookCollection(candidate.hooks), name=candidate.id))
    if registered.error is None:
        return candidate
    return candidate.broken_by("E221", "failed while its hooks were registered", registered.error)


def _problem(candidate: PluginCandidate, code: str, message: str, function: Hook, hint: str) -> Problem:
    """Describe something wrong with a function of a plugin; the message is appended to the plugin's title."""
    file, line = definition_of(function)
    return Problem(code, f"{candidate.title} {message}", file=file, line=line, hint=hint)


def _examine(manager: pluggy.PluginManager, candidate: PluginCandidate) -> tuple[dict[str, Hook], list[Problem]]:
    """Return the hooks that a plugin implements and what is wrong with its functions."""
    arguments_of = {name: hook.spec.argnames for name, hook in vars(manager.hook).items() if hook.spec is not None}
    hooks: dict[str, Hook] = {}
    problems: list[Problem] = []
    for name in dir(candidate.plugin):
        options = manager.parse_hookimpl_opts(candidate.plugin, name)
        if options is None:
            problems += _check_unmarked(candidate, name, arguments_of)
            continue
        hook, function = options.get("specname") or name, getattr(candidate.plugin, name)
        if hook in hooks:
            problems.append(_problem(candidate, "E214", f"has two functions for {hook}", function, "Make one of them."))
        elif hook in arguments_of:
            faults = *_form_faults(hook, function), *_argument_faults(hook, function, arguments_of[hook])
            problems += [_problem(candidate, "E214", fault, function, hint) for fault, hint in faults]
            hooks[hook] = function
        elif not options.get("optionalhook"):
            message = f"implements a hook that does not exist: {hook}"
            problems.append(_problem(candidate, "E213", message, function, suggestion(hook, arguments_of)))
    return hooks, problems


def _check_unmarked(candidate: PluginCandidate, name: str, hooks: Mapping[str, Any]) -> Iterator[Problem]:
    """Report a function that is named like a hook, is defined in the plugin, and is not marked as one."""
    plugin = candidate.plugin
    if not name.startswith(_PREFIX):
        return
    # Statically, because a plugin may be any object, and an attribute a property that runs code.
    function = inspect.getattr_static(plugin, name)
    function = getattr(function, "__func__", function)
    module = plugin.__name__ if inspect.ismodule(plugin) else type(plugin).__module__
    # One from elsewhere is not the author's: a plugin may import the specifications, which have these names.
    if inspect.isfunction(function) and function.__module__ == module:
        message = f"has a function {name} that is not marked as a hook, so it is never called"
        close = "" if name in hooks else f"\n{suggestion(name, hooks)}"
        hint = f"Put @hookimpl above it, or give it another name.{close}"
        yield _problem(candidate, "E222", message, function, hint)


def _form_faults(hook: str, function: Hook) -> Iterator[tuple[str, str]]:
    """Yield a fault and a hint for a hook that is async or a generator, which pluggy's wrappers are, too."""
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        yield f"has an async hook {hook}, which is never awaited", "Write def."
    elif inspect.isgeneratorfunction(function):
        yield f"has a hook {hook} that yields, so its body would never run", "Return instead."


def _argument_faults(hook: str, function: Hook, arguments: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Yield a fault and a hint for each argument to which pluggy would pass no value."""
    hint = f"The hook is {hook}({', '.join(arguments)}); arguments are passed by name, and may be left out."
    for name, parameter in inspect.signature(function).parameters.items():
        has_default = parameter.default is not parameter.empty
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        if name in arguments and parameter.kind is parameter.KEYWORD_ONLY:
            yield f'has an argument "{name}" in {hook} that is keyword-only, which pluggy does not support', hint
        elif name in arguments and has_default:
            yield f'has an argument "{name}" in {hook} with a default, so its value would never be passed', hint
        elif name not in arguments and not has_default:
            yield f'has an argument "{name}" in {hook} that the hook does not have', hint
