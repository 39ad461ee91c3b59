"""Where is the truth of a run kept? In events.jsonl: every event, appended, on disk once a step."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from esper_core.leyline.errors import RunFolderError
from esper_core.telemetry.codec import encode

if TYPE_CHECKING:
    from pathlib import Path

    from esper_core.leyline.events import Event


class EventFile:
    """Appends events to a file. What was settled survives the death of the process."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._file = path.open("a", encoding="utf-8", newline="\n")
        except OSError as error:
            raise RunFolderError.about(path, error) from error
        self._lines: list[str] = []

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
            self._file.write(text)
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
