"""Verdicts: the seeds that ended or blocked a worker, kept in the run directory.

A run that is resumed from a checkpoint before a verdict repeats the verdict, and not what led to it.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final

from pydantic import TypeAdapter, ValidationError

from esper_core.leyline.errors import RunFolderError
from esper_core.leyline.files import open_regular
from esper_scale.engines.protocol import Condemned  # noqa: TC001  pydantic reads the fields of SeedVerdict

if TYPE_CHECKING:
    from pathlib import Path

FILE: Final = "verdicts.jsonl"


@dataclass(frozen=True, slots=True)
class SeedVerdict:
    """A verdict and where it was passed: in which study of the run, round, step and request."""

    stage: int
    round: int
    step: int | None
    method: str
    condemned: Condemned


_VERDICT: Final = TypeAdapter(SeedVerdict)


class Verdicts:
    """The verdicts of a run.

    Args:
        run: The run directory; None: they are kept in memory only.

    Attributes:
        stage: The study that the run is in.
    """

    def __init__(self, run: Path | None = None) -> None:
        self.stage = 0
        self._path = None if run is None else run / FILE
        self._passed = [] if self._path is None or not self._path.exists() else _read(self._path)

    def __len__(self) -> int:
        return len(self._passed)

    def find(self, round_: int, step: int | None, method: str) -> list[Condemned]:
        """Return the seeds that are condemned in a request."""
        position = self.stage, round_, step, method
        return [
            verdict.condemned
            for verdict in self._passed
            if (verdict.stage, verdict.round, verdict.step, verdict.method) == position
        ]

    def add(self, round_: int, step: int | None, method: str, condemned: Condemned) -> None:
        """Keep a new verdict."""
        verdict = SeedVerdict(self.stage, round_, step, method, condemned)
        self._passed.append(verdict)
        if self._path is None:
            return
        try:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(verdict)) + "\n")
        except OSError as error:
            raise RunFolderError.about(self._path, error) from error


def _read(path: Path) -> list[SeedVerdict]:
    """Return the verdicts in a file; a last line that was not finished is left out."""
    try:
        with open_regular(path) as file:
            complete_lines, _, _ = file.read().rpartition(b"\n")
        return [_VERDICT.validate_json(line) for line in complete_lines.splitlines()]
    except OSError as error:
        raise RunFolderError.unreadable(path, error) from error
    except ValidationError as error:
        raise RunFolderError.unreadable(path, f"{error.error_count()} values are not those of a verdict") from error
