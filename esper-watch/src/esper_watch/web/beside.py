"""Start the server in a process beside a run, for ``esper run --watch``: the run itself is not slowed down."""

from __future__ import annotations

import json
import subprocess
import sys
import webbrowser
from contextlib import suppress
from importlib.util import find_spec
from typing import TYPE_CHECKING, Self

from esper_core.leyline import ConfigError, Problem

if TYPE_CHECKING:
    from pathlib import Path


def require_extra() -> None:
    """Raise ConfigError E433 if a package is missing that the server needs."""
    missing = [name for name in ("starlette", "uvicorn") if not is_installed(name)]
    if missing:
        message = f"runs cannot be watched in a browser: {' and '.join(missing)} cannot be imported"
        raise ConfigError(Problem("E433", message, hint="Install the extra:  pip install 'esper-watch[web]'"))


def is_installed(name: str) -> bool:
    """Return whether a package can be imported, without importing it."""
    try:
        return find_spec(name) is not None
    except ValueError:  # it is known as missing
        return False


class ServerBeside:
    """A server in another process. It ends when this process ends, however it ends.

    Args:
        root: Folder of the runs.
        page: Path of the page whose URL is told.
    """

    def __init__(self, root: Path, page: str) -> None:
        require_extra()
        self._url = ""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "esper_watch.web.server"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._say({"root": str(root), "page": page})

    @property
    def pid(self) -> int:
        """Number of the other process."""
        return self._process.pid

    def _say(self, request: dict[str, str]) -> None:
        if self._process.stdin is not None:
            with suppress(OSError):  # it has ended already, which ``lines`` reports
                print(json.dumps(request), file=self._process.stdin, flush=True)

    def lines(self) -> list[str]:
        """Wait until the server is there, and return what to tell the user: its URL, first of all."""
        answer = self._process.stdout.readline() if self._process.stdout is not None else ""
        message = json.loads(answer) if answer.strip() else {"problem": "the process of the server ended"}
        if "problem" in message:
            raise ConfigError(Problem("E433", message["problem"], hint="Run without --watch, then:  esper watch --web"))
        self._url = next((line for line in message["lines"] if line.startswith("http")), "")
        return list(message["lines"])

    def open_browser(self) -> None:
        """Open the page in a browser, once ``lines`` has said where it is."""
        webbrowser.open(self._url)

    def wait(self) -> None:
        """Wait until the user interrupts, or the server ends."""
        with suppress(KeyboardInterrupt):
            self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with suppress(OSError):
                    stream.close()
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
