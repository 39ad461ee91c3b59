"""Storage: read and write runs in a folder of any storage that fsspec knows, such as s3://bucket/prefix.

RUN/objects/000003-5f2c…      a part of a file: the number of its writer's first manifest, and the SHA-256 of its bytes
RUN/manifests/00000012.json   the files of the run, each as a list of objects; it is written after them

Nothing is changed in place. A manifest is created only if there is none with its number, and the one with the highest
number counts. Whoever writes a run first creates a manifest with the next number, and owns the run from then on: the
writer before finds a newer manifest than its own, and stops. What comes from a storage is checked: its names, its
sizes and the hash of each object.
"""

from __future__ import annotations

import json
import logging
import re
import secrets
import shutil
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError

from esper_core.leyline.errors import Problem, RunFolderError, one_line
from esper_core.leyline.files import user_cache
from esper_run.runs.directory import report_os_errors
from esper_run.stores import COPY_MARK, RUN_NAME

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

log = logging.getLogger("esper")

PART_BYTES: Final = 4 << 20
"""Largest size of an object. Larger files are cut at its multiples."""

MANIFEST_BYTES: Final = 16 << 20
"""Largest size of a manifest that is read."""

FILE_NAME: Final = rf"^{RUN_NAME}(/{RUN_NAME}){{0,9}}$"
"""A file's path in a run directory: it stays inside, and no part of it is hidden."""

EXTRAS: Final = {"s3": "s3", "s3a": "s3"}
"""The extra of esper-scale to install for a protocol. For others fsspec says which package is missing."""

_THREADS: Final = 8


class _Record(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")


class Part(_Record):
    """An object with a part of a file."""

    object: Annotated[str, Field(pattern=r"^[0-9]{6,12}-[0-9a-f]{64}$")]
    bytes: Annotated[int, Field(ge=1, le=PART_BYTES)]

    @property
    def writer(self) -> int:
        """Number of the first manifest of the writer."""
        return int(self.object.partition("-")[0])

    @property
    def sha256(self) -> str:
        """The hash of the bytes."""
        return self.object.partition("-")[2]


class StoredFile(_Record):
    """A file of a run directory; one without parts is empty."""

    name: Annotated[str, Field(pattern=FILE_NAME)]
    parts: tuple[Part, ...] = ()


class UploadManifest(_Record):
    """What a run in a storage consists of.

    Attributes:
        writer: Number of the first manifest of its writer, who owns the run.
        token: Random text of that writer.
        status: The status of the run when it was written.
        checkpoint: Number of the checkpoint among the files; 0 without one.
        at: When it was written.
    """

    format: Literal[1] = 1
    number: Annotated[int, Field(ge=1, lt=10**8)]
    writer: Annotated[int, Field(ge=1, lt=10**8)]
    token: Annotated[str, Field(max_length=64)]
    status: Annotated[str, Field(max_length=64)]
    checkpoint: Annotated[int, Field(ge=0)]
    at: AwareDatetime
    files: tuple[StoredFile, ...] = ()

    @property
    def objects(self) -> set[str]:
        """Names of the objects of all files."""
        return {part.object for file in self.files for part in file.parts}


class TakenOver(Exception):
    """Another process owns the run now."""


@dataclass(frozen=True, slots=True)
class Storage:
    """A folder of runs in a storage.

    Attributes:
        url: As the user named it, without a slash at its end.
        files: The file system of fsspec.
        path: The folder in it.
    """

    url: str
    files: Any
    path: str

    @classmethod
    def open(cls, url: str) -> Storage:
        """Return the folder with this URL. Nothing is read yet.

        Raises:
            RunFolderError: E434, the protocol is unknown or its package is not installed.
        """
        protocol = url.partition("://")[0]
        url = url if url == f"{protocol}://" else url.rstrip("/")
        try:
            from fsspec.core import url_to_fs

            files, path = url_to_fs(url, use_listings_cache=False)
        except ImportError as error:
            extra = EXTRAS.get(protocol)
            hint = f"Install it:  pip install 'esper-scale[{extra}]'" if extra else one_line(str(error))
            raise _unusable(url, "the package for its protocol is not installed", hint) from error
        except Exception as error:  # whatever a file system raises for a URL or settings that it refuses
            raise _unusable(url, one_line(str(error)), "Give a URL such as s3://bucket/prefix.") from error
        return cls(url, files, path.rstrip("/"))

    def run(self, id_: str) -> StoredRun:
        """Return the run with this id, which may not be there yet."""
        return StoredRun(self, id_)

    def runs(self) -> list[str]:
        """Return the ids of the runs, sorted.

        Raises:
            RunFolderError: E420, there is no such folder; E434, it cannot be read.
        """
        with reported(self.url):
            try:
                entries = self.files.ls(self.path, detail=True)
            except FileNotFoundError:
                hint = "The first run with this store creates it."
                raise RunFolderError(Problem("E420", f"there is no folder {self.url}", hint=hint)) from None
        names = (str(entry["name"]).rstrip("/").rpartition("/")[2] for entry in entries if entry["type"] == "directory")
        return sorted(name for name in names if re.fullmatch(RUN_NAME, name))


@dataclass(frozen=True, slots=True)
class StoredRun:
    """A run in a storage."""

    storage: Storage
    id: str

    @property
    def url(self) -> str:
        """URL of its folder."""
        return f"{self.storage.url}/{self.id}"

    def manifest(self) -> UploadManifest | None:
        """Return the newest manifest that can be read; None if there is none. Raises RunFolderError (E434)."""
        return next(
            (manifest for number in reversed(self.numbers()) if (manifest := self.read(number)) is not None), None
        )

    def numbers(self) -> list[int]:
        """Return the numbers of its manifests, in order, whether they can be read or not."""
        names = self._list("manifests")
        return sorted(int(name[:-5]) for name in names if re.fullmatch(r"[0-9]{8}\.json", name))

    def make_folders(self) -> None:
        """Create the folders of the run, where the storage has folders; object stores have only names."""
        if not self.storage.files.async_impl:
            with reported(self.url):
                for name in ("objects", "manifests"):
                    self.storage.files.makedirs(self._path(name), exist_ok=True)

    def publish(self, manifest: UploadManifest) -> None:
        """Create a manifest whose objects are all there.

        Raises:
            FileExistsError: The same writer created one with this number, in a call that seemed to fail.
            TakenOver: Another process created one with this or a higher number.
        """
        from fsspec.implementations.local import LocalFileSystem

        data, path = manifest.model_dump_json().encode(), self._path("manifests", f"{manifest.number:08}.json")
        files = self.storage.files
        with reported(self.url), suppress(FileExistsError):  # by this call, if it was repeated after a lost answer
            if isinstance(files, LocalFileSystem):
                with files.open(path, "xb") as file:  # its pipe_file would check and write, not create
                    file.write(data)
            else:
                files.pipe_file(path, data, mode="create")
        stored, numbers = self.read(manifest.number), self.numbers()
        if (stored is not None and stored.token != manifest.token) or numbers[-1:] > [manifest.number]:
            raise TakenOver
        if stored != manifest:
            raise FileExistsError(path)

    def put(self, writer: int, data: bytes) -> Part:
        """Store bytes as an object of this writer."""
        part = Part(object=f"{writer:06}-{sha256(data).hexdigest()}", bytes=len(data))
        with reported(self.url):
            self.storage.files.pipe_file(self._path("objects", part.object), data)
        return part

    def get(self, part: Part) -> bytes:
        """Return the bytes of an object.

        Raises:
            ValueError: It is missing, or has other bytes.
            RunFolderError: E434, the storage cannot be read.
        """
        path = self._path("objects", part.object)
        with reported(self.url):
            try:
                data: bytes = self.storage.files.cat_file(path, start=0, end=part.bytes + 1)
            except FileNotFoundError:
                data = b""
        if len(data) != part.bytes or sha256(data).hexdigest() != part.sha256:
            msg = f"an object is {'not what was uploaded' if data else 'missing'}"
            raise ValueError(msg)
        return data

    def clean(self, kept: Sequence[UploadManifest]) -> None:
        """Delete what no manifest of these needs, except for objects of a later writer.

        Only for the owner, just after it has published the last of them.
        """
        needed = set[str]().union(*(manifest.objects for manifest in kept))
        old = [number for number in self.numbers() if number < kept[0].number]
        unneeded = [
            name for name in self._list("objects") if name not in needed and _writer_of(name) <= kept[-1].writer
        ]
        paths = [self._path("manifests", f"{number:08}.json") for number in old]
        paths += [self._path("objects", name) for name in unneeded]
        if paths:
            with reported(self.url):
                self.storage.files.rm(paths)

    def read(self, number: int) -> UploadManifest | None:
        """Return a manifest; None if it is missing or damaged."""
        path = self._path("manifests", f"{number:08}.json")
        with reported(self.url):
            try:
                data = self.storage.files.cat_file(path, start=0, end=MANIFEST_BYTES)
                manifest = UploadManifest.model_validate_json(data)
            except (FileNotFoundError, ValidationError):
                return None
        return manifest if manifest.number == number else None

    def _list(self, folder: str) -> list[str]:
        """Return the names of the objects in a folder of the run."""
        with reported(self.url):
            try:
                self.storage.files.invalidate_cache()
                paths = self.storage.files.ls(self._path(folder), detail=False)
            except FileNotFoundError:
                return []
        return [str(path).rpartition("/")[2] for path in paths]

    def _path(self, *names: str) -> str:
        return "/".join((self.storage.path, self.id, *names))


def _writer_of(name: str) -> int:
    """Return the writer of an object; one that Esper did not write belongs to none."""
    return int(name[: name.index("-")]) if re.fullmatch(r"[0-9]{6,12}-[0-9a-f]{64}", name) else 10**12


# --- errors


@contextmanager
def reported(url: str) -> Iterator[None]:
    """Turn what a file system raises into RunFolderError E434; file systems raise errors of many libraries."""
    try:
        yield
    except RunFolderError:
        raise
    except PermissionError as error:
        raise _unusable(url, f"permission denied: {one_line(str(error))}") from error
    except FileNotFoundError as error:
        raise _unusable(url, f"there is no such bucket or folder: {one_line(str(error))}") from error
    except Exception as error:
        raise _unusable(url, one_line(f"{type(error).__name__}: {error}")) from error


def _unusable(url: str, reason: str, hint: str = "") -> RunFolderError:
    hint = hint or "Check the URL, the network, and the credentials, which are taken from the environment."
    return RunFolderError(Problem("E434", f"the store {url} cannot be used: {reason}", hint=hint))


def _damaged(url: str, reason: str) -> RunFolderError:
    hint = "Objects are missing or were changed. Use the run directory, if it is still there."
    return RunFolderError(Problem("E435", f"the stored run {url} is damaged: {reason}", hint=hint))


# --- downloads


def fetch_copy(run: StoredRun, names: Sequence[str] = ()) -> Path:
    """Copy a run, without its checkpoint, into the user's cache, and return the folder. Only what changed is fetched.

    Args:
        run: The run.
        names: Copy only these files.

    Raises:
        RunFolderError: E420, there is no such run; E434, the storage cannot be read; E435, the run is damaged.
    """
    folder = user_cache("esper") / sha256(run.storage.url.encode()).hexdigest()[:16] / run.id

    def is_wanted(name: str) -> bool:
        return name in names if names else not name.startswith("checkpoints/") and name != "latest"

    with report_os_errors(folder):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        manifest = _fetch(run, folder, is_wanted)
        mark = {"url": run.url, "uploaded": manifest.at.isoformat(timespec="seconds")}
        _replace(folder / COPY_MARK, [json.dumps(mark).encode()])
    return folder


def fetch_whole(run: StoredRun, runs_dir: Path) -> Path:
    """Fetch a run with its checkpoint into a folder of runs, to resume it there; return its run directory.

    A run directory that is there already is kept, if it is as far as the stored run.

    Raises:
        RunFolderError: as ``fetch_copy``; E437, the run directory is there, and is behind.
    """
    path = runs_dir / run.id
    if path.exists():
        if (manifest := run.manifest()) is not None:
            require_not_ahead(run, manifest, path, newest_checkpoint(path))
        return path
    with report_os_errors(path):
        runs_dir.mkdir(parents=True, exist_ok=True)
        beside = runs_dir / f".{run.id}.{secrets.token_hex(4)}"
        beside.mkdir()
        try:
            _fetch(run, beside, lambda name: True)
            beside.rename(path)
        finally:
            shutil.rmtree(beside, ignore_errors=True)
    return path


def require_not_ahead(run: StoredRun, manifest: UploadManifest, path: Path, checkpoint: int) -> None:
    """Raise RunFolderError E437 if a stored run is further than the run directory, whose checkpoint has this number."""
    is_done = manifest.status == "done" and not (path / "summary.json").exists()
    if manifest.checkpoint > checkpoint or is_done:
        far = "is done" if is_done else f"has checkpoint {manifest.checkpoint}, and {path} only {checkpoint}"
        hint = f"Move {path} away, and continue from the store:  esper resume {run.url}"
        raise RunFolderError(Problem("E437", f"the stored run {run.url} {far}", hint=hint))


def newest_checkpoint(path: Path) -> int:
    """Return the number of the newest checkpoint in a run directory; 0 without one."""
    with suppress(OSError):
        return max(
            (int(folder.name) for folder in (path / "checkpoints").iterdir() if folder.name.isdecimal()), default=0
        )
    return 0


def _fetch(run: StoredRun, folder: Path, is_wanted: Callable[[str], bool]) -> UploadManifest:
    """Make the wanted files of a folder those of the newest manifest that is whole.

    The manifests are listed again if one fails, since its writer may have deleted objects with it.
    """
    failed: dict[int, str] = {}
    while numbers := [number for number in run.numbers() if number not in failed]:
        manifest = run.read(numbers[-1])
        if manifest is None:
            failed[numbers[-1]] = f"manifest {numbers[-1]} cannot be read"
            continue
        if not any(file.name == "manifest.json" for file in manifest.files):
            break
        try:
            _fetch_files(run, manifest, folder, is_wanted)
        except ValueError as error:
            failed[manifest.number] = str(error)
            continue
        if any(number > manifest.number for number in failed):
            log.warning("%s: an older upload is used, since the newest is damaged: %s", run.url, failed[max(failed)])
        return manifest
    if failed:
        raise _damaged(run.url, failed[max(failed)])
    hint = f"List the runs:  esper runs list --runs-dir {run.storage.url}"
    reason = "nothing of it was uploaded yet" if numbers else "there is no such run"
    raise RunFolderError(Problem("E420", f"cannot read {run.url}: {reason}", hint=hint))


def _fetch_files(run: StoredRun, manifest: UploadManifest, folder: Path, is_wanted: Callable[[str], bool]) -> None:
    files = [file for file in manifest.files if is_wanted(file.name)]
    with ThreadPoolExecutor(_THREADS) as pool:
        list(pool.map(partial(_fetch_file, run, folder), files))
    names = {file.name for file in files}
    for path in folder.rglob("*"):
        name = path.relative_to(folder).as_posix()
        if path.is_file() and re.match(FILE_NAME, name) and is_wanted(name) and name not in names:
            path.unlink()


def _fetch_file(run: StoredRun, folder: Path, file: StoredFile) -> None:
    """Write a file. Parts that are there already are not fetched. Raises ValueError if others are damaged."""
    path = folder / file.name
    path.parent.mkdir(parents=True, exist_ok=True)

    def parts() -> Iterator[bytes]:
        try:
            old = path.open("rb")
        except OSError:
            yield from (run.get(part) for part in file.parts)
            return
        with old:
            for part in file.parts:
                data = old.read(part.bytes)
                yield data if sha256(data).hexdigest() == part.sha256 else run.get(part)

    try:
        _replace(path, parts())
    except ValueError as error:
        msg = f"{file.name}: {error}"
        raise ValueError(msg) from error


def _replace(path: Path, parts: Iterable[bytes]) -> None:
    """Write a file beside its place and rename it."""
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with beside.open("xb") as file:
            for data in parts:
                file.write(data)
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
