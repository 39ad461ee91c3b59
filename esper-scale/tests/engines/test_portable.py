"""A worker builds the recipe of a run from plain data, in another process and another folder."""

import pickle
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from esper_run.app.compose import prepare
from esper_scale.engines.nodes import NodeRecord, check_node
from esper_scale.engines.portable import PortableRun, PortableTensor, portable_data
from tests.support.configurations import problem_of
from tests.support.hostile_plugin import plugin

HOST = """
from torch import nn


def build(shape):
    head = nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(4, shape.outputs)
    return nn.Sequential(nn.Conv1d(shape.example[0], 4, 3), nn.ReLU(), *head)
"""
RUN = """
task: stripes
host: their_host:build
plugins: {local: [own.py]}
slots:
  early: {at: "0", blueprints: [b0, conv_light]}
policy: static
"""
WORKER = """
import pickle, sys
from esper_scale.engines import portable
tuned = []
portable.tune_allocator = lambda: tuned.append(True)
run, data = pickle.load(open(sys.argv[1], "rb"))
loaded, plugins = run.load()
recipe = run.build(loaded, plugins, data)
varieties = {name: [variety.id for variety in varieties] for name, varieties in recipe.network.varieties.items()}
facts = recipe.network.draws, recipe.network.operations, recipe.network.steps, varieties, tuned
splits = {name: (split.inputs, split.targets) for name, split in recipe.data.items()}
pickle.dump((run.describe(plugins), facts, splits, type(recipe.build_host()).__name__), open(sys.argv[2], "wb"))
"""


@pytest.mark.install  # CI runs it for every change
@pytest.mark.members
def test_recipe_is_built_from_plain_data_in_another_process_and_folder(tmp_path, monkeypatch):
    run_folder, worker_folder = tmp_path / "here", tmp_path / "there"
    for folder in (run_folder, worker_folder):
        folder.mkdir()
    for name, text in {"own.py": plugin(), "their_host.py": HOST, "run.yaml": RUN}.items():
        (run_folder / name).write_text(text)
    monkeypatch.chdir(run_folder)
    monkeypatch.setattr(sys, "path", [*sys.path])
    composition = prepare("run.yaml")
    run, recipe = PortableRun.of(composition), composition.recipe
    run_node = run.describe(composition.resolution.plugins)
    (run_folder / "own.py").unlink()  # it is sent
    sent, received = tmp_path / "sent", tmp_path / "received"
    sent.write_bytes(pickle.dumps((run, portable_data(recipe))))
    subprocess.run([sys.executable, "-c", WORKER, sent, received], cwd=worker_folder, check=True)
    node, rebuilt, splits, host = pickle.loads(received.read_bytes())
    varieties = {slot: [variety.id for variety in grown] for slot, grown in recipe.network.varieties.items()}
    assert rebuilt == (recipe.network.draws, recipe.network.operations, recipe.network.steps, varieties, [True])
    assert "own/b0" in varieties["early"]
    assert host == "Sequential"
    assert all(torch.equal(recipe.data[name].inputs, inputs) for name, (inputs, _) in splits.items())
    assert all(torch.equal(recipe.data[name].targets, targets) for name, (_, targets) in splits.items())
    check_node(run_node, node)
    assert {"esper-core", 'plugin "own" (local file)', 'module "their_host"'} < set(run_node.packages)


@pytest.mark.parametrize("layout", ["plain", "channels last", "one channel", "no dimension", "with gaps"])
def test_tensor_keeps_its_layout_as_an_array(layout):
    images = torch.arange(120.0).reshape(2, 3, 4, 5)
    tensor = {
        "plain": images,
        "channels last": images.contiguous(memory_format=torch.channels_last),
        "one channel": images[:, :1].contiguous(memory_format=torch.channels_last),
        "no dimension": torch.tensor(3),
        "with gaps": images[:, :, ::2],
    }[layout]
    back = pickle.loads(pickle.dumps(PortableTensor.of(tensor))).tensor()
    assert torch.equal(back, tensor)
    assert back.dtype is tensor.dtype
    assert back.stride() == (tensor.contiguous() if layout == "with gaps" else tensor).stride()


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"packages": {"esper-core": "0.2.0"}}, "esper-core is 0.2.0 on node there, and 0.1.0"),
        ({"build": {"torch": "2.13.0", "CPU": "AVX512"}}, "CPU is AVX512 on node there, and AVX2"),
    ],
)
def test_node_that_differs_is_refused(changes, says):
    node = NodeRecord("here", {"torch": "2.13.0", "CPU": "AVX2"}, {"esper-core": "0.1.0"})
    problem = problem_of(check_node, node, replace(node, node="there", **changes))
    assert (problem.code, problem.message) == ("E405", f"{says} where the run was started")
