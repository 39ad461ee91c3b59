"""Would a run work here? Each thing that it needs is looked at by itself; what is wrong comes with what mends it."""

from __future__ import annotations

import importlib.metadata
import os
import sys
import tempfile
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from esper_core._version import __version__
from esper_core.plugins import load_plugins
from esper_core.plugins.discovery import FIRST_PARTY_PACKAGES, core_version_problem, safe_mode_from_environment
from esper_core.plugins.records import EntryPointInfo

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

State = Literal["ok", "warning", "failed"]

OLDEST_PYTHON: Final = (3, 11)

_NEEDED: Final = ("esper-blueprints", "esper-policies", "esper-rewards", "esper-tasks")
"""Packages without which the default run cannot be."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at: its state, what was found, and the command that mends it."""

    what: str
    state: State
    found: str
    mend: str | None = None

    def as_json(self) -> dict[str, Any]:
        """The finding as ``esper doctor --json`` prints it."""
        return asdict(self)


def examine(runs: Path) -> Iterator[Finding]:
    """Everything that a run needs, which keeps its directories in ``runs``."""
    yield _python()
    yield from _torch()
    yield from _requirements()
    yield from _packages()
    yield from _plugins()
    yield _safe_mode()
    yield _folder(runs)
    yield _terminal()


def _python() -> Finding:
    version = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info >= OLDEST_PYTHON:
        return Finding("python", "ok", version)
    oldest = ".".join(map(str, OLDEST_PYTHON))
    return Finding("python", "failed", f"{version}, {oldest} or later is needed", f"uv venv --python {oldest}")


def _torch() -> Iterator[Finding]:
    try:
        import torch
    except Exception as error:  # a wheel for another machine raises whatever its loader does
        yield Finding("torch", "failed", f"cannot be imported: {error}", "pip install --force-reinstall torch")
        return
    yield Finding("torch", "ok", torch.__version__)
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    names = ", ".join(dict.fromkeys(torch.cuda.get_device_name(index) for index in range(count)))
    yield Finding("device", "ok", f"{count} × CUDA: {names}" if count else "cpu")
    cores = os.cpu_count() or 1
    yield Finding("threads", "ok", f"{torch.get_num_threads()} of torch on {cores} cores; a run computes with one")


def _requirements() -> Iterator[Finding]:
    """Whether what esper-core requires is there in a version that will do."""
    from packaging.requirements import Requirement

    try:
        requires = importlib.metadata.requires("esper-core") or []
    except importlib.metadata.PackageNotFoundError:
        yield Finding("esper-core", "warning", f"{__version__}, not installed as a package", "pip install esper-core")
        return
    wrong = []
    for requirement in map(Requirement, requires):
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        installed = _version(requirement.name)
        if installed is None or not requirement.specifier.contains(installed, prereleases=True):
            found = "not installed" if installed is None else f"{installed} is installed"
            wrong.append(
                Finding("esper-core", "failed", f"needs {requirement}, {found}", f'pip install "{requirement}"')
            )
    yield from wrong or [Finding("esper-core", "ok", f"{__version__}, with all that it requires")]


def _packages() -> Iterator[Finding]:
    """The project's other packages: whether they are there and were made for this core."""
    for package in FIRST_PARTY_PACKAGES:
        version = _version(package)
        if version is None:
            if package in _NEEDED:
                found = "not installed; the default run needs it"
                yield Finding(package, "warning", found, f"pip install {package}")
            continue
        requires = tuple(importlib.metadata.requires(package) or ())
        problem = core_version_problem(EntryPointInfo(package, package, package, version, requires), package)
        if problem is None:
            yield Finding(package, "ok", version)
        else:
            mend = f"pip install --upgrade esper-core {package}"
            yield Finding(
                package, "failed", f"{version}: {problem.message.removesuffix('; its code was not run')}", mend
            )


def _plugins() -> Iterator[Finding]:
    plugins = load_plugins()
    wrong = [record for record in plugins.records if record.status in ("broken", "rejected")]
    for record in wrong:
        found = f"{record.source} is {record.status}: {record.problems[0].message}"
        yield Finding(f"plugin {record.id}", "warning", found, f"esper plugins show {record.id}")
    for problem in plugins.problems:
        if problem.code == "E223":
            yield Finding("metadata", "warning", problem.message, (problem.hint or "").rpartition(":  ")[2] or None)
    active = sum(record.status == "active" for record in plugins.records)
    components = len(plugins.registry.components())
    if active:
        yield Finding("plugins", "ok", f"{active} active, with {components} components")
    else:
        yield Finding("plugins", "warning", "none is active", f"pip install {' '.join(_NEEDED)}")


def _safe_mode() -> Finding:
    if safe_mode_from_environment():
        return Finding("safe mode", "warning", "on: only the project's own plugins are loaded", "unset ESPER_SAFE_MODE")
    return Finding("safe mode", "ok", "off")


def _folder(runs: Path) -> Finding:
    """Whether a run's directory could be made there. Nothing is left behind, and a folder that is missing not made."""
    place = runs.absolute()
    while not place.exists() and place != place.parent:
        place = place.parent
    if not place.is_dir():
        return Finding("runs folder", "failed", f"{place} is no folder", "esper run FILE --runs-dir ANOTHER")
    try:
        with tempfile.TemporaryFile(dir=place):
            made = "" if place == runs.absolute() else ", will be made"
            return Finding("runs folder", "ok", f"{runs}{made}")
    except OSError as error:
        return Finding("runs folder", "failed", f"{place} cannot be written: {error.strerror}", f"chmod u+w {place}")


def _terminal() -> Finding:
    encoding = getattr(sys.stdout, "encoding", None) or "unknown"
    kind = "a terminal" if sys.stdout.isatty() else "no terminal: plain text"
    if encoding.casefold().replace("-", "") == "utf8":
        return Finding("output", "ok", f"{kind}, {encoding}")
    return Finding("output", "warning", f"{kind}, {encoding}: signs may be written out", "export PYTHONUTF8=1")


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
