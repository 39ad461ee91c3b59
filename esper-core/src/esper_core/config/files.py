"""Which bytes does the configuration's file hold? A regular file of at most a mebibyte; all else is refused."""

from __future__ import annotations

import os
import stat
from itertools import islice
from pathlib import Path

from esper_core.config.encoding import too_large
from esper_core.config.limits import MAX_BYTES
from esper_core.config.showing import visible
from esper_core.leyline import ConfigError, Problem
from esper_core.leyline.nearest import nearest

_NEIGHBOURS = 1000
"""Entries of a folder that are looked at for a name that may have been meant."""


def file_name(path: str | Path) -> str:
    """The path as problems print it: what cannot be printed is escaped."""
    return visible(str(path))


def read_file(path: str | Path) -> bytes:
    """The bytes of the file. ConfigError E101 where it cannot be read, E102 where it is too large.

    The file is looked at before it is opened: a pipe would wait for ever, a device might never end.
    """
    file = file_name(path)
    if not str(path):
        raise ConfigError(Problem("E101", "expected the name of a file, received nothing", hint="Name a YAML file."))
    try:
        _require_regular(Path(path), os.stat(path).st_mode, file)  # noqa: PTH116  one call, one answer
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
        with os.fdopen(descriptor, "rb") as stream:
            status = os.fstat(descriptor)
            _require_regular(Path(path), status.st_mode, file)
            if status.st_size > MAX_BYTES:
                raise ConfigError(too_large(file, status.st_size))
            data = stream.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: a name that no file can have, with a NUL in it
        raise ConfigError(_unreadable(Path(path), error, file)) from None
    if len(data) > MAX_BYTES:
        raise ConfigError(too_large(file))
    return data


def _require_regular(path: Path, mode: int, file: str) -> None:
    if stat.S_ISREG(mode):
        return
    if not stat.S_ISDIR(mode):
        message = f"expected a regular file, received {_KINDS.get(stat.S_IFMT(mode), 'something else')}"
        raise ConfigError(Problem("E101", message, file, hint="Write what it holds to a file, and name that."))
    inside = [name for name in ("config.yaml", "plugins.yaml") if (path / name).is_file()]
    hint = f"Did you mean {file_name(path / inside[0])}?" if inside else "Name a YAML file inside it."
    raise ConfigError(Problem("E101", "expected a file, received a folder", file, hint=hint))


_KINDS = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}


def _unreadable(path: Path, error: OSError | ValueError, file: str) -> Problem:
    if isinstance(error, FileNotFoundError):
        return Problem("E101", "there is no such file", file, hint=_near(path))
    if isinstance(error, NotADirectoryError):
        return Problem("E101", "a part of this path is a file, not a folder", file, hint="Check the path.")
    if isinstance(error, PermissionError):
        return Problem("E101", "the file may not be read", file, hint=f"Allow it: chmod u+r {file}")
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return Problem("E101", f"the file cannot be read: {reason}", file, hint="Check the path and the disk.")


def _near(path: Path) -> str:
    """The name in the same folder that was probably meant, or what YAML files there are."""
    folder = path.parent
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for entry in islice(entries, _NEIGHBOURS) if entry.is_file()]
    except FileNotFoundError:
        return f"There is no folder {file_name(folder)} either."
    except OSError:
        return "Check the path."
    if close := nearest(path.name, names):
        return f"Did you mean {file_name(folder / close)}?"
    there = sorted(file_name(name) for name in names if name.endswith((".yaml", ".yml")))
    if not there:
        return f"There is no YAML file in {file_name(folder.resolve())}."
    return "YAML files there: " + ", ".join(there[:8]) + (", …" if len(there) > 8 else "")
