"""Where is the truth of a run kept? In events.jsonl: every event, appended, on disk once a step."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

from esper_core.leyline.errors import Problem, RunFolderError
from esper_core.telemetry.codec import encode

if TYPE_CHECKING:
    from pathlib import Path

    from esper_core.leyline.events import Event


class EventFile:
    """Appends events to a file. What was settled survives the death of the process.

    after: bytes of the file that it goes on behind: whatever else there is, is taken off. None: behind all of them.
    """

    def __init__(self, path: Path, *, after: int | None = None) -> None:
        self._path = path
        try:
            self._file = path.open("ab")
            if after is not None:
                self._cut(after)
        except OSError as error:
            raise RunFolderError.about(path, error) from error
        self._lines: list[str] = []

    def _cut(self, after: int) -> None:
        length = self._file.seek(0, os.SEEK_END)
        if length < after:
            message = f"{self._path} is shorter than it was: {length:,} bytes of {after:,}"
            hint = "Something took a part of it away. Run it again from the start."
            raise RunFolderError(Problem("E413", message, hint=hint))
        self._file.truncate(after)
        self._file.seek(0, os.SEEK_END)

    @property
    def length(self) -> int:
        """Bytes that were written, all lines whole."""
        return self._file.tell()

    def demand_there(self) -> None:
        """RunFolderError where the file is no longer in its place: what is written now nobody will find."""
        if not self._path.exists():
            message = f"cannot write {self._path}: it was moved or deleted while the run went on"
            hint = "The run was stopped: what it finds would have nowhere to go. Run it again, and leave it be."
            raise RunFolderError(Problem("E410", message, hint=hint))

    def secure(self) -> None:
        """Have the disk know what was written: it survives the death of the machine, too."""
        try:
            os.fsync(self._file.fileno())
        except OSError as error:
            raise RunFolderError.about(self._path, error) from error

    def hear(self, event: Event) -> None:
        """Keep the event until the step is settled."""
        self._lines.append(encode(event))

    def settle(self) -> None:
        """Write what was heard. RunFolderError where the disk does not take it."""
        if not self._lines:
            return
        text = "\n".join(self._lines) + "\n"
        self._lines.clear()
        try:
            self._file.write(text.encode())
            self._file.flush()
        except OSError as error:
            raise RunFolderError.about(self._path, error) from error

    def close(self) -> None:
        """Write what is left and let the file go."""
        try:
            self.settle()
        finally:
            with suppress(OSError):  # what could not be flushed was told already
                self._file.close()
