"""The content of a report: ``Report``, a run with all that was read of it, and ``Section``, one of its parts."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from esper_core.leyline.errors import ConfigError
from esper_run.config.yaml import read_document
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
    def incubation(self) -> str:
        """How seeds incubate, as ``growth.incubation`` says; empty if the configuration cannot be read."""
        return _incubation(self.config)

    @property
    def is_own_loop(self) -> bool:
        """Whether the run is that of a Gardener, in a training loop of the user's own."""
        argv = self.manifest.get("argv")
        return isinstance(argv, list) and argv[:1] == ["python"]

    @property
    def metric(self) -> Metric:
        """The metric of the task."""
        return self.history.metric if self.summary is None else metric_of(self.summary["results"])


@lru_cache(maxsize=8)  # every section of every look at a live page asks for it
def _incubation(config: str) -> str:
    try:
        growth = read_document(config.encode(), "config.yaml").plain().get("growth")
    except ConfigError:
        return ""
    value = growth.get("incubation") if isinstance(growth, dict) else None
    return value if value in ("branch", "shadow") else ""
