"""Composition: settings, learning rate schedules and prices of operations, and the errors that name them."""

import importlib
import math

import pytest

from esper_core.leyline.events import EpisodeFinished, StepFinished
from esper_core.leyline.signals import CALM
from esper_core.telemetry import Bus, Clock
from esper_run import read_events
from esper_run.app.compose import StudyContext, prepare
from esper_run.app.runtime import BOUNDS
from tests.support.configurations import problem_of, rewritten

pytestmark = pytest.mark.members

PICKY = """
from esper_core.leyline import SettingError
from pydantic import BaseModel

class Size(BaseModel):
    size: int = 1

def picky(*arguments, size=1, **more):
    raise SettingError("size", "it is too small", f"Received: {size}")
"""
PICKERS = {kind: {"picky": f"picky, {kind.capitalize()}Spec('', settings=Size)"} for kind in ("task", "host", "reward")}
HOST = "host: pointwise-mlp\nslots: {early: {"
REFUSED = "{use: picky, settings: {size: 3}}"


@pytest.mark.parametrize(
    ("before", "after", "path", "line"),
    [
        ("task: stripes", f"task: {REFUSED}", "task.settings.size", 1),
        (HOST, HOST.replace("pointwise-mlp", REFUSED) + "at: a, ", "host.settings.size", 2),
        ("environments: 2", f"reward: {REFUSED}\nenvironments: 2", "reward.settings.size", 9),
    ],
)
def test_setting_that_a_component_refuses_is_reported_at_its_line(before, after, path, line, install, configured):
    install.components("picky", PICKY, **PICKERS)
    problem = problem_of(prepare, rewritten(configured(), before, after))
    assert (problem.code, problem.path, problem.line, problem.message) == ("E120", path, line, "it is too small")


def test_freed_memory_is_kept_when_a_study_begins(configured, monkeypatch) -> None:
    changed: list[int] = []
    monkeypatch.setattr("esper_run.app.runtime.glibc_mallopt", lambda: lambda bound, value: changed.append(bound))
    composition = prepare(configured())
    assert changed == []
    composition.study(StudyContext(Bus(), Clock(), lambda snapshot: CALM)).pool.close()
    assert changed == list(BOUNDS)


PACER = """
calls = []

class Half:
    def factor(self, step, steps):
        calls.append((step, steps))
        return 0.5
"""


def test_schedule_counts_the_steps_of_the_host_and_of_each_seed(install, run_small) -> None:
    install.components("pacer", PACER, schedule={"half": "Half"})
    result = run_small("optimizer: {host: {schedule: half}, seed: {schedule: pacer/half}}\n")
    calls = importlib.import_module("esper_pacer").calls
    assert set(calls) == {(0, 3), (1, 3), (2, 3), (0, 2), (1, 2)}  # seeds are born after the first step of three
    assert "schedule: pacer/half" in (result["path"] / "config.yaml").read_text()


KEEPS = """\
      - {step: 1, op: advance, slot: early}
      - {step: 3, op: fossilise, slot: early}
"""


def test_operations_are_counted_and_paid_for(configured, run_file) -> None:
    def play(price: float):
        """Return steps and episode ends of the arm that grows, and the place of its slot."""
        priced = configured(f"reward: {{use: team, settings: {{price: {price}}}}}\n")
        file = rewritten(priced, "speed: 2}\n", "speed: 1}\n" + KEEPS, "steps: 3", "steps: 6")
        path = run_file(file, "capacity=false", "environments=1")
        events = [event for event in read_events(path / "events.jsonl") if getattr(event, "arm", None) == "schedule"]
        kinds = StepFinished, EpisodeFinished
        steps, ends = ([event for event in events if isinstance(event, kind)] for kind in kinds)
        return steps, ends, prepare(file).space.descriptions["early"]

    steps, paid, place = play(30.0)
    seed = place.candidate("blueprints/conv_light").flops
    counted = {event.signals.step: event.signals.flops for event in steps}
    assert {event.signals.host_flops for event in steps} == {place.host_flops}
    assert counted[0] == place.host_flops  # a seed that trains in the shadow does not slow the host down
    assert counted[5] == place.host_flops + seed > counted[0]  # it was kept
    steps, free, _ = play(0.0)
    assert [end.fossils for end in paid] == [end.fossils for end in free] == [1]
    doublings = math.log2(1 + seed / place.host_flops)
    assert [end.reward for end in paid] == [pytest.approx(end.reward - 30.0 * (doublings + 0.1)) for end in free]
