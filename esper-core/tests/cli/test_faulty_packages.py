"""Installed packages whose components do not do what they declare, before a run and during it.

Before a run, each blueprint that a file chooses is tried, and one whose specification is wrong is refused with its
package named. During a run, a blueprint that fails loses its seed; a reward, policy or task that raises ends the run.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from esper_core.leyline import Stage
from esper_core.leyline.events import RunFinished, SeedLost, StageChanged, StepFinished
from esper_core.telemetry import read_events

pytestmark = pytest.mark.members

CONFIG = """\
task: stripes
host: pointwise-mlp
slots:
  early: {blueprints: [liar]}
policy:
  use: schedule
  settings:
    plan:
      - {step: 0, op: germinate, slot: early, blueprint: liar, speed: 1}
      - {step: 1, op: germinate, slot: early, blueprint: liar, speed: 1}
      - {step: 2, op: germinate, slot: early, blueprint: liar, speed: 1}
      - {step: 3, op: germinate, slot: early, blueprint: liar, speed: 1}
environments: 1
capacity: false
growth: {embargo: 0}
episode: {steps: 12, batches: 2, batch_size: 20}
"""

PLUGIN = """
import math
import torch
from torch import nn
from esper_core import BlueprintSpec, hookimpl

class Honest(nn.Module):
    passes = 0
    def __init__(self, site):
        super().__init__()
        self.first = nn.Conv1d(site.channels, site.channels, 1)
        self.last = nn.Conv1d(site.channels, site.channels, 1)
        nn.init.zeros_(self.last.weight)
        nn.init.zeros_(self.last.bias)
    def forward(self, hidden):
        return hidden + self.last(torch.relu(self.first(hidden)))

class Bent(torch.autograd.Function):
    @staticmethod
    def forward(context, hidden):
        return hidden.clone()
    @staticmethod
    def backward(context, gradient):
        return gradient * math.nan

class Liar(Honest):
%s

@hookimpl
def esper_register_blueprints(registry):
    registry.add("liar", Liar, BlueprintSpec("sequence", "%s", starts_as_identity=True))
"""

FORWARD = """\
    def forward(self, hidden):
        return {}
"""
HONEST = "2*c*c + 2*c"


@pytest.fixture
def lie(site_packages: Any, tmp_path: Path) -> Callable[..., Path]:
    """``lie(body)``: installs esper-liars 1.0, whose blueprint has this body; the file that chooses it."""

    def install(body: str, params: str = HONEST) -> Path:
        site_packages.plugin("esper-liars", PLUGIN % (body, params), id="liars")
        file = tmp_path / "liars.yaml"
        file.write_text(CONFIG)
        return file

    return install


BUILD = """\
    def __init__(self, site):
        super().__init__(site)
        {}
"""

WHO = 'blueprint "liars/liar" (esper-liars 1.0)'

LIES = {
    "another shape": (
        FORWARD.format("super().forward(hidden)[..., 1:]"),
        f"E323 {WHO} puts out the shape (4, 8, 15) for (4, 8, 16)\n  WHERE\n",
    ),
    "another dtype": (
        FORWARD.format("super().forward(hidden).double()"),
        f"E323 {WHO} puts out torch.float64 on cpu for torch.float32 on cpu\n  WHERE\n"
        "  Make tensors like the input: new_zeros, zeros_like.\n",
    ),
    "two tensors": (
        FORWARD.format("(hidden, hidden)"),
        f"E323 {WHO} puts out a tuple, not a tensor\n  WHERE\n",
    ),
    "no numbers": (
        FORWARD.format("super().forward(hidden) * math.nan"),
        f"E324 {WHO} puts out numbers that are not finite for ordinary inputs\n  WHERE\n",
    ),
    "no gradient that is a number": (
        FORWARD.format("Bent.apply(super().forward(hidden))"),
        f"E324 {WHO} has a gradient that is not finite: first.weight\n  WHERE\n",
    ),
    "no identity": (
        BUILD.format("nn.init.ones_(self.last.bias)"),
        f"E326 {WHO} says it starts as the identity, and is off by up to 1\n  WHERE\n"
        "  Zero the last layer at birth, or do not claim starts_as_identity.\n",
    ),
    "no identity in evaluation": (
        FORWARD.format("super().forward(hidden) + (0.0 if self.training else 1.0)"),
        f"E326 {WHO} says it starts as the identity, and is off by up to 1\n  WHERE\n"
        "  Zero the last layer at birth, or do not claim starts_as_identity.\n",
    ),
    "a dead gradient": (
        FORWARD.format("hidden + torch.relu(self.last(torch.relu(self.first(hidden))))"),
        f"E327 {WHO} has parameters that no gradient reaches in two steps: "
        "first.weight, first.bias, last.weight, last.bias\n  WHERE\n"
        "  Zero only the last layer at birth, with no normalisation or ReLU behind it.\n",
    ),
    "nothing to train": (
        BUILD.format("self.requires_grad_(False)"),
        f"E327 {WHO} has no trainable parameter\n  WHERE\n  A seed must be able to learn.\n",
    ),
    "raises when built": (
        BUILD.format("raise KeyError(site.kind)"),
        f"E321 {WHO} raised KeyError: 'sequence' (esper_liars.py:29) "
        "when it was built for a sequence of shape (8, 16)\n  WHERE\n",
    ),
    "raises when tried": (
        FORWARD.format("hidden + self.scale"),
        f"E322 {WHO} raised AttributeError: 'Liar' object has no attribute 'scale' (esper_liars.py:28) "
        "when it was tried on a sequence of shape (8, 16)\n  WHERE\n",
    ),
}


@pytest.mark.parametrize("command", ["check", "run"])
@pytest.mark.parametrize("name", LIES)
def test_a_lie_is_refused_before_anything_is_trained(name: str, command: str, lie, esper, tmp_path) -> None:
    body, told = LIES[name]
    _refused(esper, command, lie(body), tmp_path, told)


@pytest.mark.parametrize("command", ["check", "run"])
def test_a_false_count_is_refused_before_anything_is_trained(command: str, lie, esper, tmp_path) -> None:
    told = (
        f'E325 {WHO} declares 128 parameters for a sequence of shape (8, 16), by "2*c*c", and has 144\n  WHERE\n'
        "  Correct params in its BlueprintSpec; biases count.\n"
    )
    _refused(esper, command, lie("    pass", params="2*c*c"), tmp_path, told)


def _refused(esper, command: str, file: Path, folder: Path, told: str) -> None:
    """The whole of what is said."""
    runs = ["--runs-dir", str(folder / "runs")] if command == "run" else []
    answer = esper(command, str(file), *runs)
    said = answer.err.replace(f"{folder}/", "")
    assert said == told.replace("WHERE", "liars.yaml:4:24   slots.early.blueprints[0]")
    assert (answer.status, answer.out, (folder / "runs").exists()) == (3, "", False)


def test_the_honest_one_that_the_liars_are_made_from_is_in_order(lie, esper) -> None:
    answer = esper("check", str(lie("    pass")))
    assert (answer.status, answer.err) == (0, "")


def test_in_json_a_lie_is_a_problem_with_its_place(lie, esper, tmp_path) -> None:
    answer = esper("check", str(lie(LIES["no numbers"][0])), "--json")
    told = json.loads(answer.out)
    (problem,) = told["problems"]
    assert (answer.status, told["ok"], told["warnings"]) == (3, False, [])
    assert (problem["code"], problem["line"], problem["path"]) == ("E324", 4, "slots.early.blueprints[0]")


@pytest.mark.parametrize("command", ["check", "run"])
@pytest.mark.parametrize("body", [BUILD.format("raise SystemExit(0)"), FORWARD.format("exit(0)")])
def test_ending_the_program_does_not_look_like_success(body: str, command: str, lie, esper, tmp_path) -> None:
    answer = esper(command, str(lie(body)))
    assert (answer.status, answer.out) == (3, "")
    assert "esper_liars.py:" in answer.err


# --- in the middle of a run

HARMS = {
    "raises": (
        "raise ValueError('out of patience')",
        'of blueprint "liars/liar" raised ValueError: out of patience (esper_liars.py:32)',
    ),
    "raises in training": (
        "if self.training: raise OSError('no lock')\n        return grown",
        'of blueprint "liars/liar" raised OSError: no lock (esper_liars.py:32)',
    ),
    "another shape": ("return grown[..., 1:]", 'of blueprint "liars/liar" '),  # who joins the two says the rest
    "no numbers": ("return grown * math.nan", "made its own loss not finite"),
    "no gradient that is a number": ("return Bent.apply(grown)", "made its own loss not finite"),
}

LATER = """\
    def forward(self, hidden):
        self.passes += self.training and torch.is_grad_enabled()
        grown = super().forward(hidden)
        if self.passes <= 4:
            return grown
        {}
"""


@pytest.mark.parametrize("name", HARMS)
def test_a_blueprint_that_goes_wrong_later_is_named_with_its_package_and_withdrawn_after_three_faults(
    name: str, lie, esper, tmp_path
) -> None:
    harm, what = HARMS[name]
    answer = esper("run", str(lie(LATER.format(harm))), "--runs-dir", str(tmp_path / "runs"), "--quiet")
    assert answer.status == 0, answer.err
    assert "not carried out in 1 of 1 episodes: plan[3]: germinate liars/liar in early" in answer.err
    events = _events(tmp_path)
    lost = [event for event in events if isinstance(event, SeedLost)]
    assert {(one.blueprint, one.package, one.slot) for one in lost} == {("liars/liar", "esper-liars 1.0", "early")}
    assert all(one.what.replace(f"{tmp_path}/", "").startswith(what) for one in lost), lost
    assert [one.withdrawn for one in lost] == [False, False, True]
    born = [event for event in events if isinstance(event, StageChanged) and event.now is Stage.GERMINATED]
    assert len(born) == 3
    assert sum(isinstance(event, StepFinished) for event in events) == 2 * 12
    assert events[-1] == RunFinished(status="done")


JUDGES = """
from esper_core import PolicySpec, RewardSpec, TaskSpec, hookimpl
from esper_core.leyline import WAIT, DataShape, Metric, RewardBreakdown, Split

class Patient:
    calls = 0
    def call(self):
        self.calls += 1
        if self.calls > 3:
            raise ZeroDivisionError("out of patience")

class Reward(Patient):
    def __init__(self, *, metric):
        pass
    def score(self, now, before, twin, twin_before):
        self.call()
        return RewardBreakdown({"none": 0.0})

class Policy(Patient):
    def __init__(self, space):
        pass
    def act(self, observations, masks):
        self.call()
        return [WAIT for _ in observations]

class Task(Patient):
    metric = Metric("accuracy", "up", "%")
    shape = DataShape("sequence", (1, 16), 4)
    def split(self, name):
        import torch
        return Split(torch.randn(40, 1, 16), torch.randint(0, 4, (40,)))
    def losses(self, outputs, targets):
        import torch
        self.call()
        return torch.nn.functional.cross_entropy(outputs, targets, reduction="none")
    def scores(self, outputs, targets):
        return (outputs.argmax(1) == targets).float()

@hookimpl
def esper_register_rewards(registry):
    registry.add("patient", Reward, RewardSpec())

@hookimpl
def esper_register_policies(registry):
    registry.add("patient", Policy, PolicySpec())

@hookimpl
def esper_register_tasks(registry):
    registry.add("patient", Task, TaskSpec())
"""


@pytest.mark.parametrize(
    ("kind", "when"),
    [
        ("reward", "on a step of environment 1"),
        ("policy", "when it was asked to act"),
        ("task", "when it computed losses"),
    ],
)
def test_one_that_the_run_depends_on_stops_it_with_its_package_named(
    kind: str, when: str, site_packages, esper, tmp_path
) -> None:
    site_packages.plugin("esper-judges", JUDGES, id="judges")
    file = tmp_path / "judged.yaml"
    file.write_text(
        "task: stripes\nhost: pointwise-mlp\nslots: {early: {blueprints: [conv_light]}}\npolicy: static\n"
        "environments: 1\nepisode: {steps: 12, batches: 2, batch_size: 20}\n"
    )
    changes = ["--set", f"{kind}=patient", "--runs-dir", str(tmp_path / "runs"), "--quiet"]
    answer = esper("run", str(file), *changes)
    assert (answer.status, answer.out) == (3, "")
    (folder,) = (tmp_path / "runs").iterdir()
    run = f"runs/{folder.name}"
    assert answer.err.replace(f"{tmp_path}/", "") == (
        f'E231 {kind} "judges/patient" (esper-judges 1.0) raised ZeroDivisionError {when}: out of patience\n'
        "  esper_judges.py:10\n"
        "  Fix its code, or tell its author.\n"
        f"  Run directory: {run}\n"
        f"  Report: {run}/report.html\n"
        f"  Resume it:  esper resume {run}\n"
        "  Fix the cause first: resuming repeats the failed step.\n"
    )
    (ended,) = [event for event in _events(tmp_path) if isinstance(event, RunFinished)]
    assert (ended.status, "esper-judges 1.0" in ended.reason) == ("failed", True)
    (run,) = (tmp_path / "runs").iterdir()
    manifest = json.loads((run / "manifest.json").read_text())
    assert (manifest["status"], manifest["exit"]) == ("failed", 3)


def _events(folder: Path) -> list[Any]:
    (run,) = (folder / "runs").iterdir()
    return list(read_events(run / "events.jsonl"))
