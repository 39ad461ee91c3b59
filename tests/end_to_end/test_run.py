"""``esper run``: what it prints and writes, its controls and its report, warnings and exit statuses."""

import re
from pathlib import Path

import pytest

from esper_core.leyline import RunFolderError
from esper_core.leyline.events import EpisodeFinished, RunFinished, RunStarted, SeedLost, StageChanged, StepFinished
from esper_run.app.compose import prepare
from esper_run.app.run import resume
from esper_run.runs.records import read_run
from tests.end_to_end.conftest import add_plugin
from tests.support.configurations import GROWING, problem_in
from tests.support.core_worlds import slow
from tests.support.hostile_plugin import plugin

POLICY = GROWING[GROWING.index("policy:") : GROWING.index("environments:")]

NOTHING_PAYS = """policy: heuristic
growth: {gates: "off", price: 10.0}
environments: 2
episode: {steps: 15, batches: 4, batch_size: 50}
"""


def test_a_run_prints_a_table_and_leaves_a_report_and_everything_that_it_found(esper, run, small, tmp_path):
    ran = run(options=("--name", "first"))
    assert "test accuracy" in ran.answer.out
    assert "no difference shown" in ran.answer.out  # two environments are too few for a verdict
    assert re.search(r"Test accuracy: schedule \d.*, twin \d.* Load one with esper_grow\.load_best", ran.answer.out)
    assert ran.path.name.endswith("-first")
    written = "manifest.json config.yaml config.source.yaml packages.txt events.jsonl growth.json summary.json log.txt"
    assert {file.name for file in ran.path.iterdir()} >= set(written.split())
    manifest = ran.json("manifest.json")
    assert (manifest["status"], manifest["exit"], manifest["seeds"]) == ("done", 0, {"first": 0, "count": 2})
    assert {plugin["id"] for plugin in manifest["plugins"]} >= {"blueprints", "policies", "rewards", "tasks"}
    assert ran.text("config.source.yaml") == small.read_text()
    assert isinstance(ran.events()[0], RunStarted)
    assert ran.events()[-1] == RunFinished(status="done")
    assert len(ran.events(StepFinished)) == 8 * 2 * 2
    assert len(ran.events(StageChanged)) == 5 * 2
    grown = {episode["arm"]: episode["grown"] for episode in ran.json("growth.json")["episodes"]}
    assert grown["twin"] == []
    (fossil,) = grown["schedule"]
    assert (fossil["slot"], fossil["at"], fossil["blueprint"]) == ("early", "stem", "blueprints/conv_light")
    assert (fossil["born"], fossil["kept"], fossil["blend"], fossil["parameters"]) == (0, 6, "add", 656)
    assert f"Report: {ran.path / 'report.html'}" in ran.answer.out.splitlines()
    page = ran.text("report.html")
    assert "against twin: no difference shown" in page
    assert "A verdict needs 8 networks of each arm" in page
    assert "early" in page
    again = esper("report", ran.path, "--out", tmp_path / "again.html")
    assert (again.status, again.out) == (0, f"{tmp_path / 'again.html'}\n")
    assert (tmp_path / "again.html").read_text(encoding="utf-8") == page


def test_json_is_one_object_on_stdout_the_same_as_the_summary_and_read_by_other_commands(esper, run, tmp_path):
    ran = run(options=("--json", "--quiet", "--name", "first"))
    summary = ran.answer.json
    assert summary == ran.json("summary.json")
    assert Path(summary["run"]) == ran.path
    assert (summary["status"], summary["warnings"], ran.answer.err) == ("done", [], "")
    assert summary["results"]["metric"] == {"name": "accuracy", "direction": "up", "unit": "%"}
    for arm in ("schedule", "twin"):
        assert set(summary["results"]["arms"][arm]["test"]) == {"mean", "ci_low", "ci_high", "n"}
    (comparison,) = summary["results"]["comparisons"]
    assert {"a", "b", "difference", "ci_low", "ci_high", "p", "verdict"} <= set(comparison)
    assert summary["timing"]["total"] > 0
    runs = ("--runs-dir", tmp_path / "runs")
    (listed,) = esper("runs", "list", *runs, "--json").json
    assert (listed["status"], listed["path"]) == ("done", summary["run"])
    shown = esper("runs", "show", "first", *runs, "--json").json
    assert shown["summary"] == summary
    assert shown["grown"] == {"schedule": {"blueprints/conv_light in early": 1.0}, "twin": {}}
    compared = esper("compare", "first", *runs, "--json").json
    assert compared["warnings"] == []
    assert compared["comparisons"][0].items() >= comparison.items()
    why = "no difference shown, because a verdict needs 8 networks of each arm"
    assert why in esper("compare", ran.path, *runs).out
    # Another process that had begun to resume it, and waited, finds it finished.
    before = {file.name: file.read_bytes() for file in ran.path.iterdir() if file.is_file() and file.name != ".lock"}
    with pytest.raises(RunFolderError, match="just finished by another process"):
        resume(prepare(ran.path / "config.yaml"), read_run(ran.path))
    assert {name: (ran.path / name).read_bytes() for name in before} == before


@pytest.mark.install  # CI runs it for every change
def test_what_the_policy_concluded_is_in_the_events_the_summary_and_the_report(run, small):
    small.write_text(GROWING[: GROWING.index("policy:")] + NOTHING_PAYS)
    ran = run()
    concluded = "nothing pays: all candidates were tried"
    by_arm = {episode.arm: episode.conclusion for episode in ran.events(EpisodeFinished)}
    assert by_arm == {"heuristic": concluded, "twin": ""}
    assert ran.json("summary.json")["results"]["arms"]["heuristic"]["conclusions"] == {concluded: 2}
    sentence = f"heuristic, in 2 of 2 networks: {concluded}."
    assert sentence in ran.answer.out
    assert sentence in ran.text("report.html")
    assert all(episode.alone == "" for episode in ran.events(EpisodeFinished))
    assert "Trained 4 networks as one program" in ran.answer.out
    assert "Trained 4 networks as one program" in ran.text("report.html")


@pytest.mark.parametrize(
    ("changes", "code", "message"),
    [
        (["task=stripse"], 2, 'E205 unknown task "stripse"'),
        (["slots.early.blueprints=[mlp]"], 2, 'E305 blueprint "blueprints/mlp" cannot grow in slot "early"'),
        (["policy.settings.plan[0].slot=erly"], 2, "E120"),
        (["policy=static", "policy.settings.plan=[]"], 2, 'E121 policy "policies/static" has no settings'),
        (["episode.batch_size=5000"], 2, "E124 a batch of 5000 is larger than the training data"),
        (["optimizer.host.kind=sgd", "optimizer.host.weight_decay=1e30"], 4, "E402 arm"),
    ],
)
def test_impossible_configurations_are_reported_with_code_and_exit_status(changes, code, message, esper, run, small):
    ran = run(*changes, code=code)
    assert message in ran.answer.err
    assert "Traceback" not in ran.answer.err
    assert ran.answer.out == ""
    if code == 2:
        assert not ran.runs.exists()
        sets = [part for change in changes for part in ("--set", change)]
        checked = esper("check", small, *sets, "--json")
        assert checked.status == 2
        assert checked.json["ok"] is False
        assert any(message.startswith(problem["code"]) for problem in checked.json["problems"])
    else:
        manifest = ran.json("manifest.json")
        assert (manifest["status"], manifest["exit"]) == ("stopped", 4)


RAISES = """\
self.calls = getattr(self, "calls", 0) + 1
if self.calls > PATIENCE:
    raise ArithmeticError("out of sums")
"""


@pytest.mark.parametrize("patience", [18, slow(21), slow(25), 29])
def test_a_task_that_raises_stops_the_run_with_its_package_named_and_no_seed_is_blamed(patience, run, small):
    add_plugin(small, plugin({"losses": RAISES.replace("PATIENCE", str(patience))}))
    ran = run("task=own/task", code=3)
    assert 'E231 task "own/task" (local file' in ran.answer.err
    assert "raised ArithmeticError when it computed losses: out of sums" in ran.answer.err
    assert ran.events(RunFinished)[-1].status == "failed"
    assert ran.events(SeedLost) == []
    page = ran.text("report.html")
    assert "The run failed." in page
    assert "out of sums" in page


def test_a_run_that_fails_while_results_are_written_says_so(run, monkeypatch):
    def full(value: object) -> str:
        raise MemoryError("no room")

    monkeypatch.setattr("esper_run.app.run.dump_config", full)
    manifest = run(options=(), code=1).json("manifest.json")
    assert (manifest["status"], manifest["exit"], manifest["reason"]) == ("failed", 1, "MemoryError: no room")


def test_a_warning_is_passed_on_once_and_is_in_the_summary(run):
    ran = run("policy.settings.plan[2].step=99", "rounds=2", options=["--json"])
    message = "arm schedule: not carried out in 2 of 2 episodes: plan[2]: fossilise in early, from step 99"
    assert ran.answer.err.count(f"warning: {message}") == 1
    (warning,) = ran.json("summary.json")["warnings"]
    assert warning.startswith(message)
    assert message in ran.text("log.txt")
    assert ran.answer.json["warnings"] == [warning]


@pytest.mark.parametrize("name", ["..", "x" * 300, "a\nb"])
def test_an_invalid_name_is_refused_before_anything_runs(name, run):
    ran = run(options=("--name", name), code=2)
    assert "Input should be a letter, then at most 49 letters, digits, - and _; received " in ran.answer.err
    assert "--set name" in ran.answer.err
    assert not ran.runs.exists()


def test_the_configuration_in_the_hint_for_a_missing_policy_is_valid(esper, small):
    without = GROWING.replace(POLICY, "")
    offered = re.findall(r'"(policy:[^"]+)"', problem_in(without).hint or "")
    assert len(offered) == 2
    for configuration in offered:
        small.write_text(f"{without}\n{configuration}\n")
        answer = esper("check", small)
        assert answer.status == 0, answer.err


@pytest.mark.parametrize("as_json", [True, slow(False)])
def test_results_are_printed_even_if_they_cannot_be_written(as_json, run, small):
    in_the_way = "def esper_run_started(run): (run.path / 'summary.json').mkdir()"
    add_plugin(small, f"from esper_core import hookimpl\n@hookimpl\n{in_the_way}\n")
    ran = run(options=("--json", "--quiet") if as_json else ("--quiet",), code=1)
    assert "E410 cannot write" in ran.answer.err
    if as_json:
        assert set(ran.answer.json["results"]["arms"]) == {"schedule", "twin"}
    else:
        assert "no difference shown" in ran.answer.out
    assert ran.json("manifest.json")["status"] == "failed"


ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("file", "arms"),
    [
        ("plugins.yaml", ["heuristic", "twin", "capacity"]),
        ("examples/study.yaml", ["heuristic", "random", "twin", "capacity-of-heuristic", "capacity-of-random"]),
    ],
)
def test_run_15_the_default_run_and_a_study_include_their_controls(file, arms, esper):
    assert esper("check", ROOT / file, "--json").json["arms"] == arms


@pytest.mark.slow
def test_run_15_results_include_their_controls(run):
    ran = run("capacity=true")
    rows = [line.split()[0] for line in ran.answer.out.splitlines() if line.strip()]
    assert rows[1:4] == ["schedule", "twin", "capacity"]
    results = ran.json("summary.json")["results"]
    arms = results["arms"]
    assert arms["capacity"]["params"] == arms["schedule"]["params"] > arms["twin"]["params"]
    assert arms["capacity"]["reward"] is None, "nobody was beside it to be better than"
    assert run(file=ran.path, runs="again").json("summary.json")["results"] == results


def test_there_is_no_static_control_without_growth_or_of_frozen_blocks_which_would_do_nothing(esper, run, small):
    planned = ("check", small, "--json", "--set", "capacity=true")
    assert esper(*planned).json["arms"] == ["schedule", "twin", "capacity"]
    assert esper(*planned, "--set", "growth.freeze_fossils=true").json["arms"] == ["schedule", "twin"]
    small.write_text(GROWING.replace(POLICY, "policy: static\n"))
    assert list(run("capacity=true").json("summary.json")["results"]["arms"]) == ["static", "twin"]
