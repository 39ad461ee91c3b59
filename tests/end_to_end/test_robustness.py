"""Warnings of a run, runs that are refused, and results that cannot be written."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from esper_core.config import parse_config
from esper_core.leyline import ConfigError

Esper = Callable[..., Any]

LATE = "policy.settings.plan[2].step=99"


def run_directory(runs: Path) -> Path:
    (found,) = runs.iterdir()
    return found


def manifest(runs: Path) -> Any:
    return json.loads((run_directory(runs) / "manifest.json").read_text())


def test_a_run_of_too_many_episodes_is_refused_before_it_begins(esper: Esper, small: Path, tmp_path: Path) -> None:
    sets = ["--set", "rounds=1000000", "--set", "environments=64"]
    assert "E114 expected at most 10,000,000 episodes" in esper("check", small, *sets).err
    answer = esper("run", small, "--runs-dir", tmp_path / "runs", *sets)
    assert (answer.code, (tmp_path / "runs").exists()) == (2, False)


def test_a_run_that_fails_while_it_is_written_down_says_so(
    esper: Esper, small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(value: object) -> str:
        raise MemoryError("no room")

    monkeypatch.setattr("esper_core.app.run.dump_config", full)
    assert esper("run", small, "--runs-dir", tmp_path / "runs").code == 1
    told = manifest(tmp_path / "runs")
    assert (told["status"], told["exit"], told["reason"]) == ("failed", 1, "MemoryError: no room")


@pytest.mark.parametrize("more", [[], ["--quiet"], ["--json"]])
def test_a_warning_reaches_whoever_waits_once_and_the_summary(
    more: list[str], esper: Esper, small: Path, tmp_path: Path
) -> None:
    answer = esper("run", small, "--runs-dir", tmp_path / "runs", "--set", LATE, "--set", "rounds=2", *more)
    said = "arm schedule: not carried out in 2 of 2 episodes: plan[2]: fossilise in early, from step 99"
    assert answer.err.count(f"warning: {said}") == 1
    run = run_directory(tmp_path / "runs")
    (warning,) = json.loads((run / "summary.json").read_text())["warnings"]
    assert warning.startswith(said)
    assert said in (run / "log.txt").read_text()
    if "--json" in more:
        assert answer.json["warnings"] == [warning]


def test_a_sink_that_is_shut_off_is_told_on_stderr(esper: Esper, small: Path, tmp_path: Path) -> None:
    (tmp_path / "leaky.py").write_text(
        "from esper_core import SinkSpec, hookimpl\n"
        "class Leaky:\n"
        "    def __init__(self, run): pass\n"
        "    def hear(self, event): raise ValueError('full')\n"
        "    def settle(self): pass\n"
        "    def close(self): pass\n"
        "@hookimpl\n"
        "def esper_register_sinks(registry):\n"
        "    registry.add('leaky', Leaky, SinkSpec('Leaks.'))\n"
    )
    small.write_text(small.read_text() + "plugins: {local: [./leaky.py]}\nsinks: [leaky]\n")
    answer = esper("run", small, "--runs-dir", tmp_path / "runs", "--quiet")
    assert answer.code == 0, answer.err
    assert answer.err.count("raised ValueError: full; it is shut off for the rest of the run") == 1


def test_no_warning_is_an_empty_list(esper: Esper, small: Path, tmp_path: Path) -> None:
    answer = esper("run", small, "--runs-dir", tmp_path / "runs", "--json", "--quiet")
    assert (answer.json["warnings"], answer.err) == ([], "")


@pytest.mark.parametrize("name", ["..", "a/b", "/tmp/x", "x" * 300, "", "1st", "a\nb"])
def test_a_name_that_is_no_name_is_refused_before_anything_is_loaded(name: str, esper: Esper, tmp_path: Path) -> None:
    answer = esper("run", tmp_path / "missing.yaml", "--runs-dir", tmp_path / "runs", "--name", name)
    assert answer.code == 2
    assert "--name" in answer.err
    assert "expected a letter, then at most 49 letters, digits, - and _; received" in answer.err
    assert "missing.yaml" not in answer.err
    assert not (tmp_path / "runs").exists()


def test_what_the_hint_for_a_missing_policy_offers_is_in_order(esper: Esper, small: Path) -> None:
    text = small.read_text()
    without = text[: text.index("policy:")] + text[text.index("environments:") :]
    with pytest.raises(ConfigError) as caught:
        parse_config(without.encode(), file="f.yaml")
    (problem,) = caught.value.problems
    offered = [one for one in re.findall(r'"([^"]+)"', problem.hint or "") if one.startswith("policy:")]
    assert len(offered) == 2
    for one in offered:
        small.write_text(f"{without}\n{one}\n")
        answer = esper("check", small)
        assert answer.code == 0, answer.err


@pytest.mark.parametrize("as_json", [True, False])
def test_what_was_found_is_printed_even_where_it_cannot_be_written(
    as_json: bool, esper: Esper, small: Path, tmp_path: Path
) -> None:
    (tmp_path / "inway.py").write_text(
        "from esper_core import hookimpl\n@hookimpl\ndef esper_run_started(run): (run.path / 'summary.json').mkdir()\n"
    )
    small.write_text(small.read_text() + "plugins: {local: [./inway.py]}\n")
    answer = esper("run", small, "--runs-dir", tmp_path / "runs", "--quiet", *(["--json"] if as_json else []))
    assert answer.code == 1
    assert "E410 cannot write" in answer.err
    if as_json:
        assert set(answer.json["results"]["arms"]) == {"schedule", "twin"}
    else:
        assert "no difference shown" in answer.out
    assert manifest(tmp_path / "runs")["status"] == "failed"
