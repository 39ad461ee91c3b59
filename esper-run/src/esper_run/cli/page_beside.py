"""The page of a run that is served beside it: ``esper run --watch``."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

from esper_core.leyline.errors import ConfigError, Problem
from esper_core.leyline.events import RunStarted
from esper_core.plugins import Extension
from esper_run.cli.output import print_line

if TYPE_CHECKING:
    from pathlib import Path

    from esper_core.leyline.events import Event


class PageBeside:
    """A listener that serves the page of a run from another process, so that the run is not slowed down."""

    def __init__(self, runs_dir: Path, *, open_browser: bool) -> None:
        if "watch" not in Extension.find("esper.commands", "command"):
            hint = "It comes with another package:  pip install 'esper-run[watch]'"
            raise ConfigError(Problem("E433", "no installed package serves runs to a browser", hint=hint))
        self._runs_dir, self._options = runs_dir, ["--open"] if open_browser else []
        self._process: subprocess.Popen[bytes] | None = None

    def hear(self, event: Event) -> None:
        """Start the server when the run begins."""
        if isinstance(event, RunStarted):
            command = [sys.executable, "-m", "esper_run", "watch", str(self._runs_dir / event.run)]
            self._process = subprocess.Popen([*command, "--beside", str(os.getpid()), *self._options])

    def settle(self) -> None:
        """Do nothing at the end of a step."""

    def wait(self) -> None:
        """Wait until Ctrl-C, or until the server has ended."""
        if self._process is not None:
            print_line("The page is served until Ctrl-C.", stream=sys.stderr)
            with suppress(KeyboardInterrupt):
                self._process.wait()
