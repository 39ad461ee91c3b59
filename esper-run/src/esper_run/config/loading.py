"""Load a configuration: read the file, merge overlays, apply ``--set``, and validate; and write one as YAML.

Values keep the place of the file or the ``--set`` that they come from. A file or ``--set`` that cannot be read is
reported at once; otherwise every problem with the values is, sorted by place.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel, ValidationError
from yaml import YAMLError

from esper_core.leyline.errors import ConfigError, Problem, nearest
from esper_core.leyline.files import read_start
from esper_run.config.contradictions import contradictions
from esper_run.config.errors import entry_at, model_problems
from esper_run.config.model import RunConfig
from esper_run.config.values import MAX_BYTES, KeyPath, Node, SourcePosition, cut, parse_path, path_text, shown, visible
from esper_run.config.yaml import dump, read_document, read_value

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ModelT = TypeVar("ModelT", bound=BaseModel)

_SET = re.compile(r'(?P<path>(?:[^"=]|"(?:[^"\\]|\\.)*")*)=(?P<value>.*)', re.DOTALL)


@dataclass(frozen=True, slots=True)
class Overlay:
    """A partial configuration. ``file`` is its name in problems; its paths of plugins are relative to ``folder``."""

    file: str
    source: bytes = field(repr=False)
    folder: Path


@dataclass(frozen=True)
class LoadedConfig:
    """A configuration, and where each of its values comes from.

    ``source`` has the bytes of the file, ``root`` its values with their places; ``overrides`` and ``overlays`` are what
    ``--set`` and ``--overlay`` were given, in order.
    """

    config: RunConfig
    file: str
    source: bytes = field(repr=False)
    root: Node = field(repr=False, compare=False)
    overrides: tuple[str, ...] = ()
    overlays: tuple[Overlay, ...] = ()

    def problem(self, code: str, path: KeyPath, message: str, hint: str | None = None, *, key: bool = False) -> Problem:
        """Build a problem with the value (or the ``key``) at ``path``, located there or at the nearest value above."""
        return self.root.problem(code, path, message, hint, key=key)


def load_config(path: str | Path, overrides: Sequence[str] = (), overlays: Sequence[str | Path] = ()) -> LoadedConfig:
    """Read the file at ``path``, merge the files ``overlays`` over it in order, and apply ``overrides``.

    Raises:
        ConfigError: if a file cannot be read, or with every problem of its values.
    """
    base, *additional = [Overlay(visible(str(file)), read_file(file), Path(file).parent) for file in (path, *overlays)]
    return parse_config(base.source, file=base.file, overrides=overrides, overlays=additional, folder=base.folder)


def config_of(values: Mapping[str, Any], overrides: Sequence[str] = ()) -> LoadedConfig:
    """Return a configuration that is given as plain data; plugins' paths are relative to the current folder.

    Raises:
        ConfigError: Values are wrong, or are not plain data (E111).
    """
    return parse_config(_dump(values).encode(), file="configuration", overrides=overrides, folder=Path())


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
    root = read_document(data, file)
    for overlay in overlays:
        upper = read_document(overlay.source, overlay.file)
        _relocate_plugins(upper, overlay.folder, Path(file).parent if folder is None else folder)
        _merge(root, upper)
    for text in overrides:
        _override(root, text)
    try:
        config = RunConfig.model_validate(root.plain())
    except ValidationError as error:
        problems = model_problems(error, RunConfig, root)
    else:
        problems = list(contradictions(config, root))
        if not problems:
            return LoadedConfig(config, file, data, root, tuple(overrides), tuple(overlays))
    files = [file, *(overlay.file for overlay in overlays), *map(_label, overrides), None]
    raise ConfigError(
        sorted(problems, key=lambda problem: (files.index(problem.file), problem.line or 0, problem.column or 0))
    )


def section_of(model: type[ModelT], settings: Mapping[str, Any], name: str) -> ModelT:
    """Return a section of a configuration from settings in Python; ConfigError for wrong ones, below ``name``."""
    try:
        return model.model_validate(settings)
    except ValidationError as error:
        root = read_document(json.dumps({name: dict(settings)}, default=str).encode(), name)
        problems = model_problems(error, model, root, (name,))
        raise ConfigError([replace(problem, file=None, line=None, column=None) for problem in problems]) from None


def dump_config(config: RunConfig) -> str:
    """Write the whole configuration with its defaults as YAML. ConfigError E111 for a value that no file can hold."""
    return _dump(config)


def _dump(values: Mapping[str, Any] | RunConfig) -> str:
    try:
        return dump(values.model_dump(mode="json") if isinstance(values, RunConfig) else values)
    except (ValueError, YAMLError) as error:
        hint = "Use texts, numbers, true, false, null, lists and mappings."
        raise ConfigError(Problem("E111", f"a setting cannot be written to a file: {error}", hint=hint)) from None


def read_file(path: str | Path) -> bytes:
    """Read a regular file, up to one byte more than a configuration may have. ConfigError E101 where it cannot be."""
    file, hint = visible(str(path)), "Check the path and its permissions."
    try:
        return read_start(path, MAX_BYTES + 1, follow=True)
    except FileNotFoundError:
        reason = "there is no such file"
        if close := nearest(Path(path).name, [sibling.name for sibling in Path(path).parent.glob("*")]):
            hint = f'Did you mean "{visible(str(Path(path).parent / close))}"?'
    except (OSError, ValueError) as error:  # ValueError: a name that no file can have, with a NUL in it
        reason = f"cannot read the file: {getattr(error, 'strerror', None) or error}"
    raise ConfigError(Problem("E101", reason, file, hint=hint))


def _relocate_plugins(overlay: Node, folder: Path, base: Path) -> None:
    """Make the paths of an overlay's plugins, which are relative to its own ``folder``, relative to ``base``."""
    local, depth = overlay.nearest(("plugins", "local"))
    if depth == 2 and isinstance(local.value, list) and folder != base:
        for node in local.value:
            if isinstance(node.value, str) and node.value:
                node.value = str(Path(os.path.relpath(folder, base), node.value))


def _merge(lower: Node, upper: Node, path: KeyPath = ()) -> None:
    """Merge the mapping ``upper`` of an overlay over ``lower``, both at ``path``; what is no mapping replaces.

    A component that the overlay names differently starts without the settings of the one that it replaces.
    """
    for key, value in upper.value.items():
        below, at = lower.value.get(key), (*path, key)
        is_merged = below is not None and isinstance(value.value, dict)
        if is_merged and _is_use(at):
            _spell_out(below)
            is_merged = _is_same_component(value, below)
        if is_merged and isinstance(below.value, dict):
            _merge(below, value, at)
        else:
            lower.value[key] = value


def _is_use(path: KeyPath) -> bool:
    """Return whether a component belongs at ``path``."""
    entry = entry_at(path)
    return entry is not None and entry.is_use


def _spell_out(node: Node) -> None:
    """Turn a component that is written as its name alone into a mapping."""
    if isinstance(node.value, str):
        node.value = {"use": Node(node.value, node.position)}


def _is_same_component(upper: Node, lower: Node) -> bool:
    """Return whether two names can mean the same component, with or without its plugin. No name always does."""
    new, old = upper.nearest(("use",))[0].value, lower.nearest(("use",))[0].value
    if not isinstance(new, str) or not isinstance(old, str):
        return not isinstance(new, str)
    return new == old or new.endswith(f"/{old}") or old.endswith(f"/{new}")


def _label(text: str) -> str:
    """Return the name of a ``--set`` in problems, in place of a file."""
    return f"--set {visible(cut(text, 100))}"


def _override(root: Node, text: str) -> None:
    """Apply a ``--set``.

    Raises:
        ConfigError: It has no path and value, or nothing can be at its path (E115).
    """
    label, match, reason = _label(text), _SET.fullmatch(text), "it has no ="
    path: KeyPath = ()
    if match is not None:
        try:
            path = parse_path(match["path"].strip())
        except ValueError as error:
            reason = str(error)
    if match is None or not path:
        hint = "Write a path, = and a value: --set episode.steps=20, --set 'slots.early.blueprints=[conv_light]'"
        raise ConfigError(Problem("E115", f"expected path=value, received {shown(text)}: {reason}", label, hint=hint))
    value = read_value(match["value"], label)
    node = root
    for depth, step in enumerate(path, 1):
        is_index = isinstance(node.value, list) and isinstance(step, int) and step < len(node.value)
        if not is_index and not (isinstance(node.value, dict) and isinstance(step, str)):
            message = f"there is no {path_text(path[:depth])}"
            hint = f"Set {path_text(path[: depth - 1])} as a whole."
            raise ConfigError(Problem("E115", message, label, path=path_text(path), hint=hint))
        if depth < len(path):
            below = node.below(step)
            if below is None or below.value is None:
                below = node.value[step] = Node({}, SourcePosition(label))
            if _is_use(path[:depth]):
                _spell_out(below)
            node = below
    node.value[path[-1]] = value
