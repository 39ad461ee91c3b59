"""Where does a run come from? The machine, the interpreter, the packages, and the state of the code."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

PATCH_LIMIT = 1 << 20
"""Bytes of an uncommitted diff that are kept."""


@dataclass(frozen=True, slots=True)
class GitState:
    """The commit the run began on, whether files that git knows differed from it, and the difference."""

    sha: str
    dirty: bool
    patch: str


def machine() -> dict[str, Any]:
    """What computed, without a name by which the machine could be found."""
    return {
        "system": platform.system(),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "python": sys.version.split()[0],
        "torch": installed("torch"),
        "esper-core": installed("esper-core"),
    }


def process() -> dict[str, int | None]:
    """Which process runs: whether it still lives tells a run that goes on from one that was killed.

    pid: its number. start: when it began, in clock ticks since the machine did, as field 22 of /proc/PID/stat tells it;
    None on a system without. Numbers are given anew: only both together are the same process.
    """
    return {"pid": os.getpid(), "start": _start(Path("/proc/self/stat"))}


def packages() -> list[str]:
    """``name==version`` of everything that is installed, sorted."""
    told = [distribution.metadata for distribution in metadata.distributions()]  # each is read and parsed here
    found = {f"{one['Name']}=={one['Version']}" for one in told if one["Name"]}
    return sorted(found, key=str.casefold)


def git_state(folder: Path) -> GitState | None:
    """The state of the repository that holds ``folder``; None where there is none, or no git."""
    if shutil.which("git") is None:
        return None
    sha = _git(folder, "rev-parse", "HEAD")
    if not sha:
        return None
    status = _git(folder, "status", "--porcelain", "--untracked-files=no") or ""
    patch = _git(folder, "diff", "HEAD") or ""
    return GitState(sha.strip(), bool(status.strip()), patch[:PATCH_LIMIT])


def _start(stat: Path) -> int | None:
    try:
        told = stat.read_text()
    except OSError:
        return None
    return int(told.rpartition(")")[2].split()[19])


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.decode(errors="replace") if done.returncode == 0 else None


def installed(package: str) -> str | None:
    """The version of a package; None where it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
