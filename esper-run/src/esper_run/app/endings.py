"""Endings: the status of a run that an error ends, and where it is recorded and shown.

A run ends by an exception, which passes through ``run``; or its process is ended, because a component blocks it or has
not returned in time after a signal.
"""

from __future__ import annotations

import faulthandler
import sys
import tempfile
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from esper_core.leyline.errors import ConfigError, EsperError, GovernorStop, Interrupted, RunFolderError
from esper_core.leyline.files import append_regular
from esper_run.runs.directory import STATUS_RUNNING
from esper_run.runs.records import resume_hint

if TYPE_CHECKING:
    from pathlib import Path

    from esper_core.leyline.errors import Problem
    from esper_core.leyline.protocols import RunStatus
    from esper_run.runs.directory import RunDirectory

REPORT: Final = "report.html"
"""Name of the report in a run directory, if a package is installed that writes one."""


def status_of(error: BaseException) -> tuple[RunStatus, int]:
    """Return the status and the exit code of a run that ``error`` ended."""
    if isinstance(error, Interrupted | KeyboardInterrupt):
        return "interrupted", error.status if isinstance(error, Interrupted) else 130
    if isinstance(error, BrokenPipeError):
        return "failed", 141  # what a shell expects when the reader of a pipe is gone: 128 + SIGPIPE
    code = error.exit_code if isinstance(error, EsperError) else 1
    return "stopped" if isinstance(error, GovernorStop) else "failed", code


def record_end(directory: RunDirectory, named: Path, problem: Problem, trace: str, exit_code: int) -> None:
    """Record that the run's process is ended by a component: in the log, in the manifest, and on stderr."""
    error = EsperError(problem)
    with suppress(OSError), append_regular(directory.path / "log.txt") as file:
        file.write(f"{problem.message}\n{trace}\n".encode(errors="replace"))
    if directory.manifest["status"] == STATUS_RUNNING:  # else its results are complete
        add_location(error, named)
        status: RunStatus = "interrupted" if problem.code == "E401" else "failed"
        with suppress(RunFolderError):
            directory.finish(status=status, exit_code=exit_code, reason=str(problem))
    print(*error.problems, trace, sep="\n", file=sys.stderr, flush=True)


def record_interruption(directory: RunDirectory, named: Path, problem: Problem, exit_code: int) -> None:
    """Record that the run's process is ended since the run did not end in time, with the traceback of its threads."""
    with tempfile.TemporaryFile() as file:
        faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0)
        trace = file.read().decode(errors="replace")
    record_end(directory, named, problem, trace, exit_code)


def reason_of(error: BaseException) -> str:
    """Return what the manifest says of an error."""
    return str(error) if isinstance(error, EsperError) else f"{type(error).__name__}: {error}"


def add_location(error: BaseException, run: Path) -> None:
    """Add to an error where the run is and how to resume it: to the last hint, or as a note if it is not Esper's.

    Nothing is added to an error about the configuration or the run directory, except for a directory that is whole and
    cannot be written to, as on a full disk; nor where the reader of the output went away.
    """
    if isinstance(error, ConfigError | BrokenPipeError) or not (run / "events.jsonl").is_file():
        return
    if isinstance(error, RunFolderError) and error.problems[-1].code != "E410":
        return
    lines = [f"Run directory: {run}", resume_hint(run)]
    if (report := run / REPORT).is_file():
        lines.insert(1, f"Report: {report}")
    if status_of(error)[0] != "interrupted":
        copies = ", ".join(sorted(file.name for file in run.glob("*.py")))
        where = f", in the run's copy of {copies}" if copies else ""
        lines.append(f"Fix the cause first{where}: resuming repeats the failed step.")
    if isinstance(error, EsperError):
        *earlier, last = error.problems
        hint = "\n".join([last.hint, *lines] if last.hint else lines)
        error.problems = (*earlier, replace(last, hint=hint))
    else:
        error.add_note("\n".join(lines))
