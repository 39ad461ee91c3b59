"""Records of runs: read the manifest, summary and growth of a run directory, and list and find runs.

>>> load_run("runs/nothing")
Traceback (most recent call last):
    ...
esper_core.leyline.errors.RunFolderError: E420 there is no run runs/nothing
  List the runs:  esper runs list --runs-dir runs
"""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeVar

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, FiniteFloat, ValidationError

from esper_core.leyline.constants import RUN_FORMAT
from esper_core.leyline.errors import ConfigError, Problem, RunFolderError, nearest, one_line
from esper_core.leyline.files import read_json, words_of
from esper_core.leyline.notebooks import html_of
from esper_core.runs.directory import STATUS_RUNNING, is_locked

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime


DIED: Final = "died"
"""Status of a run whose manifest says that it is running, and whose process is gone."""

_Model = TypeVar("_Model", bound=BaseModel)
_Time = Annotated[AwareDatetime, Field(strict=False)]
"""A time in JSON is a text."""


_Section = Annotated[dict[Literal["plugin", "title", "text"], str], Field(min_length=3)]


class _Checked(BaseModel):
    """Strict: the text "NaN" is not taken for a number, since the values are passed on as they are."""

    model_config = ConfigDict(strict=True)


class _Manifest(_Checked):
    """The checked part of a manifest; the rest is kept as it is."""

    format: int
    id: str
    status: str
    started: _Time
    finished: _Time | None = None
    reason: str = ""


class _Metric(_Checked):
    name: str
    direction: Literal["up", "down"]
    unit: str = ""


class _Figure(_Checked):
    mean: float | None
    ci_low: float | None
    ci_high: float | None
    n: int


class _Episode(_Checked):
    seed: int
    test: float | None


class _Arm(_Checked):
    test: _Figure
    params: float
    reward: float | None = None
    episodes: list[_Episode]


class _Comparison(_Checked):
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


class _Results(_Checked):
    metric: _Metric
    arms: dict[str, _Arm]
    comparisons: list[_Comparison]


class _Summary(_Checked):
    """The checked part of a summary; the rest is kept as it is."""

    results: _Results
    timing: dict[str, FiniteFloat]
    warnings: list[str] = []
    sections: list[_Section] = []


class _Grown(_Checked):
    arm: str
    grown: list[dict[str, Any]]


class _GrowthFile(_Checked):
    episodes: list[_Grown]


@dataclass(frozen=True, slots=True, repr=False)
class Run:
    """A run directory as it was when it was loaded. ``esper_core.read_events(run.events)`` reads its events."""

    path: Path
    manifest: Mapping[str, Any]
    """What ``manifest.json`` says: the command, the machine, the plugins."""
    summary: Mapping[str, Any] | None
    """What ``summary.json`` says; None if the run is unfinished."""
    status: str
    """``done``, ``failed``, ``interrupted``, ``stopped``, ``running``, or ``died`` if its process is gone."""
    started: datetime
    finished: datetime | None

    @property
    def id(self) -> str:
        """Id of the run."""
        return str(self.manifest["id"])

    @property
    def name(self) -> str:
        """Name of the folder: the id, unless the folder was renamed."""
        return self.path.resolve().name

    @property
    def words(self) -> str:
        """Name of the folder without its time."""
        return words_of(self.name)

    @property
    def reason(self) -> str:
        """Why the run did not finish; empty if unknown."""
        return str(self.manifest.get("reason", ""))

    @property
    def events(self) -> Path:
        """The file with the run's events."""
        return self.path / "events.jsonl"

    @property
    def results(self) -> Mapping[str, Any] | None:
        """Results of the summary: metric, arms and comparisons; None if the run is unfinished."""
        return None if self.summary is None else self.summary["results"]

    @property
    def seconds(self) -> float | None:
        """Duration of the run; None if it is unfinished."""
        if self.summary is not None and "total" in self.summary["timing"]:
            return float(self.summary["timing"]["total"])
        return None if self.finished is None else (self.finished - self.started).total_seconds()

    @property
    def resume_hint(self) -> str:
        """How to finish an unfinished run."""
        return "Wait for it to finish." if self.status == STATUS_RUNNING else resume_hint(self.path)

    def config(self) -> Mapping[str, Any]:
        """Read the configuration of the run. Raises RunFolderError E430 if it cannot be read."""
        from esper_core.config.loading import read_file
        from esper_core.config.yaml import read_document

        file = self.path / "config.yaml"
        try:
            return dict(read_document(read_file(file), str(file)).plain())
        except ConfigError as error:
            raise RunFolderError.unreadable(file, error.problems[0].message) from error

    def __repr__(self) -> str:
        reason = f"; {self.reason}" if self.reason else ""
        return f"<{one_line(f'Run {self.id}: {self.status}{reason}')}>"

    def _repr_html_(self) -> str | None:
        """Return what a notebook shows; None, and the notebook shows plain text, if no installed package draws it."""
        return html_of("run", self)


def read_run(path: Path) -> Run:
    """Read the run in the folder ``path``. Raises RunFolderError: E420 if there is none, E430 if it cannot be read."""
    if not (path / "manifest.json").exists():
        message = f"{path} is not a run directory: it has no manifest.json"
        hint = "Give the folder of a run, for example runs/20261121-101512-quiet-otter."
        raise RunFolderError(Problem("E420", message, hint=hint))
    manifest, known = _read(_Manifest, path / "manifest.json")
    if known.format != RUN_FORMAT:
        message = f"{path} is a run directory of format {known.format}; this Esper reads format {RUN_FORMAT}"
        raise RunFolderError(Problem("E430", message, hint="Read it with the version of Esper that wrote it."))
    try:
        summary, _ = _read(_Summary, path / "summary.json")
    except FileNotFoundError:
        summary = None
    died = known.status == STATUS_RUNNING and not is_locked(path)
    return Run(path, manifest, summary, DIED if died else known.status, known.started, known.finished)


def read_growth(path: Path) -> dict[str, list[list[str]]]:
    """Return what each episode of each arm kept, as ``blueprint in slot``; empty if the run has no growth.json."""
    found: dict[str, list[list[str]]] = {}
    try:
        _, growth = _read(_GrowthFile, path / "growth.json")
    except FileNotFoundError:
        return found
    for episode in growth.episodes:
        grown = [f"{one.get('blueprint')} in {one.get('slot')}" for one in episode.grown]
        found.setdefault(episode.arm, []).append(grown)
    return found


def resume_hint(path: Path) -> str:
    """Return how to resume a run. Without a checkpoint, it starts from the beginning."""
    return f"Resume it:  esper resume {shlex.quote(str(path))}"


def _read(model: type[_Model], path: Path) -> tuple[Any, _Model]:
    """Return what a JSON file holds, and its checked part."""
    value = read_json(path)
    try:
        return value, model.model_validate(value)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the whole"
        raise RunFolderError.unreadable(path, f"{where}: {first['msg']}") from None


# --- finding runs


@dataclass(frozen=True, slots=True)
class UnreadableRun:
    """A folder among the runs that is not a run, or cannot be read, and why."""

    path: Path
    problem: Problem

    @property
    def status(self) -> str:
        """``no run`` or ``unreadable``."""
        return "no run" if self.problem.code == "E420" else "unreadable"


def list_runs(root: Path) -> list[Run | UnreadableRun]:
    """Return the runs in ``root``, the newest first, then the other folders by name. Files are ignored.

    Raises:
        RunFolderError: E420 if there is no such folder, E430 if it cannot be read.
    """
    runs: list[Run] = []
    odd: list[UnreadableRun] = []
    for path in _folders(root):
        try:
            runs.append(read_run(path))
        except RunFolderError as error:
            odd.append(UnreadableRun(path, error.problems[0]))
    runs.sort(key=lambda run: (run.started, run.path.name), reverse=True)
    return [*runs, *odd]


def load_run(path: str | os.PathLike[str], *, runs_dir: str | os.PathLike[str] = "runs") -> Run:
    """Load a run, whether it is finished, still running, or was killed.

    Args:
        path: Its folder, or its id below ``runs_dir``, or the words of its id.
        runs_dir: Folder of the runs.

    Raises:
        RunFolderError: E420 if there is no such run, or several with these words; E430 if it cannot be read.
    """
    root, name = Path(runs_dir), os.fspath(path)
    for folder in (Path(path), root / name):
        if folder.is_dir():
            return read_run(folder)
    known = [folder.name for folder in _folders(root)] if root.is_dir() else []
    named = [id_ for id_ in known if words_of(id_) == name]
    if len(named) == 1:
        return read_run(root / named[0])
    if named:
        hint = f"Give the whole id: {', '.join(named[-3:])}"
        raise RunFolderError(Problem("E420", f"{len(named)} runs in {root} are called {name}", hint=hint))
    close = nearest(Path(name).name, known)
    hint = f"Did you mean {root / close}?" if close else f"List the runs:  esper runs list --runs-dir {root}"
    raise RunFolderError(Problem("E420", f"there is no run {name}", hint=hint))


def _folders(root: Path) -> Sequence[Path]:
    try:
        return sorted(path for path in root.iterdir() if path.is_dir())
    except FileNotFoundError:
        raise RunFolderError(Problem("E420", f"there is no folder {root}", hint="The first run creates it.")) from None
    except OSError as error:
        raise RunFolderError.unreadable(root, error) from None
