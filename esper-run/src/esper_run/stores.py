"""Stores: where runs are kept besides their directory.

esper-scale brings them: its entry point ``any`` in the group ``esper.stores`` names a function from the URL of a folder
of runs to a ``Storage``. ``Store`` adds what concerns run directories. When a run is uploaded, and what, is in
``runs.uploads``.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from esper_core.leyline.errors import Problem, RunFolderError
from esper_core.leyline.files import read_bytes
from esper_core.plugins import Extension

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence


STORE_GROUP: Final = "esper.stores"
RUN_NAME: Final = r"[^./\\:\x00-\x1f\x7f][^/\\:\x00-\x1f\x7f]{0,199}"
"""Pattern of the id of a stored run: it names no hidden folder and stays inside its store."""

FILE_PATH: Final = rf"{RUN_NAME}(/{RUN_NAME}){{0,9}}"
"""Pattern of a file's path in a run directory: it stays inside, and no part of it is hidden."""

COPY_MARK: Final = ".stored.json"
"""Name of the file in a copy of a stored run: the URL that it was copied from, and when that was uploaded."""


@dataclass(frozen=True, slots=True)
class StoredRun:
    """What a store knows of a run without fetching its files.

    Attributes:
        status: The status of the run when it was uploaded.
        checkpoint: Number of the checkpoint among the files; 0 without one.
        uploaded: When it was uploaded.
        files: Paths of its files in the run directory.
    """

    status: str
    checkpoint: int
    uploaded: datetime
    files: Sequence[str]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What to upload of a run directory.

    Attributes:
        status: The status of the run.
        checkpoint: Number of the checkpoint among the files; 0 without one.
        files: A function for each path in the run directory; every call yields the bytes of the file from its start.
    """

    status: str
    checkpoint: int
    files: Mapping[str, Callable[[], Iterator[bytes]]]


class ClaimLost(Exception):
    """Another process may upload the run now."""


class Claim(Protocol):
    """The right to upload a run, which one process at a time has. Methods raise ClaimLost if another process has it."""

    @property
    def token(self) -> str:
        """Random text by which the store recognizes the claim."""

    def upload(self, snapshot: Snapshot) -> None:
        """Replace what the store has of the run, so that a reader gets all of the old files or all of the new ones."""

    def renew(self) -> None:
        """Keep the claim. Called about once a minute."""

    def release(self) -> None:
        """Let other processes claim the run."""


class Storage(Protocol):
    """A folder of runs in a store. Methods raise RunFolderError E434 if it cannot be used."""

    def runs(self) -> Sequence[str]:
        """Return the ids of the runs. Raises RunFolderError E420 if there is no such folder."""

    def find(self, id_: str) -> StoredRun | None:
        """Return what is stored of a run; None if there is nothing. Raises RunFolderError E435 if it is damaged."""

    def fetch(self, id_: str, folder: Path, is_wanted: Callable[[str], bool]) -> StoredRun:
        """Write the files of a run whose paths are wanted into a folder, where earlier ones may be.

        Raises:
            RunFolderError: E420, there is no such run; E435, it is damaged.
        """

    def claim(self, id_: str, after: str | None) -> Claim:
        """Return the right to upload a run.

        Args:
            id_: The run, which need not be stored yet.
            after: Token of an earlier claim whose process has ended, so that the claim may be taken; None: no such one.

        Raises:
            RunFolderError: E412, another process has the claim.
        """


@dataclass(frozen=True, slots=True)
class Store:
    """A folder of runs in a store, and copies of them on this machine.

    Attributes:
        url: As the user named it, without a slash at its end.
        storage: What reads and writes it.
    """

    url: str
    storage: Storage

    def fetch_copy(self, id_: str, names: Sequence[str] = ()) -> Path:
        """Copy a run, without its checkpoint, into the user's cache, and return the folder.

        Args:
            id_: The run.
            names: Copy only these files.

        Raises:
            RunFolderError: E410, the cache cannot be written; and as the storage.
        """

        def is_wanted(name: str) -> bool:
            return name in names if names else not name.startswith("checkpoints/") and name != "latest"

        folder = user_cache() / sha256(self.url.encode()).hexdigest()[:16] / id_
        stored = self._fetch(id_, folder, is_wanted)
        try:
            for path in folder.rglob("*"):  # what the run had when it was copied before
                name = path.relative_to(folder).as_posix()
                if path.is_file() and not path.name.startswith(".") and is_wanted(name) and name not in stored.files:
                    path.unlink()
            mark = {"url": f"{self.url}/{id_}", "uploaded": stored.uploaded.astimezone(UTC).isoformat("T", "seconds")}
            beside = folder / f"{COPY_MARK}.{secrets.token_hex(4)}"
            beside.write_text(json.dumps(mark))
            beside.replace(folder / COPY_MARK)
        except OSError as error:
            raise RunFolderError.about(folder, error) from error
        return folder

    def fetch_whole(self, id_: str, runs_dir: Path) -> Path:
        """Fetch a run with its checkpoint into a folder of runs, to resume it there; return its run directory.

        A run directory that is there already is kept, if it is as far as the stored run.

        Raises:
            RunFolderError: E437, the run directory is there, and is behind; E410, it cannot be written; and as the
                storage.
        """
        path = runs_dir / id_
        if path.exists():
            self.require_not_ahead(path, newest_checkpoint(path))
            return path
        beside = runs_dir / f".{id_}.{secrets.token_hex(4)}"
        try:
            self._fetch(id_, beside, lambda name: True)
            beside.rename(path)  # only a whole run appears among the others
        except OSError as error:
            raise RunFolderError.about(path, error) from error
        finally:
            shutil.rmtree(beside, ignore_errors=True)
        return path

    def require_not_ahead(self, path: Path, checkpoint: int) -> None:
        """Raise RunFolderError E437 if the stored run is further than the run directory with this checkpoint."""
        id_ = path.resolve().name
        try:
            stored = self.storage.find(id_)
        except RunFolderError as error:
            if error.problems[0].code == "E435":
                return  # the next upload replaces what is damaged
            raise
        if stored is None:
            return
        is_done = stored.status == "done" and not (path / "summary.json").exists()
        if stored.checkpoint > checkpoint or is_done:
            far = "is done" if is_done else f"has checkpoint {stored.checkpoint}, and {path} only {checkpoint}"
            hint = f"Move {path} away, and continue from the store:  esper resume {self.url}/{id_}"
            raise RunFolderError(Problem("E437", f"the stored run {self.url}/{id_} {far}", hint=hint))

    def _fetch(self, id_: str, folder: Path, is_wanted: Callable[[str], bool]) -> StoredRun:
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise RunFolderError.about(folder, error) from error
        try:
            return self.storage.fetch(id_, folder, is_wanted)
        finally:
            with suppress(OSError):  # it is not empty, unless nothing could be fetched
                folder.rmdir()


def open_store(url: str) -> Store:
    """Return the store with this URL. Nothing is read yet.

    Raises:
        RunFolderError: E434, esper-scale is not installed, or the URL cannot be used.
    """
    protocol = url.partition("://")[0]
    url = url if url == f"{protocol}://" else url.rstrip("/")
    extension = Extension.find(STORE_GROUP, "store").get("any")
    if extension is None:
        hint = "Stores come with another package:  pip install esper-scale"
        message = f"the store {url} cannot be used: no package for it is installed"
        raise RunFolderError(Problem("E434", message, hint=hint))
    function = extension.load(object, "a function from a URL to a store")
    return Store(url, cast("Callable[[str], Storage]", function)(url))


def newest_checkpoint(path: Path) -> int:
    """Return the number of the newest complete checkpoint in a run directory; 0 without one."""
    complete = (file.parent.name for file in (path / "checkpoints").glob("*/COMPLETE"))
    return max((int(name) for name in complete if name.isdecimal()), default=0)


def split_url(url: str) -> tuple[str, str]:
    """Return the URL of a store and the id of the run that ``url`` names. Raises RunFolderError E434 if it names none.

    >>> split_url("s3://bucket/prefix/20261121-101512-quiet-otter")
    ('s3://bucket/prefix', '20261121-101512-quiet-otter')
    """
    folder, _, id_ = url.rstrip("/").rpartition("/")
    if folder.endswith(("/", ":")) or not re.fullmatch(RUN_NAME, id_):
        message = f"the store {url} cannot be used: it does not name a run"
        hint = "Give the URL of a store and the id of a run: s3://bucket/prefix/RUN."
        raise RunFolderError(Problem("E434", message, hint=hint))
    return folder, id_


def copied_from(path: Path) -> tuple[str, str] | None:
    """Return the URL of which a folder is a copy in the cache, and when that was uploaded; None for other folders."""
    if path.resolve().parent.parent != user_cache().resolve():
        return None  # a foreign run directory must not name a URL to resume from
    try:
        mark: Any = json.loads(read_bytes(path / COPY_MARK, 10_000))
        return str(mark["url"]), str(mark["uploaded"])
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return None


def user_cache() -> Path:
    """Return Esper's folder in the user's cache folder."""
    cache_home = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(cache_home) if Path(cache_home).is_absolute() else Path.home() / ".cache") / "esper"
