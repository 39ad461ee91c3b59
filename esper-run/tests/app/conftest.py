"""A small run that takes a fraction of a second."""

import importlib
import json
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent
from types import ModuleType
from typing import Any

import pytest

from esper_run.app.compose import prepare

SMALL = """\
task: stripes
host: pointwise-mlp
slots: {early: {blueprints: [conv_light]}}
policy:
  use: schedule
  settings:
    plan:
      - {step: 0, op: germinate, slot: early, blueprint: conv_light, speed: 2}
environments: 2
growth: {gates: "off"}
episode: {steps: 3, batches: 1, batch_size: 20}
"""


RECORDER = """
from esper_core.leyline import WAIT, Action, Op, State

class Recorder:
    seen = []
    rollouts = []
    known = 0

    def __init__(self, space):
        slot = space.slots[0]
        self.grow = Action(Op.GERMINATE, slot, space.blueprints[slot][0])

    def act(self, observations, masks):
        self.seen.append((list(observations), list(masks)))
        turns = zip(observations, masks)
        return [self.grow if WANTED and mask.allows(self.grow) else WAIT for one, mask in turns]

    def update(self, rollout):
        self.rollouts.append(rollout)
        self.known += len(rollout.trajectories)
        return FIGURES

    def state_dict(self):
        return State.of({}, known=self.known)

    def load_state_dict(self, state):
        self.known = state.plain["known"]
"""


@pytest.fixture
def recorder(install: Any) -> Callable[..., ModuleType]:
    """``recorder(wanted, figures)``: install a policy "recorder" that records what it sees; return its module.

    ``wanted``: where it grows, of an observation ``one``. ``figures``: what an update returns.
    """

    def make(wanted: str = "True", figures: str = '{"known": self.known}', more: str = "") -> ModuleType:
        source = RECORDER.replace("WANTED", wanted).replace("FIGURES", figures)
        install.components("recording", f"{source}{more}", policy={"recorder": "Recorder"})
        return importlib.import_module("esper_recording")

    return make


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs do not record the installed packages, which takes longer than the small run itself."""
    monkeypatch.setattr("esper_run.runs.directory.installed_packages", list)
    monkeypatch.setattr("esper_run.runs.directory.git_state", lambda path: (None, ""))


@pytest.fixture
def configured(tmp_path: Path) -> Callable[[str], Path]:
    """``configured("plugins: …")``: the file of the small run with these lines appended, from line 12 on."""

    def write(more: str = "") -> Path:
        file = tmp_path / "small.yaml"
        file.write_text(SMALL + dedent(more))
        return file

    return write


@pytest.fixture
def run_file(tmp_path: Path) -> Callable[..., Path]:
    """``run_file(file, override, …)``: run it, and return the run directory."""

    def run(file: Path, *overrides: str) -> Path:
        from esper_run.app.run import run as run_prepared

        return run_prepared(prepare(file, overrides), runs_dir=tmp_path / "runs").path

    return run


@pytest.fixture
def run_small(configured: Callable[[str], Path], run_file: Callable[..., Path]) -> Callable[..., dict[str, Any]]:
    """``run_small(plugins: …)``: run it, and return summary.json and manifest.json."""

    def run(more: str = "") -> dict[str, Any]:
        path = run_file(configured(more))
        documents = {name: json.loads((path / f"{name}.json").read_text()) for name in ("summary", "manifest")}
        return {**documents, "path": path}

    return run
