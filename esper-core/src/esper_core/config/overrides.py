"""What does ``--set path=value`` change? Its value is read as the file's are, and put in its place before the check."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from esper_core.config.fields import entry_at
from esper_core.config.model import Use
from esper_core.config.paths import KeyPath, PathSyntaxError, path_text, scan_path
from esper_core.config.places import Place, Tree
from esper_core.config.reading import read_value
from esper_core.config.showing import cut, quoted, shown, visible
from esper_core.leyline import ConfigError, Problem

if TYPE_CHECKING:
    from collections.abc import Sequence

_GRAMMAR = (
    "Write a path, an equals sign and a value: --set episode.steps=20, --set 'slots.early.blueprints=[conv_light]'"
)


@dataclass(frozen=True, slots=True)
class Override:
    """One ``--set`` that could be read: where it goes, and the value with its places and problems."""

    label: str
    path: KeyPath
    tree: Tree


def read_overrides(texts: Sequence[str]) -> tuple[list[Override], list[Problem]]:
    """The overrides that can be read, in order, and what is wrong with the others."""
    overrides: list[Override] = []
    problems: list[Problem] = []
    for text in texts:
        try:
            overrides.append(_read(text))
        except ConfigError as error:
            problems.extend(error.problems)
    return overrides, problems


def apply_override(override: Override, tree: Tree) -> None:
    """Put the value into ``tree``. What does not fit becomes one of the tree's problems, and nothing is changed."""
    *parents, last = override.path
    here: Any = tree.value
    for depth, step in enumerate(parents):
        problem = _misfit(here, override, depth)
        if problem is not None:
            tree.problems.append(problem)
            return
        here = _enter(here, step, override, override.path[: depth + 1], tree)
    problem = _misfit(here, override, len(parents))
    if problem is not None:
        tree.problems.append(problem)
        return
    here[last] = override.tree.value
    replace(tree, override.path, override.tree)
    tree.problems.extend(override.tree.problems)


def label_of(text: str) -> str:
    """How an override is called where a file's name would stand."""
    return f"--set {visible(cut(text, 100))}"


def _read(text: str) -> Override:
    label = label_of(text)
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ConfigError(Problem("E115", "the override is not UTF-8", label, hint=_GRAMMAR)) from None
    try:
        path, end = scan_path(text)
    except PathSyntaxError as error:
        message = f"expected path=value, received {quoted(text)}: {error}"
        raise ConfigError(Problem("E115", message, label, hint=_GRAMMAR)) from None
    before, equals, value = text[end:].partition("=")
    if before.strip() or not equals:
        reason = f"the path goes wrong at {quoted(before, 20)}" if before.strip() else "it has no ="
        message = f"expected path=value, received {quoted(text)}: {reason}"
        raise ConfigError(Problem("E115", message, label, hint=_GRAMMAR))
    return Override(label, path, read_value(value, label, path))


def _misfit(here: Any, override: Override, depth: int) -> Problem | None:
    """Why the step at ``depth`` cannot be taken from ``here``, or None where it can."""
    step, above = override.path[depth], override.path[:depth]
    name = path_text(above)
    if isinstance(here, dict):
        if isinstance(step, str):
            return None
        message = f"{name} is a mapping: expected a key of it, received [{step}]"
        hint = f"Its keys: {cut(', '.join(map(visible, here)), 100)}" if here else None
    elif isinstance(here, list):
        if isinstance(step, int) and step < len(here):
            return None
        received = f"[{step}]" if isinstance(step, int) else quoted(step)
        message = f"{name} is a list of {len(here)}: expected an index below that, received {received}"
        hint = f"To make it longer, set it as a whole: --set '{name}=[…]'"
    else:
        received = f"[{step}]" if isinstance(step, int) else quoted(step)
        message = f"{name} is {shown(here)}, which has no entries: received {received}"
        hint = f"Set it as a whole: --set '{name}={{…}}'"
    return Problem("E115", message, override.label, path=path_text(override.path), hint=hint)


def _enter(here: Any, step: str | int, override: Override, path: KeyPath, tree: Tree) -> Any:
    """The value below ``here``; made where there is none, and spelt out where a component stands as a name alone."""
    below = here.get(step) if isinstance(here, dict) else here[step]
    if below is None:
        below = here[step] = _default_component(path)
        tree.places.forget(path)
        tree.places.by_path[path] = Place(override.label)
        tree.refused.discard(path)
    elif isinstance(below, str):
        entry = entry_at(path)
        if entry is not None and entry.is_use:
            place = tree.places.by_path.get(path)
            below = here[step] = {"use": below}
            if place is not None:
                tree.places.by_path[(*path, "use")] = place
    return below


def _default_component(path: KeyPath) -> dict[str, Any]:
    """An empty mapping; where the model has a component by default, that one, so that its settings can be set."""
    entry = entry_at(path)
    default = entry.field.default if entry is not None and entry.is_use and entry.field is not None else None
    return default.model_dump() if isinstance(default, Use) else {}


def replace(tree: Tree, path: KeyPath, source: Tree) -> None:
    """Forget the places and problems known of the value at ``path``, and take over those of ``source``."""

    def below(known: KeyPath) -> bool:
        return known[: len(path)] == path

    tree.places.forget(path)
    tree.places.by_path.update({at: place for at, place in source.places.by_path.items() if below(at)})
    for known, new in ((tree.refused, source.refused), (tree.incomplete, source.incomplete)):
        known.difference_update({at for at in known if below(at)})
        known.update({at for at in new if below(at)})
