"""Runs: what a run leaves behind in its directory, and the statistics of its results.

What is here:
    directory: creates and locks a run directory, and writes its files atomically.
    checkpoint_files: writes, finds and restores the state of a run.
    network_files: writes a network to a folder.
    records: reads run directories: ``load_run``, the list of runs, hints for unfinished runs.
    uploads: copies a run to its store while it trains.
    findings: what a finished run found in one sentence, and what to do next.
    statistics: means, intervals, paired comparisons and their adjustment for multiple tests.

What is not here: reports, comparisons of several runs and displays (the package esper-watch), and when a checkpoint is
written (``app.checkpoints``).

Begin with ``directory.RunDirectory``.
"""

from esper_run.runs.directory import RunDirectory

__all__ = ["RunDirectory"]
