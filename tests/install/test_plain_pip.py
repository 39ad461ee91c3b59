"""The set-up without make in CONTRIBUTING.md works: its lines are run as written."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conftest import CleanEnvironment

ROOT = Path(__file__).parents[2]
TAKES = ("constraints.txt", "plugins.yaml", "README.md", "LICENSE")
SMALL = "--set environments=1 --set episode.steps=4 --set episode.batches=1 --quiet"

pytestmark = [pytest.mark.install, pytest.mark.slow]


def told() -> tuple[str, str]:
    """Return the line that installs and the line that runs."""
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    ((install, run),) = re.findall(r"^```sh\n(pip install .*)\n(esper run .*)\n```$", page, flags=re.MULTILINE)
    return install, run


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A fresh checkout of the project, without generated files."""
    folder = tmp_path / "esper"
    left_out = shutil.ignore_patterns("__pycache__", ".*_cache", "build", "dist", "tests")
    for member in ROOT.glob("esper-*/pyproject.toml"):
        shutil.copytree(member.parent, folder / member.parent.name, ignore=left_out)
    for name in TAKES:
        shutil.copy(ROOT / name, folder)
    return folder


def on_a_shell(command: str, environment: CleanEnvironment, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a line in a shell with ``environment`` active, without a package index."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYTEST", "ESPER"))}
    path = f"{environment.folder / 'bin'}{os.pathsep}{kept['PATH']}"
    offline = {"PIP_NO_INDEX": "1", "PIP_NO_BUILD_ISOLATION": "0", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    settings = {**kept, **offline, "PATH": path, "VIRTUAL_ENV": str(environment.folder)}
    return subprocess.run(command, shell=True, capture_output=True, text=True, check=False, cwd=folder, env=settings)


def test_every_member_is_in_the_line_and_nothing_else() -> None:
    install, _ = told()
    members = sorted(path.parent.name for path in ROOT.glob("esper-*/pyproject.toml"))
    assert sorted(re.findall(r" -e (\S+)", install)) == members
    assert re.sub(r" -e \S+", "", install) == "pip install -c constraints.txt"


def test_the_commands_of_the_readme_install_and_run(
    checkout: Path, new_environment: Callable[..., CleanEnvironment]
) -> None:
    install, run = told()
    environment = new_environment()
    pip = environment.folder / "bin" / "pip"
    pip.write_text(f'#!/bin/sh\nexec {environment.python} -m pip "$@"\n')
    pip.chmod(0o755)
    installed = on_a_shell(install, environment, checkout)
    assert installed.returncode == 0, installed.stdout + installed.stderr
    where = environment.evaluate("import esper_core, esper_watch; print(esper_core.__file__, esper_watch.__file__)")
    assert where.count(f"{checkout}/") == 2
    ran = on_a_shell(f"{run} {SMALL}", environment, checkout)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    (report,) = checkout.glob("runs/*/report.html")
    assert f"Report: {report.relative_to(checkout)}" in ran.stdout
