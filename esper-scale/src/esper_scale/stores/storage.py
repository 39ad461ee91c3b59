"""Storage: copy runs to and from a folder of any storage that fsspec knows, such as s3://bucket/prefix.

RUN/lease.json               who uploads the run, and when that was last renewed
RUN/files/000012-5f2c…-3     a file of the run: number and token of its upload, and its place among the files
RUN/manifest.json            the names, sizes and SHA-256 of the files; replaced after they are written

An upload copies the files that changed, under new names, then replaces the manifest, then deletes the files that it no
longer names. So the manifest always names whole files, wherever an upload ends. What comes from a storage is checked:
names, sizes, the number of files and their hashes.
"""

from __future__ import annotations

import re
import secrets
import socket
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from hashlib import sha256
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from fsspec.implementations.local import LocalFileSystem
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError, model_validator

from esper_core.leyline.errors import EsperError, Problem, RunFolderError, one_line
from esper_core.leyline.files import open_regular, refuse_special
from esper_run.stores import FILE_PATH, RUN_NAME, ClaimLost, StoredRun

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Self

    from esper_run.stores import Snapshot

LEASE_TIME: Final = timedelta(minutes=5)
"""How long after its last renewal a lease keeps others away. It is renewed about once a minute."""

MAX_FILES: Final = 10_000
"""A stored run with more files is not fetched."""

MANIFEST_BYTES: Final = 16 << 20
"""Largest size of a manifest that is read: 10,000 files with long names take about 5 MB."""

_Time = Annotated[AwareDatetime, Field(ge=datetime(2000, 1, 1, tzinfo=UTC), lt=datetime(9000, 1, 1, tzinfo=UTC))]
"""A time that can be shown in every time zone: the first and last days of all years cannot."""

_BLOCK: Final = 4 << 20
_ATTEMPTS: Final = 3


class _Record(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")


class StoredFile(_Record):
    """A file of a run: its path in the run directory, and its name in the folder ``files``."""

    name: Annotated[str, Field(pattern=f"^{FILE_PATH}$")]
    stored: Annotated[str, Field(pattern=r"^[0-9]{6,12}-[0-9a-f]{16}-[0-9]{1,6}$")]
    bytes: Annotated[int, Field(ge=0)]
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class Manifest(_Record):
    """What an upload consists of.

    Attributes:
        number: Number of the upload.
        status: The status of the run.
        checkpoint: Number of the checkpoint among the files; 0 without one.
    """

    format: Literal[2] = 2
    number: Annotated[int, Field(ge=1, lt=10**9)]
    status: Annotated[str, Field(max_length=64)]
    checkpoint: Annotated[int, Field(ge=0)]
    uploaded: _Time
    files: tuple[StoredFile, ...]

    @model_validator(mode="after")
    def _is_each_named_once(self) -> Self:
        # A file that is named 500 times would be written 500 times, and a small store would fill a disk.
        names = {file.name for file in self.files}
        if len(names) < len(self.files) or len(self.stored) < len(self.files):
            msg = "a file is named twice"
            raise ValueError(msg)
        if folders := names.intersection(str(folder) for name in names for folder in PurePosixPath(name).parents):
            msg = f"{min(folders)} is a file and a folder"
            raise ValueError(msg)
        return self

    @property
    def stored(self) -> frozenset[str]:
        """Names of the files in the folder ``files``."""
        return frozenset(file.stored for file in self.files)


class Lease(_Record):
    """Who uploads a run: a token of the process, the name of its machine, and when it was last renewed."""

    token: Annotated[str, Field(max_length=64)]
    host: Annotated[str, Field(max_length=253)]
    at: _Time


class _Damaged(Exception):
    """A stored file is not what it should be."""


class _Missing(_Damaged):
    """A stored file is not there."""


@dataclass(frozen=True, slots=True)
class Storage:
    """A folder of runs in a storage.

    Attributes:
        url: As the user named it, without a slash at its end.
        files: The file system of fsspec.
        path: The folder in it.
        max_bytes: A run with more bytes is not fetched.
    """

    url: str
    files: Any
    path: str
    max_bytes: int

    def runs(self) -> list[str]:
        """Return the ids of the runs.

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
        return [name for name in names if re.fullmatch(RUN_NAME, name)]

    def find(self, id_: str) -> StoredRun | None:
        """Return what is stored of a run; None if there is nothing. Raises RunFolderError (E434, E435)."""
        manifest = self.manifest(id_)
        return None if manifest is None else _described(manifest)

    def fetch(self, id_: str, folder: Path, is_wanted: Callable[[str], bool]) -> StoredRun:
        """Write the wanted files of a run into a folder; those that are there already are not fetched.

        If an upload deletes files meanwhile, those of the new manifest are fetched.

        Raises:
            RunFolderError: E420, there is no such run; E434, the storage cannot be read; E435, the run is damaged;
                E412, it changed again and again.
        """
        url = f"{self.url}/{id_}"
        for _ in range(_ATTEMPTS):
            manifest = self.manifest(id_)
            if manifest is None:
                hint = f"List the runs:  esper runs list --runs-dir {self.url}"
                message = f"cannot read {url}: there is no such run, or nothing of it was uploaded yet"
                raise RunFolderError(Problem("E420", message, hint=hint))
            try:
                for file in manifest.files:
                    if is_wanted(file.name):
                        self._fetch_file(id_, folder, file)
                return _described(manifest)
            except _Damaged as error:
                if self.manifest(id_) == manifest:
                    raise _damaged(url, str(error)) from error
            except OSError as error:
                raise RunFolderError.about(folder, error) from error
        raise RunFolderError(Problem("E412", f"{url} changed while it was read", hint="Try again."))

    def claim(self, id_: str, after: str | None) -> LeasedRun:
        """Return the right to upload a run.

        Args:
            id_: The run.
            after: Token of a lease whose process has ended.

        Raises:
            RunFolderError: E412, the lease of another process has not expired; E434, the storage cannot be written.
        """
        lease = self.lease(id_)
        now = datetime.now(UTC)
        # The difference has no sign, so that a clock that was far ahead keeps nobody away for years.
        if lease is not None and lease.token != after and abs(now - lease.at) < LEASE_TIME:
            since, until = (f"{at.astimezone(UTC):%H:%M:%S} UTC" for at in (lease.at, lease.at + LEASE_TIME))
            message = f"{self.url}/{id_} is in use by a process on {one_line(lease.host)}, last seen at {since}"
            hint = f"Stop that process. If it is dead, try again after {until}, or delete {self.url}/{id_}/lease.json."
            raise RunFolderError(Problem("E412", message, hint=hint))
        if not self.files.async_impl:  # object stores have no folders, only names
            with reported(self.url):
                self.files.makedirs(self.path_of(id_, "files"), exist_ok=True)
        try:
            before = self.manifest(id_)
        except RunFolderError as error:
            if error.problems[0].code != "E435":
                raise
            before = None  # it is damaged, and the next upload replaces it
        return LeasedRun(self, id_, before)

    def manifest(self, id_: str) -> Manifest | None:
        """Return the manifest of a run; None if there is none. Raises RunFolderError (E434, E435)."""
        url = f"{self.url}/{id_}"
        try:
            manifest = Manifest.model_validate_json(self.read(id_, "manifest.json", MANIFEST_BYTES))
        except _Missing:
            with reported(self.url):
                if self.files.exists(self.path_of(id_, "manifests")):
                    raise _damaged(url, "it was uploaded by an older version of Esper") from None
            return None
        except _Damaged as error:
            raise _damaged(url, f"manifest.json: {error}") from error
        except ValidationError as error:
            first = error.errors()[0]
            location = ".".join(str(part) for part in first["loc"])
            reason = one_line(f"manifest.json: {location}: {first['msg']}")[:200]
            if location == "format":
                reason = "it was uploaded by another version of Esper"
            raise _damaged(url, reason) from None
        total = sum(file.bytes for file in manifest.files)
        if len(manifest.files) > MAX_FILES or total > self.max_bytes:
            reason = f"it has {len(manifest.files):,} files of {total:,} bytes, more than the limits allow"
            raise _damaged(url, reason, "If you trust it, a larger ESPER_STORE_MAX_GIB allows more bytes.")
        return manifest

    def lease(self, id_: str) -> Lease | None:
        """Return the lease of a run; None if there is none that can be read."""
        try:
            return Lease.model_validate_json(self.read(id_, "lease.json", 10_000))
        except (_Damaged, ValidationError):
            return None

    def read(self, id_: str, name: str, limit: int) -> bytes:
        """Return the bytes of a small file. Raises as ``blocks``, also if it has more bytes."""
        data = b"".join(self.blocks(id_, name, limit + 1))
        if len(data) > limit:
            msg = f"it has more than {limit:,} bytes"
            raise _Damaged(msg)
        return data

    def blocks(self, id_: str, name: str, end: int) -> Iterator[bytes]:
        """Yield the first bytes of a file. Raises _Missing, _Damaged if it is not a regular file, and E434."""
        path = self.path_of(id_, name)
        with reported(self.url):
            try:
                if isinstance(self.files, LocalFileSystem):
                    refuse_special(Path(path))
                    # Opening a pipe would wait for ever, and opening a device can have effects of its own.
                    file: Any = open_regular(path)
                else:
                    file = self.files.open(path, "rb", block_size=_BLOCK)
            except FileNotFoundError as error:
                msg = "it is missing"
                raise _Missing(msg) from error
            except OSError as error:
                if not isinstance(self.files, LocalFileSystem):
                    raise
                msg = error.strerror or str(error)
                raise _Damaged(msg) from error
            with file:
                while end > 0 and (block := file.read(min(_BLOCK, end))):
                    end -= len(block)
                    yield block

    def write(self, id_: str, name: str, data: bytes) -> None:
        """Replace a small file as a whole."""
        path = self.path_of(id_, name)
        with reported(self.url):
            if isinstance(self.files, LocalFileSystem):
                beside = Path(f"{path}.{secrets.token_hex(4)}")
                beside.write_bytes(data)
                beside.replace(path)
            else:
                self.files.pipe_file(path, data)

    def path_of(self, *names: str) -> str:
        """Return the path of a file in the file system."""
        return "/".join((self.path, *names))

    def _fetch_file(self, id_: str, folder: Path, file: StoredFile) -> None:
        """Write a file beside its place and rename it, unless it is there. Raises _Damaged."""
        path = folder / file.name
        with suppress(OSError), open_regular(path) as local:
            if _measure(iter(partial(local.read, _BLOCK), b"")) == (file.bytes, file.sha256):
                return
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = path.with_name(f".{secrets.token_hex(8)}")
        try:
            with beside.open("xb") as target:
                blocks = self.blocks(id_, f"files/{file.stored}", file.bytes + 1)
                if _measure(blocks, target.write) != (file.bytes, file.sha256):
                    msg = "it is not what was uploaded"
                    raise _Damaged(msg)
            beside.replace(path)
        except _Damaged as error:
            msg = f"{file.name}: {error}"
            raise _Damaged(msg) from error
        finally:
            beside.unlink(missing_ok=True)


class LeasedRun:
    """A run in a storage that this process may upload while its lease is there.

    Args:
        storage: The folder of runs.
        id_: The run.
        before: The manifest of the latest upload.
    """

    def __init__(self, storage: Storage, id_: str, before: Manifest | None) -> None:
        self.token = secrets.token_hex(8)
        self._storage, self._id = storage, id_
        self._files = {} if before is None else {file.name: file for file in before.files}
        self._number = 0 if before is None else before.number
        with reported(storage.url):
            try:
                # What uploads that were cut off left behind is deleted with the next upload.
                entries = storage.files.ls(storage.path_of(id_, "files"), detail=True)
            except FileNotFoundError:
                entries = []
        self._present = {str(entry["name"]).rpartition("/")[2]: entry["size"] for entry in entries}
        """The stored files, each with its size."""
        self._write_lease()

    def upload(self, snapshot: Snapshot) -> None:
        """Copy the files that changed, then replace the manifest, then delete the files that it no longer names.

        Raises:
            RunFolderError: E434, the storage cannot be written.
            ClaimLost: Another process has the lease.
        """
        # A failed attempt may have written its manifest all the same, so that its names are not used again.
        self._number += 1
        files = tuple(
            self._put(index, name, read, self._files.get(name))
            for index, (name, read) in enumerate(snapshot.files.items())
        )
        manifest = Manifest(
            number=self._number,
            status=snapshot.status,
            checkpoint=snapshot.checkpoint,
            uploaded=datetime.now(UTC),
            files=files,
        )
        self.renew()  # a process that was suspended meanwhile must not replace the manifest of its successor
        self._storage.write(self._id, "manifest.json", manifest.model_dump_json().encode())
        unneeded = [self._storage.path_of(self._id, "files", name) for name in self._present.keys() - manifest.stored]
        # Only what was there before or is this process's own, so that a successor's files stay in any case.
        self._files, self._present = {file.name: file for file in files}, {file.stored: file.bytes for file in files}
        if unneeded:
            with suppress(EsperError), reported(self._storage.url):  # not everybody who may write may also delete
                self._storage.files.rm(unneeded)

    def renew(self) -> None:
        """Write the time into the lease. Raises ClaimLost if it is gone or another process has it."""
        lease = self._storage.lease(self._id)
        # A lease that is gone was deleted by somebody, or by a successor that has ended.
        if lease is None or lease.token != self.token:
            raise ClaimLost
        self._write_lease()

    def release(self) -> None:
        """Delete the lease, if it is still that of this process."""
        lease = self._storage.lease(self._id)
        if lease is not None and lease.token == self.token:
            with reported(self._storage.url):
                self._storage.files.rm(self._storage.path_of(self._id, "lease.json"))

    def _put(self, index: int, name: str, read: Callable[[], Iterator[bytes]], before: StoredFile | None) -> StoredFile:
        """Copy a file unless it is the same as in the latest upload, ``before``, and still there in its size."""
        if before is not None:
            size, digest = _measure(read())
            if (before.bytes, before.sha256, self._present.get(before.stored)) == (size, digest, size):
                return before
        stored = f"{self._number:06}-{self.token}-{index}"
        self._present[stored] = -1  # not known until it is written as a whole
        path = self._storage.path_of(self._id, "files", stored)
        with reported(self._storage.url), self._storage.files.open(path, "wb") as target:
            size, digest = _measure(read(), target.write)
        return StoredFile(name=name, stored=stored, bytes=size, sha256=digest)

    def _write_lease(self) -> None:
        lease = Lease(token=self.token, host=socket.gethostname()[:253], at=datetime.now(UTC))
        self._storage.write(self._id, "lease.json", lease.model_dump_json().encode())


def _measure(blocks: Iterator[bytes], write: Callable[[bytes], Any] = lambda block: None) -> tuple[int, str]:
    """Return the size and the SHA-256 of a file, while it is written if ``write`` is given."""
    digest, size = sha256(), 0
    for block in blocks:
        write(block)
        digest.update(block)
        size += len(block)
    return size, digest.hexdigest()


def _described(manifest: Manifest) -> StoredRun:
    names = [file.name for file in manifest.files]
    return StoredRun(manifest.status, manifest.checkpoint, manifest.uploaded, names)


@contextmanager
def reported(url: str) -> Iterator[None]:
    """Turn what a file system raises into RunFolderError E434; file systems raise errors of many libraries."""
    try:
        yield
    except (EsperError, ClaimLost, _Damaged):
        raise
    except Exception as error:
        raise unusable(url, one_line(f"{type(error).__name__}: {error}")) from error


def unusable(url: str, reason: str, hint: str = "") -> RunFolderError:
    """Return E434 for a store."""
    hint = hint or "Check the URL, the network, and the credentials, which are taken from the environment."
    return RunFolderError(Problem("E434", f"the store {url} cannot be used: {reason}", hint=hint))


def _damaged(url: str, reason: str, hint: str = "") -> RunFolderError:
    hint = hint or "Files are missing or were changed. Use the run directory, if it is still there."
    return RunFolderError(Problem("E435", f"the stored run {url} is damaged: {reason}", hint=hint))
