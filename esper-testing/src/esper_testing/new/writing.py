"""How does a folder appear whole or not at all? It is written beside its place, and then moved there."""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from esper_core.leyline.errors import ConfigError, Problem

if TYPE_CHECKING:
    from collections.abc import Mapping


def write_whole(folder: Path, files: Mapping[str, str]) -> None:
    """Makes ``folder`` with ``files``, text by path inside of it. ConfigError, and nothing is left, where that fails.

    E502 where something of that name is there, E503 where the folder above is none, E504 for what the system says.
    """
    into = folder.parent
    if not into.is_dir():
        what = "is no folder" if os.path.lexists(into) else "is not there"
        problem = Problem(
            "E503", f'the folder to write into {what}. Received: "{into}"', hint=f'Make it first:  mkdir -p "{into}"'
        )
        raise ConfigError(problem if what == "is not there" else _another(problem))
    if os.path.lexists(folder):
        raise ConfigError(_another(Problem("E502", f'"{folder}" is there already, and nothing is overwritten')))
    try:
        with TemporaryDirectory(prefix=".esper-new-", dir=into) as beside:
            whole = Path(beside, folder.name)
            for name, text in files.items():
                file = whole / name
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(text, encoding="utf-8", newline="\n")
            whole.rename(folder)
    except OSError as error:
        message = f'"{folder}" cannot be written: {error.strerror or error}; nothing was left there'
        raise ConfigError(_another(Problem("E504", message))) from error


def _another(problem: Problem) -> Problem:
    """The problem with the way out that another place is."""
    return Problem(problem.code, problem.message, hint="Take another name, or write elsewhere:  --into FOLDER")
