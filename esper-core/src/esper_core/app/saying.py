"""Where does that go which is said while a run runs? All of it to log.txt; a warning also to whoever waits, once."""

from __future__ import annotations

import logging
import sys
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

log = logging.getLogger("esper")


@contextmanager
def logged(path: Path, tell: Callable[[str], None]) -> Iterator[Warnings]:
    """A block in which what is said goes to the file at ``path``. It is given the warnings, as they come.

    ``tell`` hears each warning once, however often it is said; that it cannot be told stops nothing.
    """
    file = logging.FileHandler(path, encoding="utf-8", delay=True)
    file.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    warnings = Warnings(tell)
    level = log.level
    log.setLevel(logging.INFO)
    handlers: tuple[logging.Handler, ...] = (file, warnings)
    for handler in handlers:
        log.addHandler(handler)
    try:
        yield warnings
    finally:
        for handler in handlers:
            log.removeHandler(handler)
        log.setLevel(level)
        file.close()


@contextmanager
def warned(tell: Callable[[str], None]) -> Iterator[None]:
    """A block in which ``tell`` hears each warning, once, and nothing is written."""
    warnings = Warnings(tell)
    log.addHandler(warnings)
    try:
        yield
    finally:
        log.removeHandler(warnings)


def tell_plainly(warning: str) -> None:
    """A warning on stderr."""
    print(f"warning: {warning}", file=sys.stderr, flush=True)


class Warnings(logging.Handler):
    """What was warned of, each once: ``told``."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._tell = tell
        self.told: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Tell it, unless it was told."""
        said = record.getMessage()
        if said in self.told:
            return
        self.told.append(said)
        with suppress(OSError):  # stderr may be gone; log.txt has it
            self._tell(said)
