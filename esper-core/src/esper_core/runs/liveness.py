"""Does a run that says that it is running still run? Its manifest names the process, by number and start."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def is_alive(process: Any) -> bool:
    """Whether the process that a manifest names is there: ``{"pid": 23568, "start": 3382413}``.

    A number is given anew when its process is gone, and after the machine was started anew; then the start is another.
    Where the system does not tell starts, a process of that number counts. A run that goes on on another machine, which
    shares the disk, looks as if it had died.
    """
    if not isinstance(process, Mapping):
        return False
    pid, start = process.get("pid"), process.get("start")
    if type(pid) is not int or not 0 < pid < 2**31:
        return False
    stat = Path(f"/proc/{pid}/stat")
    if start is None or not Path("/proc/self/stat").exists():
        return _exists(pid)
    try:
        told = stat.read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return False
    return told[0] not in "ZX" and told[19] == str(start)


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except OSError:
        return False
    return True
