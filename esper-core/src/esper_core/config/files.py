"""Read the bytes of a configuration file: a regular file of at most one mebibyte."""

from __future__ import annotations

import os
from itertools import islice
from pathlib import Path

from esper_core.config.encoding import too_large
from esper_core.config.limits import MAX_BYTES
from esper_core.config.showing import visible
from esper_core.leyline import ConfigError, Problem
from esper_core.leyline.errors import nearest
from esper_core.leyline.files import NotRegularFileError, read_bytes

_NEIGHBOURS = 1000
"""Entries of a folder that are looked at for a name that may have been meant."""


def file_name(path: str | Path) -> str:
    """The path as problems print it: what cannot be printed is escaped."""
    return visible(str(path))


def read_file(path: str | Path) -> bytes:
    """Return the bytes of the file. ConfigError E101 where it cannot be read, E102 where it is too large."""
    file = file_name(path)
    if not str(path):
        raise ConfigError(Problem("E101", "expected the name of a file, received nothing", hint="Name a YAML file."))
    try:
        data = read_bytes(path, MAX_BYTES + 1)
        size = Path(path).stat().st_size if len(data) > MAX_BYTES else 0
    except NotRegularFileError as error:
        raise ConfigError(_not_regular(Path(path), error, file)) from None
    except (OSError, ValueError) as error:  # ValueError: a name that no file can have, with a NUL in it
        raise ConfigError(_unreadable(Path(path), error, file)) from None
    if len(data) > MAX_BYTES:
        raise ConfigError(too_large(file, size if size > MAX_BYTES else None))
    return data


def _not_regular(path: Path, error: NotRegularFileError, file: str) -> Problem:
    if not error.is_folder:
        return Problem(
            "E101", str(error.strerror), file, hint="Copy its content to a regular file, and name that file."
        )
    inside = [name for name in ("config.yaml", "plugins.yaml") if (path / name).is_file()]
    hint = f"Did you mean {file_name(path / inside[0])}?" if inside else "Name a YAML file inside it."
    return Problem("E101", "expected a file, received a folder", file, hint=hint)


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
