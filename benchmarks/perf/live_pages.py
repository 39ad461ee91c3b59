"""What the server of live pages needs: to open a run, and to follow one while it trains."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, urljoin
from urllib.request import HTTPCookieProcessor, ProxyHandler, build_opener

from esper_watch.web.fragments import LivePage

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
    live = LivePage(run)
    live.followed.refresh()
    page = live.html()
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
    with tempfile.TemporaryDirectory() as runs:
        run = subprocess.Popen([*command, "--runs-dir", runs], cwd=folder, stdout=subprocess.DEVNULL)
        while not (events := next(Path(runs).glob("*/events.jsonl"), None)):
            time.sleep(0.1)
        watch = [sys.executable, "-m", "esper_run", "watch", str(events.parent), "--port", "0"]
        with subprocess.Popen(watch, stderr=subprocess.PIPE, text=True) as server:
            assert server.stderr is not None
            url = next(line.strip() for line in server.stderr if line.startswith("http"))
            opener = build_opener(ProxyHandler({}), HTTPCookieProcessor())
            shown = _shown(opener.open(url).read().decode())
            begun = _times(server.pid)
            while run.poll() is None:
                with opener.open(urljoin(url, f"/changes?shown={quote(shown)}")) as answer:
                    changes = json.load(answer)
                if changes:
                    parts = dict(part.split(":") for part in shown.split(","))
                    parts |= {name: change["digest"] for name, change in changes["changed"].items()}
                    shown = ",".join(f"{name}:{parts[name]}" for name in changes["order"])
                time.sleep(1.0)
            ended = _times(server.pid)
            server.terminate()
    assert run.returncode == 0, command
    return (ended[0] - begun[0]) / (ended[1] - begun[1])


def _shown(page: str) -> str:
    """Return the fragments of a page as its script names them."""
    return ",".join(f"{name}:{digest}" for name, digest in re.findall(r'id="(\S+)" data-digest="(\w+)"', page))


def _times(process: int) -> tuple[float, float]:
    """Return what a process took of the processor so far, and the time, in seconds. Without Linux the former is 0."""
    file, now = Path(f"/proc/{process}/stat"), time.monotonic()
    if not file.exists():
        return 0.0, now
    ticks = file.read_text(encoding="utf-8").rpartition(")")[2].split()[11:13]
    return sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK"), now
