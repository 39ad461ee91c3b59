"""A small run that takes a fraction of a second."""

import json
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from esper_run.app.compose import prepare

SMALL = """\
task: stripes
host: pointwise-mlp
slots: {early: {blueprints: [conv_light]}}
policy:
  use: schedule
  settings:
    plan:
      - {step: 0, op: germinate, slot: early, blueprint: conv_light, speed: 2}
environments: 2
growth: {gates: "off"}
episode: {steps: 3, batches: 1, batch_size: 20}
"""


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs do not record the installed packages, which takes longer than the small run itself."""
    monkeypatch.setattr("esper_run.runs.directory.installed_packages", list)
    monkeypatch.setattr("esper_run.runs.directory.git_state", lambda path: (None, ""))


@pytest.fixture
def configured(tmp_path: Path) -> Callable[[str], Path]:
    """``configured("plugins: …")``: the file of the small run with these lines appended, from line 12 on."""

    def write(more: str = "") -> Path:
        file = tmp_path / "small.yaml"
        file.write_text(SMALL + dedent(more))
        return file

    return write


@pytest.fixture
def run_file(tmp_path: Path) -> Callable[..., Path]:
    """``run_file(file, override, …)``: run it, and return the run directory."""

    def run(file: Path, *overrides: str) -> Path:
        from esper_run.app.run import run as run_prepared

        return run_prepared(prepare(file, overrides), runs_dir=tmp_path / "runs").path

    return run


@pytest.fixture
def run_small(configured: Callable[[str], Path], run_file: Callable[..., Path]) -> Callable[..., dict[str, Any]]:
    """``run_small(plugins: …)``: run it, and return summary.json and manifest.json."""

    def run(more: str = "") -> dict[str, Any]:
        path = run_file(configured(more))
        documents = {name: json.loads((path / f"{name}.json").read_text()) for name in ("summary", "manifest")}
        return {**documents, "path": path}

    return run
