"""A learning policy learns in a run, is saved, is applied elsewhere, and survives a kill."""

import json
import math

import pytest

from esper_core.leyline.events import EpisodeFinished, UpdateFinished
from tests.end_to_end.test_kills import found_in, resume_after_kill

RUN = """\
task: stripes
host: pointwise-mlp
slots:
  early: {blueprints: [conv_light, pointwise]}
policy:
  use: ppo
  settings: {width: 8, passes: 2, minibatch: 8, learning_rate: 0.01}
environments: 2
rounds: 2
episode: {steps: 6, batches: 2, batch_size: 20}
capacity: false
"""


@pytest.fixture
def file(tmp_path):
    """The configuration, for two rounds."""
    path = tmp_path / "run.yaml"
    path.write_text(RUN)
    return path


@pytest.mark.install  # CI runs it for every change
def test_a_policy_learns_from_all_environments_after_each_round(run, file):
    ran = run("environments=4", file=file)
    updates = ran.events(UpdateFinished)
    assert [(update.arm, update.round) for update in updates] == [("ppo", 0), ("ppo", 1)]
    ends = [event for event in ran.events(EpisodeFinished) if event.arm != "twin"]
    for round_, update in enumerate(updates):
        assert sum(event.round == round_ for event in ends) == 4
        assert update.figures["largest_first_ratio"] < 1e-6
        assert math.isfinite(update.figures["policy_loss"] + update.figures["value_loss"] + update.figures["return"])


MOMENTS = [(1, 0.1), (5, 0.9), (6, 0.5), (13, 1.2)]
"""A checkpoint, and the number of steps behind it."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings", [{}, {"decide_every": 2, "auto_fossilise": True}], ids=["alone", "macro decisions"]
)
def test_run_13_a_learner_that_is_killed_resumes_to_the_same_weights(settings, file, run, processes, tmp_path):
    words = "".join(f", {name}: {json.dumps(value)}" for name, value in settings.items())
    text = RUN.replace("learning_rate: 0.01", f"learning_rate: 0.01{words}").replace("rounds: 2", "rounds: 3")
    file.write_text(f"{text}checkpoints: {{every: 1}}\nlanes: 1\n")
    uninterrupted = run(file=file, runs="whole")
    expected = found_in(uninterrupted.path)
    assert len(uninterrupted.events(UpdateFinished)) == 3
    seconds = uninterrupted.json("summary.json")["timing"]["total"] / int(uninterrupted.text("latest"))
    for number, (checkpoint, share) in enumerate(MOMENTS):
        again, _ = resume_after_kill(processes, file, tmp_path / str(number), checkpoint, share * seconds)
        assert again is not None
        assert found_in(again) == expected, f"killed {share} of a step after checkpoint {checkpoint}"
