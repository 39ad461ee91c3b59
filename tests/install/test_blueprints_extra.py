"""A third-party package as a wheel: found, checked, and used by name and by glob."""

from __future__ import annotations

import json
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conftest import CleanEnvironment

ROOT = Path(__file__).parents[2]
EXTRA = ROOT / "examples" / "esper-blueprints-extra"
NAMES = {"haar", "poly", "shift-mix"}

pytestmark = [pytest.mark.install, pytest.mark.slow]


@pytest.fixture(scope="module")
def with_extra(
    new_environment: Callable[..., CleanEnvironment],
    build: Callable[..., list[Path]],
    tmp_path_factory: pytest.TempPathFactory,
) -> CleanEnvironment:
    """An environment with the members that a run needs, and the example package as a wheel."""
    members = ("esper-core", "esper-testing", "esper-blueprints", "esper-policies", "esper-rewards", "esper-tasks")
    environment = new_environment(*members)
    source = tmp_path_factory.mktemp("source") / EXTRA.name
    shutil.copytree(EXTRA, source, ignore=shutil.ignore_patterns("__pycache__", ".*_cache", "build", "dist"))
    environment.install(*build(source))
    return environment


def test_it_is_found_and_active(with_extra: CleanEnvironment) -> None:
    listed = json.loads(with_extra.run("esper", "plugins", "list", "--json").stdout)
    mine = {plugin["id"]: plugin for plugin in listed}["blueprints-extra"]
    assert (mine["status"], mine["problems"], mine["package"]) == ("active", [], "esper-blueprints-extra")
    assert {name.partition("/")[2] for name in mine["components"]} == NAMES


def test_its_names_are_none_of_the_standard_set(with_extra: CleanEnvironment) -> None:
    listed = json.loads(with_extra.run("esper", "components", "list", "blueprint", "--json").stdout)
    standard = {one["id"].partition("/")[2] for one in listed if not one["id"].startswith("blueprints-extra/")}
    assert standard
    assert not standard & NAMES


def test_it_passes_the_check(with_extra: CleanEnvironment) -> None:
    with_extra.run("esper", "plugins", "check", "blueprints-extra")


def test_its_own_tests_pass(with_extra: CleanEnvironment, own_tests: Callable[..., str]) -> None:
    assert " passed" in own_tests(with_extra, EXTRA)


def test_a_run_uses_one_by_name_and_the_rest_by_glob(with_extra: CleanEnvironment, tmp_path: Path) -> None:
    short = ["environments=1", "episode.batches=2"]
    changes = [word for change in short for word in ("--set", change)]
    file = str(ROOT / "examples" / "extra.yaml")
    told = with_extra.run("esper", "run", file, *changes, "--runs-dir", str(tmp_path), "--json").stdout
    directory = Path(json.loads(told)["run"])
    manifest = json.loads((directory / "manifest.json").read_text(encoding="utf-8"))
    assert "blueprints-extra" in {plugin["id"] for plugin in manifest["plugins"]}
    episodes = json.loads((directory / "growth.json").read_text(encoding="utf-8"))["episodes"]
    (grown,) = [episode["grown"] for episode in episodes if episode["arm"] not in ("twin", "capacity")]
    assert {(fossil["slot"], fossil["blueprint"]) for fossil in grown} == {
        ("early", "blueprints-extra/shift-mix"),
        ("late", "blueprints-extra/poly"),
    }


def test_a_glob_takes_all_that_fit_the_slot(with_extra: CleanEnvironment, tmp_path: Path) -> None:
    file = tmp_path / "glob.yaml"
    text = (ROOT / "examples" / "extra.yaml").read_text(encoding="utf-8")
    file.write_text(text.replace("blueprints: [shift-mix]", 'blueprints: ["blueprints-extra/*"]'), encoding="utf-8")
    changes = ["--set", "policy.settings.plan[0].blueprint=haar", "--set", "environments=1"]
    with_extra.run("esper", "run", str(file), *changes, "--dry-run", "--runs-dir", str(tmp_path / "runs"))


@pytest.mark.parametrize("name", ["my_run.yaml", "with_plugin.yaml"])
def test_the_snippets_of_the_readme_run(with_extra: CleanEnvironment, name: str) -> None:
    readme = runpy.run_path(str(ROOT / "tests" / "docs" / "test_readme.py"))
    readme["write_snippets"](with_extra.folder)
    told = with_extra.run("esper", "run", name, "--json").stdout
    assert set(json.loads(told)["results"]["arms"]) >= {"heuristic", "twin"}


def test_it_is_typed_as_mypy_wants_it_when_strict(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mypy", "--cache-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=EXTRA, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
