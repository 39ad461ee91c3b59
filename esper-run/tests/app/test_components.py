"""Components: what they build is checked, and a host's import path is resolved with each mistake at its place."""

import sys
from pathlib import Path

import pytest

from esper_core.leyline import EsperError, PluginError
from esper_run.app.compose import changed_files, prepare
from esper_run.app.run import run as run_prepared
from esper_run.runs.records import read_run
from tests.support.configurations import problem_of

pytestmark = pytest.mark.members

PLUGIN = """
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
"""
COMPONENTS = {
    "task": {"half": "Half", "mute": "Mute", "unmeasured": "Unmeasured"},
    "policy": {"odd": "number"},
    "reward": {"odd": "Bare"},
    **{"host": {"odd": "number"}, "schedule": {"odd": "Bare"}, "sink": {"odd": "Bare"}},
}

ODD = [
    ("policy", "{use: odd/odd}", "builds int without the method act"),
    ("host", "odd/odd", "builds int, not a torch.nn.Module"),
    ("reward", "odd/odd", "builds Bare without the method score"),
    ("optimizer", "{host: {schedule: odd/odd}}", "builds Bare without the method factor"),
    ("task", "odd/half", "builds Half without the method split"),
    ("task", "odd/mute", 'returns no Split of two tensors for its split "train"'),
    ("task", "odd/unmeasured", "builds Unmeasured, whose metric is of type str"),
]


@pytest.mark.parametrize(("key", "value", "fault"), ODD)
def test_component_without_what_it_needs_is_refused_when_it_is_built(key, value, fault, install, tmp_path):
    install.components("odd", PLUGIN, **COMPONENTS)
    slots = "{early: {at: stem, kind: sequence, blueprints: [conv_light]}}"
    lines = {"task": "stripes", "host": "pointwise-mlp", "slots": slots, "policy": "static", key: value}
    file = tmp_path / "odd.yaml"
    file.write_text("".join(f"{name}: {text}\n" for name, text in lines.items()))
    problem = problem_of(prepare, file)
    assert problem.code == "E231"
    assert '"odd/' in problem.message.partition(" (esper-odd 1.0) ")[0]
    assert problem.message.endswith(fault)
    assert (problem.path or "").startswith("esper_odd:")


def test_sink_without_methods_stops_the_run(install, run_small):
    install.components("odd", PLUGIN, **COMPONENTS)
    with pytest.raises(PluginError, match="builds Bare without the method hear and settle and close"):
        run_small("sinks: [odd/odd]\n")


NETS = """
from functools import cache; import torch
from torch import nn

from own_nets.parts import layer


class Ladder(nn.Module):
    def __init__(self, shape, *, width=8):
        super().__init__()
        self.stem = nn.Sequential(nn.Flatten(), layer(shape.example[-1], width))
        self.head = nn.Linear(width, shape.outputs)

    def forward(self, inputs):
        return self.head(self.stem(inputs))


def text(shape):
    return "a tower"


def raising(shape):
    raise ValueError("I cannot")


class Crowded(Ladder):
    def forward(self, inputs):
        if len(inputs) > 2:
            raise IndexError("too many")
        return super().forward(inputs)


class Forgetful(Ladder):
    def forward(self, inputs):
        return super().forward(inputs[:3])


def late(shape):
    from own_nets.parts import layer
    return Ladder(shape, width=layer(16, 3).out_features)


number = 7
once, act, generator, whole = layer(8, 8), nn.ReLU(), torch.Generator(), cache(Ladder)
zero = nn.Buffer(torch.zeros(3))


def changed(shape):
    net = Ladder(shape)
    pass
    return net
"""
RUN = """\
task: stripes
host: {use: "own_nets.towers:Ladder", settings: {width: 12}}
slots:
  stem: {at: stem, blueprints: [mlp]}
policy: {use: schedule, settings: {plan: [{step: 0, op: germinate, slot: stem, blueprint: mlp, speed: 2}]}}
environments: 2
capacity: false
episode: {steps: 2, batches: 1, batch_size: 20}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The current folder, with a package of the user's own and a configuration in it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    package = tmp_path / "own_nets"
    package.mkdir()
    (package / "towers.py").write_text(NETS)
    (package / "parts.py").write_text("from torch.nn import Linear as layer\n")
    (package / "lacking.py").write_text("import os\n\nimport nowhere_to_be_found\n")
    (package / "wrong.py").write_text("import os\n\nlayer = = 3\n")
    (tmp_path / "run.yaml").write_text(RUN)
    yield tmp_path
    for name in [name for name in sys.modules if name.split(".")[0] == "own_nets"]:
        del sys.modules[name]


def refusal(*overrides: str) -> str:
    with pytest.raises(EsperError) as caught:
        prepare(Path("run.yaml"), overrides)
    return f"{caught.value.exit_code}: {caught.value}"


def changed_by(code: str) -> str:
    """Return the override for a host of the package that this code changes once it is built."""
    Path("own_nets/towers.py").write_text(NETS.replace("    pass\n", f"    {code}\n"))
    return "host=own_nets.towers:changed"


def test_host_of_the_current_folder_can_be_run_twice(folder):
    outcome = run_prepared(prepare(Path("run.yaml")), runs_dir=folder / "runs")
    again = prepare(outcome.path / "config.yaml")
    host = again.resolution.host
    assert (host.component.id, host.settings) == ("own_nets.towers:Ladder", {"width": 12})
    assert again.host_parameters == 16 * 12 + 12 + 12 * 4 + 4
    assert list(changed_files(again, read_run(outcome.path))) == []
    (folder / "own_nets" / "towers.py").write_text(NETS.replace("ReLU", "Tanh"))
    (warning,) = changed_files(again, read_run(outcome.path))
    assert warning == f"own_nets.towers changed since {outcome.path.name} began: the numbers may differ"
    function = prepare(Path("run.yaml"), ["host=own_nets.towers:late"])
    assert function.host_parameters == 16 * 3 + 3 + 3 * 4 + 4


def test_networks_share_at_most_frozen_weights_and_layers_without_weights_or_slots(folder):
    frozen = changed_by("net.stem.append(act); net.extra = once.requires_grad_(False).weight; net.stem.zero = zero")
    assert prepare(Path("run.yaml"), [frozen])
    assert "returned the same stem.2 twice" in refusal(frozen, "slots.stem.at=stem.2")


def test_installed_module_comes_before_one_in_the_current_folder(folder):
    (folder / "json.py").write_text("def build(shape):\n    return None\n")
    assert "E202 json has no" in refusal("host=json:build")


@pytest.mark.parametrize(
    ("override", "parts"),
    [
        ("host.use=own_nets.towers:Lader", ["2: E202 own_nets.towers has no", "--set ", 'Did you mean "Ladder"?']),
        ("host.use=own_nets.tower:Ladder", ['2: E202 there is no module "own_nets.tower"', "--set host.use="]),
        ("host.use=own_net.towers:Ladder", ['2: E202 there is no module "own_net"', "--set host.use="]),
        ("host.use=own_net.towers:Ladder", ["Call esper from the folder that has it", "The current folder: "]),
        ("host=own-nets:Ladder", ['2: E202 "own-nets:Ladder" is not an import path', "my_package.my_module:build"]),
        ("host=own_nets.Ladder", ['2: E202 "own_nets.Ladder" is not an import path', "my_package.my_module:build"]),
        ("host=own_nets.towers:number", ['2: E120 "own_nets.towers:number" cannot', "is not a callable object"]),
        ("host=own_nets.lacking:x", ["3: E219", "lacking.py:3", 'the module "nowhere_to_be_found"']),
        ("host=own_nets.wrong:x", ["3: E219", "SyntaxError", "wrong.py:3", "Fix the file."]),
        ("host.settings.widht=3", ['2: E120 "own_nets.towers:Ladder" cannot', "--set host.settings.widht", "shape, "]),
        ("host=own_nets.towers:Ladder.forward", ["2: E120", "missing a required argument: 'inputs'"]),
        ("host=own_nets.towers:text", ["3: E231 host", '"own_nets.towers:text" (your own code) builds str, not']),
        ("host=own_nets.towers:raising", ["3: E231", "raised ValueError while it was built: I cannot", "towers.py:23"]),
        ("net.head = nn.Linear(9, 2)", ["3: E231", "raised RuntimeError on its first batch", "towers.py:15"]),
        ("host=own_nets.towers:Crowded", ["3: E231", "raised IndexError on its first examples: too", "towers.py:29"]),
        ("net.extra = nn.Parameter(torch.eye(3).to_sparse())", ["3: E335 ", '"extra"', "sparse_coo"]),
        ("host=own_nets.towers:Forgetful", ["3: E231 host", "shape (3, 4) for 200 examples"]),
        ("host=own_nets.towers:whole", ["returned the same network twice, but networks must not share it"]),
        ("net.stem.append(once)", ['3: E231 host "own_nets', "the same stem.2 twice", "copy.deepcopy"]),
        ("net.extra = once.bias", ["returned the same extra twice"]),
        ("nn.init.normal_(net.head.weight, generator=generator)", ["another head.weight when", "twins"]),
        ("slots.late={blueprints: [mlp]}", ['2: E122 host "own_nets.towers:Ladder" declares no slot "late"']),
    ],
)  # fmt: skip
def test_invalid_host_is_reported_where_the_mistake_was_made(override, parts, folder):
    answer = refusal(override if override.startswith(("host", "slots")) else changed_by(override))
    assert [part for part in parts if part not in answer] == [], answer
