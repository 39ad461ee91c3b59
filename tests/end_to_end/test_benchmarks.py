"""The command that runs the benchmarks reports figures, bounds and the baseline; compared sides do equal work."""

import json
import re
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks.perf import __main__ as command
from benchmarks.perf.figures import Figure, read_baseline
from benchmarks.returns import BOUNDS

ROOT = Path(__file__).parents[2]

FIGURES = [Figure("P9", "a share", 9.0, "%", 3.0), Figure("P2", "a ratio", 0.5, "×", 1.1), Figure("P2", "free", -1, "")]


@pytest.fixture
def fake_run(monkeypatch, tmp_path):
    """Replace pytest and the generator of the pages by a report with ``FIGURES``; return the started commands."""
    started = []

    def run(arguments, **options):
        started.append(arguments)
        for argument in arguments:
            if str(argument).startswith("--benchmark-json="):
                tests = [{"extra_info": {"figures": list(map(asdict, FIGURES))}}]
                Path(argument.partition("=")[2]).write_text(json.dumps({"benchmarks": tests}), encoding="utf-8")
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr(command.subprocess, "run", run)
    monkeypatch.setattr(command, "BASELINE", tmp_path / "baseline.json")
    return started


def test_figures_are_printed_with_bound_and_verdict_and_become_the_baseline_of_the_next_run(fake_run, capsys):
    assert command.main(["--write"]) == 1
    assert [arguments[1] for arguments in fake_run] == ["-m", "docs/generate.py"]
    assert read_baseline(command.BASELINE) == {figure.key: figure.value for figure in FIGURES}
    assert capsys.readouterr().err == "over the bound: P9 a share\n"
    command.main([])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["figure", "measured", "baseline", "bound", "verdict"]
    assert lines[1].split() == ["P2", "a", "ratio", "0.50", "×", "0.50", "×", "≤", "1.10", "×", "OK"]
    assert lines[2].split() == ["P2", "free", "−1.00", "−1.00"]
    assert lines[3].split() == ["P9", "a", "share", "9.00", "%", "9.00", "%", "≤", "3.00", "%", "OVER"]


@pytest.mark.install  # CI runs it for every change
def test_the_main_ways_through_the_code_stay_short():
    # In a process of its own: what other tests import and register would be counted, too.
    command_line = [sys.executable, "-m", "benchmarks.returns"]
    printed = subprocess.run(command_line, capture_output=True, text=True, check=True, cwd=ROOT).stdout
    rows = re.findall(r"^(.+?) +\d+ +(\d+) +\d+$", printed, re.MULTILINE)
    measured = {way: int(returns) for way, returns in rows}
    assert measured.keys() == BOUNDS.keys()
    assert {way: count for way, count in measured.items() if count > BOUNDS[way]} == {}
    assert min(measured.values()) > 10, "something was counted"


@pytest.mark.slow
def test_a_benchmark_of_another_machine_runs_in_tiny_sizes():
    command_line = [sys.executable, "-m", "benchmarks.yardsticks", "--quick", "--hosts", "airbench"]
    assert subprocess.run(command_line, capture_output=True, check=True, cwd=ROOT).stdout


@pytest.mark.slow
@pytest.mark.library("transformers", "peft")
@pytest.mark.filterwarnings("ignore")  # of peft, which asks transformers by a name of before
def test_a_gardener_on_a_frozen_transformer_copies_nothing_that_is_frozen():
    from benchmarks import adapters

    memory = [figure for figure in adapters.figures(1) if not figure.label.startswith("step")]  # their times
    assert len(memory) == 5
    assert [figure.key for figure in memory if not figure.is_within_bound] == []


@pytest.mark.slow
@pytest.mark.library("peft")
@pytest.mark.filterwarnings("ignore")
def test_a_set_ends_where_adapters_end_that_are_there_from_the_start():
    from benchmarks import adapters

    loss, parameters, *_ = adapters.set_beside_peft([0])
    assert loss.is_within_bound
    assert parameters.is_within_bound
