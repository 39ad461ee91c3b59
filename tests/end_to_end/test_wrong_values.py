"""Wrong values: whatever a component returns, its package is named, or the value is refused without harm.

Each row is an expression that a method of one component returns in place of its own value. The fast test asks the
component as a run does; the slow one trains with it.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import numpy as np
import pytest
import torch
from torch import nn

from esper_core import leyline
from esper_core.leyline import ActionMask, Observation, Op, PluginError
from esper_core.leyline.signals import Metric, Signals
from esper_core.plugins.returned_values import AttributedSchedule, AttributedTask
from esper_core.settings import ComputeConfig
from esper_core.trainer import Arm, RunReward
from esper_core.trainer.forward import ForwardPass
from esper_run import read_events
from esper_run.app.compose import prepare
from tests.support.core_worlds import GERMINATE, bad, begin, make_recipe
from tests.support.hostile_plugin import RUN, plugin

LABEL: Final = 'component "x/y" (x 1.0)'
SCOPE: Final = {**{name: getattr(leyline, name) for name in leyline.__all__}, "np": np, "torch": torch, "nn": nn}
SIGNALS: Final = Signals(0, 1.0, 1.0, 0.5, 9, 9, ())

PER_EXAMPLE: Final = [
    "torch.ones(3)",
    "torch.ones(0)",
    "torch.ones(7)",
    "torch.tensor(0.5)",
    "outputs",
    "outputs.mean()",
    "outputs.sum(1)[:-1]",
    "outputs[:, :1]",
    "torch.ones(len(targets), dtype=torch.int64)",
    "outputs.argmax(1)",
    "outputs.argmax(1) == targets",
    "outputs.sum(1).to(torch.complex64)",
    "[0.5] * len(targets)",
    "np.ones(len(targets))",
    "0.5",
    "float('nan')",
    "None",
    "'0.5'",
]
NUMBERS: Final = [
    "None",
    "'0.5'",
    "True",
    "float('nan')",
    "float('inf')",
    "10 ** 400",
    "1j",
    "[0.5]",
    "torch.tensor(0.5)",
    "np.float32(0.5)",
    "b'0.5'",
]
ROWS: Final[Mapping[str, list[str]]] = {
    "losses": [*PER_EXAMPLE, "torch.zeros(len(targets))", "outputs.detach().sum(1)"],
    "scores": PER_EXAMPLE,
    "reward": [
        *(f"RewardBreakdown({{'a': {value}}})" for value in NUMBERS),
        "RewardBreakdown({'a': 1e308, 'b': 1e308})",
        "RewardBreakdown({'a': -1e308, 'b': -1e308, 'c': 1.0})",
        "RewardBreakdown({'a': 10 ** 308, 'b': 10 ** 308, 'c': 1.0})",
        "RewardBreakdown({1: 0.5})",
        "RewardBreakdown({None: 0.5})",
        "RewardBreakdown(None)",
        "RewardBreakdown(0.5)",
        "RewardBreakdown",
        "{'a': 0.5}",
        "0.5",
        "None",
    ],
    "schedule": [*NUMBERS, "-1.0", "-float('inf')"],
    "act": [
        "None",
        "5",
        "WAIT",
        "[]",
        "[WAIT]",
        "[WAIT] * 9",
        "['wait'] * len(masks)",
        "[None] * len(masks)",
        "[Action] * len(masks)",
        "[Action('germinate', 'early', 'hostile/b0')] * len(masks)",
        "[Action(None)] * len(masks)",
        "[Action(Op.GERMINATE, ['early'], 'hostile/b0')] * len(masks)",
        "[Action(Op.GERMINATE, 'early', 7)] * len(masks)",
        "[Action(Op.GERMINATE, 'early', 'hostile/b0', speed='1')] * len(masks)",
        "[Action(Op.GERMINATE, 'early', 'hostile/b0', speed=float('nan'))] * len(masks)",
        "[Action(Op.GERMINATE, 'early', 'hostile/b0', speed=torch.ones(2))] * len(masks)",
        "[Action(Op.GERMINATE, 'early', 'hostile/b0', speed=2.0)] * len(masks)",
        "[Action(Op.GERMINATE, 'early', 'hostile/b0', speed=True)] * len(masks)",
        "[Action(Op.GERMINATE, 'early', 'hostile/b0', blend='add')] * len(masks)",
        "[Action(Op.WAIT, speed='never read')] * len(masks)",
        "[Action(Op.WAIT, {}, [])] * len(masks)",
        "[Action(Op.FOSSILISE, 'early')] * len(masks)",
        "[Action(Op.GERMINATE, 'nowhere', 'hostile/b0')] * len(masks)",
    ],
    "host": [
        "None",
        "'outputs'",
        "torch.tensor(1.0)",
        "torch.ones(2, 3)",
        "(torch.ones(len(inputs), 3),)",
        "{'logits': torch.ones(len(inputs), 3)}",
        "torch.ones(len(inputs), 3, dtype=torch.int64)",
        "np.ones((len(inputs), 3))",
    ],
    "outputs": [
        "None",
        "0.5",
        "outputs[:1]",
        "outputs[:, :1]",
        "outputs.sum(1)",
        "outputs.to(torch.int64)",
        "outputs.to(torch.complex64)",
        "(outputs, outputs)",
        "np.ones(outputs.shape)",
    ],
    "health": ["5", "'fine'", "Verdict('hot')", "Verdict(None)", "[Verdict(Level.CALM)]", "False"],
}
"""Expressions by the places of ``hostile_plugin`` that return them."""

IGNORED: Final = {"hear": "float('nan')", "settle": "[]", "close": "'x'", "step": "5", "stage": "10 ** 400"}
"""What is returned here is never read."""


def method(expression: str, *arguments: str) -> Any:
    """Return a method that returns an expression, in a file of somebody else's."""
    code = compile(f"lambda {', '.join(arguments)}: {expression}", "theirs.py", "eval")
    return eval(code, {**SCOPE, "__name__": "theirs"})


def ask_task(name: str, expression: str) -> None:
    outputs = torch.randn(6, 3, generator=torch.Generator().manual_seed(0)).requires_grad_()
    answers = SimpleNamespace(metric=None, shape=None, **{name: method(expression, "outputs", "targets")})
    getattr(AttributedTask(answers, LABEL), name)(outputs, torch.tensor([0, 1, 2, 0, 1, 2]))


def ask_reward(expression: str) -> None:
    reward = SimpleNamespace(score=method(expression, "*signals"))
    RunReward(reward, LABEL).score(SIGNALS, None, SIGNALS, None)


def ask_schedule(expression: str) -> None:
    AttributedSchedule(SimpleNamespace(factor=method(expression, "step", "steps")), LABEL).factor(2, 6)


def ask_policy(expression: str) -> None:
    mask = ActionMask({"early": frozenset({Op.GERMINATE})}, {"early": ("hostile/b0",)})
    policy = SimpleNamespace(act=method(expression, "observations", "masks"))
    Arm("grown", policy, LABEL).act([Observation(0, 6, SIGNALS)] * 2, [mask] * 2)


def ask_host(expression: str) -> None:
    host = nn.Identity()
    host.forward = method(expression, "inputs")
    task = SimpleNamespace(losses=lambda outputs, targets: pytest.fail("the task got them"))
    (loss,) = ForwardPass(ComputeConfig(), task, torch.device("cpu"), LABEL).losses(torch.ones(6, 3), torch.ones(6))
    loss(host)


ASKED: Final[Mapping[str, Callable[[str], None]]] = {
    "losses": lambda expression: ask_task("losses", expression),
    "scores": lambda expression: ask_task("scores", expression),
    "reward": ask_reward,
    "schedule": ask_schedule,
    "act": ask_policy,
    "host": ask_host,
}


NOT_POSSIBLE = ROWS["act"][-2:]
"""Actions that the mask does not allow now."""


@pytest.mark.parametrize(("place", "value"), [(place, value) for place in ASKED for value in ROWS[place]])
def test_wrong_value_is_refused_where_it_is_returned_with_component_package_and_file(place: str, value: str) -> None:
    with pytest.raises(PluginError) as refused:
        ASKED[place](value)
    (problem,) = refused.value.problems
    assert problem.message.startswith(f"{LABEL} ")
    assert problem.file == "theirs.py"
    assert problem.code == ("E233" if value in NOT_POSSIBLE else "E231")


@pytest.mark.parametrize("value", ROWS["outputs"])
def test_wrong_output_of_a_blueprint_is_the_fault_of_its_seed_alone(value: str) -> None:
    environment = begin(make_recipe(steps=2, batches=1, variety=bad(method(value, "block", "outputs"), patience=3)))
    environment.network.apply(replace(GERMINATE, blueprint="test/bad"), 0)
    for _ in range(4):
        environment.train()
    (lost,) = environment.network.lost.take()
    assert lost.blueprint == "test/bad"
    assert environment.garden.slots["early"].living is None


PREPARED: Final = [
    ("split", "Split(torch.ones(9, 1, 3), torch.ones(9))", "returns inputs of shape (9, 1, 3)"),
    ("split", "Split(self.stripes.split(name).inputs, torch.ones(9))", "and targets of (9,), in its split"),
    (
        "split",
        "Split(self.stripes.split(name).inputs / 0, self.stripes.split(name).targets)",
        "inputs that are not finite",
    ),
    ("split", "Split(self.stripes.split(name).inputs[:9], torch.zeros(9) / 0)", "targets that are not finite"),
    ("split", "Split(self.stripes.split(name).inputs[:0], torch.ones(0))", 'gives no examples in its split "train"'),
    ("split", "Split(torch.tensor(1.0), torch.tensor(1.0))", "returns inputs of shape ()"),
    ("losses", "self.stripes.losses(outputs, targets.fill_(0))", "losses after it changed the outputs or the targets"),
    ("scores", "outputs.argmax(1) == targets", "returned torch.bool of shape"),
    ("task", "Metric('')", "whose metric.name is ''"),
    ("task", "Metric('accuracy', 'sideways')", 'A metric has a name, and "up" or "down"'),
    ("task", "DataShape('picture', (1, 12), 4)", "whose shape.kind is 'picture'"),
    ("task", "DataShape('sequence', [1, 12], 4)", "whose shape.example is [1, 12]"),
    ("task", "DataShape('sequence', (1, 12), '4')", "whose shape.outputs is '4'"),
]


@pytest.mark.parametrize(("place", "value", "says"), PREPARED)
def test_wrong_data_of_a_task_is_refused_before_a_run(place: str, value: str, says: str, tmp_path: Path) -> None:
    names = "from esper_core.leyline import DataShape, Metric, Split\n"
    code = f"return {value}"
    if place == "task":
        code = "self.stripes = stripes()\nself.metric, self.shape = self.stripes.metric, self.stripes.shape\n"
        code += f"self.{'metric' if 'Metric' in value else 'shape'} = {value}\nreturn"
    (tmp_path / "run.yaml").write_text(RUN)
    (tmp_path / "hostile.py").write_text(names + plugin({place: code}).replace("if STARTED:", "if True:"))
    with pytest.raises(PluginError, match=r'task "hostile/task" \(local file ') as refused:
        prepare(tmp_path / "run.yaml")
    (problem,) = refused.value.problems
    assert says in str(problem)
    assert (problem.path or "hostile:Task") == "hostile:Task"


def test_splits_with_the_same_inputs_are_told(tmp_path: Path, caplog) -> None:
    (tmp_path / "run.yaml").write_text(RUN)
    (tmp_path / "hostile.py").write_text(plugin({"split": "return self.stripes.split('train')"}))
    prepare(tmp_path / "run.yaml")
    assert [record.getMessage()[:15] for record in caplog.records] == ["E372 the splits"] * 3


def test_percentages_in_place_of_shares_are_refused() -> None:
    task = SimpleNamespace(metric=Metric("accuracy", "up", "%"), shape=None, scores=method("100 * outputs", "outputs"))
    with pytest.raises(PluginError, match="scores whose mean is 50"):
        AttributedTask(task, LABEL).require_sound(torch.tensor([0.0, 100.0]), torch.zeros(2))


@pytest.mark.slow
@pytest.mark.parametrize(("place", "value"), [(place, value) for place in ROWS for value in ROWS[place]])
def test_run_with_a_wrong_value_ends_with_its_package_named(place, value, tmp_path, esper_cli, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.yaml").write_text(RUN)
    code = f"if len(inputs) > 2: return {value}" if place == "host" else f"return {value}"  # two examples are a graft's
    if is_block := place == "outputs":
        text = plugin(blocks={0: (place, f"if STARTED: {code}")})
    else:
        text = plugin({place: code})
    (tmp_path / "hostile.py").write_text(text)
    answer = esper_cli("run", "run.yaml", "--quiet", "--set", "engine=threads")
    assert "bug in Esper" not in answer.err
    assert answer.status == 3, answer.err
    if is_block:  # of which there is one seed, so that none survives
        (run,) = (tmp_path / "runs").iterdir()
        (lost,) = (event for event in read_events(run / "events.jsonl") if event.type == "seed-lost")
        assert (lost.blueprint, lost.package[:11]) == ("hostile/b0", "local file ")
        return
    assert "(local file " in answer.err
    assert "hostile.py:" in answer.err


@pytest.mark.slow
def test_run_ignores_what_sinks_and_observers_return(tmp_path: Path, esper_cli, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.yaml").write_text(RUN)
    (tmp_path / "hostile.py").write_text(plugin({place: f"return {value}" for place, value in IGNORED.items()}))
    answer = esper_cli("run", "run.yaml", "--quiet", "--set", "engine=threads")
    assert (answer.status, "E228" in answer.err) == (0, False)
