"""``esper doctor``: check what a run needs on this machine, with the command that fixes each finding."""

from __future__ import annotations

import importlib.metadata
import platform
import tempfile
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final, Literal

import click

from esper_core import __version__
from esper_core.leyline.errors import printable
from esper_run.cli.output import print_json, print_line
from esper_run.options import local_runs_option

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FAILED: Final = 3
"""Exit status if something failed."""

_COLOURS: Final = {"ok": "green", "warning": "yellow", "failed": "red"}
_NEEDED: Final = ("esper-blueprints", "esper-policies", "esper-rewards", "esper-tasks")
"""Packages that the default run needs."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """One thing that was checked: its state, the finding, and the command that fixes it."""

    what: str
    state: Literal["ok", "warning", "failed"]
    finding: str
    fix: str | None = None


@click.command()
@local_runs_option
@click.option("--json", "as_json", is_flag=True, help="Print a list of {what, state, finding, fix} as JSON.")
@click.pass_context
def doctor(context: click.Context, runs_dir: Path, *, as_json: bool) -> None:
    """Check this installation: torch, packages, plugins, folders."""
    findings = list(examine(runs_dir))
    if as_json:
        print_json([asdict(finding) for finding in findings])
    else:
        width = max(len(finding.what) for finding in findings)
        for finding in findings:
            state = click.style(f"{finding.state:7}", fg=_COLOURS[finding.state])
            print_line(f"{printable(finding.what):{width}}  {state}  {printable(finding.finding)}")
            if finding.fix is not None:
                print_line(f"  fix it:  {printable(finding.fix)}")
    context.exit(FAILED if any(finding.state == "failed" for finding in findings) else 0)


def examine(runs: Path) -> Iterator[Diagnosis]:
    """Yield a finding for everything that a run with its directory in ``runs`` needs."""
    yield Diagnosis("python", "ok", platform.python_version())
    yield from _torch()
    yield Diagnosis("esper-core", "ok", __version__)
    for package in _NEEDED:
        yield _package(package)
    yield from _plugins()
    yield _runs_folder(runs)


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


def _package(name: str) -> Diagnosis:
    """Check that a package is installed. Loading its plugin shows whether it fits this core."""
    try:
        return Diagnosis(name, "ok", importlib.metadata.version(name))
    except importlib.metadata.PackageNotFoundError:
        return Diagnosis(name, "warning", "not installed; the default run needs it", f"pip install {name}")


def _plugins() -> Iterator[Diagnosis]:
    from esper_core.plugins import load_plugins

    plugins = load_plugins()
    for record in plugins.records:
        if record.status in ("broken", "rejected"):
            message = f"{record.source} is {record.status}: {record.problems[0].message}"
            yield Diagnosis(f"plugin {record.id}", "warning", message, f"esper plugins show {record.id}")
    for problem in plugins.problems:
        if problem.code == "E223":
            yield Diagnosis("metadata", "warning", problem.message, (problem.hint or "").rpartition(":  ")[2] or None)
    if active := sum(record.status == "active" for record in plugins.records):
        yield Diagnosis("plugins", "ok", f"{active} active, with {len(plugins.registry.components())} components")
    else:
        yield Diagnosis("plugins", "warning", "none is active", f"pip install {' '.join(_NEEDED)}")
    if plugins.safe_mode:
        message = "on: only the project's own plugins are loaded"
        yield Diagnosis("safe mode", "warning", message, "unset ESPER_SAFE_MODE")


def _runs_folder(runs: Path) -> Diagnosis:
    """Check that a run directory could be made in ``runs``, without leaving anything behind."""
    place = runs.absolute()
    while not place.exists() and place != place.parent:
        place = place.parent
    if not place.is_dir():
        return Diagnosis("runs folder", "failed", f"{place} is not a folder", "esper run FILE --runs-dir ANOTHER")
    try:
        with tempfile.TemporaryFile(dir=place):
            remark = "" if place == runs.absolute() else ", will be created"
            return Diagnosis("runs folder", "ok", f"{runs}{remark}")
    except OSError as error:
        return Diagnosis("runs folder", "failed", f"{place} cannot be written: {error.strerror}", f"chmod u+w {place}")
