"""Build wheels of other folders, and run a package's own tests."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.conftest import CleanEnvironment


@pytest.fixture(scope="session")
def build(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., list[Path]]:
    """``build(folder, …)``: a wheel of each, offline."""

    def make(*folders: Path) -> list[Path]:
        wheels = tmp_path_factory.mktemp("built")
        pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
        _told([*pip, "--wheel-dir", str(wheels), *map(str, folders)])
        return sorted(wheels.glob("*.whl"))

    return make


@pytest.fixture(scope="session")
def own_tests() -> Callable[[CleanEnvironment, Path], str]:
    """``own_tests(environment, folder)``: what pytest of ``environment`` says about the tests in ``folder``."""

    def tested(environment: CleanEnvironment, folder: Path) -> str:
        return _told([environment.python, "-B", "-m", "pytest", "-q", "-p", "no:cacheprovider"], cwd=folder)

    return tested


def _told(command: Iterable[str], *, cwd: Path | None = None) -> str:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYTEST", "ESPER"))}
    done = subprocess.run(list(command), capture_output=True, text=True, check=False, cwd=cwd, env=kept)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
