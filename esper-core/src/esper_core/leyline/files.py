"""Read files from untrusted sources: the files of runs, saved networks and configurations; and name runs.

A run directory can come from anywhere, so one of its files may be anything. Every file of a run is
opened by ``open_regular``, which refuses folders, pipes, sockets and devices instead of waiting for them.
"""

from __future__ import annotations

import errno
import json
import os
import re
import stat
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from esper_core.leyline.errors import RunFolderError

if TYPE_CHECKING:
    from io import BufferedReader

_KINDS: Final = {"d": "a folder", "p": "a pipe", "s": "a socket"}
"""Kinds of files by their letter in ``ls -l``; all others are devices."""


def open_regular(path: str | Path) -> BufferedReader:
    """Open a regular file for reading, without ever waiting for a writer.

    The file is checked before it is opened, since opening a device can have effects of its own, and again afterwards,
    since another file may have taken its place.

    Raises:
        OSError: the file is missing, may not be read, or is not a regular file, directly or through a link.
        ValueError: no file can have this name, for example because it contains a NUL.
    """
    _require_regular(path, os.stat(path))  # noqa: PTH116  ``path`` may be a text
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    try:
        _require_regular(path, os.fstat(descriptor))
    except BaseException:
        os.close(descriptor)
        raise
    return os.fdopen(descriptor, "rb")


def read_bytes(path: str | Path, limit: int = -1) -> bytes:
    """Read a regular file, or its first ``limit`` bytes. Raises as ``open_regular`` does."""
    with open_regular(path) as file:
        data: bytes | None = file.read(limit)
    if data is None:  # a file of the kernel, such as /proc/kmsg, without data yet
        raise BlockingIOError(errno.EAGAIN, "reading it would wait for data that may never come", str(path))
    return data


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


def user_cache(name: str) -> Path:
    """Return the folder of this name in the user's cache folder."""
    cache_home = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(cache_home) if Path(cache_home).is_absolute() else Path.home() / ".cache") / name


def refuse_link(path: Path) -> None:
    """Raise OSError if the path is a link: a file of a foreign run, through which another file would be changed."""
    if path.is_symlink():
        raise OSError(errno.ELOOP, "it is a link", str(path))


def _require_regular(path: str | Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        kind = _KINDS.get(stat.filemode(status.st_mode)[0], "a device")
        raise OSError(errno.EINVAL, f"expected a regular file, received {kind}", str(path))


def complete_name(root: Path, start: str, *, finished: bool | None = None) -> list[str]:
    """Return what the name of a run in ``root`` may be that begins with ``start``, the newest first.

    It is the words of an id, or the whole id where ``start`` begins one, or several runs have the same words.

    Args:
        root: Folder of the runs.
        start: What was typed so far.
        finished: Only runs with results, or only those without.
    """
    try:
        folders = sorted(path for path in root.iterdir() if path.is_dir())
    except OSError:
        return []
    counts = Counter(words_of(folder.name) for folder in folders)
    names = []
    for folder in reversed(folders):
        if not (folder / "manifest.json").exists() or finished not in (None, (folder / "summary.json").exists()):
            continue
        id_, words = folder.name, words_of(folder.name)
        names.append(id_ if (start and id_.startswith(start)) or counts[words] > 1 else words)
    return [name for name in names if name.startswith(start)]


def words_of(id_: str) -> str:
    """Return an id without its time.

    >>> words_of("20261121-101512-quiet-otter")
    'quiet-otter'
    """
    return re.sub(r"^\d{8}-\d{6}-", "", id_)
