"""``esper doctor``: check what a run needs on this machine, one finding each, with the command that fixes it."""

from __future__ import annotations

import importlib.metadata
import os
import sys
import tempfile
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final, Literal

import click

from esper_core._version import __version__
from esper_core.cli.output import aligned, print_json, print_line
from esper_core.cli.run import runs_dir_option
from esper_core.leyline.errors import printable

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

OLDEST_PYTHON: Final = (3, 11)
FAILED: Final = 3
"""Exit status if something failed."""

_COLOURS: Final = {"ok": "green", "warning": "yellow", "failed": "red"}
_NEEDED: Final = ("esper-blueprints", "esper-policies", "esper-rewards", "esper-tasks")
"""Packages that the default run needs."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """One thing that was checked: its state, what was found, and the command that fixes it."""

    what: str
    state: Literal["ok", "warning", "failed"]
    found: str
    mend: str | None = None


@click.command()
@runs_dir_option
@click.option("--json", "as_json", is_flag=True, help="Print a list of {what, state, found, mend} as JSON.")
@click.pass_context
def doctor(context: click.Context, runs_dir: Path, *, as_json: bool) -> None:
    """Check what a run needs here: Python, torch, packages, plugins, folder, terminal."""
    findings = list(examine(runs_dir))
    if as_json:
        print_json([asdict(finding) for finding in findings])
    else:
        rows = [(printable(one.what), one.state, printable(one.found)) for one in findings]
        for finding, line in zip(findings, aligned(rows), strict=True):
            print_line(_coloured(line, finding.state))
            if finding.mend is not None:
                print_line(f"  fix it:  {printable(finding.mend)}")
    context.exit(FAILED if any(finding.state == "failed" for finding in findings) else 0)


def _coloured(line: str, state: str) -> str:
    before, found, after = line.partition(f"  {state}  ")
    return before + click.style(found, fg=_COLOURS[state]) + after if found else line


def examine(runs: Path) -> Iterator[Diagnosis]:
    """Yield a finding for everything that a run with its directory in ``runs`` needs."""
    yield _python()
    yield from _torch()
    yield from _requirements()
    yield from _packages()
    yield from _plugins()
    yield _runs_folder(runs)
    yield _terminal()


def _python() -> Diagnosis:
    version = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info >= OLDEST_PYTHON:
        return Diagnosis("python", "ok", version)
    oldest = ".".join(map(str, OLDEST_PYTHON))
    return Diagnosis("python", "failed", f"{version}, {oldest} or later is needed", f"uv venv --python {oldest}")


def _torch() -> Iterator[Diagnosis]:
    try:
        import torch
    except Exception as error:  # a wheel for another machine raises whatever its loader does
        yield Diagnosis("torch", "failed", f"cannot be imported: {error}", "pip install --force-reinstall torch")
        return
    yield Diagnosis("torch", "ok", torch.__version__)
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    names = ", ".join(dict.fromkeys(torch.cuda.get_device_name(index) for index in range(count)))
    yield Diagnosis("device", "ok", f"{count} × CUDA: {names}" if count else "cpu")
    threads = f"{torch.get_num_threads()} of torch on {os.cpu_count() or 1} cores; a run computes with one"
    yield Diagnosis("threads", "ok", threads)


def _requirements() -> Iterator[Diagnosis]:
    """Check that everything that esper-core requires is installed in a version that fits."""
    from packaging.requirements import Requirement

    try:
        requires = importlib.metadata.requires("esper-core") or []
    except importlib.metadata.PackageNotFoundError:
        yield Diagnosis("esper-core", "warning", f"{__version__}, not installed as a package", "pip install esper-core")
        return
    wrong = []
    for requirement in map(Requirement, requires):
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        installed = _version(requirement.name)
        if installed is None or not requirement.specifier.contains(installed, prereleases=True):
            found = f"needs {requirement}, {'not installed' if installed is None else f'{installed} is installed'}"
            wrong.append(Diagnosis("esper-core", "failed", found, f'pip install "{requirement}"'))
    yield from wrong or [Diagnosis("esper-core", "ok", f"{__version__}, with all that it requires")]


def _packages() -> Iterator[Diagnosis]:
    """Check that the project's other packages are installed and fit this core."""
    from esper_core.plugins.discovery import FIRST_PARTY_PACKAGES, core_version_problem
    from esper_core.plugins.records import EntryPointInfo

    for package in FIRST_PARTY_PACKAGES:
        version = _version(package)
        if version is None:
            if package in _NEEDED:
                found = "not installed; the default run needs it"
                yield Diagnosis(package, "warning", found, f"pip install {package}")
            continue
        requires = tuple(importlib.metadata.requires(package) or ())
        problem = core_version_problem(EntryPointInfo(package, package, package, version, requires), package)
        if problem is None:
            yield Diagnosis(package, "ok", version)
        else:
            found = f"{version}: {problem.message.removesuffix('; its code was not run')}"
            yield Diagnosis(package, "failed", found, f"pip install --upgrade esper-core {package}")


def _plugins() -> Iterator[Diagnosis]:
    from esper_core.plugins import load_plugins
    from esper_core.plugins.discovery import is_set

    plugins = load_plugins()
    for record in plugins.records:
        if record.status in ("broken", "rejected"):
            found = f"{record.source} is {record.status}: {record.problems[0].message}"
            yield Diagnosis(f"plugin {record.id}", "warning", found, f"esper plugins show {record.id}")
    for problem in plugins.problems:
        if problem.code == "E223":
            yield Diagnosis("metadata", "warning", problem.message, (problem.hint or "").rpartition(":  ")[2] or None)
    if active := sum(record.status == "active" for record in plugins.records):
        yield Diagnosis("plugins", "ok", f"{active} active, with {len(plugins.registry.components())} components")
    else:
        yield Diagnosis("plugins", "warning", "none is active", f"pip install {' '.join(_NEEDED)}")
    if is_set("ESPER_SAFE_MODE"):
        found = "on: only the project's own plugins are loaded"
        yield Diagnosis("safe mode", "warning", found, "unset ESPER_SAFE_MODE")
    else:
        yield Diagnosis("safe mode", "ok", "off")


def _runs_folder(runs: Path) -> Diagnosis:
    """Check that a run directory could be made in ``runs``, without leaving anything behind."""
    place = runs.absolute()
    while not place.exists() and place != place.parent:
        place = place.parent
    if not place.is_dir():
        return Diagnosis("runs folder", "failed", f"{place} is no folder", "esper run FILE --runs-dir ANOTHER")
    try:
        with tempfile.TemporaryFile(dir=place):
            made = "" if place == runs.absolute() else ", will be made"
            return Diagnosis("runs folder", "ok", f"{runs}{made}")
    except OSError as error:
        return Diagnosis("runs folder", "failed", f"{place} cannot be written: {error.strerror}", f"chmod u+w {place}")


def _terminal() -> Diagnosis:
    encoding = getattr(sys.stdout, "encoding", None) or "unknown"
    kind = "a terminal" if sys.stdout.isatty() else "no terminal: plain text"
    if encoding.casefold().replace("-", "") == "utf8":
        return Diagnosis("output", "ok", f"{kind}, {encoding}")
    return Diagnosis("output", "warning", f"{kind}, {encoding}: some characters are escaped", "export PYTHONUTF8=1")


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
