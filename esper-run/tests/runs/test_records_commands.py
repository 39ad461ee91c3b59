"""``esper runs``: what it prints, in narrow terminals and as JSON."""

import json
import re
import sys

import pytest

from esper_core.leyline import Cause, Finding, Lack, Metric, Opinion, Reason, Stage
from esper_core.leyline.events import RunStarted
from esper_core.telemetry.event_log import encode
from esper_run.runs.directory import run_lock
from tests.support.run_folders import BETTER, NOISE, stage_changed, step_finished

OTTER, HERON = "20261121-101512-quiet-otter", "20261121-113002-swift-heron"
CLEAR = "\x1b[2J"


@pytest.fixture
def narrow(terminal, monkeypatch):
    """``narrow(40)``: print to a terminal with so many columns, without colours, from then on."""

    def show(columns):
        monkeypatch.setenv("COLUMNS", str(columns))
        monkeypatch.setenv("NO_COLOR", "1")
        for name in ("stdout", "stderr"):
            monkeypatch.setattr(sys, name, terminal)
        return terminal

    return show


def test_the_list_has_a_line_for_each_run_newest_first_and_then_each_other_folder(esper_runs, write_run):
    runs = write_run(OTTER, {"grown": BETTER, "twin": NOISE}).parent
    write_run("killed", status="running", finished=None, started="2026-11-21T05:00:00-05:00")
    write_run("failed", status="failed", reason="E232 x\nat length", started="2026-11-21T09:00:00+00:00")
    (runs / "notes").mkdir()
    (runs / "a.txt").write_text("a file is passed over")
    (runs / "cut").mkdir()
    (runs / "cut" / "manifest.json").write_text("{")
    answer = esper_runs("list")
    assert (answer.status, answer.err) == (0, "")
    head, *lines = answer.out.splitlines()
    assert head.split() == ["run", "status", "began", "took", "test"]
    cells = [[cell.strip() for cell in line.split("  ") if cell] for line in lines]
    status = {OTTER: "done", "killed": "died", "failed": "failed", "cut": "unreadable", "notes": "no run"}
    assert [tuple(row[:2]) for row in cells] == list(status.items())
    for text in ("accuracy: grown 51.0 %, twin 30.6 %", "E232 x\n", "has no manifest.json"):
        assert text in answer.out
    done, _, failed, cut, odd = esper_runs("list", "--json").json
    assert (done["id"], done["status"], done["seconds"], done["arms"]["twin"]["n"]) == (OTTER, "done", 10.0, 8)
    assert (failed["arms"], failed["metric"], failed["seconds"]) == ({}, None, 4632.0)
    assert (cut["status"], odd["id"], odd["status"]) == ("unreadable", "notes", "no run")
    assert odd["problem"]["code"] == "E420"


def test_the_list_of_an_empty_and_of_a_missing_folder(esper, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert esper("runs", "list").out == "There is no run in runs.\n"
    gone = esper("runs", "list", "--runs-dir", tmp_path / "gone")
    assert (gone.status, gone.out) == (1, "")
    assert "E420 there is no folder" in gone.err


def test_show_prints_status_results_grown_blueprints_and_times(write_run, esper_runs):
    path = write_run(OTTER, {"grown": BETTER, "twin": NOISE}, git={"sha": "0123456789abcdef", "dirty": True})
    conv, mlp = ({"blueprint": name, "slot": "early"} for name in ("conv", "mlp"))
    grown = [{"arm": "grown", "seed": seed, "grown": [conv] if seed else [conv, mlp]} for seed in range(4)]
    (path / "growth.json").write_text(json.dumps({"episodes": [*grown, {"arm": "twin", "seed": 0, "grown": []}]}))
    out = esper_runs("show", OTTER).out
    assert out.startswith(f"{path}\n  status   done, exit 0\n")
    for line in (
        "  took     10 s",
        "  seeds    RNG seeds 0 to 7",
        "  git      0123456789ab, changed",
        "  plugins  esper-tasks 0.1.0",
        "grown  twin     +20.4 points  +20.1 to +20.6  8  0.0078  0.0078  better",
        "grown grew on average: 1 × conv in early, 0.25 × mlp in early",
        "twin grew on average: nothing",
        "time: 10 s, of which train 80 %, reset 10 %",
    ):
        assert f"\n{line}\n" in out, line
    shown = esper_runs("show", OTTER, "--json").json
    assert shown["grown"]["grown"] == {"conv in early": 1.0, "mlp in early": 0.25}
    assert shown["summary"]["results"]["arms"].keys() == {"grown", "twin"}
    assert shown["manifest"]["id"] == OTTER


@pytest.mark.parametrize("status", ["running", "interrupted", "done", "failed"])
def test_show_says_how_to_resume_a_run_that_is_not_done(write_run, status, esper_runs):
    path = write_run(f"{OTTER} two", status=status)
    hint = "" if status == "done" else f"Resume it:  esper resume '{path}'\n"
    assert esper_runs("show", path).out.endswith(f"\nThere are no results.\n{hint}")
    with run_lock(path):
        assert esper_runs("show", path).out.endswith("\nThere are no results yet.\n") is (status == "running")


def test_several_comparisons_of_a_run_are_printed_as_a_table(write_run, esper_runs):
    arms = dict.fromkeys(("a", "b", "c", "d"), NOISE) | {"e": BETTER}
    write_run(OTTER, arms)
    out = esper_runs("show", OTTER).out
    assert "\n   against  by            95 % interval" in out
    row = "\nd  e        -20.4 points  -20.6 to -20.1  8  0.0078  0.078  no difference shown\n"
    assert row.replace("-", "\N{MINUS SIGN}") in out
    assert "\nWith 10 comparisons a verdict needs 9 networks of each arm.\n" in out


@pytest.mark.parametrize("control", ["capacity", "capacity-of-a"])
def test_a_comparison_with_the_static_control_says_that_neither_side_is_tuned(write_run, control, esper_runs):
    write_run(OTTER, {"a": NOISE, control: BETTER})
    assert "Neither side of that comparison is tuned." in " ".join(esper_runs("show", OTTER).out.split())
    write_run(HERON, {"a": NOISE, "twin": BETTER})
    assert "tuned" not in esper_runs("show", HERON).out


def test_show_says_that_there_are_too_few_seeds_and_that_less_is_better(write_run, esper_runs):
    write_run(OTTER, {"a": NOISE[:3], "b": BETTER[:3]}, metric=Metric("loss", "down"))
    out = esper_runs("show", OTTER).out
    assert "\nA verdict needs 8 networks of each arm; there are 3.\n" in out
    assert "\narm  test loss, less is better  95 % interval" in out


def test_a_summary_without_adjusted_p_is_shown(write_run, esper_runs):
    path = write_run(OTTER, {"a": NOISE, "b": BETTER, "c": NOISE})
    summary = json.loads((path / "summary.json").read_text())
    keys = ("a", "b", "difference", "ci_low", "ci_high", "p", "n", "verdict")
    results = summary["results"]
    results["comparisons"] = [{key: comparison[key] for key in keys} for comparison in results["comparisons"]]
    (path / "summary.json").write_text(json.dumps(summary))
    assert "unknown  no difference shown" in esper_runs("show", OTTER).out


@pytest.mark.parametrize("command", [["list"], ["show", OTTER]])
@pytest.mark.parametrize("width", [30, 80])
def test_control_characters_of_a_run_do_not_reach_any_terminal(esper_runs, write_run, narrow, command, width):
    arms = {f"grown{CLEAR}": BETTER, "twin": NOISE}
    write_run(OTTER, arms, argv=["esper", CLEAR], reason=CLEAR, git={"sha": CLEAR})
    write_run("failed", status=CLEAR, reason=CLEAR)
    path = write_run(f"a{CLEAR}", {"a": BETTER, "b": NOISE})
    shown = narrow(width)
    assert [esper_runs(*command).status, esper_runs("show", path).status] == [0, 0]
    assert CLEAR not in shown.getvalue()
    assert "twin" in shown.getvalue()


def test_show_seeds_says_why_a_seed_was_not_kept(write_run, esper_runs, narrow):
    path = write_run(OTTER, {"grown": BETTER, "twin": NOISE})
    (path / "events.jsonl").touch()
    summary = json.loads((path / "summary.json").read_text())
    (path / "summary.json").write_text(json.dumps({**summary, "warnings": ["8 steps are too few"]}))
    assert esper_runs("show", OTTER, "--seeds").out == "No seed germinated.\nwarning: 8 steps are too few\n"
    opinion = Opinion(Finding.UNKNOWN, Lack.FINITE, price=0.75)
    started = {"run": OTTER, "arms": ("grown",), "rounds": 1, "environments": 1, "steps": 2}
    events = [
        RunStarted(**started, gains_in="accuracy"),
        stage_changed(1, None, Stage.GERMINATED),
        step_finished(1, gain=0.5, opinion=opinion),
        stage_changed(1, Stage.TRAINING, Stage.PRUNED, reason=Reason(Cause.POLICY, "", "blending", opinion)),
    ]
    (path / "events.jsonl").write_text("".join(f"{encode(event)}\n" for event in events))
    head, line = esper_runs("show", OTTER, "--seeds").out.splitlines()
    assert "gain ± s.e. (accuracy)" in head
    cells = ["0", "grown", "0", "early", "test/conv", "pruned", "+0.5000 ± 0.0500", "0.7500", str(events[-1].reason)]
    assert re.split(r"  +", line) == cells
    (row,) = esper_runs("show", OTTER, "--seeds", "--json").json
    assert (row["stage"], row["gain"], row["price"]) == ("pruned", 0.5, 0.75)
    shown = narrow(60)
    esper_runs("show", OTTER, "--seeds")
    assert shown.getvalue().splitlines() == [
        "network 0 of grown: test/conv in early pruned, gain",
        "  +0.5000 ± 0.0500 accuracy, price 0.7500",
        "  by the policy; gate before blending: a loss is not finite",
    ]
