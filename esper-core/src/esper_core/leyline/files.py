"""Read files from untrusted sources: the files of runs, saved networks and configurations.

A run directory can come from anywhere, so one of its files may be anything. Every file of a run is opened by
``open_regular`` or ``append_regular``, which refuse folders, pipes, sockets and devices instead of waiting for them,
and what is read at once has a limit: a sparse file of a terabyte takes no room on a disk.
"""

from __future__ import annotations

import errno
import json
import os
import re
import stat
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from esper_core.leyline.errors import RunFolderError

if TYPE_CHECKING:
    from io import BufferedReader
    from pathlib import Path
    from typing import BinaryIO

MAX_MIB: Final = "ESPER_MAX_FILE_MIB"
"""Variable of the environment with the largest size of a file that is read at once, in MiB."""

_DEFAULT_MIB: Final = 64
"""JSON can need twenty times its size in memory; the summary of a run with 500,000 episodes has 60 MiB."""

_KINDS: Final = {"d": "a folder", "l": "a link", "p": "a pipe", "s": "a socket"}
"""Kinds of files by their letter in ``ls -l``; all others are devices."""


def open_regular(path: str | Path, *, follow: bool = False) -> BufferedReader:
    """Open a regular file for reading, without ever waiting for a writer.

    The file is checked before it is opened, since opening a device can have effects of its own, and again afterwards,
    since another file may have taken its place.

    Raises:
        OSError: the file is missing, may not be read, or is not a regular file; with ``follow`` through a link.
        ValueError: no file can have this name, for example because it contains a NUL.
    """
    _require_regular(path, os.stat(path, follow_symlinks=follow))  # noqa: PTH116  ``path`` may be a text
    return os.fdopen(_open(path, os.O_RDONLY), "rb")


def append_regular(path: Path) -> BinaryIO:
    """Open a file of a run for appending, or make it. Raises as ``open_regular`` does, and for a link."""
    refuse_special(path)
    return os.fdopen(_open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT), "ab")


def _open(path: str | Path, flags: int) -> int:
    descriptor = os.open(path, flags | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0), 0o666)
    try:
        _require_regular(path, os.fstat(descriptor))
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def read_start(path: str | Path, length: int, *, follow: bool = False) -> bytes:
    """Read the first ``length`` bytes of a regular file. Raises as ``open_regular`` does."""
    with open_regular(path, follow=follow) as file:
        data: bytes | None = file.read(length)
    if data is None:  # a file of the kernel, such as /proc/kmsg, without data yet
        raise BlockingIOError(errno.EAGAIN, "reading it would wait for data that may never come", str(path))
    return data


def read_bytes(path: str | Path, most: int | None = None, *, follow: bool = False) -> bytes:
    """Read a regular file with at most ``most`` bytes; None: as many as ``ESPER_MAX_FILE_MIB`` allows.

    Raises:
        OSError: as ``open_regular``; or the file is larger.
    """
    limit = limit_of(MAX_MIB, _DEFAULT_MIB) << 20 if most is None else most
    size = os.stat(path).st_size  # noqa: PTH116
    # Python allocates what is asked for, so that is little more than the file has; one of the kernel has no size.
    if size > limit or len(data := read_start(path, min(limit, size + (1 << 20)) + 1, follow=follow)) > limit:
        more = f"; {MAX_MIB} allows more" if most is None else ""
        raise OSError(errno.EFBIG, f"it has more than {limit:,} bytes{more}", str(path))
    return data


def limit_of(variable: str, default: int) -> int:
    """Return a limit from the environment, or the default where that has none, or no whole number."""
    text = os.environ.get(variable, "")
    return int(text) if text.isdecimal() else default


def read_json(path: Path) -> Any:
    """Read a JSON file of a run directory.

    Raises:
        FileNotFoundError: there is no such file. Some files of a run are optional, so the caller decides.
        RunFolderError: E430, the file cannot be read, is not a regular file, or does not contain JSON.
    """
    try:
        return json.loads(read_bytes(path))
    except FileNotFoundError:
        raise
    except OSError as error:
        raise RunFolderError.unreadable(path, error) from None
    except (ValueError, RecursionError) as error:  # not JSON, not UTF-8, or nested too deeply
        raise RunFolderError.unreadable(path, f"it is not JSON: {error}") from None


def is_url(path: object) -> bool:
    """Return whether this names something in a storage, and no local path.

    >>> is_url("s3://bucket/prefix"), is_url("runs/quiet-otter")
    (True, False)
    """
    return isinstance(path, str) and re.match(r"[a-z][a-z0-9+.-]*://", path) is not None


def refuse_special(path: Path) -> None:
    """Raise OSError if a path is there and no regular file, such as a link through which another file is changed."""
    with suppress(FileNotFoundError):
        _require_regular(path, path.lstat())


def _require_regular(path: str | Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        kind = _KINDS.get(stat.filemode(status.st_mode)[0], "a device")
        raise OSError(errno.EINVAL, f"expected a regular file, received {kind}", str(path))
