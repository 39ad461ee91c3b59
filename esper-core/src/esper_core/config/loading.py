"""Which configuration do a file and its overrides make? All of it is right, or every problem is told at once."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError

from esper_core.config.bases import read_with_bases
from esper_core.config.consistency import contradictions
from esper_core.config.files import file_name, read_file
from esper_core.config.idleness import idle_values
from esper_core.config.limits import MAX_PROBLEMS
from esper_core.config.model import RunConfig
from esper_core.config.overrides import apply_override, label_of, read_overrides
from esper_core.config.paths import PathSyntaxError, parse_path
from esper_core.config.places import Places, Tree
from esper_core.config.wording import objections, objections_to_settings
from esper_core.leyline import ConfigError, Problem

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pydantic import BaseModel

    from esper_core.config.bases import Base
    from esper_core.config.paths import KeyPath


@dataclass(frozen=True)
class LoadedConfig:
    """A configuration, and what is known of how it came to be.

    source: the file's bytes as they are. overrides: what ``--set`` was given, in order.
    bases: what it is built on, from the nearest to the last. warnings: values that are said and that nothing reads.
    """

    config: RunConfig
    file: str
    source: bytes = field(repr=False)
    overrides: tuple[str, ...] = ()
    places: Places = field(default_factory=Places, repr=False, compare=False)
    bases: tuple[Base, ...] = ()
    warnings: tuple[Problem, ...] = field(default=(), repr=False, compare=False)

    def problem(self, code: str, path: KeyPath, message: str, hint: str | None = None) -> Problem:
        """A problem with the value at ``path``, shown where it stands, or where the nearest value above it does."""
        return self.places.problem(code, path, message, hint)

    def origin(self, path: KeyPath) -> str:
        """Where the value at ``path`` is from: ``file:line:column``, ``--set …``, or ``default``."""
        place = self.places.by_path.get(path)
        if place is None and path[-1:] == ("use",) and self.places.is_leaf(path[:-1]):
            place = self.places.by_path.get(path[:-1])  # a component that is written as its name alone
        return "default" if place is None else str(place)


def settings_problems(
    loaded: LoadedConfig, error: ValidationError, model: type[BaseModel], path: KeyPath
) -> list[Problem]:
    """What a component's own ``model`` says against its settings, which stand at ``path``: ("policy", "settings").

    Codes E110 to E113 as for the file's own keys; E120 for a check that the component makes itself.
    """
    return objections_to_settings(error, model, path, loaded.places)


def load_config(path: str | Path, overrides: Sequence[str] = ()) -> LoadedConfig:
    """Read the file at ``path``, its bases below it and ``overrides`` over it.

    ConfigError with every problem, sorted by place.
    """
    file = file_name(path)
    try:
        data = read_file(path)
    except ConfigError as error:
        raise _refusal([*error.problems, *read_overrides(overrides)[1]], file, overrides) from None
    return parse_config(data, file=file, overrides=overrides, folder=Path(path).parent)


def parse_config(data: bytes, *, file: str, overrides: Sequence[str] = (), folder: Path | None = None) -> LoadedConfig:
    """As ``load_config``, of bytes that are at hand. ``file`` is what problems call them.

    folder: where their base is looked for; None: where ``file`` stands.
    """
    tree, bases = _read(data, file, overrides, Path(file).parent if folder is None else folder)
    config, untold = _validate(tree)
    tree.problems.extend(contradictions(tree))
    if config is None or tree.problems:
        raise _refusal(tree.problems, file, overrides, untold, bases)
    warnings = tuple(idle_values(config, tree.places))
    return LoadedConfig(config, file, data, tuple(overrides), tree.places, bases, warnings)


def load_remains(path: str | Path, overrides: Sequence[str] = ()) -> LoadedConfig | None:
    """What is left of a file that is refused when each value with a problem is taken out.

    None where that is no configuration, and where what is said of plugins is wrong: they would not be the file's.
    """
    file = file_name(path)
    try:
        data = read_file(path)
        tree, bases = _read(data, file, overrides, Path(path).parent)
        _validate(tree)
        tree.problems.extend(contradictions(tree))
        wrong = [parse_path(problem.path) for problem in tree.problems if problem.path is not None]
    except (ConfigError, PathSyntaxError):
        return None
    if any(own[:1] == ("plugins",) for own in wrong):
        return None
    for own in wrong:
        tree.take_out(own)
    config, _ = _validate(tree)
    return None if config is None else LoadedConfig(config, file, data, tuple(overrides), tree.places, bases)


def _read(data: bytes, file: str, overrides: Sequence[str], folder: Path) -> tuple[Tree, tuple[Base, ...]]:
    """What is written, with what is wrong so far among its problems; ConfigError where it cannot be read."""
    changes, problems = read_overrides(overrides)
    try:
        tree, bases = read_with_bases(data, file, folder)
    except ConfigError as error:
        raise _refusal([*error.problems, *problems], file, overrides) from None
    tree.problems.extend(problems)
    for change in changes:
        apply_override(change, tree)
    return tree, bases


def _validate(tree: Tree) -> tuple[RunConfig | None, int]:
    """The model, or None with its objections among the tree's problems and a count of those that are too many."""
    try:
        return RunConfig.model_validate(tree.value), 0
    except ValidationError as error:
        problems, untold = objections(error, tree, 3 * MAX_PROBLEMS)
        tree.problems.extend(problems)
        return None, untold


def _refusal(
    problems: Sequence[Problem], file: str, overrides: Sequence[str], untold: int = 0, bases: Sequence[Base] = ()
) -> ConfigError:
    """The error with its problems in the order of the file, of its bases, then of the overrides; the first hundred."""
    order = {label_of(text): len(bases) + number for number, text in reversed(list(enumerate(overrides, 1)))}
    order |= {base.file: number for number, base in enumerate(bases, 1)}
    order[file] = 0
    ranked = sorted(
        problems, key=lambda problem: (order.get(problem.file or file, 0.5), problem.line or 0, problem.column or 0)
    )
    untold += max(0, len(ranked) - MAX_PROBLEMS)
    if untold:
        message = f"{untold:,} more problems are not shown"
        ranked[MAX_PROBLEMS:] = [Problem("E100", message, file, hint="Mend those above first.")]
    return ConfigError(ranked)
