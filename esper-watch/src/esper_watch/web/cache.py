"""Cache of what was read of runs, in the user's cache folder, so that a long run opens at once the next time.

An entry is a pickle, whose columns of numbers are written beside it to spare memory. It is read only if it belongs to
the user, and only records and columns are built from it. A missing, damaged or outdated entry is no entry.
"""

from __future__ import annotations

import os
import pickle
import stat
import struct
import sys
from array import array
from contextlib import suppress
from functools import cache
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

from esper_core.leyline import events
from esper_watch import history

if TYPE_CHECKING:
    from collections.abc import Iterator

LARGE: Final = 1_000
"""Numbers of a column that is written beside the pickle."""

MODULES: Final = ("esper_core.leyline.", "esper_watch.history", "esper_watch.records")
"""Modules whose classes an entry may hold."""

PLAIN: Final = {("collections", "OrderedDict"), ("builtins", "set"), ("builtins", "frozenset"), ("array", "array")}


def cache_folder() -> Path:
    """Return the folder of this package in the user's cache folder."""
    given = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(given) if Path(given).is_absolute() else Path.home() / ".cache") / "esper-watch"


class Cache:
    """Entries by the path of a run.

    Args:
        folder: Where they are; it is created when the first one is stored.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = cache_folder() if folder is None else folder

    def load(self, run: Path, kind: str) -> Any:
        """Return what was stored for a run; None if there is no usable entry."""
        try:
            with _open_own(self._file(run, kind)) as file:
                return _load(file)
        except Exception:
            return None

    def store(self, run: Path, kind: str, value: Any) -> None:
        """Store a value, if the folder can be written."""
        with suppress(OSError):
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            file = self._file(run, kind)
            temporary = file.with_suffix(f".{os.getpid()}.part")
            try:
                descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
                with os.fdopen(descriptor, "wb") as opened:
                    _store(opened, value)
                temporary.replace(file)
            finally:
                temporary.unlink(missing_ok=True)

    def _file(self, run: Path, kind: str) -> Path:
        return self.folder / f"{sha256(os.fsencode(run.resolve())).hexdigest()[:32]}.{kind}"


def _open_own(path: Path) -> IO[bytes]:
    file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb")
    status = os.fstat(file.fileno())
    if not stat.S_ISREG(status.st_mode) or status.st_uid != os.getuid():
        file.close()
        raise PermissionError(path)
    return file


@cache
def _version() -> bytes:
    """Return what tells the code apart that wrote an entry."""
    digest = sha256(sys.version.encode())
    for module in (history, events):
        for file in sorted(Path(str(module.__file__)).parent.glob("*.py")):
            digest.update(file.read_bytes())
    return digest.digest()


def _store(file: IO[bytes], value: Any) -> None:
    columns: list[pickle.PickleBuffer] = []
    pickled = BytesIO()
    _Pickler(pickled, protocol=5, buffer_callback=columns.append).dump(value)
    file.write(_version())
    for part in (pickled.getbuffer(), *(column.raw() for column in columns)):
        file.write(struct.pack("<Q", part.nbytes))
        file.write(part)


def _load(file: IO[bytes]) -> Any:
    if file.read(len(_version())) != _version():
        return None

    def parts() -> Iterator[bytes]:
        while head := file.read(8):
            yield file.read(struct.unpack("<Q", head)[0])

    stored = parts()
    return _Unpickler(BytesIO(next(stored)), buffers=stored).load()


class _Pickler(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        if type(value) is array and len(value) >= LARGE:
            return column, (value.typecode, pickle.PickleBuffer(value))
        return NotImplemented


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """Return a class of a record or a column; nothing else is called, whatever the entry says."""
        if (module, name) == (__name__, "column"):
            return column
        if (module, name) in PLAIN or (module, name) == ("array", "_array_reconstructor"):
            return super().find_class(module, name)
        found = super().find_class(module, name) if f"{module}.".startswith(MODULES) else None
        if not isinstance(found, type):
            message = f"{module}.{name} is no part of an entry"
            raise pickle.UnpicklingError(message)
        return found


def column(typecode: str, content: bytes) -> array[Any]:
    """Return a column of numbers."""
    made: array[Any] = array(typecode)
    made.frombytes(content)
    return made
