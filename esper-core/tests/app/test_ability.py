"""A component that cannot do what its kind does is refused before anything is trained, with its package named."""

from __future__ import annotations

import pytest

from esper_core.app.compose import prepare
from esper_core.leyline import PluginError

pytestmark = pytest.mark.members

PLUGIN = """
from esper_core import HostSpec, PolicySpec, RewardSpec, ScheduleSpec, SinkSpec, TaskSpec, hookimpl
from esper_core.leyline import DataShape, Metric, Split

class Bare:
    def __init__(self, *arguments, **settings): ...

class Half(Bare):
    metric = Metric("accuracy", "up", "%")
    shape = DataShape("sequence", (1, 16), 4)
    def losses(self, outputs, targets): ...
    def scores(self, outputs, targets): ...

class Mute(Half):
    def split(self, name): return None

class Unmeasured(Mute):
    metric = "accuracy"

def number(*arguments, **settings): return 3

@hookimpl
def esper_register_hosts(registry): registry.add("odd", number, HostSpec())

@hookimpl
def esper_register_policies(registry): registry.add("odd", number, PolicySpec())

@hookimpl
def esper_register_rewards(registry): registry.add("odd", Bare, RewardSpec())

@hookimpl
def esper_register_schedules(registry): registry.add("odd", Bare, ScheduleSpec())

@hookimpl
def esper_register_sinks(registry): registry.add("odd", Bare, SinkSpec())

@hookimpl
def esper_register_tasks(registry):
    registry.add("half", Half, TaskSpec())
    registry.add("mute", Mute, TaskSpec())
    registry.add("unmeasured", Unmeasured, TaskSpec())
"""

ODD = [
    ("policy: {use: odd/odd}", "odd/odd", "builds an int without the method act"),
    ("host: odd/odd", "odd/odd", "builds an int, not a torch.nn.Module"),
    ("reward: odd/odd", "odd/odd", "builds a Bare without the method score"),
    ("optimizer: {host: {schedule: odd/odd}}", "odd/odd", "builds a Bare without the method factor"),
    ("task: odd/half", "odd/half", "builds a Half without the method split"),
    ("task: odd/mute", "odd/mute", 'gives no Split of two tensors when asked for its split "train"'),
    ("task: odd/unmeasured", "odd/unmeasured", "builds an Unmeasured whose metric is a str"),
]


@pytest.mark.parametrize(("line", "id_", "says"), ODD)
def test_what_cannot_do_its_work_is_refused_when_it_is_built(line: str, id_: str, says: str, install, tmp_path) -> None:
    install("odd", PLUGIN)
    file = tmp_path / "odd.yaml"
    own = {
        "task": "task: stripes",
        "host": "host: pointwise-mlp",
        "slots": "slots: {early: {at: stem, kind: sequence, blueprints: [conv_light]}}",
    }
    key = line.partition(":")[0]
    file.write_text("\n".join([*(text for name, text in own.items() if name != key), line, *_policy(key)]) + "\n")
    with pytest.raises(PluginError) as refusal:
        prepare(file)
    (problem,) = refusal.value.problems
    assert problem.code == "E231"
    assert problem.message.partition(" (esper-odd 1.0) ")[0].endswith(f'"{id_}"')
    assert problem.message.endswith(says)
    assert (problem.path or "").startswith("esper_odd:")


def test_a_sink_is_refused_before_the_first_event(install, run_small, tmp_path) -> None:
    install("odd", PLUGIN)
    with pytest.raises(PluginError, match="builds a Bare without the method hear and settle and close"):
        run_small("sinks: [odd/odd]\n")


def test_a_score_that_is_none_is_the_rewards_fault(install, run_small) -> None:
    source = PLUGIN.replace("class Half", "class Numb(Bare):\n    def score(self, *signals): return 0.5\n\nclass Half")
    install("late", source.replace('"odd", Bare, RewardSpec', '"numb", Numb, RewardSpec'))
    with pytest.raises(PluginError, match=r'reward "late/numb" .* scored a step with float, not a RewardBreakdown'):
        run_small("reward: late/numb\n")


def _policy(key: str) -> list[str]:
    return [] if key == "policy" else ["policy: {use: static}"]
