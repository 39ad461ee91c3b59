"""Plugins that are installed for a test, and a run that takes a moment."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from esper_core.app.compose import prepare

SMALL = """\
task: stripes
host: pointwise-mlp
slots:
  early: {blueprints: [conv_light]}
policy:
  use: schedule
  settings:
    plan:
      - {step: 0, op: germinate, slot: early, blueprint: conv_light, speed: 2}
environments: 2
episode: {steps: 3, batches: 1, batch_size: 20}
"""

Install = Callable[..., Path]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """``install("extra", source)``: a package esper-extra 1.0 that brings this plugin, as pip would leave it."""
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.delenv("ESPER_SAFE_MODE", raising=False)
    before = set(sys.modules)

    def write(id_: str, source: str) -> Path:
        path = site / f"esper_{id_.replace('-', '_')}.py"
        path.write_text(dedent(source).lstrip("\n"))
        metadata = site / f"{path.stem}-1.0.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: esper-{id_}\nVersion: 1.0\n")
        (metadata / "entry_points.txt").write_text(f"[esper.plugins]\n{id_} = {path.stem}\n")
        return path

    yield write
    for name in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


@pytest.fixture
def configured(tmp_path: Path) -> Callable[[str], Path]:
    """``configured("plugins: …")``: the file of the small run with these lines at its end, line 12 and on."""

    def write(more: str = "") -> Path:
        file = tmp_path / "small.yaml"
        file.write_text(SMALL + dedent(more))
        return file

    return write


@pytest.fixture
def run_small(configured: Callable[[str], Path], tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """``run_small(plugins: …)``: runs it, and gives summary.json and manifest.json."""

    def run(more: str = "") -> dict[str, Any]:
        from esper_core.app.run import run as run_prepared

        outcome = run_prepared(prepare(configured(more)), runs_dir=tmp_path / "runs")
        told = {name: json.loads((outcome.path / f"{name}.json").read_text()) for name in ("summary", "manifest")}
        return {**told, "path": outcome.path}

    return run
