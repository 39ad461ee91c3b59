"""Cache of what was read of runs, in the user's cache folder, so that a long run opens at once the next time.

An entry is a tree in JSON, followed by columns of numbers. Only records of the classes that a ``History`` holds are
built from it, and no code of theirs is called. An entry that is missing, damaged, or of another version is no entry.
"""

from __future__ import annotations

import json
import os
import stat
import struct
import sys
from array import array
from contextlib import suppress
from enum import Enum
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

from esper_core.leyline import events
from esper_run.stores import user_cache
from esper_watch import history

if TYPE_CHECKING:
    from collections.abc import Iterator

OWN: Final = ("esper_watch", "esper_core", "esper_run")
"""Packages whose records an entry may hold."""

SCALARS: Final = (bool, int, float, str, type(None))
SEQUENCES: Final = {"l": list, "t": tuple, "s": set}


def cache_folder() -> Path:
    """Return the folder of this package in the user's cache folder."""
    return user_cache("esper-watch")


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
        except (OSError, ValueError, LookupError, TypeError, AttributeError, EOFError, struct.error, RecursionError):
            return None  # whatever is wrong with an entry, the run itself is still there

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


@cache
def _classes() -> dict[str, type]:
    """Return the classes of records and their enumerations: those that history and events name, and their modules'."""
    classes: dict[str, type] = {}
    waiting, seen = [history, events], set()
    while waiting:
        module = waiting.pop()
        seen.add(module.__name__)
        for value in vars(module).values():
            if isinstance(value, type) and value.__module__.partition(".")[0] in OWN:
                classes[value.__name__] = value
                if value.__module__ not in seen:
                    waiting.append(sys.modules[value.__module__])
                    seen.add(value.__module__)
    return classes


def _store(file: IO[bytes], value: Any) -> None:
    writer = _Writer()
    text = json.dumps([writer.tree(value), writer.kinds], separators=(",", ":"))  # ASCII
    file.write(_version() + struct.pack("<Q", len(text)))
    file.write(text.encode())
    for column in writer.columns:
        column.tofile(file)


def _load(file: IO[bytes]) -> Any:
    if file.read(len(_version())) != _version():
        return None
    tree, kinds = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
    return _Reader(file, kinds).value(tree)


class _Writer:
    """Turns a value into a tree of tuples that begin with a letter, and columns in the order of the tree."""

    def __init__(self) -> None:
        self.columns: list[array[Any]] = []
        self.kinds: list[tuple[str, list[str]]] = []
        """Name and fields of the classes in the tree."""
        self._known_kinds: dict[type, int] = {}
        self._numbers: dict[int, int] = {}
        """Number of each record by its identity: a record that stands in two places stays one."""

    def tree(self, value: Any) -> Any:
        kind = type(value)
        if kind in SCALARS:
            return value
        if kind is array:
            self.columns.append(value)
            return "a", value.typecode, len(value)
        if kind is list and len(value) > 1 and set(map(type, value)) == {int}:
            with suppress(OverflowError):
                self.columns.append(array("q", value))
                return "i", len(value)
        if kind in (list, tuple, set):
            return kind.__name__[0], *map(self.tree, value)
        if kind is dict:
            return "d", *(self.tree(part) for pair in value.items() for part in pair)
        if isinstance(value, Enum):
            return "e", kind.__name__, value.value
        return self._record(value, kind)

    def _record(self, value: Any, kind: type) -> tuple[Any, ...]:
        if (number := self._numbers.get(id(value))) is not None:
            return "r", number
        self._numbers[id(value)] = len(self._numbers)
        place = self._known_kinds.get(kind)
        if place is None:
            if _classes().get(kind.__name__) is not kind:
                message = f"{kind} is no record"
                raise TypeError(message)
            place = self._known_kinds[kind] = len(self.kinds)
            self.kinds.append((kind.__name__, list(_fields(value, kind))))
        return "o", place, *(self.tree(getattr(value, name)) for name in self.kinds[place][1])


def _fields(value: Any, kind: type) -> Iterator[str]:
    """Yield the names of what a record holds."""
    yield from getattr(value, "__dict__", ())
    for base in kind.__mro__:
        yield from getattr(base, "__slots__", ())


class _Reader:
    """Builds a value from its tree, which it takes apart, and from a file that is at the first of its columns."""

    def __init__(self, file: IO[bytes], kinds: list[tuple[str, list[str]]]) -> None:
        self._file = file
        self._kinds = [(_classes()[name], fields) for name, fields in kinds]
        self._records: list[Any] = []

    def value(self, tree: Any) -> Any:
        if not isinstance(tree, list):
            return tree
        letter, *operands = tree
        tree.clear()  # spares memory: the tree of a long run is larger than what is built from it
        match letter:
            case "o":
                return self._record(*operands)
            case "l" | "t" | "s":
                return SEQUENCES[letter](map(self.value, operands))
            case "d":
                parts = [self.value(part) for part in operands]
                return dict(zip(parts[::2], parts[1::2], strict=True))
            case "a":
                return self._column(*operands)
            case "i":
                return self._column("q", *operands).tolist()
            case "e":
                return _member(*operands)
            case "r":
                return self._records[operands[0]]
        raise ValueError(letter)

    def _column(self, typecode: str, length: int) -> array[Any]:
        column: array[Any] = array(typecode)
        column.fromfile(self._file, length)
        return column

    def _record(self, place: int, *values: Any) -> Any:
        kind, fields = self._kinds[place]
        record: Any = object.__new__(kind)
        self._records.append(record)
        store = object.__setattr__
        for name, value in zip(fields, values, strict=True):
            store(record, name, self.value(value) if type(value) is list else value)
        return record


@cache
def _member(name: str, value: str | int) -> Enum:
    """Return a member of an enumeration."""
    kind = _classes()[name]
    if not issubclass(kind, Enum):
        raise TypeError(name)
    return kind(value)
