"""A learning policy learns in a run, is saved, is applied elsewhere, and survives a kill."""

import json
import math

import pytest

from esper_core.leyline.events import EpisodeFinished, StepFinished, UpdateFinished
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


def test_each_round_ends_with_what_was_learnt_from_it(run, file):
    told = run(file=file).events(UpdateFinished)
    assert [one.round for one in told] == [0, 1]
    for one in told:
        assert one.figures["largest_first_ratio"] < 1e-6
        assert one.figures["passes"] >= 1
        assert {"kl", "clipped", "explained_variance", "entropy_op", "entropy_blueprint", "return"} <= set(one.figures)
        shares = [value for name, value in one.figures.items() if name.startswith("share_")]
        assert sum(shares) == pytest.approx(1.0)


def test_one_policy_learns_at_several_prices_in_one_round(run, file):
    ran = run(
        "environments=4", "rewards=[{use: team, settings: {price: 5}}, {use: team, settings: {price: 50}}]", file=file
    )
    arms = ran.json("summary.json")["results"]["arms"]
    assert {name: arm["test"]["n"] for name, arm in arms.items()} == {"ppo@price-5": 4, "ppo@price-50": 4, "twin": 4}
    updates = ran.events(UpdateFinished)
    assert [(one.arm, one.round) for one in updates] == [("ppo", 0), ("ppo", 1)]
    ends = [one for one in ran.events(EpisodeFinished) if one.arm != "twin"]
    for round_, told in enumerate(updates):
        assert sum(one.round == round_ for one in ends) == 4
        assert told.figures["largest_first_ratio"] < 1e-6
        assert math.isfinite(told.figures["policy_loss"] + told.figures["value_loss"] + told.figures["return"])


def test_a_saved_policy_decides_on_other_blueprints_and_slots(run, file, tmp_path):
    kept = tmp_path / "kept"
    run(f"policy.settings.save={kept}", file=file)
    assert sorted(one.name for one in kept.iterdir()) == ["gardener.json", "gardener.safetensors"]
    before = {one.name: one.read_bytes() for one in kept.iterdir()}
    slots = "slots={early: {blueprints: [norm]}, late: {blueprints: [mlp]}}"
    elsewhere = run(slots, f"policy.settings={{load: {kept}, learn: false}}", file=file, runs="elsewhere")
    assert {one.name: one.read_bytes() for one in kept.iterdir()} == before
    assert not any(one.figures for one in elsewhere.events(UpdateFinished))


@pytest.mark.slow
def test_it_learns_by_imitation_to_decide_like_the_heuristic(run, file):
    taught = "teacher: heuristic, teach_rounds: 4, width: 32, learning_rate: 0.01, forget_names: 0.0, minibatch: 4"
    longer = "episode={steps: 16, batches: 8, batch_size: 25}"
    ran = run(f"policy.settings={{{taught}}}", longer, "rounds=5", file=file)
    figures = [one.figures for one in ran.events(UpdateFinished)]
    taught_in = [one["agreement"] for one in figures if "agreement" in one]
    assert taught_in[-1] >= 0.8
    assert len(taught_in) < 5
    assert figures[0]["share_germinate"] > 0, "otherwise there is nothing to watch"
    assert "kl" in figures[-1]


def test_an_environment_does_not_depend_on_the_others(run, file):
    """The first environment has the same decisions, and the same losses to the last bit."""
    found = []
    for count in (1, 3):
        ran = run(f"environments={count}", "rounds=1", "policy.settings.learn=false", file=file, runs=str(count))
        steps = [one for one in ran.events(StepFinished) if not one.arm.startswith("twin")]
        first = min(one.seed for one in steps)
        found.append([(one.signals, one.action) for one in steps if one.seed == first])
    assert found[0] == found[1]


MOMENTS = [(1, 0.1), (5, 0.9), (6, 0.5), (13, 1.2)]
"""A checkpoint, and the number of steps behind it."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("moments", "more", "settings"),
    [
        ([(4, 0.5), (9, 0.5)], "rewards: [team, {use: team, settings: {price: 5}}]\n", {}),
        (MOMENTS, "", {}),
        (MOMENTS, "", {"teacher": "heuristic", "teach_rounds": 2, "enough": 1.0}),
        (MOMENTS, "", {"decide_every": 2, "auto_fossilise": True}),
    ],
    ids=["several prices", "alone", "taught", "macro decisions"],
)
def test_run_13_a_learner_that_is_killed_resumes_to_the_same_weights(
    moments, more, settings, file, run, processes, tmp_path
):
    words = "".join(f", {name}: {json.dumps(value)}" for name, value in settings.items())
    text = RUN.replace("learning_rate: 0.01", f"learning_rate: 0.01{words}").replace("rounds: 2", "rounds: 3")
    file.write_text(f"{text}checkpoints: {{every: 1}}\nlanes: 1\n{more}")
    whole = run(file=file, runs="whole")
    expected = found_in(whole.path)
    assert len(whole.events(UpdateFinished)) == 3
    seconds = whole.json("summary.json")["timing"]["total"] / int(whole.text("latest"))
    for number, (checkpoint, share) in enumerate(moments):
        again, _ = resume_after_kill(processes, file, tmp_path / str(number), checkpoint, share * seconds)
        assert again is not None
        assert found_in(again) == expected, f"killed {share} of a step after checkpoint {checkpoint}"
