"""Load a configuration: read the file, merge overlays, apply ``--set``, and validate; and write one as YAML.

Values keep the place of the file or the ``--set`` that they come from. Every problem is reported, sorted by place.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pydantic import ValidationError

from esper_core.config.errors import component_problems, entry_at, model_problems
from esper_core.config.model import REMOVED, RunConfig, Section, Use, contradictions
from esper_core.config.values import (
    MAX_BYTES,
    MAX_NUMBER,
    KeyPath,
    PathSyntaxError,
    Places,
    SourcePosition,
    Tree,
    cut,
    path_text,
    quoted,
    scan_path,
    shown,
    visible,
)
from esper_core.config.yaml import dump, read_document, read_value, too_large
from esper_core.leyline.errors import ConfigError, Problem, nearest
from esper_core.leyline.files import NotRegularFileError, read_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pydantic import BaseModel

MAX_PROBLEMS: Final = 100
"""Problems that one error lists; the others are counted."""

_MAX_NEIGHBOURS = 1000
"""Entries of a folder that are compared with the name of a file that does not exist."""

_SET = "Write a path, = and a value: --set episode.steps=20, --set 'slots.early.blueprints=[conv_light]'"


@dataclass(frozen=True, slots=True)
class Overlay:
    """A partial configuration. ``file`` is its name in problems; its paths of plugins are relative to ``folder``."""

    file: str
    source: bytes = field(repr=False)
    folder: Path


@dataclass(frozen=True, slots=True)
class Override:
    """A ``--set`` that could be read. ``tree`` has the value with its place and problems."""

    label: str
    path: KeyPath
    tree: Tree


@dataclass(frozen=True)
class LoadedConfig:
    """A configuration, and where each of its values comes from.

    source: the bytes of the file. overlays and overrides: what ``--overlay`` and ``--set`` were given, in order.
    """

    config: RunConfig
    file: str
    source: bytes = field(repr=False)
    overrides: tuple[str, ...] = ()
    places: Places = field(default_factory=Places, repr=False, compare=False)
    overlays: tuple[Overlay, ...] = ()

    def problem(self, code: str, path: KeyPath, message: str, hint: str | None = None) -> Problem:
        """Build a problem with the value at ``path``, located there or at the nearest value above it."""
        return self.places.problem(code, path, message, hint)

    def origin(self, path: KeyPath) -> str:
        """Return where the value at ``path`` comes from: ``file:line:column``, ``--set …``, or ``default``."""
        place = self.places.by_path.get(path)
        if place is None and path[-1:] == ("use",) and self.places.is_leaf(path[:-1]):
            place = self.places.by_path.get(path[:-1])  # a component that is written as its name alone
        return "default" if place is None else str(place)


def load_config(path: str | Path, overrides: Sequence[str] = (), overlays: Sequence[str | Path] = ()) -> LoadedConfig:
    """Read the file at ``path``, merge the files ``overlays`` over it in order, and apply ``overrides``.

    Raises:
        ConfigError: with every problem, sorted by place.
    """
    file = file_name(path)
    sources: list[Overlay] = []
    problems: list[Problem] = []
    for one in (path, *overlays):
        try:
            sources.append(Overlay(file_name(one), read_file(one), Path(one).parent))
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise _refusal([*problems, *read_overrides(overrides)[1]], file, overrides)
    own, *others = sources
    return parse_config(own.source, file=file, overrides=overrides, overlays=others, folder=own.folder)


def parse_config(
    data: bytes,
    *,
    file: str,
    overrides: Sequence[str] = (),
    overlays: Sequence[Overlay] = (),
    folder: Path | None = None,
) -> LoadedConfig:
    """Do as ``load_config`` does with bytes that were read already.

    Args:
        data: the content of the file.
        file: its name in problems.
        overrides: ``PATH=VALUE``, applied last.
        overlays: partial configurations that are merged over the file, in order.
        folder: the folder of ``file``, by default that of its name.
    """
    tree = _read(data, file, overrides, overlays, Path(file).parent if folder is None else folder)
    _drop_removed(tree)
    config, left = None, 0
    try:
        config = RunConfig.model_validate(tree.value)
    except ValidationError as error:
        problems, left = model_problems(error, tree, 3 * MAX_PROBLEMS)
        tree.problems += problems
    else:
        for one in contradictions(config):
            tree.problems.append(tree.places.problem(one.code, one.path, one.message, one.hint, key=one.is_key))
    if config is None or tree.problems:
        raise _refusal(tree.problems, file, overrides, left, overlays)
    return LoadedConfig(config, file, data, tuple(overrides), tree.places, tuple(overlays))


def settings_problems(
    loaded: LoadedConfig, error: ValidationError, model: type[BaseModel], path: KeyPath
) -> list[Problem]:
    """Return the errors of a component's ``model`` about its settings at ``path``, for example policy.settings."""
    return component_problems(error, model, path, loaded.places)


def dump_config(config: RunConfig) -> str:
    """Write the whole configuration with its defaults as YAML. ConfigError E111 for a value that no file can hold."""
    return dump(plain(config))


def plain(value: Any, path: KeyPath = ()) -> Any:
    """Return plain data: sections as mappings, tuples as lists, a component without settings as its name alone.

    ConfigError E111 for a value that no file can hold.

    >>> plain(Use(use="schedule")), plain(Use(use="schedule", settings={"at": (1, 2)}))
    ('schedule', {'use': 'schedule', 'settings': {'at': [1, 2]}})
    """
    if isinstance(value, Use) and not value.settings:
        return plain(value.use, (*path, "use"))
    if isinstance(value, Section):
        return {name: plain(getattr(value, name), (*path, name)) for name in type(value).model_fields}
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str):
                raise _unwritable(path, f"expected a text as key, received {shown(key)}")
        return {plain(key, path): plain(item, (*path, key)) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item, (*path, index)) for index, item in enumerate(value)]
    if isinstance(value, str) and any("\ud800" <= letter <= "\udfff" for letter in value):
        raise _unwritable(path, f"expected a text, received half a character in {quoted(value)}")
    if isinstance(value, int) and abs(value) >= 10 ** (MAX_NUMBER - 1):
        raise _unwritable(path, f"expected a number of less than {MAX_NUMBER} digits, received a longer one")
    if value is None or isinstance(value, str | bool | int | float):
        return value
    raise _unwritable(path, f"expected a value that a file can hold, received {type(value).__name__} {shown(value)}")


def _unwritable(path: KeyPath, message: str) -> ConfigError:
    hint = "Use texts, numbers, true, false, null, lists and mappings."
    return ConfigError(Problem("E111", message, path=path_text(path) or None, hint=hint))


def _read(data: bytes, file: str, overrides: Sequence[str], overlays: Sequence[Overlay], folder: Path) -> Tree:
    """Read and merge the values; ConfigError where one of the files is not YAML."""
    changes, problems = read_overrides(overrides)
    tree = None
    try:
        tree = read_document(data, file)
        for overlay in overlays:
            _apply_overlay(overlay, tree, folder)
    except ConfigError as error:
        before = [] if tree is None else tree.problems
        raise _refusal([*before, *error.problems, *problems], file, overrides, 0, overlays) from None
    tree.problems += problems
    for change in changes:
        apply_override(change, tree)
    return tree


def _drop_removed(tree: Tree) -> None:
    """Take options of older versions out of ``tree``; a value that changed something is a problem."""
    for path, (harmless, why) in REMOVED.items():
        section = tree.value
        for key in path[:-1]:
            section = section.get(key) if isinstance(section, dict) else None
        if isinstance(section, dict) and path[-1] in section:
            value = section.pop(path[-1])
            if value != harmless and not tree.is_refused(path):
                message = f"{path_text(path)} was removed: {why} Received {shown(value)}"
                tree.problems.append(tree.places.problem("E110", path, message, "Delete the key.", key=True))


def _refusal(
    problems: Sequence[Problem], file: str, overrides: Sequence[str], left: int = 0, overlays: Sequence[Overlay] = ()
) -> ConfigError:
    """Build the error with the first hundred problems in the order of the file, the overlays and the overrides."""
    order = {_label(text): len(overlays) + number for number, text in reversed(list(enumerate(overrides, 1)))}
    order |= {overlay.file: number for number, overlay in enumerate(overlays, 1)}
    order[file] = 0
    ranked = sorted(
        problems, key=lambda problem: (order.get(problem.file or file, 0.5), problem.line or 0, problem.column or 0)
    )
    left += max(0, len(ranked) - MAX_PROBLEMS)
    if left:
        hint = "Fix the problems above first."
        ranked[MAX_PROBLEMS:] = [Problem("E100", f"{left:,} more problems are not shown", file, hint=hint)]
    return ConfigError(ranked)


# --- files


def file_name(path: str | Path) -> str:
    """Return the path as problems print it: unprintable characters are escaped."""
    return visible(str(path))


def read_file(path: str | Path) -> bytes:
    """Read a regular file of limited size. ConfigError E101 where it cannot be read, E102 where it is too large."""
    file = file_name(path)
    if not str(path):
        raise ConfigError(Problem("E101", "expected the name of a file, received nothing", hint="Name a YAML file."))
    try:
        data = read_bytes(path, MAX_BYTES + 1)
        size = Path(path).stat().st_size if len(data) > MAX_BYTES else 0
    except (OSError, ValueError) as error:  # ValueError: a name that no file can have, with a NUL in it
        message, hint = _unreadable(Path(path), error, file)
        raise ConfigError(Problem("E101", message, file, hint=hint)) from None
    if len(data) > MAX_BYTES:
        raise ConfigError(too_large(file, size if size > MAX_BYTES else None))
    return data


def _unreadable(path: Path, error: OSError | ValueError, file: str) -> tuple[str, str]:
    """Say why a file cannot be read, and what to do."""
    match error:
        case NotRegularFileError(is_folder=True):
            inside = [name for name in ("config.yaml", "plugins.yaml") if (path / name).is_file()]
            hint = f"Did you mean {file_name(path / inside[0])}?" if inside else "Name a YAML file inside it."
            return "expected a file, received a folder", hint
        case NotRegularFileError():
            return str(error.strerror), "Copy its content to a regular file, and name that file."
        case FileNotFoundError():
            return "there is no such file", _near(path)
        case NotADirectoryError():
            return "a part of this path is a file, not a folder", "Check the path."
        case PermissionError():
            return "permission denied", f"Allow reading it:  chmod u+r {file}"
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return f"the file cannot be read: {reason}", "Check the path and the disk."


def _near(path: Path) -> str:
    """Suggest the file of the folder with the nearest name, or list its YAML files."""
    folder = path.parent
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for entry in islice(entries, _MAX_NEIGHBOURS) if entry.is_file()]
    except FileNotFoundError:
        return f"There is no folder {file_name(folder)} either."
    except OSError:
        return "Check the path."
    if close := nearest(path.name, names):
        return f"Did you mean {file_name(folder / close)}?"
    there = sorted(file_name(name) for name in names if name.endswith((".yaml", ".yml")))
    if not there:
        return f"There is no YAML file in {file_name(folder.resolve())}."
    return "YAML files there: " + ", ".join(there[:8]) + (", …" if len(there) > 8 else "")


# --- overlays


def _apply_overlay(overlay: Overlay, tree: Tree, folder: Path) -> None:
    """Merge an overlay over ``tree``, whose own paths of plugins are relative to ``folder``.

    A component that the overlay names differently starts without the settings of the one that it replaces.
    """
    upper = read_document(overlay.source, overlay.file)
    plugins = upper.value.get("plugins")
    local = plugins.get("local") if isinstance(plugins, dict) else None
    if isinstance(local, list) and overlay.folder != folder:
        start = os.path.relpath(overlay.folder, folder)
        local[:] = [str(Path(start, name)) if isinstance(name, str) and name else name for name in local]
    _merge(upper.value, tree.value, (), upper, tree)
    tree.problems += upper.problems


def _merge(upper: Mapping[str, Any], lower: dict[str, Any], path: KeyPath, overlay: Tree, tree: Tree) -> None:
    """Merge the mapping ``upper``, which is at ``path`` of the overlay, over ``lower`` of the tree."""
    if path in overlay.incomplete:
        tree.incomplete.add(path)
    for key, value in upper.items():
        at = (*path, key)
        entry = entry_at(at) if isinstance(value, dict) else None
        below = lower.get(key)
        if entry is not None and entry.is_use:
            below = _spelt_out(lower, key, at, tree)
            if isinstance(below, dict) and not _is_same_component(value.get("use"), below.get("use")):
                below = None
        if isinstance(value, dict) and isinstance(below, dict):
            _merge(value, below, at, overlay, tree)
        else:
            lower[key] = value
            tree.replace(at, overlay)


def _spelt_out(above: Any, step: str | int, path: KeyPath, tree: Tree) -> Any:
    """Return the component below ``above``, which is turned into a mapping if it is its name alone."""
    below = above.get(step) if isinstance(above, dict) else above[step]
    if isinstance(below, str):
        below = above[step] = {"use": below}
        if (place := tree.places.by_path.get(path)) is not None:
            tree.places.by_path[*path, "use"] = place
    return below


def _is_same_component(upper: Any, lower: Any) -> bool:
    """Return whether two names can mean the same component, with or without its plugin. No name always does."""
    if upper is None or upper == lower:
        return True
    if not isinstance(upper, str) or not isinstance(lower, str) or ("/" in upper) == ("/" in lower):
        return False
    return upper.rpartition("/")[2] == lower.rpartition("/")[2]


# --- overrides


def read_overrides(texts: Sequence[str]) -> tuple[list[Override], list[Problem]]:
    """Return the overrides that can be read, in order, and the problems of the others."""
    overrides: list[Override] = []
    problems: list[Problem] = []
    for text in texts:
        try:
            overrides.append(_read_override(text))
        except ConfigError as error:
            problems.extend(error.problems)
    return overrides, problems


def apply_override(override: Override, tree: Tree) -> None:
    """Put the value of an override into ``tree``; one that does not fit becomes a problem and changes nothing."""
    *parents, last = override.path
    here: Any = tree.value
    for depth, step in enumerate([*parents, last]):
        if (problem := _misfit(here, override, depth)) is not None:
            tree.problems.append(problem)
            return
        if depth < len(parents):
            here = _enter(here, step, override, override.path[: depth + 1], tree)
    here[last] = override.tree.value
    tree.replace(override.path, override.tree)
    tree.problems.extend(override.tree.problems)


def _label(text: str) -> str:
    """The name of an override in problems, in place of a file."""
    return f"--set {visible(cut(text, 100))}"


def _read_override(text: str) -> Override:
    label = _label(text)
    try:
        text.encode()
        path, end = scan_path(text)
        before, equals, value = text[end:].partition("=")
        reason = f"unexpected {quoted(before, 20)}" if before.strip() else "" if equals else "it has no ="
    except UnicodeEncodeError:
        reason = "it is not UTF-8"
    except PathSyntaxError as error:
        reason = str(error)
    if reason:
        message = f"expected path=value, received {quoted(text)}: {reason}"
        raise ConfigError(Problem("E115", message, label, hint=_SET))
    return Override(label, path, read_value(value, label, path))


def _misfit(here: Any, override: Override, depth: int) -> Problem | None:
    """Return why the step at ``depth`` cannot be taken from ``here``; None where it can."""
    step, name = override.path[depth], path_text(override.path[:depth])
    received = f"[{step}]" if isinstance(step, int) else quoted(step)
    if isinstance(here, dict):
        if isinstance(step, str):
            return None
        message = f"{name} is a mapping: expected a key, received {received}"
        hint = f"Its keys: {cut(', '.join(map(visible, here)), 100)}" if here else None
    elif isinstance(here, list):
        if isinstance(step, int) and step < len(here):
            return None
        message = f"{name} is a list of {len(here)}: expected a smaller index, received {received}"
        hint = f"To make it longer, set it as a whole: --set '{name}=[…]'"
    else:
        message = f"{name} is {shown(here)}, which has no entries: received {received}"
        hint = f"Set it as a whole: --set '{name}={{…}}'"
    return Problem("E115", message, override.label, path=path_text(override.path), hint=hint)


def _enter(here: Any, step: str | int, override: Override, path: KeyPath, tree: Tree) -> Any:
    """Return the value below ``here``, which is created, if need be, with the model's default component."""
    entry = entry_at(path)
    is_use = entry is not None and entry.is_use
    below = here.get(step) if isinstance(here, dict) else here[step]
    if below is None:
        default = entry.field.default if entry is not None and is_use and entry.field is not None else None
        below = here[step] = default.model_dump() if isinstance(default, Use) else {}
        tree.replace(path, Tree(None, Places({path: SourcePosition(override.label)})))
    return _spelt_out(here, step, path, tree) if is_use else below
