"""The command line. ``main`` is the command ``esper``; each of its commands is imported when it is typed."""

from esper_core.cli.main import main

__all__ = ["main"]
