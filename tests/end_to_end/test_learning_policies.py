"""A learning policy learns in a run, is saved, is applied elsewhere, and survives a kill."""

from __future__ import annotations

import importlib.util
import json
import math
import sys
from pathlib import Path

import pytest

from esper_core import read_events
from esper_core.leyline.events import EpisodeFinished, StepFinished, UpdateFinished

HERE = Path(__file__).parent

RUN = """\
task: stripes
host: pointwise-mlp
slots:
  early: {blueprints: [conv_light, pointwise]}
policy:
  use: ppo
  settings: {width: 8, passes: 2, minibatch: 8, learning_rate: 0.01}
environments: 2
rounds: %d
episode: {steps: 6, batches: 2, batch_size: 20}
capacity: false
"""


def written(folder: Path, rounds: int = 2, more: str = "") -> Path:
    file = folder / "run.yaml"
    file.write_text(RUN % rounds + more)
    return file


def updates(runs: Path) -> list[UpdateFinished]:
    return events_in(runs, UpdateFinished)


def events_in(runs: Path, kind: type) -> list:
    (told,) = runs.glob("*/events.jsonl")
    return [one for one in read_events(told) if isinstance(one, kind)]


def test_each_round_ends_with_what_was_learnt_from_it(esper, tmp_path) -> None:
    answer = esper("run", written(tmp_path), "--runs-dir", tmp_path / "runs", "--quiet")
    assert answer.code == 0, answer.err
    told = updates(tmp_path / "runs")
    assert [one.round for one in told] == [0, 1]
    for one in told:
        assert one.figures["largest_first_ratio"] < 1e-6
        assert one.figures["passes"] >= 1
        assert {"kl", "clipped", "explained_variance", "entropy_op", "entropy_blueprint", "return"} <= set(one.figures)
        shares = [value for name, value in one.figures.items() if name.startswith("share_")]
        assert sum(shares) == pytest.approx(1.0)


def test_one_policy_learns_at_several_prices_in_one_round(esper, tmp_path) -> None:
    more = "rewards: [{use: team, settings: {price: 5}}, {use: team, settings: {price: 50}}]\n"
    answer = esper(
        "run", written(tmp_path, 2, more), "--runs-dir", tmp_path / "runs", "--json", "--set", "environments=4"
    )
    assert answer.code == 0, answer.err
    assert {name: arm["test"]["n"] for name, arm in answer.json["results"]["arms"].items()} == {
        "ppo@price-5": 4,
        "ppo@price-50": 4,
        "twin": 4,
    }
    assert [(one.arm, one.round) for one in updates(tmp_path / "runs")] == [("ppo", 0), ("ppo", 1)]
    ends = [one for one in events_in(tmp_path / "runs", EpisodeFinished) if one.arm != "twin"]
    for round_, told in enumerate(updates(tmp_path / "runs")):
        paid = [one.reward for one in ends if one.round == round_]
        assert len(paid) == 4
        assert told.figures["largest_first_ratio"] < 1e-6
        assert math.isfinite(told.figures["policy_loss"] + told.figures["value_loss"] + told.figures["return"])


def test_a_setting_that_is_misspelt_is_refused_with_its_line(esper, tmp_path) -> None:
    file = written(tmp_path)
    file.write_text(file.read_text().replace("learning_rate", "lerning_rate"))
    answer = esper("check", file)
    assert answer.code == 2
    assert "run.yaml:7:" in answer.out + answer.err
    assert "learning_rate" in answer.out + answer.err


def test_a_horizon_that_cuts_without_a_discount_is_refused_with_its_line(esper, tmp_path) -> None:
    answer = esper("check", written(tmp_path), "--set", "policy.settings.horizon=cut")
    assert answer.code == 2
    assert "need a discount below 1" in answer.out + answer.err


def test_what_was_kept_plays_elsewhere_with_other_blueprints_and_slots(esper, tmp_path) -> None:
    kept = tmp_path / "kept"
    runs = [tmp_path / name for name in ("first", "second")]
    save = f"policy.settings.save={kept}"
    assert esper("run", written(tmp_path), "--runs-dir", runs[0], "--quiet", "--set", save).code == 0
    assert sorted(one.name for one in kept.iterdir()) == ["gardener.json", "gardener.safetensors"]
    before = {one.name: one.read_bytes() for one in kept.iterdir()}
    elsewhere = tmp_path / "elsewhere.yaml"
    elsewhere.write_text(
        f"""\
task: stripes
host: pointwise-mlp
slots:
  early: {{blueprints: [norm]}}
  late: {{blueprints: [mlp]}}
policy: {{use: ppo, settings: {{load: {kept}, learn: false}}}}
environments: 2
episode: {{steps: 6, batches: 2, batch_size: 20}}
capacity: false
"""
    )
    answer = esper("run", elsewhere, "--runs-dir", runs[1], "--quiet")
    assert answer.code == 0, answer.err
    assert {one.name: one.read_bytes() for one in kept.iterdir()} == before
    assert [one.figures for one in updates(runs[1])] in ([], [{}])


@pytest.mark.slow
def test_it_is_taught_by_the_heuristic_and_comes_to_decide_as_that_one_does(esper, tmp_path) -> None:
    taught = "teacher: heuristic, teach_rounds: 4, width: 32, learning_rate: 0.01, forget_names: 0.0, minibatch: 4"
    file = written(tmp_path, 5)
    text = file.read_text().replace("width: 8, passes: 2, minibatch: 8, learning_rate: 0.01", taught)
    file.write_text(text.replace("steps: 6, batches: 2, batch_size: 20", "steps: 16, batches: 8, batch_size: 25"))
    answer = esper("run", file, "--runs-dir", tmp_path / "runs", "--quiet")
    assert answer.code == 0, answer.err
    figures = [one.figures for one in updates(tmp_path / "runs")]
    taught_in = [one["agreement"] for one in figures if "agreement" in one]
    assert taught_in[-1] >= 0.8
    assert len(taught_in) < 5
    assert figures[0]["share_germinate"] > 0, "otherwise there is nothing to watch"
    assert "kl" in figures[-1]


def test_other_environments_beside_one_change_nothing_in_it(esper, tmp_path) -> None:
    """It decides alike, so the same comes of it: the first environment's losses, to the last bit."""
    found = []
    for count in (1, 3):
        runs = tmp_path / str(count)
        more = ["--set", f"environments={count}", "--set", "policy.settings.learn=false"]
        assert esper("run", written(tmp_path, 1), "--runs-dir", runs, "--quiet", *more).code == 0
        (told,) = runs.glob("*/events.jsonl")
        steps = [one for one in read_events(told) if isinstance(one, StepFinished) and not one.arm.startswith("twin")]
        first = min(one.seed for one in steps)
        found.append([(one.signals, one.action) for one in steps if one.seed == first])
    assert found[0] == found[1]


# RUN-13, with somebody who learns.


@pytest.fixture(scope="module")
def surviving():
    """The means by which runs are killed and resumed."""
    spec = importlib.util.spec_from_file_location("surviving_runs", HERE / "test_kills.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["surviving_runs"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["surviving_runs"]


@pytest.fixture(scope="module")
def server(surviving, tmp_path_factory):
    yield from surviving.server.__wrapped__(tmp_path_factory)


def killed(surviving, server, tmp_path: Path, moments: list[tuple[int, float]], more: str = "", **settings) -> None:
    """Kill a run at each of these moments, a checkpoint and so many steps behind it, and compare what it comes to."""
    file = written(tmp_path, 3, f"checkpoints: {{every: 1}}\nlanes: 1\n{more}")
    words = "".join(f", {name}: {json.dumps(value)}" for name, value in settings.items())
    file.write_text(file.read_text().replace("learning_rate: 0.01", f"learning_rate: 0.01{words}"))
    assert server.call("run", file, "--runs-dir", tmp_path / "whole", "--quiet") == 0, server.log.read_text()
    whole = next((tmp_path / "whole").iterdir())
    expected = surviving.found_in(whole)
    assert len(updates(tmp_path / "whole")) == 3
    seconds = json.loads((whole / "summary.json").read_text())["timing"]["total"] / int((whole / "latest").read_text())
    for number, (checkpoint, share) in enumerate(moments):
        run, _ = surviving.survive(server, file, tmp_path / str(number), checkpoint, share * seconds)
        assert run is not None
        assert surviving.found_in(run) == expected, f"killed {share} of a step after checkpoint {checkpoint}"


@pytest.mark.slow
def test_run_13_a_learner_whose_run_is_killed_goes_on_to_the_same_weights(surviving, server, tmp_path) -> None:
    killed(surviving, server, tmp_path, [(9, 0.5)])


@pytest.mark.slow
def test_run_13_a_learner_at_several_prices_goes_on_to_the_same_weights(surviving, server, tmp_path) -> None:
    killed(surviving, server, tmp_path, [(4, 0.5), (9, 0.5)], "rewards: [team, {use: team, settings: {price: 5}}]\n")


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [{}, {"teacher": "heuristic", "teach_rounds": 2, "enough": 1.0}, {"decide_every": 2, "auto_fossilise": True}],
    ids=["alone", "taught", "macro decisions"],
)
def test_run_13_also_when_it_is_killed_in_the_middle_of_learning(surviving, server, tmp_path, settings) -> None:
    killed(surviving, server, tmp_path, [(1, 0.1), (5, 0.9), (6, 0.5), (13, 1.2)], **settings)
