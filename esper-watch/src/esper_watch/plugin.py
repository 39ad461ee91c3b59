"""Plugin of this package: a report at the end of each run, imported when needed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from esper_core import EsperError, hookimpl

if TYPE_CHECKING:
    from esper_core.leyline import RunInfo, RunOutcome


@hookimpl
def esper_run_finished(run: RunInfo, outcome: RunOutcome) -> None:
    """Write ``report.html`` into the run's folder, however the run ended.

    Errors are ignored if the folder was removed, or if the run failed because nothing can be written there: the run
    itself reports that.
    """
    from esper_watch.report import write_report

    try:
        write_report(run.path)
    except (EsperError, OSError) as error:
        refused = isinstance(error.__cause__, OSError)
        if (run.path / "events.jsonl").exists() and not (refused and outcome.status == "failed"):
            raise
