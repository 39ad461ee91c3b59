"""Does a run that is built on other files keep all of them, and do the presets run what they say?"""

from __future__ import annotations

from pathlib import Path

import pytest

from esper_core.app.preparing import prepare
from esper_core.app.resolution import resolve
from esper_core.app.resolved import resolved_config
from esper_core.config import load_config, parse_config
from esper_core.plugins import load_plugins

ROOT = Path(__file__).parents[3]
LOCAL = "from esper_core import hookimpl\n"


def ended(file: Path, runs: Path) -> Path:
    from esper_core.app.running import run

    return run(prepare(file), runs_dir=runs).path


@pytest.fixture
def stacked(configured, tmp_path) -> Path:
    """A file in a folder of its own, on a file on the small run, beside which a one-file plugin stands."""
    (tmp_path / "own_plugin.py").write_text(LOCAL)
    configured("plugins: {local: [./own_plugin.py]}\noptimizer: {seed: {momentum: 0.5}}")
    inner = tmp_path / "inner"
    inner.mkdir()
    (inner / "mid.yaml").write_text("base: ../small.yaml\nenvironments: 1\n")
    (inner / "top.yaml").write_text("base: mid.yaml\nepisode: {steps: 2}\n")
    return inner / "top.yaml"


@pytest.mark.members
def test_a_run_directory_holds_every_file_that_it_was_made_of(stacked, tmp_path) -> None:
    path = ended(stacked, tmp_path / "runs")
    assert (path / "config.source.yaml").read_bytes() == stacked.read_bytes()
    assert (path / "config.base-1.yaml").read_bytes() == (stacked.parent / "mid.yaml").read_bytes()
    assert (path / "config.base-2.yaml").read_bytes() == (tmp_path / "small.yaml").read_bytes()
    assert not (path / "config.base-3.yaml").exists()
    assert (path / "own_plugin.py").read_text() == LOCAL


@pytest.mark.members
def test_what_a_run_directory_holds_runs_the_same_without_its_bases(stacked, tmp_path) -> None:
    path = ended(stacked, tmp_path / "runs")
    again = load_config(path / "config.yaml")
    assert again.bases == ()
    assert (again.config.environments, again.config.episode.steps) == (1, 2)
    assert resolved_config(prepare(path / "config.yaml").composition.resolution) == again.config


@pytest.mark.members
def test_a_value_that_nothing_reads_is_a_warning_of_the_run(stacked) -> None:
    (warning,) = prepare(stacked).warnings
    assert warning.startswith("E114 momentum has no effect: ")
    assert "small.yaml:13:30   optimizer.seed.momentum" in warning


@pytest.mark.members
@pytest.mark.parametrize(
    ("preset", "file"), [("mnist1d-heuristic", "plugins.yaml"), ("mnist1d-plan", "examples/plan.yaml")]
)
def test_a_preset_is_the_run_that_it_is_called_after(preset, file) -> None:
    registry = load_plugins().registry
    loaded = parse_config(f"base: {preset}\n".encode(), file="f.yaml")
    mine, theirs = (resolved_config(resolve(one, registry)) for one in (loaded, load_config(ROOT / file)))
    assert {**mine.model_dump(), "policy": None} == {**theirs.model_dump(), "policy": None}
    assert mine.policy.use == theirs.policy.use
