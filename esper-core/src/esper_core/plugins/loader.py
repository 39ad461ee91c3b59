"""Loader: discover, admit, import, validate and register plugins, and collect their components.

``load_plugins`` is the whole sequence in reading order. It raises nothing and prints nothing: failures are recorded in
the result, and a plugin that fails does not affect the others.

pluggy accepts a misspelt hook and never calls it, and it never passes a value to an argument with a default. Such a
plugin would silently do nothing. Here it is reported, with the author's own line.
"""

from __future__ import annotations

import inspect
import sys
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pluggy

from esper_core.hooks import PROJECT, spec
from esper_core.leyline.errors import PluginError, Problem, suggestion
from esper_core.plugins.discovery import PLUGIN_GROUP, admit, digest, discover, import_local, is_set, read_local
from esper_core.plugins.isolation import attempt, definition_of, hook_callers, location_of, resolve
from esper_core.plugins.lookup_errors import inactive_hint, unknown_plugin
from esper_core.plugins.plugin_records import KINDS, PluginHook
from esper_core.plugins.registry import ComponentRegistrar, Registry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from esper_core.plugins.discovery import LocalFile
    from esper_core.plugins.plugin_records import Component, Hook, PluginCandidate, PluginRecord


@dataclass(frozen=True, slots=True)
class Plugins:
    """The loaded plugins.

    A problem stops nothing by itself; a run fails when it asks the registry for a name that is not there.

    Attributes:
        registry: the components of the active plugins.
        manager: calls the hooks of the active plugins.
        files: the one-file plugins that were read.
        safe_mode: whether only the project's own packages were loaded.
    """

    records: tuple[PluginRecord, ...]
    registry: Registry
    problems: tuple[Problem, ...]
    manager: pluggy.PluginManager
    files: tuple[LocalFile, ...] = field(repr=False)
    safe_mode: bool

    def hooks(self, hook: str) -> dict[str, PluginHook]:
        """Return the implementations of a hook by plugin id, in loading order."""
        records, plugin_of = {record.id: record for record in self.records}, self.manager.get_plugin
        return {
            plugin: PluginHook(records[plugin], hook, getattr(plugin_of(plugin), hook), call)
            for plugin, call in hook_callers(self.manager, hook).items()
        }

    def unknown(self, plugin: str) -> Problem:
        """Describe a plugin id that no plugin has, with what may have been meant."""
        return unknown_plugin(plugin, self.records)

    @property
    def inactive_hint(self) -> str | None:
        """A line that lists the plugins whose components cannot be used; None if all plugins are active."""
        return inactive_hint(self.records)


def load_plugins(
    *,
    disable: Iterable[str] = (),
    local: Iterable[Path | LocalFile] = (),
    safe_mode: bool | None = None,
    distributions: Iterable[Any] | None = None,
) -> Plugins:
    """Load the installed plugins.

    Args:
        disable: ids of plugins to leave out.
        local: paths of one-file plugins, or the plugins as they were read.
        safe_mode: whether to load the project's own packages only; None asks ``ESPER_SAFE_MODE``.
        distributions: packages to read instead of the installed ones.
    """
    disable = tuple(disable)
    safe_mode = is_set("ESPER_SAFE_MODE") if safe_mode is None else safe_mode
    manager = hook_manager()

    entry_points, damaged = discover(PLUGIN_GROUP, distributions)
    files, unreadable = read_local(local)
    entry_points = (*entry_points, *(file.entry_point for file in files))
    candidates = admit(entry_points, disable=disable, safe_mode=safe_mode)
    steps: tuple[Callable[[PluginCandidate], PluginCandidate], ...] = (
        partial(_import_plugin, files),
        partial(validate_hooks, manager),
        partial(register_hooks, manager),
        partial(_collect_components, manager),
    )
    for step in steps:  # not plugin by plugin: hooks promise that all are imported before any registers
        candidates = [step(candidate) if candidate.is_active else candidate for candidate in candidates]

    records = tuple(candidate.record() for candidate in candidates)
    active = [candidate for candidate in candidates if candidate.is_active]
    stopped = [candidate for candidate in candidates if not candidate.is_active]
    return Plugins(
        records=records,
        registry=Registry(
            [component for candidate in active for component in candidate.components],
            records=records,
            withheld=[component for candidate in stopped for component in candidate.components],
        ),
        problems=(
            *_unknown_ids(disable, records),
            *unreadable,
            *damaged,
            *dict.fromkeys(problem for record in records for problem in record.problems),
        ),
        manager=manager,
        files=files,
        safe_mode=safe_mode,
    )


def _import_plugin(files: Sequence[LocalFile], candidate: PluginCandidate) -> PluginCandidate:
    """Return the candidate with its module or object; stopped if the import fails."""
    entry = candidate.entry_point
    file = next((file for file in files if file.entry_point == entry), None)
    imported = attempt(lambda: resolve(entry.target) if file is None else import_local(file), candidate.title)
    path = Path(getattr(sys.modules.get(entry.target.partition(":")[0]), "__file__", None) or "")
    source = file.source if file is not None else path.read_bytes() if path.is_file() else None
    sha256 = None if source is None else digest(source)
    candidate = replace(candidate, plugin=imported.value, sha256=sha256)
    return candidate if imported.error is None else candidate.broken_by("E210", "cannot be imported", imported.error)


def _collect_components(manager: pluggy.PluginManager, candidate: PluginCandidate) -> PluginCandidate:
    """Call the candidate's registration hooks and return it with its components.

    A fault in one of them stops the candidate and unregisters it; the other hooks are still called, so that all faults
    are reported. The components stay with it, so that a message for one of them can name the plugin.
    """
    components: list[Component] = []
    problems: list[Problem] = []
    for kind, (hook, *_) in KINDS.items():
        if hook in candidate.hooks:
            registrar: ComponentRegistrar[Any] = ComponentRegistrar(candidate, kind)
            problems += _registration_problems(manager, candidate, hook, registrar)
            components += registrar.components.values()
    candidate = replace(candidate, components=tuple(components))
    if not problems:
        return candidate
    manager.unregister(name=candidate.id)
    return candidate.stopped("broken", *problems)


def _registration_problems(
    manager: pluggy.PluginManager, candidate: PluginCandidate, hook: str, registrar: ComponentRegistrar[Any]
) -> list[Problem]:
    """Call one registration hook of one plugin with the registrar; return what went wrong."""
    call = hook_callers(manager, hook)[candidate.id]
    called = attempt(lambda: call(registry=registrar), candidate.title)
    if isinstance(called.error, PluginError):
        # The registrar knows what is wrong, and only the traceback in which line of the author's.
        file, line = location_of(called.error, candidate.entry_point.target)
        return [replace(problem, file=file, line=line) for problem in called.error.problems]
    if called.error is not None:
        return [candidate.problem("E221", f"failed in {hook}", called.error)]
    if called.value:
        file, line = definition_of(candidate.hooks[hook])
        message = f"{candidate.title} returns {type(called.value[0]).__name__} from {hook}, which returns nothing"
        return [Problem("E221", message, file=file, line=line, hint="Add to the registry, and return nothing.")]
    return []


def _unknown_ids(disable: Sequence[str], records: Sequence[PluginRecord]) -> Iterator[Problem]:
    """Yield a problem for each id in plugins.disable that no plugin has."""
    ids = {record.id for record in records}
    for index, name in enumerate(disable):
        if name not in ids:
            yield replace(unknown_plugin(name, records), path=f"plugins.disable[{index}]")


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
    if not name.startswith("esper_"):
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
