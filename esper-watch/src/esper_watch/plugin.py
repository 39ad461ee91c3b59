"""What does this package bring to a run? A report at its end, and sinks; they are imported when they are needed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from esper_core import EsperError, PluginInfo, SinkSpec, hookimpl

if TYPE_CHECKING:
    from esper_core.leyline import RunInfo, RunOutcome


@hookimpl
def esper_plugin_info() -> PluginInfo:
    """What this plugin is."""
    return PluginInfo(summary="Shows how a run goes, to people and to other programs.")


@hookimpl
def esper_register_sinks(registry: Any) -> None:
    """Adds the sinks."""
    registry.add(
        "tensorboard",
        "esper_watch.curves:tensorboard",
        SinkSpec(
            summary="Curves of every environment for TensorBoard: pip install esper-watch[tensorboard].",
            settings="esper_watch.settings:TensorboardSettings",
        ),
    )


@hookimpl
def esper_run_finished(run: RunInfo, outcome: RunOutcome) -> None:
    """Writes ``report.html`` into the run's folder, however the run ended.

    Nothing where somebody took that away, or where it is why the run failed that nothing can be written there: the run
    itself tells what became of its folder.
    """
    from esper_watch.report import write_report

    try:
        write_report(run.path)
    except (EsperError, OSError) as error:
        refused = isinstance(error.__cause__, OSError)  # by the system, as it refused the run
        if (run.path / "events.jsonl").exists() and not (refused and outcome.status == "failed"):
            raise
