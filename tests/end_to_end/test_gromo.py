"""gromo takes part in the study of learned policies where it is installed."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from esper_core.leyline import Metric, Signals, SlotSignals, SlotState
from esper_rewards.potentials import Team

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def study(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))
    names = {"live": "live", "grower": "other_grower", "page": "page", "players": "players"}
    return SimpleNamespace(
        **{one: import_module(f"benchmarks.science.learned_policies.{name}") for one, name in names.items()}
    )


@pytest.fixture
def gromo(study):
    pytest.importorskip("gromo")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield study.grower
    torch.set_num_threads(before)


def cell_of(study, name):
    return next(cell for cell in study.live.cells(quick=True) if cell.name == name)


def mean_loss(course):
    data = course.recipe.data["train"]
    course.host.eval()
    with torch.no_grad():
        return float(course.recipe.task.losses(course.host(data.inputs), data.targets).mean())


def test_where_it_is_not_installed_the_study_has_no_arm_of_it(study, monkeypatch):
    monkeypatch.setitem(sys.modules, "gromo", None)
    assert study.live.by_other_growers(cell_of(study, "plain, pointwise-mlp")) == ({}, {})


def test_a_folder_of_its_name_is_not_the_library(study, monkeypatch, tmp_path):
    (tmp_path / "gromo").mkdir()
    monkeypatch.delitem(sys.modules, "gromo", raising=False)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert not study.grower.is_there()


def test_where_it_is_not_installed_its_command_says_so_and_writes_nothing(study, monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(sys.modules, "gromo", None)
    monkeypatch.setattr(sys, "argv", ["other_grower", str(tmp_path / "found.json")])
    with pytest.raises(SystemExit, match="2"):
        study.grower.main()
    assert "python -m pip install gromo" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("places", [0, 1, 2])
def test_its_reward_is_what_the_team_pays_with_a_block_for_a_seed(study, places):
    slots = tuple(SlotSignals(name, SlotState.FREE, fossils=1) for name in ("early", "late")[:places])
    now, twin = (
        Signals(19, 1.0, 1.0, metric, parameters=count, host_parameters=2762, slots=own)
        for metric, count, own in ((0.55, 2861, slots), (0.5, 2762, ()))
    )
    team = Team(metric=Metric("accuracy"), price=study.players.HEADLINE)
    episode = {"validation": 0.55, "parameters": 2861, "host": 2762, "grown": [(slot.name, "gromo") for slot in slots]}
    paid = study.grower.with_reward(episode, {"validation": 0.5})["reward"]
    assert paid == pytest.approx(sum(team.potential(now, twin).values()), abs=1e-5)


@pytest.mark.slow
def test_a_quick_cell_runs_and_its_twin_is_the_twin_of_the_engine(study, gromo):
    cell = cell_of(study, "plain, pointwise-mlp")
    arms, seconds = study.live.by_other_growers(cell)
    own, told_where, twins = arms[gromo.ARM], arms[gromo.TOLD_WHERE], arms[gromo.TWIN]
    assert set(seconds) == {gromo.ARM, gromo.TOLD_WHERE}
    for one in (own, told_where, twins):
        assert [episode["seed"] for episode in one] == [study.live.FIRST_SEED, study.live.FIRST_SEED + 1]
    config = cell.config({"never": "policies/static"}, study.live.FIRST_SEED, [gromo.COSTS_AS])
    engine, places, _ = study.live._played(config)
    engine_twins = [study.live._with_flops(one, places) for one in engine["twin"]]
    for key in ("test", "parameters", "parameter_steps", "flops"):
        assert [one[key] for one in twins] == [one[key] for one in engine_twins]
    assert {place for one in told_where for _, place, *_ in one["growths"]} == {"early"}
    for one in (*own, *told_where):
        assert len(one["growths"]) > 1
        assert one["host"] < one["parameters"] <= one["host"] + 120
        assert all(step in (0, 4, 8, 12) for step, *_ in one["growths"])
        assert one["flops"] > twins[0]["flops"]
    told = {"cell": cell.name, "arms": {"twin": engine_twins, **arms}, "seconds_of_two": seconds}
    assert "| gromo |" in "\n".join(study.page._cell(told))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["plain, pointwise-mlp", "plain, cnn1d that sees no neighbours"])
@pytest.mark.parametrize("places", [(), ("early",)])
def test_what_grows_lowers_the_loss_and_takes_what_its_neurons_cost(study, gromo, name, places):
    composition = gromo._composed(cell_of(study, name), study.live.FIRST_SEED)
    course = gromo.Course(composition, study.live.FIRST_SEED, places)
    course.train()
    room = 2 * max(plot.neuron for plot in course.plots.values())
    for _ in range(2):
        before, parameters = mean_loss(course), course.parameters
        one = course.grow(0, room)
        assert mean_loss(course) < before
        assert course.parameters == parameters + one.neurons * course.plots[one.place].neuron
        assert one.neurons * course.plots[one.place].neuron <= room
        course.train()


def test_there_is_no_growth_without_room_for_a_neuron(study, gromo):
    course = gromo.Course(gromo._composed(cell_of(study, "plain, pointwise-mlp"), 7), 7)
    assert course.grow(0, min(plot.neuron for plot in course.plots.values()) - 1) is None
    assert course.parameters == course.host_parameters
