"""A policy that learns gets each round exactly as it saw it."""

from __future__ import annotations

import importlib

import pytest

from esper_core import read_events
from esper_core.leyline import Learner, PluginError
from esper_core.leyline.events import UpdateFinished

APPRENTICE = """
from esper_core import PolicySpec, hookimpl
from esper_core.leyline import WAIT, Action, Op

class Apprentice:
    rollouts = []
    seen = []

    def __init__(self, space):
        self.space = space

    def act(self, observations, masks):
        self.seen.append((list(observations), list(masks)))
        slot = self.space.slots[0]
        (blueprint,) = self.space.blueprints[slot]
        grow = Action(Op.GERMINATE, slot, blueprint)
        return [grow if mask.allows(grow) else WAIT for mask in masks]

    def update(self, rollout):
        self.rollouts.append(rollout)
        return %s

@hookimpl
def esper_register_policies(registry):
    registry.add("apprentice", Apprentice, PolicySpec("Learns nothing, and says so."))

told = []

@hookimpl
def esper_update_finished(event):
    told.append(event)
"""
ARMS = "policy: apprentice\nrounds: 2\n"


@pytest.fixture
def small_file(configured):
    """The small run with an apprentice in place of the plan."""
    file = configured(ARMS)
    text = file.read_text()
    plan = text[text.index("policy:\n  use") : text.index("environments")]
    file.write_text(text.replace(plan, ""))
    return file


def run(file, tmp_path):
    from esper_core.app.compose import prepare
    from esper_core.app.run import run as run_prepared

    return run_prepared(prepare(file), runs_dir=tmp_path / "runs").path


@pytest.mark.members
def test_a_learner_gets_each_round_as_it_saw_it(install, small_file, tmp_path) -> None:
    install("school", APPRENTICE % "{'loss': 0.5}")
    path = run(small_file, tmp_path)
    module = importlib.import_module("esper_school")
    first, second = module.Apprentice.rollouts
    assert (first.arm, first.round, second.round) == ("apprentice", 0, 1)
    assert [len(episode.turns) for episode in first.episodes] == [3, 3]
    for step in range(3):
        observations, masks = module.Apprentice.seen[step]
        for place, episode in enumerate(first.episodes):
            turn = episode.turns[step]
            assert turn.observation is observations[place]
            assert turn.mask is masks[place]
    told = [event for event in read_events(path / "events.jsonl") if event.type == "step-finished"]
    own = [event for event in told if (event.arm, event.round, event.seed) == ("apprentice", 0, 0)]
    ends = [event for event in read_events(path / "events.jsonl") if event.type == "episode-finished"]
    (end,) = [event for event in ends if (event.arm, event.round, event.seed) == ("apprentice", 0, 0)]
    got = [turn.reward.terms for turn in first.episodes[0].turns]
    assert got == [own[1].reward, own[2].reward, end.closing]
    assert first.episodes[0].final.signals.parameters == end.parameters


@pytest.mark.members
def test_what_it_says_of_an_update_is_told_and_written(install, small_file, tmp_path) -> None:
    install("school", APPRENTICE % "{'loss': 0.5}")
    path = run(small_file, tmp_path)
    written = [event for event in read_events(path / "events.jsonl") if isinstance(event, UpdateFinished)]
    assert written == [UpdateFinished(round=round_, arm="apprentice", figures={"loss": 0.5}) for round_ in (0, 1)]
    assert importlib.import_module("esper_school").told == written


@pytest.mark.members
@pytest.mark.parametrize("given", ["{'loss': 'much'}", "1 / 0", "None"])
def test_an_update_that_fails_stops_the_run_with_its_package_named(given, install, small_file, tmp_path) -> None:
    install("school", APPRENTICE % given)
    with pytest.raises(PluginError, match=r'policy "school/apprentice" \(esper-school 1.0\).*learnt from round 0'):
        run(small_file, tmp_path)


def test_a_learner_is_known_by_what_it_can_do() -> None:
    class Plan:
        def act(self, observations, masks):
            return []

    assert not isinstance(Plan(), Learner)
