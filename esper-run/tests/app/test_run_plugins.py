"""Plugins in a run: hooks are called in order, faults are attributed to their package, and policies learn."""

import importlib
from asyncio import CancelledError
from contextlib import nullcontext
from pathlib import PurePath
from types import SimpleNamespace
from typing import Any

import click
import pytest
import torch

from esper_core.growth.garden import attributed_to_seed
from esper_core.growth.seeds import SeedFault, describe_error
from esper_core.leyline import GovernorStop, PluginError
from esper_core.leyline.events import UpdateFinished
from esper_core.plugins.isolation import Label, attempt
from esper_run import read_events
from esper_run.app.compose import prepare
from tests.support.configurations import problem_of
from tests.support.hostile_plugin import line_of, plugin

DIARY = """
from esper_core import hookimpl

heard = []

@hookimpl
def esper_configured(config): heard.append(("configured", config))

@hookimpl
def esper_run_started(run): heard.append(("started", run))

@hookimpl
def esper_step_finished(events): heard.append(("step", events))

@hookimpl
def esper_stage_changed(event): heard.append(("stage", event))

@hookimpl
def esper_governor_acted(event): heard.append(("governor", event))

@hookimpl
def esper_run_finished(run, outcome): heard.append(("finished", run, outcome))
"""


@pytest.fixture
def diary(install):
    """The calls that an observer received."""
    install("diary", DIARY)
    return lambda: importlib.import_module("esper_diary").heard


# --- observers


@pytest.mark.members
def test_observers_are_called_in_order_with_all_environments(diary, configured, run_small) -> None:
    prepare(configured())
    assert diary() == [], "preparing a run calls no observer"
    result = run_small()
    heard = diary()
    names = [name for name, *_ in heard]
    assert (names[:2], names[-1], names.count("step")) == (["configured", "started"], "finished", 3)
    run = heard[1][1]
    assert (run.id, run.path, run.device) == (result["path"].name, result["path"], "cpu")
    assert (run.arms, run.environments, run.steps) == (("schedule", "twin", "capacity"), 2, 3)
    for _, events in [call for call in heard if call[0] == "step"]:
        places = sorted((event.arm, event.seed) for event in events)
        assert places == [(arm, seed) for arm in run.arms[:2] for seed in (0, 1)]
    _, again, outcome = heard[-1]
    assert again == run
    assert (outcome.status, outcome.reason) == ("done", "")
    assert outcome.results["metric"]["name"] == "accuracy"
    # arguments are read-only
    config = heard[0][1]
    assert config.values["task"]["use"] == "tasks/stripes"
    for mapping, key in ((config.values["slots"]["early"], "stack"), (outcome.results, "arms")):
        with pytest.raises(TypeError):
            mapping[key] = 7
    with pytest.raises(AttributeError):
        config.values["slots"]["early"]["blueprints"].append("x")
    with pytest.raises(AttributeError):
        run.steps = 7


# --- health checks

GUARD = """
from esper_core import hookimpl
from esper_core.leyline import Level, Verdict

@hookimpl
def esper_check_health(snapshot):
    return Verdict(Level.PANIC, "too hot") if (snapshot.arm, snapshot.signals.step) == ("twin", 1) else None
"""


@pytest.mark.members
def test_panic_verdict_of_a_plugin_stops_the_run(install, diary, run_small) -> None:
    install("guard", GUARD)
    with pytest.raises(GovernorStop) as caught:
        run_small("governor: {rollback: false}\n")
    assert str(caught.value) == (
        'E402 arm "twin", RNG seed 0, step 1: too hot, reported by plugin "guard" (esper-guard 1.0); '
        "rollbacks are disabled (governor.rollback)"
    )
    assert [name for name, *_ in diary()][-3:] == ["governor", "step", "finished"]
    _, _, outcome = diary()[-1]
    assert (outcome.status, outcome.results, "too hot" in outcome.reason) == ("stopped", None, True)


# --- components

IN_TORCH = "torch.nn.functional.cross_entropy(torch.zeros(2, 3), torch.zeros(5).long())"
"""Code that raises inside torch."""


@pytest.mark.members
@pytest.mark.parametrize(
    ("setting", "place", "code", "fault"),
    [
        ("reward", "reward", "raise SystemExit(0)", "SystemExit on a step of environment 0"),
        ("policy", "act", "import asyncio; raise asyncio.CancelledError()", "CancelledError when it chose actions"),
        ("task", "losses", IN_TORCH, "ValueError when it computed losses"),
        ("optimizer.host.schedule", "schedule", "1 / 0", "ZeroDivisionError in step 2 of 3"),
    ],
)
def test_component_that_the_run_needs_stops_it_at_its_authors_line(
    setting, place, code, fault, install, configured, run_file
):
    path, kind = install("judges", plugin({place: code})), setting.rpartition(".")[2]
    problem = problem_of(run_file, configured(), f"{setting}=judges/{kind}")
    assert problem.code == "E231"
    assert problem.message.startswith(f'{kind} "judges/{kind}" (esper-judges 1.0) raised {fault}')
    assert (problem.file, problem.line) == (str(path), line_of(code, path.read_text()))


@pytest.mark.members
def test_sink_that_raises_is_closed_and_reported_and_its_output_is_on_stderr(install, run_small, caplog, capsys):
    code = f"print('from the sink'); {IN_TORCH}"
    path = install("judges", plugin({"hear": code}))
    assert run_small("sinks: [judges/sink]\n")["manifest"]["status"] == "done"
    (warning,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert warning.startswith('E228 sink "judges/sink" (esper-judges 1.0) raised ')
    assert f"\n  {path}:{line_of(code, path.read_text())}" in warning
    out, err = capsys.readouterr()
    assert ("from the sink" in err, "from the sink" in out) == (True, False)


def test_error_of_a_seed_names_its_line_or_what_built_it() -> None:
    caught = attempt(lambda: torch.nn.functional.cross_entropy(torch.zeros(2, 3), torch.zeros(5).long()))
    assert caught.error is not None
    line = f"(test_run_plugins.py:{test_error_of_a_seed_names_its_line_or_what_built_it.__code__.co_firstlineno + 1})"
    assert describe_error(caught.error).endswith(line)
    assert describe_error(caught.error, Label).endswith(line)  # the class only inherits from esper_core
    assert describe_error(caught.error, PurePath).endswith(line)
    assert describe_error(caught.error, click.Command).endswith(" (click.core:Command)")


@pytest.mark.usefixtures("ctrl_c_raises")
def test_cancelled_seed_is_a_fault_of_the_seed_and_ctrl_c_is_not() -> None:
    slot: Any = SimpleNamespace(name="early", entered=nullcontext)
    seed: Any = SimpleNamespace(number=0, blueprint="a/b", block=None)
    message = 'the seed in early of blueprint "a/b" raised Canc'
    with pytest.raises(SeedFault, match=message), attributed_to_seed((slot, seed)):
        raise CancelledError
    with pytest.raises(KeyboardInterrupt), attributed_to_seed((slot, seed)):
        raise KeyboardInterrupt


# --- policies that learn

RECORDER = """
from esper_core import hookimpl
from esper_core.leyline import WAIT, Action, Op, State

received = []

@hookimpl
def esper_update_finished(event):
    received.append(event)

class Recorder:
    seen = []
    rollouts = []

    def __init__(self, space):
        slot = space.slots[0]
        self.grow = Action(Op.GERMINATE, slot, space.blueprints[slot][0])

    def act(self, observations, masks):
        self.seen.append((list(observations), list(masks)))
        return [self.grow if mask.allows(self.grow) else WAIT for mask in masks]

    def update(self, rollout):
        self.rollouts.append(rollout)
        return FIGURES

    def state_dict(self):
        return State.of({})

    def load_state_dict(self, state): ...
"""


@pytest.fixture
def learn(install, configured, run_file):
    """``learn(figures)``: a module, and the events of a run of two rounds whose policy returns these from an update."""

    def run(figures: str) -> tuple[Any, list[Any]]:
        install.components("recording", RECORDER.replace("FIGURES", figures), policy={"recorder": "Recorder"})
        path = run_file(configured("rounds: 2\n"), "policy=recorder")
        return importlib.import_module("esper_recording"), list(read_events(path / "events.jsonl"))

    return run


@pytest.mark.members
def test_learner_gets_each_round_as_it_saw_it_and_its_figures_are_written(learn) -> None:
    module, events = learn("{'loss': 0.5}")
    first, second = module.Recorder.rollouts
    assert (first.arm, first.round, second.round) == ("recorder", 0, 1)
    assert [len(episode.turns) for episode in first.trajectories] == [3, 3]
    for step in range(3):
        observations, masks = module.Recorder.seen[step]
        for place, episode in enumerate(first.trajectories):
            turn = episode.turns[step]
            assert turn.observation is observations[place]
            assert turn.mask is masks[place]
    finished = [event for event in events if event.type in ("step-finished", "episode-finished")]
    *steps, end = [event for event in finished if (event.arm, event.round, event.seed) == ("recorder", 0, 0)]
    rewards = [turn.reward.terms for turn in first.trajectories[0].turns]
    assert rewards == [steps[1].reward, steps[2].reward, end.closing]
    updates = [UpdateFinished(round=round_, arm="recorder", figures={"loss": 0.5}) for round_ in (0, 1)]
    assert [event for event in events if isinstance(event, UpdateFinished)] == module.received == updates


@pytest.mark.members
@pytest.mark.parametrize("figures", ["{'loss': 'much'}", "1 / 0"])
def test_update_that_fails_stops_the_run_and_names_its_package(figures: str, learn) -> None:
    with pytest.raises(PluginError, match=r'policy "recording/recorder" \(esper-recording 1.0\).*learnt from round 0'):
        learn(figures)
