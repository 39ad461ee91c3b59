"""Records of runs: read the manifest, summary and growth of a run directory, and list and find runs.

>>> load_run("runs/nothing")
Traceback (most recent call last):
    ...
esper_core.leyline.errors.RunFolderError: E420 there is no run runs/nothing
  List the runs:  esper runs list --runs-dir runs
"""

from __future__ import annotations

import os
import re
import shlex
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeVar

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, FiniteFloat, ValidationError

from esper_core.leyline.constants import RUN_FORMAT
from esper_core.leyline.errors import ConfigError, Problem, RunFolderError, nearest, one_line
from esper_core.leyline.files import is_url, read_bytes, read_json, refuse_special
from esper_core.telemetry import read_events as read_events
from esper_run.runs.directory import STATUS_RUNNING, checksum_of_start, events_before, is_locked
from esper_run.stores import copied_from, open_store, split_url

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime


PYTHON: Final = "python"
"""First word of the command in the manifest of a user's own loop."""

DIED: Final = "died"
"""Status of a run whose manifest says that it is running, and whose process is gone."""

_Model = TypeVar("_Model", bound=BaseModel)
_Time = Annotated[AwareDatetime, Field(strict=False)]
"""A time in JSON is a text."""


class _Checked(BaseModel):
    """Strict: the text "NaN" is not taken for a number, since the values are passed on as they are."""

    model_config = ConfigDict(strict=True)


class _Plugin(_Checked):
    id: str
    package: str
    version: str | None = None


class _RunManifest(_Checked):
    """The checked part of a manifest; the rest is kept as it is."""

    format: int
    id: str
    status: Literal["running", "done", "failed", "interrupted", "stopped"]
    started: _Time
    finished: _Time | None = None
    reason: str = ""
    sha256: dict[str, str] = {}
    machine: dict[str, str | int | None] = {}
    plugins: list[_Plugin] = []
    data: dict[str, str] = {}


class _Metric(_Checked):
    name: str
    direction: Literal["up", "down"]
    unit: str = ""


class _Figure(_Checked):
    mean: float | None
    ci_low: float | None
    ci_high: float | None
    n: int


class _EpisodeResult(_Checked):
    seed: int
    test: float | None


class _Arm(_Checked):
    test: _Figure
    params: float
    reward: float | None = None
    episodes: list[_EpisodeResult]


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


class _Results(_Checked):
    metric: _Metric
    arms: dict[str, _Arm]
    comparisons: list[_Comparison]


class Checksum(_Checked):
    """Length and SHA-256 of a file, or of its start."""

    bytes: int = Field(ge=0)
    sha256: str


class _LostSeeds(_Checked):
    blueprint: str
    package: str
    what: str
    lost: int
    tried: int


class _Summary(_Checked):
    """The checked part of a summary; the rest is kept as it is."""

    results: _Results
    events: Checksum | None = None
    timing: dict[str, FiniteFloat]
    warnings: list[str] = []
    lost_seeds: list[_LostSeeds] = []


class _Grown(_Checked):
    arm: str
    grown: list[dict[str, Any]]


class _GrowthFile(_Checked):
    episodes: list[_Grown]


@dataclass(frozen=True, slots=True, repr=False)
class Run:
    """A run directory as it was when it was loaded. ``esper_run.read_events(run.events)`` reads its events."""

    path: Path
    manifest: Mapping[str, Any]
    """What ``manifest.json`` says: the command, the machine, the plugins."""
    summary: Mapping[str, Any] | None
    """What ``summary.json`` says; None if the run is unfinished."""
    status: str
    """``done``, ``failed``, ``interrupted``, ``stopped``, ``running``, or ``died`` if its process is gone."""
    started: datetime
    finished: datetime | None
    url: str = ""
    """URL of the stored run of which ``path`` is a copy; empty for a run directory."""
    uploaded: str = ""
    """When the stored run was uploaded. One that is ``running`` may have died since."""

    @property
    def id(self) -> str:
        """Id of the run."""
        return str(self.manifest["id"])

    @property
    def name(self) -> str:
        """Name of the folder: the id, unless the folder was renamed."""
        return self.path.resolve().name

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
    def shown_path(self) -> str:
        """URL of a stored run, or path of a run directory."""
        return self.url or str(self.path)

    @property
    def resume_hint(self) -> str:
        """How to finish an unfinished run."""
        if self.status == STATUS_RUNNING and not self.url:
            return "Wait for it to finish."
        if self.is_of_loop:
            return "Resume it in its own loop:  gardener.load_state_dict(…)"
        return resume_hint(self.shown_path)

    @property
    def is_of_loop(self) -> bool:
        """Whether a Gardener wrote it, in a loop that ``esper resume`` does not have."""
        return [*self.manifest.get("argv", ())][:1] == [PYTHON]

    def config(self) -> Mapping[str, Any]:
        """Read the configuration of the run. Raises RunFolderError E430 if it cannot be read."""
        from esper_run.config.loading import read_file
        from esper_run.config.yaml import read_document

        file = self.path / "config.yaml"
        try:
            refuse_special(file)
            return dict(read_document(read_file(file), str(file)).plain())
        except ConfigError as error:
            raise RunFolderError.unreadable(file, error.problems[0].message) from error
        except OSError as error:
            raise RunFolderError.unreadable(file, error) from error

    def __repr__(self) -> str:
        reason = f"; {self.reason}" if self.reason else ""
        return f"<{one_line(f'Run {self.id}: {self.status}{reason}')}>"


def read_run(path: Path) -> Run:
    """Read the run in the folder ``path``. Raises RunFolderError: E420 if there is none, E430 if it cannot be read."""
    try:
        (path / "manifest.json").lstat()
    except (FileNotFoundError, NotADirectoryError):
        message = f"{path} is not a run directory: it has no manifest.json"
        hint = "Give the folder of a run, for example runs/20261121-101512-quiet-otter."
        raise RunFolderError(Problem("E420", message, hint=hint)) from None
    except OSError as error:
        raise RunFolderError.unreadable(path, error) from None
    manifest, checked = _read(_RunManifest, path / "manifest.json")
    if checked.format != RUN_FORMAT:
        message = f"{path} is a run directory of format {checked.format}; this Esper reads format {RUN_FORMAT}"
        raise RunFolderError(Problem("E430", message, hint="Read it with the version of Esper that wrote it."))
    try:
        summary, _ = _read(_Summary, path / "summary.json", checked.sha256 if checked.status == "done" else {})
    except FileNotFoundError:
        summary = None
    url, uploaded = copied_from(path) or ("", "")
    died = checked.status == STATUS_RUNNING and not url and not is_locked(path)
    status = DIED if died else checked.status
    return Run(path, manifest, summary, status, checked.started, checked.finished, url, uploaded)


def read_growth(run: Run) -> dict[str, list[list[str]]]:
    """Return what each episode of each arm kept, as ``blueprint in slot``; empty if the run has no growth.json."""
    kept_by_arm: dict[str, list[list[str]]] = {}
    try:
        _, growth = _read(_GrowthFile, run.path / "growth.json", run.manifest.get("sha256", {}))
    except FileNotFoundError:
        return kept_by_arm
    for episode in growth.episodes:
        grown = [f"{seed.get('blueprint')} in {seed.get('slot')}" for seed in episode.grown]
        kept_by_arm.setdefault(episode.arm, []).append(grown)
    return kept_by_arm


def changed_events(run: Run) -> str | None:
    """Return that events.jsonl or config.yaml is not what the run wrote; None if they are, as far as sums tell.

    That of a finished run is in its summary. Of an unfinished one, what is before its newest checkpoint is compared.
    """
    if run.status == STATUS_RUNNING:
        return None
    expected = run.manifest.get("sha256", {}).get("config.yaml") if run.status == "done" else None
    actual = None
    with suppress(OSError):
        actual = sha256(read_bytes(run.path / "config.yaml")).hexdigest()
    if expected not in (None, actual):
        return f"{run.path / 'config.yaml'} changed since the run: what is shown of it may be wrong"
    written = (run.summary or {}).get("events")
    is_whole = written is not None
    if (written := written or events_before(run.path)) is None:
        return None
    try:
        status = run.events.stat()
        # A sparse file must not be read to its end.
        is_as_long = status.st_size == written["bytes"] if is_whole else status.st_size >= written["bytes"]
        stamp = status.st_ino, status.st_size, status.st_mtime_ns
        is_same = is_as_long and _checksum_once(run.events, written["bytes"], stamp) == written
    except FileNotFoundError:
        return f"{run.events} is missing" if is_whole else None
    except OSError:
        return None  # whoever reads the events reports it
    return None if is_same else f"{run.events} changed since the run wrote it: what is shown of it may be wrong"


@lru_cache(maxsize=64)
def _checksum_once(path: Path, length: int, stamp: tuple[int, ...]) -> dict[str, Any]:
    """Return the checksum of a file that has not changed as long as its stamp stays: pages are drawn every second."""
    return checksum_of_start(path, length)


def resume_hint(path: Path | str) -> str:
    """Return how to resume a run. Without a checkpoint, it starts from the beginning."""
    return f"Resume it:  esper resume {shlex.quote(str(path))}"


def _read(model: type[_Model], path: Path, sums: Mapping[str, str] = MappingProxyType({})) -> tuple[Any, _Model]:
    """Return what a JSON file holds, and its checked part. ``sums``: the SHA-256 of files, by name."""
    try:
        value = read_json(path)
    except FileNotFoundError:
        if path.name not in sums:
            raise
        raise RunFolderError.unreadable(path, "it was there when the run ended, and is missing") from None
    if path.name in sums and sha256(read_bytes(path)).hexdigest() != sums[path.name]:
        raise RunFolderError.unreadable(path, "it was changed since the run wrote it")
    try:
        return value, model.model_validate(value)
    except ValidationError as error:
        first = error.errors()[0]
        location = ".".join(str(part) for part in first["loc"]) or "the whole"
        raise RunFolderError.unreadable(path, f"{location}: {first['msg']}") from None


# --- finding runs


@dataclass(frozen=True, slots=True)
class UnreadableRun:
    """A folder among the runs that is not a run, or cannot be read, and why."""

    path: Path
    problem: Problem
    url: str = ""

    @property
    def shown_path(self) -> str:
        """URL of a stored run, or path of a folder."""
        return self.url or str(self.path)

    @property
    def status(self) -> str:
        """``no run`` or ``unreadable``."""
        return "no run" if self.problem.code == "E420" else "unreadable"


def list_runs(root: Path | str) -> list[Run | UnreadableRun]:
    """Return the runs in a folder or a store, the newest first, then the other folders by name. Files are ignored.

    Raises:
        RunFolderError: E420 if there is no such folder, E430 or E434 if it cannot be read.
    """
    listed = _list_stored(str(root)) if is_url(root) else [_read_or_problem(path) for path in _folders(Path(root))]
    runs = [run for run in listed if isinstance(run, Run)]
    odd = [run for run in listed if isinstance(run, UnreadableRun)]
    runs.sort(key=lambda run: (run.started, run.path.name), reverse=True)
    return [*runs, *odd]


def _read_or_problem(path: Path) -> Run | UnreadableRun:
    try:
        return read_run(path)
    except RunFolderError as error:
        return UnreadableRun(path, error.problems[0])
    except OSError as error:  # a folder that may not be searched: one run must not hide the others
        return UnreadableRun(path, RunFolderError.unreadable(path, error).problems[0])


def _list_stored(url: str) -> list[Run | UnreadableRun]:
    """Return the runs in a store, of which only what a list needs is fetched."""
    store = open_store(url)

    def read(id_: str) -> Run | UnreadableRun:
        try:
            return read_run(store.fetch_copy(id_, ("manifest.json", "summary.json")))
        except RunFolderError as error:
            if error.problems[0].code == "E434":
                raise  # the store does not answer: every other run would wait for it in vain
            return UnreadableRun(Path(id_), error.problems[0], f"{store.url}/{id_}")

    with ThreadPoolExecutor(8) as pool:
        return list(pool.map(read, sorted(store.storage.runs())))


def load_run(path: str | os.PathLike[str], *, runs_dir: str | os.PathLike[str] = "runs") -> Run:
    """Load a run, whether it is finished, still running, or was killed.

    Args:
        path: Its folder, or its id below ``runs_dir``, or the words of its id. Of a stored run, its URL: what is read
            is a copy in the user's cache, as it was uploaded last.
        runs_dir: Folder of the runs, or the URL of a store.

    Raises:
        RunFolderError: E420 if there is no such run, or several with these words; E430 if it cannot be read. A stored
            run also raises E434 if its storage cannot be read, and E435 if it is damaged.
    """
    name = os.fspath(path)
    if is_url(path):
        url, id_ = split_url(name)
        return read_run(open_store(url).fetch_copy(id_))
    if is_url(runs_dir):
        store = open_store(str(runs_dir))
        ids = sorted(store.storage.runs())
        return read_run(store.fetch_copy(name if name in ids else _id_of(name, ids, store.url)))
    root = Path(runs_dir)
    for folder in (Path(path), root / name):
        if folder.is_dir():
            return read_run(folder)
    return read_run(root / _id_of(name, [folder.name for folder in _folders(root)] if root.is_dir() else [], str(root)))


def words_of(id_: str) -> str:
    """Return an id without its time.

    >>> words_of("20261121-101512-quiet-otter")
    'quiet-otter'
    """
    return re.sub(r"^\d{8}-\d{6}-", "", id_)


def _id_of(name: str, ids: Sequence[str], root: str) -> str:
    """Return the only id with these words among those in ``root``. Raises RunFolderError (E420)."""
    named = [id_ for id_ in ids if words_of(id_) == name]
    if len(named) == 1:
        return named[0]
    if named:
        hint = f"Give the whole id: {', '.join(named[-3:])}"
        raise RunFolderError(Problem("E420", f"{len(named)} runs in {root} are called {name}", hint=hint))
    close = nearest(Path(name).name, ids)
    hint = (
        f"Did you mean {root}/{close}?" if close else f"List the runs:  esper runs list --runs-dir {shlex.quote(root)}"
    )
    raise RunFolderError(Problem("E420", f"there is no run {name}", hint=hint))


def _folders(root: Path) -> Sequence[Path]:
    try:
        return sorted(path for path in root.iterdir() if path.is_dir())
    except FileNotFoundError:
        raise RunFolderError(Problem("E420", f"there is no folder {root}", hint="The first run creates it.")) from None
    except OSError as error:
        raise RunFolderError.unreadable(root, error) from None
