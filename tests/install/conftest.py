"""Build wheels of other folders, and run a package's own tests."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import CleanEnvironment, build_wheels, run


@pytest.fixture(scope="session")
def build(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., list[Path]]:
    """``build(folder, …)``: build a wheel of each, offline."""
    return lambda *folders: build_wheels(folders, tmp_path_factory.mktemp("built"))


@pytest.fixture(scope="session")
def own_tests() -> Callable[[CleanEnvironment, Path], str]:
    """``own_tests(environment, folder)``: run pytest of ``environment`` on ``folder``; return its output."""

    def tested(environment: CleanEnvironment, folder: Path) -> str:
        command = [environment.python, "-B", "-m", "pytest", "-q", "-p", "no:cacheprovider"]
        return run(command, cwd=folder).stdout

    return tested
