"""Packages written by ``esper new`` install, pass their checks and run in a clean environment."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from esper_testing.commands import KINDS

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conftest import CleanEnvironment

ROOT = Path(__file__).parents[2]

pytestmark = [pytest.mark.install, pytest.mark.slow]

COMBINED = """\
task: my-task/chirps
host: pointwise-mlp
slots:
  late: {blueprints: [my-blueprint/maxout]}
policy: {use: my-policy/patient, settings: {patience: 1}}
reward: {use: my-reward/thrifty, settings: {price: 1.0}}
sinks: [{use: my-sink/steps-csv, settings: {delimiter: ";"}}]
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
    """An environment into which one new package of each kind was installed, and the folders that it was built from."""

    environment: CleanEnvironment
    folders: dict[str, Path]
    wheels: dict[str, Path]


@pytest.fixture(scope="module")
def nursery(
    new_environment: Callable[..., CleanEnvironment],
    build: Callable[..., list[Path]],
    tmp_path_factory: pytest.TempPathFactory,
) -> Nursery:
    """One package of each kind: written by the installed command, built, installed."""
    members = ("esper-core", "esper-testing", "esper-blueprints", "esper-policies", "esper-rewards", "esper-tasks")
    environment = new_environment(*members)
    into = tmp_path_factory.mktemp("new")
    folders = {}
    for kind in KINDS:
        told = environment.run("esper", "new", kind, f"my-{kind}", "--into", str(into), "--json").stdout
        folders[kind] = Path(json.loads(told)["folder"])
    built = build(*folders.values())
    wheels = {wheel.name.split("-")[0].removeprefix("esper_my_"): wheel for wheel in built}
    environment.install(*built)
    return Nursery(environment, folders, wheels)


@pytest.mark.parametrize("kind", KINDS)
def test_a_new_package_builds_a_wheel_that_holds_it_whole(nursery: Nursery, kind: str) -> None:
    package = f"esper_my_{kind}"
    source = nursery.folders[kind] / "src" / package
    with zipfile.ZipFile(nursery.wheels[kind]) as wheel:
        packed = {name for name in wheel.namelist() if ".dist-info/" not in name}
        told = wheel.read(next(name for name in wheel.namelist() if name.endswith("entry_points.txt"))).decode()
    assert packed == {f"{package}/{path.name}" for path in source.iterdir() if path.is_file()}
    assert f"{package}/py.typed" in packed
    assert told.split() == ["[esper.plugins]", f"my-{kind}", "=", f"{package}.plugin"]


def test_every_new_package_is_listed_and_active(nursery: Nursery) -> None:
    listed = json.loads(nursery.environment.run("esper", "plugins", "list", "--json").stdout)
    mine = {plugin["id"]: plugin for plugin in listed if plugin["id"].startswith("my-")}
    assert set(mine) == {f"my-{kind}" for kind in KINDS}
    for kind, own in KINDS.items():
        record = mine[f"my-{kind}"]
        assert (record["status"], record["problems"]) == ("active", []), record
        assert record["components"] == [f"my-{kind}/{own.component}"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_new_component_is_none_that_the_project_brings(nursery: Nursery, kind: str) -> None:
    listed = json.loads(nursery.environment.run("esper", "components", "list", "--json").stdout)
    names = [one["id"].partition("/")[2] for one in listed if not one["id"].startswith("my-")]
    assert KINDS[kind].component not in names


@pytest.mark.parametrize("kind", KINDS)
def test_a_new_package_passes_its_own_tests(nursery: Nursery, own_tests: Callable[..., str], kind: str) -> None:
    told = own_tests(nursery.environment, nursery.folders[kind])
    assert re.search(r"\d+ passed", told)
    assert "failed" not in told


@pytest.mark.parametrize("kind", KINDS)
def test_a_new_package_passes_the_check(nursery: Nursery, kind: str) -> None:
    nursery.environment.run("esper", "plugins", "check", f"my-{kind}")


def test_new_pieces_of_every_kind_make_a_run_together(nursery: Nursery, tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(COMBINED, encoding="utf-8")
    told = nursery.environment.run("esper", "run", str(file), "--runs-dir", str(tmp_path / "runs"), "--json").stdout
    run = Path(json.loads(told)["run"])
    episodes = json.loads((run / "growth.json").read_text(encoding="utf-8"))["episodes"]
    own = [episode for episode in episodes if episode["arm"] != "capacity"]
    grown = [fossil["blueprint"] for episode in own for fossil in episode["grown"]]
    assert grown == ["my-blueprint/maxout"] * 2
    lines = (run / "steps.csv").read_text(encoding="utf-8").splitlines()
    assert lines[0].split(";")[:4] == ["round", "arm", "seed", "step"]
    assert len(lines) == 1 + 3 * 2 * 8


@pytest.mark.parametrize("kind", KINDS)
def test_the_configuration_in_a_new_readme_is_right(nursery: Nursery, kind: str, tmp_path: Path) -> None:
    (shown,) = re.findall(r"```yaml\n(.*?)```", (nursery.folders[kind] / "README.md").read_text(), flags=re.DOTALL)
    file = tmp_path / "run.yaml"
    said = re.findall(r"(?m)^\w+", shown)
    rest = "".join(line for line in PLAIN.splitlines(keepends=True) if line.partition(":")[0] not in said)
    file.write_text(shown + rest, encoding="utf-8")
    assert json.loads(nursery.environment.run("esper", "check", str(file), "--json").stdout) == {
        "ok": True,
        "problems": [],
        "warnings": [],
    }


@pytest.mark.parametrize(
    ("arguments", "code"),
    [(("blueprint", "MyBlocks"), "E501"), (("blueprint", "x", "--into", "nowhere"), "E503"), (("blueprint",), "NAME")],
)
def test_a_mistake_ends_with_status_2(nursery: Nursery, arguments: tuple[str, ...], code: str) -> None:
    assert code in nursery.environment.run("esper", "new", *arguments, exit_code=2).stderr


def test_new_packages_are_typed_as_mypy_wants_it_when_strict(nursery: Nursery, tmp_path: Path) -> None:
    for folder in nursery.folders.values():
        command = [sys.executable, "-m", "mypy", "--cache-dir", str(tmp_path)]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout


def test_what_a_new_package_requires_is_what_it_imports(nursery: Nursery) -> None:
    for kind, folder in nursery.folders.items():
        project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        required = {re.split(r"[<>=]", requirement)[0] for requirement in project["dependencies"]}
        source = "".join(path.read_text(encoding="utf-8") for path in (folder / "src").rglob("*.py"))
        tops = set(re.findall(r"^ *(?:from|import) (\w+)", source, flags=re.MULTILINE))
        foreign = tops - set(sys.stdlib_module_names) - {f"esper_my_{kind}"}
        assert {top.replace("_", "-") for top in foreign} == required
