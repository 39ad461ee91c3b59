"""What the server of live pages needs: to open a run, and to follow one while it trains."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from http.client import IncompleteRead
from pathlib import Path
from urllib.parse import urljoin
from urllib.request import HTTPCookieProcessor, ProxyHandler, build_opener

from esper_watch.web.beside import ServerBeside
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


def open_page(run: Path) -> Opened:
    """Read all events of a run, and render its page."""
    imports = _memory("VmRSS")
    begin = time.process_time()
    runs = RunsFolder(run.parent)
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


def follow_run(command: list[str], folder: Path) -> float:
    """Start a run, and read its page as one browser does. Return the share of a core that the server takes.

    It counts from the first page on, until the run ends. The run itself does nothing for its server, so that is the
    most by which it can be slowed down on one core, apart from caches and disks that both use.
    """
    begun: list[tuple[float, float]] = []
    with tempfile.TemporaryDirectory() as runs:
        with ServerBeside(Path(runs), "/") as server:
            url = server.lines()[1]
            run = subprocess.Popen([*command, "--runs-dir", runs], cwd=folder, stdout=subprocess.DEVNULL)
            reader = threading.Thread(target=_read_page, args=(url, Path(runs), server.pid, begun))
            reader.start()
            status, (processor, now) = run.wait(), _times(server.pid)
        reader.join()
    assert status == 0, command
    assert begun, "the run ended before its page was there"
    return (processor - begun[0][0]) / (now - begun[0][1])


def _read_page(url: str, runs: Path, server: int, begun: list[tuple[float, float]]) -> None:
    """Read the page of the run in ``runs`` until the server ends. begun: gets its times after the first page."""
    opener = build_opener(ProxyHandler({}), HTTPCookieProcessor())
    opener.open(url).close()
    while not (events_file := next(runs.glob("*/events.jsonl"), None)):
        time.sleep(0.1)
    page = urljoin(url, f"/run/{events_file.parent.name}")
    with opener.open(page) as answer:
        answer.read()
    begun.append(_times(server))
    with suppress(OSError, IncompleteRead), opener.open(f"{page}/live") as answer:
        for _ in answer:
            pass


def _times(process: int) -> tuple[float, float]:
    """Return what a process took of the processor so far, and the time, in seconds. Without Linux the former is 0."""
    file, now = Path(f"/proc/{process}/stat"), time.monotonic()
    if not file.exists():
        return 0.0, now
    ticks = file.read_text(encoding="utf-8").rpartition(")")[2].split()[11:13]
    return sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK"), now
