"""Which configuration do a file and its overrides make? All of it is right, or every problem is told at once."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError

from esper_core.config.consistency import contradictions
from esper_core.config.files import file_name, read_file
from esper_core.config.limits import MAX_PROBLEMS
from esper_core.config.model import RunConfig
from esper_core.config.overlays import Overlay, apply_overlay
from esper_core.config.overrides import apply_override, label_of, read_overrides
from esper_core.config.places import Places
from esper_core.config.reading import read_document
from esper_core.config.wording import objections, objections_to_settings
from esper_core.leyline import ConfigError, Problem

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pydantic import BaseModel

    from esper_core.config.paths import KeyPath
    from esper_core.config.places import Tree


@dataclass(frozen=True)
class LoadedConfig:
    """A configuration, and what is known of how it came to be.

    source: the file's bytes as they are. overlays and overrides: what ``--overlay`` and ``--set`` were given, in order.
    """

    config: RunConfig
    file: str
    source: bytes = field(repr=False)
    overrides: tuple[str, ...] = ()
    places: Places = field(default_factory=Places, repr=False, compare=False)
    overlays: tuple[Overlay, ...] = ()

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


def load_config(path: str | Path, overrides: Sequence[str] = (), overlays: Sequence[str | Path] = ()) -> LoadedConfig:
    """Read the file at ``path``, merge the files in ``overlays`` over it in order, and apply ``overrides``.

    ConfigError with every problem, sorted by place.
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
    """Do as ``load_config`` does, with bytes that were read already. ``file`` is what problems call them.

    folder: where ``file`` is; its own by default.
    """
    tree = _read(data, file, overrides, overlays, Path(file).parent if folder is None else folder)
    config, untold = _validate(tree)
    tree.problems.extend(contradictions(tree))
    if config is None or tree.problems:
        raise _refusal(tree.problems, file, overrides, untold, overlays)
    return LoadedConfig(config, file, data, tuple(overrides), tree.places, tuple(overlays))


def _read(data: bytes, file: str, overrides: Sequence[str], overlays: Sequence[Overlay], folder: Path) -> Tree:
    """Read and merge the values; ConfigError where one of the files is not YAML."""
    changes, problems = read_overrides(overrides)
    tree = None
    try:
        tree = read_document(data, file)
        for overlay in overlays:
            apply_overlay(overlay, tree, folder)
    except ConfigError as error:
        known = [] if tree is None else tree.problems
        raise _refusal([*known, *error.problems, *problems], file, overrides, 0, overlays) from None
    tree.problems.extend(problems)
    for change in changes:
        apply_override(change, tree)
    return tree


def _validate(tree: Tree) -> tuple[RunConfig | None, int]:
    """The model, or None with its objections among the tree's problems and a count of those that are too many."""
    try:
        return RunConfig.model_validate(tree.value), 0
    except ValidationError as error:
        problems, untold = objections(error, tree, 3 * MAX_PROBLEMS)
        tree.problems.extend(problems)
        return None, untold


def _refusal(
    problems: Sequence[Problem], file: str, overrides: Sequence[str], untold: int = 0, overlays: Sequence[Overlay] = ()
) -> ConfigError:
    """The error with its problems in the order of the file, the overlays and the overrides; the first hundred."""
    order = {label_of(text): len(overlays) + number for number, text in reversed(list(enumerate(overrides, 1)))}
    order |= {overlay.file: number for number, overlay in enumerate(overlays, 1)}
    order[file] = 0
    ranked = sorted(
        problems, key=lambda problem: (order.get(problem.file or file, 0.5), problem.line or 0, problem.column or 0)
    )
    untold += max(0, len(ranked) - MAX_PROBLEMS)
    if untold:
        message = f"{untold:,} more problems are not shown"
        ranked[MAX_PROBLEMS:] = [Problem("E100", message, file, hint="Mend those above first.")]
    return ConfigError(ranked)
