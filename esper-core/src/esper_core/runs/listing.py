"""Which runs are there? What stands in a folder of runs, each read as far as it can be, and runs found by name."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from esper_core.leyline.errors import Problem, RunFolderError
from esper_core.leyline.nearest import nearest
from esper_core.runs.reading import EXAMPLE, RunRecord, read_run

if TYPE_CHECKING:
    from collections.abc import Iterable


_TIMED: Final = re.compile(r"^\d{8}-\d{6}-")
"""What stands in an id before its words."""


@dataclass(frozen=True, slots=True)
class Oddity:
    """A folder among the runs that is none, or cannot be read, and what is wrong with it."""

    path: Path
    problem: Problem

    @property
    def status(self) -> str:
        """``no run`` or ``unreadable``."""
        return "no run" if self.problem.code == "E420" else "unreadable"


def list_runs(root: Path) -> list[RunRecord | Oddity]:
    """What stands in ``root``: runs, the newest first, then what else is there by name. E420 where there is no folder.

    Files are passed over.
    """
    runs: list[RunRecord] = []
    odd: list[Oddity] = []
    for path in _folders(root):
        try:
            runs.append(read_run(path))
        except RunFolderError as error:
            odd.append(Oddity(path, error.problems[0]))
    runs.sort(key=lambda run: (run.started, run.path.name), reverse=True)
    return [*runs, *odd]


def find_run(name: str, root: Path) -> RunRecord:
    """The run that ``name`` is the path of, or else the id of one in ``root``, or the words of its id.

    RunFolderError where there is none, or where there are several of these words.
    """
    path = Path(name)
    try:
        if path.is_dir():
            return read_run(path)
        if not (root / name).is_dir() and (named := _of_words(name, root)):
            return read_run(named)
        return read_run(root / name if (root / name).is_dir() else path)
    except RunFolderError as error:
        if error.problems[0].hint != EXAMPLE or path.is_dir() or (root / name).is_dir():
            raise
        raise RunFolderError(Problem("E420", error.problems[0].message, hint=_hint(name, root))) from None


def words_of(id_: str) -> str:
    """What a run is called without its time.

    >>> words_of("20261121-101512-quiet-otter")
    'quiet-otter'
    """
    return _TIMED.sub("", id_)


def _of_words(words: str, root: Path) -> Path | None:
    """The one run in ``root`` whose id has these words."""
    try:
        found = [path for path in _folders(root) if words_of(path.name) == words]
    except RunFolderError:
        return None
    if len(found) > 1:
        message = f"{len(found)} runs in {root} are called {words}"
        hint = f"Give the whole id: {', '.join(path.name for path in found[-3:])}"
        raise RunFolderError(Problem("E420", message, hint=hint))
    return found[0] if found else None


def _hint(name: str, root: Path) -> str:
    try:
        close = nearest(Path(name).name, [path.name for path in _folders(root)])
    except RunFolderError:
        return EXAMPLE
    return f"Did you mean {root / close}?" if close else f"Those that are there:  esper runs list --runs-dir {root}"


def _folders(root: Path) -> Iterable[Path]:
    try:
        return sorted(path for path in root.iterdir() if path.is_dir())
    except FileNotFoundError:
        raise RunFolderError(Problem("E420", f"there is no folder {root}", hint="A run makes it.")) from None
    except OSError as error:
        message = f"the folder {root} cannot be read: {error.strerror or error}"
        raise RunFolderError(Problem("E430", message, hint="Check its permissions.")) from None
