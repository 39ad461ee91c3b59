"""Packages of others, by ``esper new`` or by hand: they install, pass their checks, run by name and by glob."""

import json
import re
import runpy
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from esper_testing.commands import KINDS
from tests.conftest import CleanEnvironment, build_wheels, run

ROOT = Path(__file__).parents[2]
EXTRA = ROOT / "examples" / "esper-blueprints-extra"
COMPONENTS = {f"new-{name}": {kind.component} for name, kind in KINDS.items()}
COMPONENTS["blueprints-extra"] = {"haar", "poly", "shift-mix"}
"""The component names of each plugin."""

pytestmark = pytest.mark.install

COMBINED = """\
task: new-task/chirps
host: pointwise-mlp
slots:
  late: {blueprints: [new-blueprint/maxout]}
policy: {use: new-policy/patient, settings: {patience: 1}}
reward: {use: new-reward/thrifty, settings: {price: 1.0}}
sinks: [{use: new-sink/steps-csv, settings: {delimiter: ";"}}]
growth: {gates: "off"}
environments: 2
episode: {steps: 8, batches: 2, batch_size: 20}
"""

PLAIN = """\
task: stripes
host: pointwise-mlp
slots: {early: {blueprints: [conv_light]}}
policy: static
"""


@dataclass(frozen=True)
class Nursery:
    """An environment into which the packages were installed, and the folders that they were built from, by plugin."""

    environment: CleanEnvironment
    folders: dict[str, Path]
    wheels: dict[str, Path]


@pytest.fixture(scope="module")
def nursery(new_environment: Callable[..., CleanEnvironment], tmp_path_factory: pytest.TempPathFactory) -> Nursery:
    """One package of each kind, written by the installed command, and the example; built and installed."""
    defaults = ("esper-blueprints", "esper-policies", "esper-rewards", "esper-tasks")
    environment = new_environment("esper-core", "esper-run", "esper-testing", *defaults)
    into = tmp_path_factory.mktemp("new")
    left_out = shutil.ignore_patterns("__pycache__", ".*_cache", "build", "dist")
    folders = {"blueprints-extra": shutil.copytree(EXTRA, into / EXTRA.name, ignore=left_out)}
    for kind in KINDS:
        printed = environment.run("esper", "new", kind, f"new-{kind}", "--into", str(into), "--json").stdout
        folders[f"new-{kind}"] = Path(json.loads(printed)["folder"])
    built = build_wheels(folders.values(), tmp_path_factory.mktemp("built"))
    environment.install(*built)
    wheels = {wheel.name.split("-")[0].removeprefix("esper_").replace("_", "-"): wheel for wheel in built}
    return Nursery(environment, folders, wheels)


def test_every_package_is_listed_and_active_and_its_names_are_none_of_the_projects(nursery):
    listed = json.loads(nursery.environment.run("esper", "plugins", "list", "--json").stdout)
    mine = {plugin["id"]: plugin for plugin in listed if plugin["id"] in COMPONENTS}
    assert {(record["status"], *record["problems"]) for record in mine.values()} == {("active",)}
    components = {id_: {name.partition("/")[2] for name in record["components"]} for id_, record in mine.items()}
    assert components == COMPONENTS
    installed = json.loads(nursery.environment.run("esper", "components", "list", "--json").stdout)
    standard = {component["id"].partition("/")[2] for component in installed if component["plugin"] not in COMPONENTS}
    assert standard
    assert standard.isdisjoint(set().union(*COMPONENTS.values()))


@pytest.mark.parametrize("plugin", COMPONENTS)
def test_a_package_passes_its_own_tests_and_the_check(nursery, plugin):
    command = [nursery.environment.python, "-B", "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    output = run(command, cwd=nursery.folders[plugin]).stdout
    assert re.search(r"\d+ passed", output)
    assert "failed" not in output
    nursery.environment.run("esper", "plugins", "check", plugin)


def test_new_components_of_every_kind_work_together_in_a_run(nursery, tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text(COMBINED, encoding="utf-8")
    printed = nursery.environment.run("esper", "run", str(file), "--runs-dir", str(tmp_path / "runs"), "--json").stdout
    run = Path(json.loads(printed)["run"])
    episodes = json.loads((run / "growth.json").read_text(encoding="utf-8"))["episodes"]
    growing = [episode for episode in episodes if episode["arm"] != "capacity"]
    grown = [fossil["blueprint"] for episode in growing for fossil in episode["grown"]]
    assert grown == ["new-blueprint/maxout"] * 2
    lines = (run / "steps.csv").read_text(encoding="utf-8").splitlines()
    assert lines[0].split(";")[:4] == ["round", "arm", "seed", "step"]
    assert len(lines) == 1 + 3 * 2 * 8


@pytest.mark.parametrize("kind", KINDS)
def test_the_configuration_in_a_new_readme_is_right(nursery, kind, tmp_path):
    readme = (nursery.folders[f"new-{kind}"] / "README.md").read_text()
    (shown,) = re.findall(r"```yaml\n(.*?)```", readme, flags=re.DOTALL)
    file = tmp_path / "run.yaml"
    keys_shown = re.findall(r"(?m)^\w+", shown)
    missing = [line for line in PLAIN.splitlines(keepends=True) if line.partition(":")[0] not in keys_shown]
    file.write_text(shown + "".join(missing), encoding="utf-8")
    report = json.loads(nursery.environment.run("esper", "check", str(file), "--json").stdout)
    assert (report["ok"], report["problems"], report["warnings"]) == (True, [], [])


def test_packages_pass_mypy_in_strict_mode(nursery, tmp_path):
    for folder in nursery.folders.values():
        command = [sys.executable, "-m", "mypy", "--cache-dir", str(tmp_path)]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout


def test_a_new_package_requires_exactly_what_it_imports(nursery):
    for kind in KINDS:
        folder = nursery.folders[f"new-{kind}"]
        project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        required = {re.split(r"[<>=]", requirement)[0] for requirement in project["dependencies"]}
        source = "".join(path.read_text(encoding="utf-8") for path in (folder / "src").rglob("*.py"))
        tops = set(re.findall(r"^ *(?:from|import) (\w+)", source, flags=re.MULTILINE))
        foreign = tops - set(sys.stdlib_module_names) - {f"esper_new_{kind}"}
        assert {top.replace("_", "-") for top in foreign} == required


def test_a_run_uses_one_blueprint_by_name_and_the_rest_by_glob(nursery, tmp_path):
    changes = ["--set", "environments=1", "--set", "episode.batches=2", "--runs-dir", str(tmp_path), "--json"]
    printed = nursery.environment.run("esper", "run", str(ROOT / "examples" / "extra.yaml"), *changes).stdout
    directory = Path(json.loads(printed)["run"])
    manifest = json.loads((directory / "manifest.json").read_text(encoding="utf-8"))
    assert "blueprints-extra" in {plugin["id"] for plugin in manifest["plugins"]}
    episodes = json.loads((directory / "growth.json").read_text(encoding="utf-8"))["episodes"]
    (grown,) = [episode["grown"] for episode in episodes if episode["arm"] not in ("twin", "capacity")]
    kept = {fossil["slot"]: fossil["blueprint"] for fossil in grown}
    assert kept == {"early": "blueprints-extra/shift-mix", "late": "blueprints-extra/poly"}


@pytest.mark.parametrize("name", ["my_run.yaml", "with_plugin.yaml"])
def test_the_snippets_of_the_readme_run(nursery, name):
    readme = runpy.run_path(str(ROOT / "tests" / "docs" / "test_readme.py"))
    readme["write_snippets"](nursery.environment.folder)
    printed = nursery.environment.run("esper", "run", name, "--json").stdout
    assert set(json.loads(printed)["results"]["arms"]) >= {"heuristic", "twin"}
