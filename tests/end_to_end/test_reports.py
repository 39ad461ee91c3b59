"""Every run leaves a report, however it ended; the report of a killed run is made from its events."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Esper = Callable[..., Any]


def only(runs: Path) -> Path:
    (run,) = runs.iterdir()
    return run


def test_a_run_leaves_its_report(esper: Esper, small: Path, tmp_path: Path) -> None:
    answer = esper("run", small, "--runs-dir", tmp_path / "runs", "--quiet")
    run = only(tmp_path / "runs")
    assert (answer.code, answer.out.splitlines()[-1]) == (0, f"Report: {run / 'report.html'}")
    page = (run / "report.html").read_text(encoding="utf-8")
    assert "against twin: no difference shown" in page
    assert "A verdict needs at least 8 RNG seeds" in page
    assert "early" in page
    again = esper("report", run, "--out", tmp_path / "again.html")
    assert (again.code, again.out) == (0, f"{tmp_path / 'again.html'}\n")
    assert (tmp_path / "again.html").read_text(encoding="utf-8") == page


def test_a_failed_run_leaves_its_report(esper: Esper, small: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text(
        "from esper_core import RewardSpec, hookimpl\n"
        "class Bad:\n"
        "    def score(self, *a, **k): raise ValueError('no idea')\n"
        "@hookimpl\n"
        "def esper_register_rewards(registry): registry.add('bad', lambda **k: Bad(), RewardSpec(''))\n"
    )
    small.write_text(small.read_text() + "plugins: {local: [./bad.py]}\nreward: bad\n")
    assert esper("run", small, "--runs-dir", tmp_path / "runs", "--quiet").code == 3
    run = only(tmp_path / "runs")
    page = (run / "report.html").read_text(encoding="utf-8")
    assert "The run failed." in page
    assert "no idea" in page


def test_a_killed_run_has_a_report(esper: Esper, small: Path, tmp_path: Path) -> None:
    assert esper("run", small, "--runs-dir", tmp_path / "runs", "--quiet").code == 0
    run = only(tmp_path / "runs")
    lines = (run / "events.jsonl").read_text().splitlines(keepends=True)
    (run / "events.jsonl").write_text("".join(lines[: len(lines) // 2]) + '{"type": "step-fin')
    (run / "summary.json").unlink()
    manifest = json.loads((run / "manifest.json").read_text())
    (run / "manifest.json").write_text(json.dumps({**manifest, "status": "running", "finished": None}))
    assert esper("report", run).code == 0
    page = (run / "report.html").read_text(encoding="utf-8")
    assert "there is no verdict before the end" in page
    assert "validation accuracy" in page.lower()


@pytest.mark.parametrize(("given", "code"), [("nothing", "E420"), (".", "E420")])
def test_a_folder_that_is_not_a_run_is_an_error(given: str, code: str, esper: Esper, tmp_path: Path) -> None:
    answer = esper("report", tmp_path / given)
    assert (answer.code, code in answer.err) == (1, True)
