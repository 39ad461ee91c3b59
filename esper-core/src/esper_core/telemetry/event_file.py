"""Where is the truth of a run kept? In events.jsonl: every event, appended, on disk once a step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from esper_core.telemetry.codec import encode

if TYPE_CHECKING:
    from pathlib import Path

    from esper_core.leyline.events import Event


class EventFile:
    """Appends events to a file. What was settled survives the death of the process."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", encoding="utf-8", newline="\n")
        self._lines: list[str] = []

    def hear(self, event: Event) -> None:
        """Keep the event until the step is settled."""
        self._lines.append(encode(event))

    def settle(self) -> None:
        """Write what was heard."""
        if self._lines:
            self._file.write("\n".join(self._lines) + "\n")
            self._file.flush()
            self._lines.clear()

    def close(self) -> None:
        """Write what is left and let the file go."""
        try:
            self.settle()
        finally:
            self._file.close()
