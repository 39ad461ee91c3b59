"""Which settings does ``--set NAME.path=value`` give to components that are built without a run?

The values are read as those of a file are, and each component's own model checks them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from esper_core.config.overrides import apply_override, read_overrides
from esper_core.config.places import Place, Tree
from esper_core.config.showing import shown
from esper_core.config.wording import objections_to_settings
from esper_core.leyline.errors import ConfigError, Problem, suggestion

if TYPE_CHECKING:
    from collections.abc import Sequence

    from esper_core.plugins import Component


def given_settings(texts: Sequence[str], components: Sequence[Component]) -> dict[str, dict[str, Any]]:
    """For each component that the texts name, by its full id, everything that it is to be built with.

    texts: ``schedule.plan=[]``, where the component's name is short or full. The other settings have their defaults.
    Raises ConfigError with everything that is wrong: a text that cannot be read, a name that is none of the
    components', a value that the component's model refuses.
    """
    overrides, problems = read_overrides(texts)
    tree = Tree({}, problems=problems)
    chosen: dict[str, list[Component]] = {}
    for override in overrides:
        name = str(override.path[0])
        chosen[name] = [one for one in components if name in (one.id, one.short)]
        if not chosen[name]:
            hint = suggestion(name, [one.short for one in components])
            problems.append(Problem("E200", f'unknown component "{name}"', override.label, hint=hint))
            continue
        tree.value.setdefault(name, {})
        tree.places.by_path.setdefault((name,), Place(override.label))
        apply_override(override, tree)
    settings: dict[str, dict[str, Any]] = {}
    for name, found in chosen.items():
        for component in found:
            if component.id in settings:
                problems.append(tree.places.problem("E115", (name,), f'"{component.id}" is named in two ways'))
            settings[component.id] = _checked(component, name, tree)
    if problems:
        raise ConfigError(list(dict.fromkeys(problems)))
    return settings


def _checked(component: Component, name: str, tree: Tree) -> dict[str, Any]:
    """What the component's model makes of what was given; its objections are put among the tree's problems."""
    values, model = tree.value[name], component.settings_model()
    if not isinstance(values, dict):
        message = f"expected settings, {name}.NAME=value, received {shown(values)}"
        tree.problems.append(tree.places.problem("E115", (name,), message))
    elif model is None:
        if values:
            tree.problems.append(tree.places.problem("E121", (name,), f'{component.kind} "{name}" has no settings'))
    else:
        try:
            settings = model.model_validate(values)
        except ValidationError as error:
            tree.problems += objections_to_settings(error, model, (name,), tree.places)
        else:
            return {field: getattr(settings, field) for field in model.model_fields}
    return {}
