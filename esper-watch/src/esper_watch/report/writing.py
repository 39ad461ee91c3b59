"""How does a report get to where somebody opens it? Written beside, and moved there whole."""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Final

from esper_core import EsperError
from esper_core.leyline import Problem
from esper_watch.report.page import page_of
from esper_watch.report.record import read_record

REPORT: Final = "report.html"
"""Its name in a run directory."""


def write_report(run: Path, to: Path | None = None) -> Path:
    """Write the report of a run into its folder, or to a file; where it is.

    EsperError: E420 where there is no run, E410 where the report cannot be written.
    """
    path = run / REPORT if to is None else to
    if path.is_dir():
        message = f"cannot write {path}: it is a folder"
        raise EsperError(Problem("E410", message, hint=f"Name a file in it:  --out {path / REPORT}"))
    page = page_of(read_record(run))
    try:
        with NamedTemporaryFile(
            "w", encoding="utf-8", dir=path.parent, prefix=".", suffix=".part", delete=False
        ) as file:
            beside = Path(file.name)
            file.write(page)
        beside.chmod(0o666 & ~_umask())
        beside.replace(path)
    except OSError as error:
        hint = "Choose another place:  esper report RUN --out FILE"
        raise EsperError(Problem("E410", f"cannot write {path}: {error.strerror or error}", hint=hint)) from error
    return path


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
