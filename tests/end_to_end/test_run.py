"""``esper run``: what it prints, what it writes, and its exit status."""

from pathlib import Path

import pytest

from esper_core.leyline.events import RunFinished, RunStarted, SeedLost, StageChanged, StepFinished
from tests.end_to_end.conftest import add_plugin


def test_a_run_prints_a_table_and_leaves_everything_that_it_found(run, small):
    ran = run(options=("--name", "first"))
    assert "test accuracy" in ran.answer.out
    assert "no difference shown" in ran.answer.out  # two environments are too few for a verdict
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


def test_json_is_one_object_on_stdout_and_the_same_as_the_summary(run):
    ran = run(options=("--json", "--quiet"))
    told = ran.answer.json
    assert told == ran.json("summary.json")
    assert Path(told["run"]) == ran.path
    assert (told["status"], told["warnings"], ran.answer.err) == ("done", [], "")
    assert told["results"]["metric"] == {"name": "accuracy", "direction": "up", "unit": "%"}
    for arm in ("schedule", "twin"):
        assert set(told["results"]["arms"][arm]["test"]) == {"mean", "ci_low", "ci_high", "n"}
    (comparison,) = told["results"]["comparisons"]
    assert {"a", "b", "difference", "ci_low", "ci_high", "p", "verdict"} <= set(comparison)
    assert told["timing"]["total"] > 0


def test_the_same_seeds_give_the_same_results_and_a_run_directory_can_be_run_again(run):
    first = run(runs="a")
    results = first.json("summary.json")["results"]
    assert run(runs="b", file=first.path).json("summary.json")["results"] == results
    assert run("seed=100", runs="c").json("summary.json")["results"] != results


def test_arms_are_compared_with_each_other_and_the_twin(run, small):
    plan = "[{step: 5, op: germinate, slot: early, blueprint: conv_light}]"
    arms = f"{{never: {{policy: static}}, late: {{policy: {{use: schedule, settings: {{plan: {plan}}}}}}}}}"
    text = small.read_text()
    small.write_text(text[: text.index("policy:")] + f"arms: {arms}\n" + text[text.index("environments:") :])
    told = run().json("summary.json")["results"]
    assert list(told["arms"]) == ["never", "late", "twin"]
    assert [(c["a"], c["b"]) for c in told["comparisons"]] == [("never", "late"), ("never", "twin"), ("late", "twin")]
    assert told["arms"]["never"]["episodes"] == told["arms"]["twin"]["episodes"] == told["arms"]["late"]["episodes"]


def test_without_a_twin_nothing_is_compared_and_the_reward_is_unknown(run):
    out = run("twin=false", options=()).answer.out
    assert "unknown" in out
    assert "against" not in out


@pytest.mark.parametrize(
    ("changes", "code", "said"),
    [
        (["task=stripse"], 2, 'E205 unknown task "stripse"'),
        (["slots.early.blueprints=[conv_lihgt]"], 2, 'E201 unknown blueprint "conv_lihgt"'),
        (["slots.early.blueprints=[mlp]"], 2, 'E305 blueprint "blueprints/mlp" cannot grow in slot "early"'),
        (["slots.early.at=stme"], 2, 'E313 no module of PointwiseMlp is called "stme"'),
        (["slots.erly={blueprints: [conv_light]}"], 2, 'E122 host "tasks/pointwise-mlp" declares no slot'),
        (["policy.settings.plan[0].slot=erly"], 2, "E120"),
        (["policy.settings.plan[0].stepp=1"], 2, "E110"),
        (["host.settings.channels=many"], 2, "E111"),
        (["episode.batch_size=5000"], 2, "E124 a batch of 5000 is larger than the training data"),
        (["device=cuda:77"], 2, 'E123 there is no device "cuda:77"'),
        (["rounds=1000000", "environments=64"], 2, "E114 expected at most 10,000,000 episodes"),
        (["optimizer.host.kind=sgd", "optimizer.host.weight_decay=1e30"], 4, "E402 arm"),
    ],
)
def test_impossible_configurations_are_reported_with_a_code_and_an_exit_status(changes, code, said, esper, run, small):
    ran = run(*changes, code=code)
    assert said in ran.answer.err
    assert "Traceback" not in ran.answer.err
    assert ran.answer.out == ""
    if code == 2:
        assert not ran.runs.exists()
        sets = [part for change in changes for part in ("--set", change)]
        checked = esper("check", small, *sets, "--json")
        assert checked.status == 2
        assert checked.json["ok"] is False
        assert any(said.startswith(problem["code"]) for problem in checked.json["problems"])
    else:
        manifest = ran.json("manifest.json")
        assert (manifest["status"], manifest["exit"]) == ("stopped", 4)


SICK_TASK = """
import torch
from esper_core import TaskSpec, hookimpl
from esper_core.leyline import DataShape, Metric, Split

class Sick:
    metric = Metric("accuracy", "up", "%")
    shape = DataShape("sequence", (1, 16), 4)
    calls = 0

    def split(self, name):
        return Split(torch.randn(40, 1, 16), torch.randint(0, 4, (40,)))

    def losses(self, outputs, targets):
        self.calls += 1
        if self.calls > PATIENCE:
            raise ArithmeticError("out of sums")
        return torch.nn.functional.cross_entropy(outputs, targets, reduction="none")

    def scores(self, outputs, targets):
        return (outputs.argmax(1) == targets).float()

@hookimpl
def esper_register_tasks(registry):
    registry.add("sick", Sick, TaskSpec())
"""


@pytest.mark.parametrize("patience", [20, 23, 27, 31])
def test_a_task_that_raises_stops_the_run_with_its_package_named_and_no_seed_is_blamed(patience, run, small):
    add_plugin(small, SICK_TASK.replace("PATIENCE", str(patience)))
    ran = run("task=own/sick", code=3)
    assert 'E231 task "own/sick" (local file' in ran.answer.err
    assert "raised ArithmeticError when it computed losses: out of sums" in ran.answer.err
    assert ran.events(RunFinished)[-1].status == "failed"
    assert ran.events(SeedLost) == []


def test_a_place_that_cannot_be_written_is_reported(run, tmp_path):
    (tmp_path / "occupied").write_text("")
    answer = run(runs="occupied", code=1).answer
    assert "E410 cannot write" in answer.err
    assert "Traceback" not in answer.err
