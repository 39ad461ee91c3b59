"""Each product does its job where it is installed alone, with what it requires and nothing else."""

import json
import re
import shutil
from pathlib import Path
from textwrap import dedent

import pytest

from tests.conftest import build_wheels, run

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "esper-blueprints-extra"
SHORT = ("--set", "episode.steps=6", "--set", "environments=2", "--set", "episode.batches=4")

OWN_LOOP = """
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from esper_grow import Gardener

torch.manual_seed(0)
signals = torch.randn(300, 1, 16)
labels = (signals[..., 1:] * signals[..., :-1]).mean((1, 2)).gt(0).long()
batches = list(zip(signals[:200].split(50), labels[:200].split(50)))
host = nn.Sequential(nn.Conv1d(1, 8, 1), nn.ReLU())
model = nn.Sequential(host, nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(8, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

def loss(model, batch):
    return cross_entropy(model(batch[0]), batch[1], reduction="none")

with Gardener(
    model, optimizer, loss=loss, slots=["0"], example=batches[0], steps=20, validation=[(signals[200:], labels[200:])]
) as gardener:
    for batch in batches * 20:
        optimizer.zero_grad()
        loss(model, batch).mean().backward()
        optimizer.step()
        gardener.step(batch)
        if batch is batches[-1]:
            print(gardener.tend())
"""

WITHOUT_NUMPY = """
import sys
import torch
from torch import nn
from esper_core import graft, ungraft

assert "numpy" not in sys.modules
model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
inputs = torch.randn(3, 4)
outputs = model(inputs)
grafted = graft(model, ["0"], example=inputs)
assert torch.equal(grafted(inputs), outputs)
ungraft(grafted)
"""

pytestmark = pytest.mark.install


@pytest.fixture
def configuration(tmp_path):
    return shutil.copy(ROOT / "plugins.yaml", tmp_path)


def test_the_core_works_without_numpy(installed_product):
    environment = installed_product("esper-core")
    assert environment.evaluate("from importlib.util import find_spec; print(find_spec('numpy'))") == "None"
    environment.evaluate(WITHOUT_NUMPY)


@pytest.mark.parametrize("plugin", ["my-blocks", "blueprints-extra"])
def test_a_plugin_is_checked_and_tested_with_the_core_and_the_checks_alone(installed_product, tmp_path, plugin):
    environment = installed_product("esper-core", "esper-testing")
    if plugin == "blueprints-extra":
        folder = shutil.copytree(EXAMPLE, tmp_path / EXAMPLE.name)
    else:
        options = ("--into", str(tmp_path), "--json")
        printed = environment.run("python", "-m", "esper_testing", "new", "blueprint", plugin, *options).stdout
        folder = Path(json.loads(printed)["folder"])
    environment.pip_install(*map(str, build_wheels([folder], tmp_path)))
    assert "checks, none failed." in environment.run("python", "-m", "esper_testing", "check", plugin).stdout
    tests = run([environment.python, "-B", "-m", "pytest", "-q", "-p", "no:cacheprovider"], cwd=folder).stdout
    assert re.search(r"\d+ passed", tests)
    assert not (environment.folder / "bin" / "esper").exists()


def test_a_loop_of_ones_own_grows_a_model_with_esper_grow(installed_product):
    printed = installed_product("esper-grow").evaluate(dedent(OWN_LOOP))
    first, *further = printed.splitlines()
    assert re.fullmatch(r"step 1 of 20: validation loss \d\.\d+, 34 parameters", first)
    assert any(re.fullmatch(r"  0: blueprints/\w+ is germinated, by the policy", line) for line in further)
    assert any(line.startswith("step 20 of 20: ") for line in further)


def test_a_run_ends_with_its_verdict_and_says_how_to_get_the_report(installed_product, configuration, tmp_path):
    environment = installed_product("esper-run")
    printed = environment.run("esper", "run", configuration, *SHORT, "--runs-dir", str(tmp_path / "runs")).stdout
    (directory,) = (tmp_path / "runs").iterdir()
    assert "A verdict needs 8 networks of each arm; there are 2." in printed
    expected = f"For a report:  pip install 'esper-run[watch]'  and then  esper report {directory}"
    assert expected in printed.splitlines()


def test_another_engine_comes_with_esper_scale(installed_product, configuration, tmp_path):
    options = ("--engine", "processes", "--runs-dir", str(tmp_path / "runs"))
    without = installed_product("esper-run").run("esper", "run", configuration, *options, exit_code=2)
    assert "pip install 'esper-scale'" in without.stderr
    environment = installed_product("esper-run", "esper-scale")
    printed = environment.run("esper", "run", configuration, *SHORT, *options, "--json").stdout
    directory = Path(json.loads(printed)["run"])
    assert json.loads((directory / "manifest.json").read_text(encoding="utf-8"))["status"] == "done"
    assert re.search(r"^engine:[^#]*\bprocesses\b", (directory / "config.yaml").read_text(), flags=re.MULTILINE)
