"""What is there to see of a run? Its directory as an object: figures, events as tables, and its face in a notebook.

>>> load_run("runs/nothing")
Traceback (most recent call last):
    ...
esper_core.leyline.errors.RunFolderError: E420 there is no folder runs/nothing
  Give the folder of a run, for example runs/20261121-101512-quiet-otter.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from esper_core.leyline.errors import Problem, RunFolderError
from esper_core.leyline.markup import printable
from esper_core.runs import display, rows
from esper_core.runs.records import find_run
from esper_core.telemetry import read_events

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from datetime import datetime

    from esper_core.leyline.events import Event
    from esper_core.runs.records import RunRecord


@dataclass(frozen=True, slots=True, repr=False)
class Run:
    """A run directory, as it was when it was loaded; its events are read anew whenever they are asked for.

    The tables are lists of plain dicts, ready for ``pandas.DataFrame``. The columns of each stand in
    ``esper_core.runs.rows``.
    """

    record: RunRecord

    @property
    def path(self) -> Path:
        """Its folder."""
        return self.record.path

    @property
    def id(self) -> str:
        """What it is called."""
        return self.record.id

    @property
    def status(self) -> str:
        """``done``, ``failed``, ``interrupted``, ``stopped``, ``running``, or ``died``, without a word."""
        return self.record.status

    @property
    def reason(self) -> str:
        """Why it was not done; empty where nothing is known of that."""
        return self.record.reason

    @property
    def started(self) -> datetime:
        """When it began."""
        return self.record.started

    @property
    def seconds(self) -> float | None:
        """How long it took; None where it has no end."""
        return self.record.seconds

    @property
    def manifest(self) -> Mapping[str, Any]:
        """What ``manifest.json`` holds: the command, the machine, the plugins."""
        return self.record.manifest

    @property
    def summary(self) -> Mapping[str, Any] | None:
        """What ``summary.json`` holds; None where the run has no end."""
        return self.record.summary

    def events(self, *, tell: Callable[[str], None] | None = None) -> Iterator[Event]:
        """All that happened, in its order, one by one. None for a run that has not begun to train.

        ``tell`` is given a line for whatever is left out: a torn last line, what a newer version added; None: it is a
        warning of the logger ``esper``. RunFolderError where the file cannot be read.
        """
        file = self.path / "events.jsonl"
        try:
            yield from read_events(file, tell=tell)
        except FileNotFoundError:
            if self.summary is not None:
                hint = "The run came to its end, so there were events. Was the file taken away?"
                raise RunFolderError(Problem("E430", f"there is no file {file}", hint=hint)) from None

    def steps(self) -> list[rows.StepRow]:
        """A row for each environment and step: losses, metric, parameters, reward, action."""
        return list(rows.step_rows(self.events()))

    def seeds(self) -> list[rows.SeedRow]:
        """A row for each seed's life: whose it was, when it came to each stage, its fate, its last gain."""
        return rows.seed_rows(self.events())

    def stages(self) -> list[rows.StageRow]:
        """A row for each change of a seed's stage, with the reason."""
        return list(rows.stage_rows(self.events()))

    def episodes(self) -> list[rows.EpisodeRow]:
        """A row for each environment that came to its end, read on the test split."""
        return list(rows.episode_rows(self.events()))

    def comparisons(self) -> list[rows.ComparisonRow]:
        """A row for each pair of arms, as the run's end compares them; none before it."""
        return rows.comparison_rows(self.record.results)

    def governor(self) -> list[rows.GovernorRow]:
        """A row for each thing that the governor did."""
        return list(rows.governor_rows(self.events()))

    def __repr__(self) -> str:
        return f"<{printable(' '.join(display.headline(self.record).split()))}>"

    def _repr_html_(self) -> str:
        """What a notebook shows of it. Where its events cannot be read, that is told in their place."""
        glance = display.Glance()
        try:
            for event in self.events(tell=glance.left_out.append):
                glance.hear(event)
        except RunFolderError as error:
            glance.left_out.extend(problem.message for problem in error.problems)
        return display.run_as_html(self.record, glance)


def load_run(path: str | os.PathLike[str], *, runs_dir: str | os.PathLike[str] = "runs") -> Run:
    """The run in the folder ``path``; it may run still, or have been killed.

    ``path`` may be the id of a run in ``runs_dir``, too, or the words of it. RunFolderError where it is no run.
    """
    if (named := Path(path)).is_file():
        hint = f"Give the folder that it is in:  {named.parent}"
        raise RunFolderError(Problem("E420", f"{named} is a file, and a run is a folder", hint=hint))
    return Run(find_run(os.fspath(path), Path(runs_dir)))
