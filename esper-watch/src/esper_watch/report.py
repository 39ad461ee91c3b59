"""Reports: write a run as one HTML page that fetches nothing.

Names in a run come from plugins and files of third parties: the templates escape every value, without exception.
"""

from __future__ import annotations

import os
import time
from base64 import b64encode
from hashlib import sha256
from typing import TYPE_CHECKING, Final

from esper_core import EsperError
from esper_core.leyline import Problem
from esper_core.leyline.files import read_start
from esper_run import load_run
from esper_run.app.endings import REPORT
from esper_run.runs.directory import write_atomically
from esper_run.runs.records import changed_events
from esper_watch.history import UNFINISHED, read_history
from esper_watch.pages import render
from esper_watch.sections import Report

if TYPE_CHECKING:
    from pathlib import Path

    from esper_run import Run
    from esper_watch.history import History

MAX_CONFIG: Final = 100_000
"""Characters of a configuration that are shown."""


def read_report(run: Path, history: History | None = None) -> Report:
    """Read what a report shows of a run directory.

    Args:
        run: The run directory.
        history: Its history, if it is known already.

    Raises:
        EsperError: E420 if ``run`` is not a run directory, E421 if one of its events cannot be read.
    """
    history = read_history(run) if history is None else history
    loaded, problem = None, ""
    missing = [name for name in ("manifest.json", "summary.json") if not (run / name).exists()]
    try:
        loaded = load_run(run)
    except EsperError as error:
        problem = error.problems[0].message.replace(f"{run}{os.sep}", "")
    if missing:
        problem = f"{missing[0]} is missing"
    changed = None if loaded is None else changed_events(loaded)
    elapsed, last_event = _clock(run, loaded) if history.status in ("running", "died", UNFINISHED) else (None, None)
    config, has_checkpoint = _text(run / "config.yaml"), (run / "latest").exists()
    return Report(history, loaded, problem, config, has_checkpoint, changed or "", elapsed, last_event)


def _clock(run: Path, loaded: Run | None) -> tuple[float | None, float | None]:
    """Return the seconds since the run started, and the time of its latest event."""
    try:
        last_event = (run / "events.jsonl").stat().st_mtime
    except OSError:
        last_event = None
    return None if loaded is None else max(0.0, time.time() - loaded.started.timestamp()), last_event


def _text(path: Path) -> str:
    """Return the text of a regular file, as far as a page shows it; empty if it cannot be read."""
    try:
        return read_start(path, 4 * MAX_CONFIG).decode(errors="replace")[:MAX_CONFIG]
    except OSError:
        return ""


def report_page(report: Report) -> str:
    """Return the report as HTML."""
    digest = b64encode(sha256(render("report.js").encode()).digest()).decode()
    # The content security policy allows the page's own style and ``report.js``, and nothing else.
    policy = (
        f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; "
        "base-uri 'none'; form-action 'none'"
    )
    return render("report.html", report=report, policy=policy)


def write_report(run: Path, to: Path | None = None) -> Path:
    """Write the report of a run into its folder, or to the file ``to``, and return its path.

    A symbolic link in place of the report is replaced, not followed: the folder may come from an untrusted source,
    and the link could lead to any file of the user. A link that is given as ``to`` is followed.

    Raises:
        EsperError: E420 if there is no run, E410 if the report cannot be written.
    """
    path, follow = (run / REPORT, False) if to is None else (to, True)
    if follow or not path.is_symlink():
        if path.is_dir():
            message = f"cannot write {path}: it is a folder"
            raise EsperError(Problem("E410", message, hint=f"Name a file in it:  {path / REPORT}"))
        if path.exists() and not path.is_file():
            hint = "Choose another file:  esper report RUN --out FILE"
            raise EsperError(Problem("E410", f"cannot write {path}: it is a device or a pipe, not a file", hint=hint))
    write_atomically(path.resolve() if follow else path, report_page(read_report(run)))
    return path
