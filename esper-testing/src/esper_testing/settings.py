"""Settings of components that are checked without a run, read from ``NAME.path=value``."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import yaml
from pydantic import ValidationError

from esper_core.leyline.errors import ConfigError, Problem, suggestion

if TYPE_CHECKING:
    from collections.abc import Sequence

    from esper_core.plugins import Component

_GRAMMAR: Final = "Write a component, a path, an equals sign and a value: --set 'schedule.plan=[]'"
_SETTING: Final = re.compile(r"(?P<name>[^\s.\[\]=]+)(?P<path>(\.[^\s.\[\]=]+|\[\d+\])*)=(?P<value>.*)", re.DOTALL)
_STEP: Final = re.compile(r"\.([^.\[]+)|\[(\d+)\]")
_BOOL: Final = "tag:yaml.org,2002:bool"


class _Loader(yaml.SafeLoader):
    """YAML in which only true and false are booleans, as in configurations."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != _BOOL]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(_BOOL, re.compile("(true|false)$"), ["t", "f"])


def read_settings(texts: Sequence[str], components: Sequence[Component]) -> dict[str, dict[str, Any]]:
    """Return, by the full id of each component that the texts name, everything that it is built with.

    Args:
        texts: ``schedule.plan=[]``, with the component's short name or full id and a YAML value.
        components: the components that may be named. Settings that no text gives have their defaults.

    Raises:
        ConfigError: everything that is wrong: a text that cannot be read (E115), an unknown component (E200), a value
            that the component's model refuses (E110 to E113), settings for a component without any (E121).
    """
    values: dict[str, Any] = {}
    labels: dict[str, str] = {}
    problems: list[Problem] = []
    for text in texts:
        try:
            name = _assign(text, values)
        except (yaml.YAMLError, ValueError, TypeError, LookupError) as error:
            message = f'expected path=value, received "{text}": {" ".join(str(error).split())}'
            problems.append(Problem("E115", message, f"--set {text}", hint=_GRAMMAR))
        else:
            labels[name] = f"--set {text}"
    settings: dict[str, dict[str, Any]] = {}
    for name, given in values.items():
        named = [component for component in components if name in (component.id, component.short)]
        if not named:
            hint = suggestion(name, [component.short for component in components])
            problems.append(Problem("E200", f'unknown component "{name}"', labels.get(name), hint=hint))
        for component in named:
            if component.id in settings:
                message = f'"{component.id}" is named in two ways'
                problems.append(Problem("E115", message, labels.get(name), path=name))
            settings[component.id], found = _validated(component, name, given)
            problems += [problem.at(file=labels.get(name), line=None, column=None) for problem in found]
    if problems:
        raise ConfigError(list(dict.fromkeys(problems)))
    return settings


def _assign(text: str, values: dict[str, Any]) -> str:
    """Put the value of a text into ``values``; return the component's name. Any error means that it does not fit."""
    if (match := _SETTING.fullmatch(text)) is None:
        msg = "it has no =" if "=" not in text else "the path is invalid"
        raise ValueError(msg)
    keys: list[str | int] = [int(index) if index else key for key, index in _STEP.findall(match["path"])]
    *parents, last = [match["name"], *keys]
    here: Any = values
    for key in parents:
        _check_key(here, key)
        here = here.setdefault(key, {}) if isinstance(here, dict) else here[key]
    _check_key(here, last)
    here[last] = _Loader(match["value"]).get_single_data()
    return match["name"]


def _check_key(here: Any, key: str | int) -> None:
    """Refuse an index into a mapping, and a key of a list or a plain value."""
    if not isinstance(here, list if isinstance(key, int) else dict):
        msg = f"{key!r} does not fit a {type(here).__name__}"
        raise TypeError(msg)


def _validated(component: Component, name: str, given: Any) -> tuple[dict[str, Any], list[Problem]]:
    """Validate settings with the component's own model; return them complete, or what is wrong."""
    model = component.settings_model()
    if not isinstance(given, dict):
        return {}, [Problem("E115", f"expected settings, {name}.NAME=value, received {given!r}", path=name)]
    if model is None:
        message = f'{component.kind} "{name}" has no settings'
        return {}, [Problem("E121", message, path=name)] if given else []
    try:
        settings = model.model_validate(given)
    except ValidationError as error:
        problems = []
        for details in error.errors(include_url=False):
            *parents, last = (name, *details["loc"])
            path = ".".join(map(str, [*parents, last]))
            code, message, hint = "E112", f"{details['msg']}, received {details['input']!r:.80}", None
            if details["type"] == "extra_forbidden":
                hint = suggestion(str(last), model.model_fields) if len(parents) == 1 else None
                code, message = "E110", f'unknown key "{last}"'
            elif details["type"] == "missing":
                code, message = "E113", f'the key "{last}" is missing'
            elif details["type"].endswith(("_type", "_parsing")):
                code = "E111"
            problems.append(Problem(code, message, path=path, hint=hint))
        return {}, problems
    return {field: getattr(settings, field) for field in model.model_fields}, []
