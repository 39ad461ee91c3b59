"""Write files as a whole or not at all: beside their place, synced to the disk, and then renamed."""

from __future__ import annotations

import errno
import json
import math
import os
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from esper_core.leyline.errors import RunFolderError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file, or leave the one that is there. A link in its place is replaced, never followed.

    RunFolderError where the disk does not take it.
    """
    data = content.encode() if isinstance(content, str) else content
    beside = path.with_name(f".{path.name}.part")
    with told_plainly(path):
        try:
            if os.path.lexists(beside):  # of a save that was cut off, or a link
                beside.unlink()
            with beside.open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            beside.replace(path)
        except OSError:
            with suppress(OSError):
                beside.unlink()
            raise
        settle(path.parent)


def settle(folder: Path) -> None:
    """Have the disk know the folder's names too, where the system lets a folder be opened."""
    if hasattr(os, "O_DIRECTORY"):
        opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)


def write_json(path: Path, value: Any) -> None:
    """Write JSON that every reader takes: numbers that are none are null, for JSON has no NaN."""
    write_whole(path, json.dumps(plain(value), indent=2, allow_nan=False) + "\n")


def plain(value: Any) -> Any:
    """The value with text keys, lists for tuples, and null for NaN and infinities."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


@contextmanager
def told_plainly(path: Path) -> Iterator[None]:
    """A block whose OSErrors become one clear message about ``path``; a name with a zero in it is one too."""
    try:
        yield
    except OSError as error:
        raise RunFolderError.about(path, error) from error
    except ValueError as error:
        raise RunFolderError.about(path, OSError(errno.EINVAL, str(error))) from error
