"""Reports: write a run as one HTML page that fetches nothing, or as one SVG picture.

Names in a run come from plugins and files of third parties: the templates escape every value, without exception.
"""

from __future__ import annotations

import os
import time
from base64 import b64encode
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final

from esper_core import EsperError
from esper_core.leyline import Problem
from esper_core.leyline.files import read_start
from esper_run import load_run
from esper_run.runs.records import changed_events
from esper_watch import figures, views
from esper_watch.history import UNFINISHED, read_history
from esper_watch.pages import render
from esper_watch.sections import Report

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from esper_run import Run
    from esper_watch.history import History

REPORT: Final = "report.html"
"""Name of the report in a run directory."""

MAX_CONFIG: Final = 100_000
"""Characters of a configuration that are shown."""

_PICTURE_NETWORKS: Final = 3
_PICTURE_ROW: Final = 26.0


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
    return render("report.html", report=report, policy=page_policy())


def page_policy() -> str:
    """Return a content security policy that allows a page's own style and ``report.js``, and nothing else."""
    digest = b64encode(sha256(render("report.js").encode()).digest()).decode()
    return (
        f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; "
        "base-uri 'none'; form-action 'none'"
    )


def report_picture(report: Report) -> str:
    """Return one SVG with the learning curves and the lives of some seeds. It is empty for a run without steps."""
    history, metric = report.history, report.metric
    y, parts, stages = _PICTURE_ROW, list[tuple[float, figures.Chart]](), list[tuple[float, str, str]]()
    stages_y = 0.0
    if curves := figures.latest_curves(history, metric):
        chart = figures.learning_curves(history, metric, curves, left=figures.LIVES_LEFT)
        parts.append((y, chart))
        y += chart.height
        lives = {arm: history.seeds_by_environment(history.rounds[-1], arm) for arm in history.arms}
        if arm := next((arm for arm in history.arms if lives[arm]), None):
            shown = dict(list(lives[arm].items())[:_PICTURE_NETWORKS])
            chart = figures.seed_lives(history, arm, shown, [])
            parts.append((y, chart))
            stages_y = y + chart.height + 12
            stages = _spread(views.stage_legend(untrained=False), start=8.0, gap=34, letter=6.8)
            y += chart.height + _PICTURE_ROW
    arms = _spread(figures.arm_styles(history.arms).items(), start=figures.LIVES_LEFT, gap=60, letter=8)
    size = {"width": figures.WIDTH, "height": y}
    legend = {"arms": arms, "stages": stages, "stages_y": stages_y, "metric": metric.name}
    return render("picture.svg", parts=parts, **size, **legend)


def _spread(entries: Any, *, start: float, gap: float, letter: float) -> list[tuple[float, str, Any]]:
    """Place the entries of a legend side by side; a letter is about as wide as ``letter``."""
    x, placed = start, []
    for name, style in entries:
        placed.append((x, name, style))
        x += gap + letter * len(name)
    return placed


def write_report(run: Path, to: Path | None = None) -> Path:
    """Write the report of a run into its folder, or to the file ``to``, and return its path.

    A symbolic link in place of the report is replaced, not followed: the folder may come from an untrusted source,
    and the link could lead to any file of the user. A link that is given as ``to`` is followed.

    Raises:
        EsperError: E420 if there is no run, E410 if the report cannot be written.
    """
    path = run / REPORT if to is None else to
    hint = "Choose another file:  esper report RUN --out FILE"
    return _write(path, lambda: report_page(read_report(run)), hint, follow=to is not None)


def write_picture(run: Path, to: Path, *, animated: bool = False) -> Path:
    """Write the run as one SVG to the file ``to``, and return its path. Raises EsperError like ``write_report``.

    Args:
        run: The run directory.
        to: The file.
        animated: Whether to draw one network as it grows, step by step.
    """
    from esper_watch.animation import growing_picture

    draw = growing_picture if animated else report_picture
    return _write(to, lambda: draw(read_report(run)), "Choose another file for the picture.", follow=True)


def _write(path: Path, make: Callable[[], str], hint: str, *, follow: bool) -> Path:
    """Write what ``make`` returns. follow: whether a symbolic link is written through, or else replaced."""
    if follow or not path.is_symlink():
        if path.is_dir():
            message = f"cannot write {path}: it is a folder"
            raise EsperError(Problem("E410", message, hint=f"Name a file in it:  {path / REPORT}"))
        if path.exists() and not path.is_file():
            raise EsperError(Problem("E410", f"cannot write {path}: it is a device or a pipe, not a file", hint=hint))
    write_atomically(path.resolve() if follow else path, make(), hint)
    return path


def write_atomically(path: Path, text: str, hint: str) -> None:
    """Write a file in one step, so that no reader sees half of it. Raises EsperError E410 if it cannot be written."""
    temporary = path.with_name(f".{os.getpid()}.part")
    try:
        try:
            with temporary.open("x", encoding="utf-8") as file:  # a link in its place is not followed
                file.write(text)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise EsperError(Problem("E410", f"cannot write {path}: {error.strerror or error}", hint=hint)) from error
