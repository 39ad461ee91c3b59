"""The studies that the decisions rest on run by their command, as it stands in their pages."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_the_experiment_on_incubation_runs_by_one_command_and_goes_on_where_it_was_stopped(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.science.incubation", "--quick", "--into", str(tmp_path)]
    first = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    assert "forced plain shadow" in first.stderr
    told = json.loads((tmp_path / "results.json").read_text())
    assert told
    assert (tmp_path / "results.md").read_text().startswith("# Which incubation")
    assert (tmp_path / "figure.svg").read_text().startswith("<svg")
    again = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    assert again.stderr.splitlines() == [f"written: {tmp_path / 'results.md'}"]
    assert json.loads((tmp_path / "results.json").read_text()) == told
