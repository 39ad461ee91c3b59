"""Runs: the folder that a run leaves behind, and the statistics of what it found."""

from esper_core.runs.directory import RunDirectory, plain

__all__ = ["RunDirectory", "plain"]
