"""Run directories that were written without a run, and the commands that read them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.run_folders import write_run

__all__ = ["write_run"]


@pytest.fixture
def esper_runs(esper: Callable[..., Any], tmp_path: Path) -> Callable[..., Any]:
    """``esper_runs("list")``: call ``esper runs`` on the folder of ``write_run``, and return its answer."""
    return lambda *arguments: esper("runs", *arguments, "--runs-dir", tmp_path / "runs")
