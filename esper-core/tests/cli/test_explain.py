"""``esper explain``: settings of components are explained, and values are shown as YAML."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

FILE = """\
task: stripes
host: pointwise-mlp
slots: {early: {blueprints: [conv_light]}}
policy: {use: schedule, settings: {plan: [{step: 0, op: germinate, slot: early, blueprint: conv_light}]}}
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "small.yaml"
    path.write_text(FILE)
    return str(path)


@pytest.mark.members
def test_a_setting_that_was_not_written_has_its_default(esper, file) -> None:
    answer = esper("explain", file, "reward.settings.price")
    assert (answer.status, answer.err) == (0, "")
    first, description, rest = answer.out.splitlines()
    assert first == "reward.settings.price: 20.0"
    assert description.startswith("  Hundredths of the metric")
    assert rest == "  number, ≥ 0, ≤ 1e+06; default 20.0; from default"


@pytest.mark.members
def test_values_are_shown_as_one_would_write_them(esper, file) -> None:
    plan = esper("explain", file, "policy.settings.plan").out.splitlines()[0]
    assert plan == "policy.settings.plan: [{step: 0, op: germinate, slot: early, blueprint: conv_light}]"
    assert "default null; from default" in esper("explain", file, "policy.settings.plan[0].speed").out
    assert esper("explain", file, "twin").out.startswith("twin: true\n")
    assert esper("explain", file, "name").out.startswith("name: null\n")


def test_a_component_that_is_not_installed_has_any_settings(esper, file) -> None:
    sets = ["--set", "reward={use: gone/with, settings: {wind: 3}}"]
    (told,) = json.loads(esper("explain", file, "reward.settings.wind", "--json", *sets).out)
    assert (told["value"], told["type"]) == (3, "any value")
    assert "default 20.0" not in esper("explain", file, "reward", *sets).out


def test_a_plugin_that_is_required_and_missing_does_not_keep_it_from_explaining(esper, file) -> None:
    answer = esper("explain", file, "episode.steps", "--set", 'plugins.require.gone=">=1"')
    assert (answer.status, answer.out.splitlines()[0]) == (0, "episode.steps: 40")


SETTINGS = """
import sys
from esper_core import TaskSpec, hookimpl
from pydantic import BaseModel, Field

def stop():
    sys.exit(0)

class Settings(BaseModel):
    width: int = 3
    depth: int = Field({default}, description="How deep.")

@hookimpl
def esper_register_tasks(registry):
    registry.add("wide", "m:Task", TaskSpec("Wide.", Settings))
"""


def test_a_setting_without_a_description_is_explained_by_type_default_and_origin(esper, file, site_packages) -> None:
    site_packages.plugin("esper-extra", SETTINGS.format(default=1))
    assert esper("explain", file, "task.settings", "--set", "task=wide").out.splitlines() == [
        "task.settings.width: 3",
        "  integer; default 3; from default",
        "task.settings.depth: 1",
        "  How deep.",
        "  integer; default 1; from default",
    ]


def test_a_component_that_ends_the_program_does_not_make_it_look_like_success(esper, file, site_packages) -> None:
    path = site_packages.plugin("esper-extra", SETTINGS.format(default="default_factory=stop"))
    answer = esper("explain", file, "task.settings", "--set", "task=wide")
    assert (answer.status, answer.out) == (3, "")
    assert answer.err == (
        "E231 a component ended the program in the middle of its work: SystemExit: 0\n"
        f"  {path}:7\n"
        "  This is a fault of its package: it must raise an error instead.\n"
    )


def test_it_needs_no_torch(file) -> None:
    code = (
        "import sys\nfrom esper_core.cli import main\n"
        f"try: main(['explain', {file!r}])\n"
        "finally: print('torch' in sys.modules, file=sys.stderr)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stderr == "False\n"
