"""Has whatever could come to other numbers another key, and whatever could not the same?"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from esper_core.app import sameness
from esper_core.app.compose import prepare
from esper_core.app.sameness import identity_of

pytestmark = pytest.mark.members

CONFIG = """
task: {use: csv, settings: {path: table.csv, target: kind}}
host: {use: mlp, settings: {hidden: 4}}
slots: {first: {blueprints: [mlp]}}
policy: static
episode: {steps: 2, batches: 1, batch_size: 5}
growth: {gates: "off"}
"""
PLUGIN = """
import torch
from torch import nn
from esper_core import BlueprintSpec, hookimpl
from {module} import SCALE

class Shift(nn.Module):
    def __init__(self, site):
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(()))

    def forward(self, inputs):
        return inputs + SCALE * self.shift

@hookimpl
def esper_register_blueprints(registry):
    registry.add("shift", Shift, BlueprintSpec(accepts=("vector", "sequence"), params="1", starts_as_identity=True))
"""
HEALTH = """
from esper_core import hookimpl

@hookimpl
def esper_check_health(snapshot):
    return None  # {word}
"""
SETTINGS = """
from pydantic import BaseModel
from esper_core import hookimpl

class Own(BaseModel):
    limit: float = 0.0

@hookimpl
def esper_settings_model():
    return Own
"""


FILES_AT = sameness._files_at


@pytest.fixture(autouse=True)
def project_that_stays(monkeypatch):
    """Who edits the project's own sources while the tests run makes other code of it."""
    own = {f"esper_{name}" for name in ("core", "blueprints", "tasks", "rewards")}
    monkeypatch.setattr(sameness, "_files_at", lambda place: [] if place.name in own else FILES_AT(place))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [f"{n * 0.1:.2f},{n * n % 7},{'ab'[n % 2]}" for n in range(60)]
    (tmp_path / "table.csv").write_text("\n".join(["x,y,kind", *rows]) + "\n")
    (tmp_path / "config.yaml").write_text(CONFIG)
    return tmp_path


def key(*overrides):
    return identity_of(prepare(Path("config.yaml"), overrides)).key


@pytest.fixture
def usual(folder):
    return key()


@pytest.mark.parametrize(
    "change",
    [
        "policy=random",
        "lanes=1",
        "name=other",
        "capacity=true",
    ],
)
def test_who_decides_and_how_it_is_told_make_no_difference(usual, change):
    assert key(change) == usual


@pytest.mark.parametrize(
    "change",
    [
        "episode.batches=2",
        "host.settings.hidden=5",
        "reward=basic",
        "growth.embargo=3",
        "slots.first.blueprints=[low_rank]",
        "task.settings.normalise=false",
        "optimizer.host.learning_rate=0.02",
        "governor.rollback=false",
    ],
)
def test_another_configuration_has_another_key(usual, change):
    assert key(change) != usual


def test_other_data_in_the_same_file_has_another_key(folder, usual):
    table = folder / "table.csv"
    table.write_text(table.read_text().replace("0.10,", "0.11,"))
    assert key() != usual


def test_another_plugin_or_another_version_of_one_has_another_key(folder, usual):
    prepared = prepare(Path("config.yaml"))
    assert identity_of(prepared).key == usual
    for field, value in (("version", "99"), ("sha256", "0" * 64)):
        found = prepared.resolution.plugins
        records = tuple(replace(one, **{field: value}) if one.id == "blueprints" else one for one in found.records)
        resolution = replace(prepared.resolution, plugins=replace(found, records=records))
        assert identity_of(replace(prepared, resolution=resolution)).key != usual


def test_a_plugin_that_takes_no_part_makes_no_difference(folder, usual, install):
    install("idle", "ABOUT = 1\n")
    assert key() == usual


def test_who_looks_after_health_takes_part_to_the_letter(folder, usual):
    found = []
    for word in ("one", "two", "one"):
        (folder / "guard.py").write_text(HEALTH.format(word=word))
        found.append(key("plugins.local=[guard.py]"))
    first, second, third = found
    assert first == third
    assert len({usual, first, second}) == 3


def test_the_settings_of_a_plugin_count(folder):
    (folder / "tuned.py").write_text(SETTINGS)
    found = {key("plugins.local=[tuned.py]", f"plugins.settings={{tuned: {{limit: {n}}}}}") for n in (1, 2, 1)}
    assert len(found) == 2


def test_the_code_of_the_project_counts_where_it_takes_part(folder, monkeypatch):
    monkeypatch.setattr(sameness, "_files_at", FILES_AT)
    code = sameness._code_of(prepare(Path("config.yaml")))
    taken = {name for path in code.files for name in path.parts if name.startswith("esper_")}
    assert {"esper_core", "esper_tasks", "esper_blueprints", "esper_rewards"} <= taken
    assert Path(sameness.__file__).resolve() in code.files
    assert not any("__pycache__" in path.parts for path in code.files)
    assert code.facts["torch"] == f"torch {torch.__version__}"


def test_what_a_plugin_imports_from_elsewhere_counts(folder, install, monkeypatch):
    own = folder / "elsewhere"
    own.mkdir()
    monkeypatch.syspath_prepend(str(own))
    (own / "my_scales.py").write_text("SCALE = 1.0\n")
    install("far", PLUGIN.format(module="my_scales"))
    change = "slots.first.blueprints=[far/shift]"
    first = key(change)
    assert key(change) == first
    (own / "my_scales.py").write_text("SCALE = 2.0\n")
    assert key(change) != first


def test_a_source_that_was_written_after_the_process_began_is_named(folder, install):
    path = install("near", PLUGIN.format(module="math").replace("SCALE", "pi"))
    found = identity_of(prepare(Path("config.yaml"), ["slots.first.blueprints=[near/shift]"]))
    assert path.resolve() in found.changed
    assert all(one.stat().st_mtime > sameness._process_began() for one in found.changed)


def test_a_host_of_ones_own_counts_with_its_weights(folder, monkeypatch):
    monkeypatch.syspath_prepend(str(folder))
    weights = folder / "weights.txt"
    (folder / "own_host_of_sameness.py").write_text(
        "from pathlib import Path\n"
        "import torch\n"
        "from torch import nn\n\n"
        "def build(shape):\n"
        "    net = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 2))\n"
        "    nn.init.constant_(net[0].weight, float(Path('weights.txt').read_text()))\n"
        "    return net\n"
    )
    changes = ["host=own_host_of_sameness:build", "slots={grown: {at: '0', blueprints: [mlp]}}"]
    weights.write_text("0.5")
    first = key(*changes)
    assert key(*changes) == first
    weights.write_text("0.25")
    assert key(*changes) != first
    sys.modules.pop("own_host_of_sameness")


def test_another_torch_or_another_way_to_compute_has_another_key(usual, monkeypatch):
    found = {usual}
    with monkeypatch.context() as patch:
        patch.setattr(torch, "__version__", "99.0")
        found.add(key())
    with monkeypatch.context() as patch:
        patch.setattr(torch.version, "git_version", "0" * 40)
        found.add(key())
    with monkeypatch.context() as patch:
        patch.setenv("MKL_CBWR", "COMPATIBLE")
        found.add(key())
    with monkeypatch.context() as patch:
        patch.setattr(sys, "version", "3.99")
        found.add(key())
    with monkeypatch.context() as patch:
        patch.setattr(sameness, "_processor", lambda: ["another one"])
        found.add(key())
    torch.use_deterministic_algorithms(mode=True)
    try:
        found.add(key())
    finally:
        torch.use_deterministic_algorithms(mode=False)
    assert len(found) == 7
    assert key() == usual


def test_the_imports_of_a_file_are_found():
    source = (
        b"import os.path, my_one as one  # two\nfrom my_three.four import five\n    import my_six\nfrom . import no\n"
    )
    assert set(sameness._imported_in(source)) == {"os", "my_one", "my_three", "my_six"}
