"""Reads Esper's run directories, and nothing else, and shows what grew."""

from esper_watch.drawing import draw, sparkline
from esper_watch.story import Life, Story, read_story

__all__ = ["Life", "Story", "draw", "read_story", "sparkline"]
