"""What the server of live pages needs to open a run: seconds, and resident memory of a process without torch."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from pathlib import Path

from esper_watch.web.cache import Cache
from esper_watch.web.index import RunsFolder
from esper_watch.web.site import Site

STATUS = Path("/proc/self/status")


@dataclass(frozen=True)
class Opened:
    """How a process opened the page of a run."""

    seconds: float
    """In processor time: one thread does all of it, and other processes do not count."""
    bytes_of_page: int
    megabytes: float
    """The most resident memory of the process beyond that of its imports; 0 if the system does not report it."""
    has_torch: bool


def open_page(run: Path, cache: Path) -> Opened:
    """Read all events of a run, as far as they are not cached, and render its page."""
    imports = _memory("VmRSS")
    begin = time.process_time()
    runs = RunsFolder(run.parent, cache=Cache(cache))
    followed = runs.run(run.name)
    if followed is None:
        raise FileNotFoundError(run)
    followed.refresh()
    page = Site(runs).run_page(run.name) or ""
    return Opened(time.process_time() - begin, len(page.encode()), _memory("VmHWM") - imports, "torch" in sys.modules)


def _memory(kind: str) -> float:
    if not STATUS.exists():
        return 0.0
    lines = STATUS.read_text(encoding="ascii").splitlines()
    return int(next(line for line in lines if line.startswith(kind)).split()[1]) / 1024
