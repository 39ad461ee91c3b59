"""The best network of each arm of a run, which ``load_best`` restores in the host that the run's file describes."""

import sys

import pytest
import torch

import esper_grow
from esper_core.growth import Host
from esper_core.leyline.events import EpisodeFinished
from esper_run import read_events, run
from esper_run.app.compose import prepare
from tests.support.configurations import GROWING, problem_of, rewritten

HOST = """\
import torch
from torch import nn


class Mirror(nn.Module):
    '''Uses one weight twice, and a constant that it draws and does not save.'''

    def __init__(self, shape):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv1d(1, 8, 3, padding=1), nn.BatchNorm1d(8))
        self.middle, self.again = nn.Conv1d(8, 8, 3, padding=1), nn.Conv1d(8, 8, 3, padding=1)
        self.again.weight = self.middle.weight
        self.register_buffer("drawn", torch.randn(8, 1), persistent=False)
        self.head = nn.Linear(8, shape.outputs)

    def forward(self, inputs):
        hidden = self.again(self.middle(self.stem(inputs) + self.drawn).relu())
        return self.head(hidden.mean(-1))


class Remembers(Mirror):
    def get_extra_state(self):
        return {"text": "safetensors has no place for it"}

    def set_extra_state(self, state):
        pass
"""


@pytest.fixture
def configuration(tmp_path, monkeypatch):
    """The file of a run in whose hosts, which are of the user's own, a block is kept."""
    (tmp_path / "mirrors.py").write_text(HOST)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "mirrors", raising=False)
    file = tmp_path / "run.yaml"
    file.write_text(f"{GROWING}rounds: 2\n")
    own_host = ("pointwise-mlp", "mirrors:Mirror", "early: {", "early: {at: stem, ", "capacity: false\n", "")
    return rewritten(file, *own_host)


def test_the_best_network_of_each_arm_is_the_one_that_was_tested(configuration, tmp_path, caplog):
    outcome = run(configuration, runs_dir=tmp_path / "runs")
    recipe = prepare(configuration).recipe
    test = recipe.data["test"]
    episodes = [event for event in read_events(outcome.path / "events.jsonl") if isinstance(event, EpisodeFinished)]
    for arm, blocks in {"schedule": 1, "twin": 0, "capacity": 1}.items():
        best = max((event for event in episodes if event.arm == arm), key=lambda event: event.validation_metric)
        network = esper_grow.load_best(outcome.path, arm)
        with torch.inference_mode():
            loss = recipe.task.losses(network(test.inputs), test.targets).mean().item()
        assert loss == pytest.approx(best.test_loss, rel=1e-6)
        assert len(Host(network).network.grown) == blocks
        assert network.again.weight is network.middle.weight
        assert not network.training
    for arm, hint in {"twn": 'Did you mean "twin"?', "../networks/twin": "Known: capacity, schedule, twin"}.items():
        problem = problem_of(esper_grow.load_best, outcome.path, arm)
        assert (problem.code, problem.hint) == ("E332", hint)
    assert "changed" not in caplog.text
    rewritten(outcome.path / "config.yaml", "rounds: 2", "rounds: 1")
    esper_grow.load_best(outcome.path, "twin")
    assert "config.yaml changed since the run" in caplog.text


@pytest.mark.slow
def test_a_network_that_no_file_can_hold_costs_a_warning(configuration, tmp_path):
    outcome = run(configuration, overrides=["host.use=mirrors:Remembers", "rounds=1"], runs_dir=tmp_path / "runs")
    assert not (outcome.path / "networks").exists()
    what = 'the state of this model contains "_extra_state", a dict, which is not a tensor'
    warnings = " ".join(outcome.warnings)
    assert all(f"the network of arm {arm} is not saved: E335 {what}" in warnings for arm in ("schedule", "twin"))
    problem = problem_of(esper_grow.load_best, outcome.path, "schedule")
    assert "log.txt says what failed" in problem.hint
