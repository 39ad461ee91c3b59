"""Runs of Esper: from a configuration file to results in a run directory.

    from esper_run import run, load_run, read_events

Each name is imported when it is first used.

What is here:
    app: build what a configuration describes, run it, resume it.
    cli: the command ``esper``.
    config: the configuration file: every option, how it is read, merged, checked and explained.
    engines: what computes the environments of a run, found by entry points.
    formats: how figures, durations and stages are written, in every view.
    options: options of commands that name runs.
    runs: run directories: their files, records, checkpoints and statistics.
    stores: where runs are kept besides their directory, found by entry points.
    watchdog: end a run that stands still or crashed, and say in which line.
"""

import lazy_loader

from esper_core import __version__ as __version__

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
