"""Write reports and pictures: beside their place first, then moved there as a whole."""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import TYPE_CHECKING, Final

from esper_core import EsperError
from esper_core.leyline import Problem
from esper_watch.report.page import page_of
from esper_watch.report.picture import picture_of
from esper_watch.report.record import read_record

if TYPE_CHECKING:
    from collections.abc import Callable

REPORT: Final = "report.html"
"""Its name in a run directory."""


def write_picture(run: Path, to: Path) -> Path:
    """Write the run as one picture, an SVG, to a file; where it is. EsperError as for a report."""
    return _written(to, lambda: picture_of(read_record(run)), "Choose another place for the picture.")


def write_report(run: Path, to: Path | None = None) -> Path:
    """Write the report of a run into its folder, or to a file; where it is.

    A link in the place of the report is replaced, not followed: the folder may be somebody else's, and the link could
    lead to any file of the user. A link that the user names is followed.

    EsperError: E420 where there is no run, E410 where the report cannot be written.
    """
    path = run / REPORT if to is None else to
    hint = "Choose another place:  esper report RUN --out FILE"
    return _written(path, lambda: page_of(read_record(run)), hint, follow=to is not None)


def _written(path: Path, make: Callable[[], str], hint: str, *, follow: bool = True) -> Path:
    """Write what ``make`` returns to ``path``. follow: whether a link is written through, or else replaced."""
    if follow or not path.is_symlink():
        _require_writable(path, hint)
    text = make()
    try:
        _write_whole(path.resolve() if follow else path, text)
    except OSError as error:
        raise EsperError(Problem("E410", f"cannot write {path}: {error.strerror or error}", hint=hint)) from error
    return path


def _require_writable(path: Path, hint: str) -> None:
    if path.is_dir():
        message = f"cannot write {path}: it is a folder"
        raise EsperError(Problem("E410", message, hint=f"Name a file in it:  {path / REPORT}"))
    if path.exists() and not path.is_file():
        raise EsperError(Problem("E410", f"cannot write {path}: it is no file, but a device or a pipe", hint=hint))


def _write_whole(path: Path, text: str) -> None:
    with NamedTemporaryFile("w", encoding="utf-8", dir=path.parent, suffix=".part", delete=False) as file:
        beside = Path(file.name)
        try:
            file.write(text)
            file.flush()
            beside.chmod(0o666 & ~_umask())
            beside.replace(path)
        except BaseException:
            beside.unlink(missing_ok=True)
            raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
