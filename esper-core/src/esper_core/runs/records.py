"""What does a run directory say? Its manifest and its summary, checked; a folder that is none is told apart.

>>> from pathlib import Path
>>> read_run(Path("runs/nothing"))
Traceback (most recent call last):
    ...
esper_core.leyline.errors.RunFolderError: E420 there is no folder runs/nothing
  Give the folder of a run, for example runs/20261121-101512-quiet-otter.

Which runs are there? What stands in a folder of runs, each read as far as it can be, and runs found by name.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeVar

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, FiniteFloat, ValidationError

from esper_core.leyline.constants import RUN_FORMAT
from esper_core.leyline.errors import Problem, RunFolderError, nearest
from esper_core.leyline.files import read_json
from esper_core.runs.directory import STATUS_RUNNING, is_locked

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from datetime import datetime


DIED: Final = "died"
"""Status of a run that says that it is running, and whose process is gone."""

_Model = TypeVar("_Model", bound=BaseModel)

EXAMPLE: Final = "Give the folder of a run, for example runs/20261121-101512-quiet-otter."


_Time = Annotated[AwareDatetime, Field(strict=False)]
"""A time as JSON has it: as text."""


class _Read(BaseModel):
    """What is read of a file is passed on as it stands there: "NaN" as a text is no number, though it could be one."""

    model_config = ConfigDict(strict=True)


class _Manifest(_Read):
    """What is read of a manifest; the rest of it is kept as it is."""

    format: int
    id: str
    status: str
    started: _Time
    finished: _Time | None = None
    reason: str = ""


class _Metric(_Read):
    name: str
    direction: Literal["up", "down"]
    unit: str = ""


class _Figure(_Read):
    mean: float | None
    ci_low: float | None
    ci_high: float | None
    n: int


class _Episode(_Read):
    seed: int
    test: float | None


class _Arm(_Read):
    test: _Figure
    params: float
    reward: float | None = None
    episodes: list[_Episode]


class _Comparison(_Read):
    a: str
    b: str
    difference: float | None
    ci_low: float | None
    ci_high: float | None
    p: float | None
    p_holm: float | None = None
    n: int
    verdict: str
    why: str | None = None
    paired: bool = True


class _Results(_Read):
    metric: _Metric
    arms: dict[str, _Arm]
    comparisons: list[_Comparison]


class _Section(_Read):
    plugin: str
    title: str
    text: str


class _Summary(_Read):
    """What is read of a summary; the rest of it is kept as it is."""

    results: _Results
    timing: dict[str, FiniteFloat]
    warnings: list[str] = []
    sections: list[_Section] = []


class _Growth(_Read):
    blueprint: str
    slot: str


class _Grown(_Read):
    arm: str
    seed: int
    grown: list[_Growth]


class _GrowthFile(_Read):
    episodes: list[_Grown]


@dataclass(frozen=True, slots=True)
class RunRecord:
    """A run that was found. ``manifest`` and ``summary`` are what the files hold; no summary: it has no end yet."""

    path: Path
    manifest: Mapping[str, Any]
    summary: Mapping[str, Any] | None
    status: str
    """``done``, ``failed``, ``interrupted``, ``stopped``, ``running``, or ``died``, without a word."""
    started: datetime
    finished: datetime | None

    @property
    def id(self) -> str:
        """What the run is called."""
        return str(self.manifest["id"])

    @property
    def name(self) -> str:
        """What its folder is called, which is its id unless somebody renamed it."""
        return self.path.resolve().name

    @property
    def reason(self) -> str:
        """Why it was not done; empty where nothing is known of that."""
        return str(self.manifest.get("reason", ""))

    @property
    def results(self) -> Mapping[str, Any] | None:
        """The figures of the end."""
        return None if self.summary is None else self.summary["results"]

    @property
    def seconds(self) -> float | None:
        """How long it took; None where it has no end."""
        if self.summary is not None and "total" in self.summary["timing"]:
            return float(self.summary["timing"]["total"])
        return None if self.finished is None else (self.finished - self.started).total_seconds()


def read_run(path: Path) -> RunRecord:
    """The run in the folder ``path``. RunFolderError: E420 where it holds none, E430 where it cannot be read."""
    if not path.is_dir():
        raise RunFolderError(Problem("E420", f"there is no folder {path}", hint=EXAMPLE))
    try:
        manifest = read_json(path / "manifest.json")
    except FileNotFoundError:
        message = f"{path} is no run directory: it has no manifest.json"
        raise RunFolderError(Problem("E420", message, hint=EXAMPLE)) from None
    known = _checked(_Manifest, manifest, path / "manifest.json")
    if known.format != RUN_FORMAT:
        message = f"{path} is a run directory of format {known.format}; this Esper reads format {RUN_FORMAT}"
        raise RunFolderError(Problem("E430", message, hint="Read it with the version of Esper that wrote it."))
    try:
        summary = read_json(path / "summary.json")
    except FileNotFoundError:
        summary = None
    else:
        _checked(_Summary, summary, path / "summary.json")
    died = known.status == STATUS_RUNNING and not is_locked(path)
    return RunRecord(path, manifest, summary, DIED if died else known.status, known.started, known.finished)


def read_growth(path: Path) -> dict[str, list[list[str]]]:
    """What grew in each episode of each arm, as ``blueprint in slot``; empty where the run has no growth.json."""
    file = path / "growth.json"
    try:
        told = read_json(file)
    except FileNotFoundError:
        return {}
    found: dict[str, list[list[str]]] = {}
    for episode in _checked(_GrowthFile, told, file).episodes:
        grown = [f"{growth.blueprint} in {growth.slot}" for growth in episode.grown]
        found.setdefault(episode.arm, []).append(grown)
    return found


def way_on(path: Path, status: str) -> str:
    """How a run that has no end comes to one, as a hint says it."""
    if status == STATUS_RUNNING:
        return "Wait for its end."
    folder = shlex.quote(str(path))
    if can_go_on(path, status):
        return f"Go on with it:  esper resume {folder}"
    return f"Run it once more:  esper run {folder}"


def can_go_on(path: Path, status: str) -> bool:
    """Whether ``esper resume`` brings it to its end: from a checkpoint, or, killed before the first, anew."""
    return (path / "latest").is_file() or (status == DIED and (path / "config.yaml").is_file())


def _checked(model: type[_Model], value: Any, path: Path) -> _Model:
    try:
        return model.model_validate(value)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the whole"
        raise RunFolderError.unreadable(path, f"{where}: {first['msg']}") from None


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
