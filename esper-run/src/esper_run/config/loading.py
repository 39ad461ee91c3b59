"""Load a configuration: read the file, apply ``--set``, and validate; and write one as YAML.

Values keep the place of the file or the ``--set`` that they come from. A file or ``--set`` that cannot be read is
reported at once; otherwise every problem with the values is, sorted by place.
"""

from __future__ import annotations

import json
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


@dataclass(frozen=True)
class LoadedConfig:
    """A configuration, and where each of its values comes from.

    ``source`` has the bytes of the file, ``root`` its values with their places; ``overrides`` are what ``--set`` was
    given, in order.
    """

    config: RunConfig
    file: str
    source: bytes = field(repr=False)
    root: Node = field(repr=False, compare=False)
    overrides: tuple[str, ...] = ()

    def problem(self, code: str, path: KeyPath, message: str, hint: str | None = None) -> Problem:
        """Build a problem with the value at ``path``, located there or at the nearest value above."""
        return self.root.problem(code, path, message, hint)


def load_config(path: str | Path, overrides: Sequence[str] = ()) -> LoadedConfig:
    """Read the file at ``path``, and apply ``overrides``.

    Raises:
        ConfigError: if the file cannot be read, or with every problem of its values.
    """
    return parse_config(read_file(path), file=visible(str(path)), overrides=overrides)


def config_of(values: Mapping[str, Any], overrides: Sequence[str] = ()) -> LoadedConfig:
    """Return a configuration that is given as plain data; plugins' paths are relative to the current folder.

    Raises:
        ConfigError: Values are wrong, or are not plain data (E111).
    """
    return parse_config(dump_config(values).encode(), file="configuration", overrides=overrides)


def parse_config(data: bytes, *, file: str, overrides: Sequence[str] = ()) -> LoadedConfig:
    """Do as ``load_config`` does with bytes that were read already.

    Args:
        data: the content of the file.
        file: its name in problems.
        overrides: ``PATH=VALUE``, applied last.
    """
    root = read_document(data, file)
    for text in overrides:
        _override(root, text)
    try:
        config = RunConfig.model_validate(root.plain())
    except ValidationError as error:
        problems = model_problems(error, RunConfig, root)
    else:
        problems = list(contradictions(config, root))
        if not problems:
            return LoadedConfig(config, file, data, root, tuple(overrides))
    files = [file, *map(_label, overrides), None]
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


def dump_config(config: RunConfig | Mapping[str, Any]) -> str:
    """Write a configuration, with its defaults or as given, as YAML. ConfigError E111 for what no file can hold."""
    try:
        return dump(config.model_dump(mode="json") if isinstance(config, RunConfig) else config)
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
            entry = entry_at(path[:depth])
            if entry is not None and entry.is_use and isinstance(below.value, str):
                below.value = {"use": Node(below.value, below.position)}  # it was written as its name alone
            node = below
    node.value[path[-1]] = value
