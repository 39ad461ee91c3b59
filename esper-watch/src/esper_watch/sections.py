"""The content of a report: ``Report``, a run with all that was read of it, and ``Section``, one of its parts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from esper_watch.history import is_control, metric_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from esper_core.leyline import Metric
    from esper_run import Run
    from esper_watch.history import History


@dataclass(frozen=True, slots=True)
class Section:
    """A section of the report: its anchor, its title, and the data for the template macro ``kind``."""

    anchor: str
    title: str
    kind: str
    data: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that a report shows."""

    history: History
    run: Run | None
    """Manifest and summary; None if they cannot be read."""
    problem: str
    """Why they cannot be read."""
    config: str
    has_checkpoint: bool
    changed: str = ""
    """That the events are not what the run wrote; empty if they are."""
    elapsed: float | None = None
    """Seconds since the run started; None if unknown, or if the run has ended."""
    last_event: float | None = None
    """Time of the latest event, in seconds since the epoch; None if unknown, or if the run has ended."""

    @property
    def manifest(self) -> Mapping[str, Any]:
        """What ``manifest.json`` says; empty if it cannot be read."""
        return {} if self.run is None else self.run.manifest

    @property
    def summary(self) -> Mapping[str, Any] | None:
        """What ``summary.json`` says; None if there is none, or it cannot be read."""
        return None if self.run is None else self.run.summary

    @property
    def comparisons(self) -> list[Mapping[str, Any]]:
        """The comparisons of the summary, those of growing arms with controls first."""
        comparisons = [] if self.summary is None else self.summary["results"]["comparisons"]
        return sorted(
            comparisons, key=lambda comparison: (is_control(comparison["a"]), not is_control(comparison["b"]))
        )

    @property
    def metric(self) -> Metric:
        """The metric of the task."""
        return self.history.metric if self.summary is None else metric_of(self.summary["results"])
