"""What a run directory keeps of a configuration with overlays."""

from __future__ import annotations

import pytest

from esper_core.app.compose import prepare
from esper_core.app.resolution import resolved_config
from esper_core.config import load_config

LOCAL = "from esper_core import hookimpl\n"


@pytest.mark.members
def test_a_run_directory_holds_every_source_and_a_configuration_that_runs_without_them(configured, tmp_path) -> None:
    from esper_core.app.run import run

    inner = tmp_path / "inner"
    inner.mkdir()
    (inner / "own_plugin.py").write_text(LOCAL)
    file, overlays = configured(""), [inner / "first.yaml", tmp_path / "second.yaml"]
    overlays[0].write_text("environments: 1\nplugins: {local: [own_plugin.py]}\n")
    overlays[1].write_text("episode: {steps: 2}\n")
    path = run(prepare(file, ["seed=3"], overlays), runs_dir=tmp_path / "runs").path
    assert (path / "config.source.yaml").read_bytes() == file.read_bytes()
    assert (path / "config.overlay-1.yaml").read_bytes() == overlays[0].read_bytes()
    assert (path / "config.overlay-2.yaml").read_bytes() == overlays[1].read_bytes()
    assert not (path / "config.overlay-3.yaml").exists()
    assert (path / "own_plugin.py").read_text() == LOCAL
    again = load_config(path / "config.yaml")
    assert (again.config.environments, again.config.episode.steps, again.config.seed) == (1, 2, 3)
    assert resolved_config(prepare(path / "config.yaml").resolution) == again.config
