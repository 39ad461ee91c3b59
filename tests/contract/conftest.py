"""Run a small study in memory with one option changed at a time; read each source once."""

import ast
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = sorted(ROOT.glob("esper-*/src/**/*.py"))

SMALL = """\
task: stripes
host: pointwise-mlp
slots:
  early: {blueprints: [conv_light]}
  late: {blueprints: [mlp]}
policy:
  use: schedule
  settings:
    plan:
      - {step: 0, op: germinate, slot: early, blueprint: conv_light, speed: 1}
      - {step: 1, op: advance, slot: early}
growth: {gates: "off"}
environments: 1
episode: {steps: 4, batches: 1, batch_size: 20}
device: cpu
lanes: 1
"""

OWN = '''
import json
from pathlib import Path

from pydantic import BaseModel

from esper_core import SinkSpec, hookimpl


class Mark(BaseModel):
    mark: str = "unset"


class Note:
    """Writes its mark beside the events."""

    def __init__(self, run, mark):
        Path(run, "noted.txt").write_text(mark)

    def hear(self, event): pass

    def settle(self): pass

    def close(self): pass


@hookimpl
def esper_register_sinks(registry):
    registry.add("note", Note, SinkSpec("Notes its mark.", Mark))
'''
"""A one-file plugin with a sink that writes to the run directory."""

GUESSING = 3.0
"""Loss of guessing in the signals for governors."""


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imports(path: Path) -> Iterator[tuple[str, str]]:
    """Yield module and name of every import, type checking included; the name is empty for ``import module``."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from ((node.module, alias.name) for alias in node.names)


@cache
def installed() -> Any:
    """Return the plugins of a file without ``plugins``."""
    from esper_core.plugins import load_plugins

    return load_plugins()


class World:
    """The small run with some values set. Its parts are built once, when they are first used."""

    def __init__(self, sets: Sequence[str], folder: Path) -> None:
        self._sets, self._folder = tuple(sets), folder

    @cached_property
    def composition(self) -> Any:
        """All parts, built and checked without training."""
        from esper_run.app.compose import compose
        from esper_run.app.resolution import load_run_plugins, resolve
        from esper_run.config import load_config
        from esper_run.config.model import PluginsConfig

        loaded = load_config(self._folder / "small.yaml", self._sets)
        unchanged = loaded.config.plugins == PluginsConfig()
        return compose(resolve(loaded, installed() if unchanged else load_run_plugins(loaded, self._folder)))

    @cached_property
    def recipe(self) -> Any:
        return self.composition.recipe

    @cached_property
    def refusal(self) -> str | None:
        """The code of the first problem; None if there is none."""
        from esper_core import EsperError

        try:
            _ = self.composition
        except EsperError as error:
            return error.problems[0].code
        return None

    @property
    def events(self) -> list[Any]:
        return self._ran[1]

    @property
    def threads(self) -> set[str]:
        """The first words of the names of the threads on which modules compute."""
        return {name.partition("_")[0] for name in self._ran[2]}

    @property
    def lives_here(self) -> bool:
        """Whether modules compute in this process, once the run is prepared."""
        return bool(self._ran[2] - {"MainThread"})

    @property
    def directory(self) -> Path:
        return self._ran[0]

    @cached_property
    def _ran(self) -> tuple[Path, list[Any], set[str]]:
        """Run it as the command does, but without the slow list of installed packages."""
        from torch.nn.modules.module import register_module_forward_hook

        from esper_run import read_events
        from esper_run.app.compose import prepare
        from esper_run.app.run import run

        threads: set[str] = set()
        prepared = prepare(self._folder / "small.yaml", self._sets)
        noting = register_module_forward_hook(lambda *_: threads.add(threading.current_thread().name))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("esper_run.runs.directory.installed_packages", list)
            patch.setattr("esper_run.runs.directory.git_state", lambda path: (None, ""))
            try:
                outcome = run(prepared, runs_dir=self._folder / "runs")
            finally:
                noting.remove()
        return outcome.path, list(read_events(outcome.path / "events.jsonl")), threads

    def told(self, kind: str) -> list[Any]:
        """Return the events of one type, those of the growing arm first."""
        return sorted((e for e in self.events if e.type == kind), key=lambda e: e.arm == "twin")

    @property
    def steps(self) -> list[Any]:
        return self.told("step-finished")

    def environment(self, plan: Mapping[int, Any] | None = None, steps: int = 0) -> Any:
        """One environment after so many steps; ``plan`` says which action follows which step, -1: before the first."""
        from esper_core.trainer.environment import Environment

        environment = Environment(self.recipe, arm="grown", index=0)
        environment.reset(0, 0)
        environment.network.governor.begin(environment.garden, GUESSING)
        for step in range(-1, steps):
            if step >= 0:
                environment.train()
            if plan and step in plan:
                environment.network.apply(plan[step], step)
        return environment

    def governed(self, *losses: float, note: Sequence[Any] = ()) -> list[Any]:
        """Return a governor's decisions for steps with these losses; rollbacks are carried out."""
        from esper_core.governor import Act
        from esper_core.leyline import Signals, SlotSignals, SlotState

        governor = self.environment().network.governor
        governor.record(note, 0)
        decisions = []
        for step, loss in enumerate(losses):
            slots = (SlotSignals("early", SlotState.FREE, 0),)
            decisions.append(governor.decide(Signals(step, loss, loss, 0.5, 10, 10, slots)))
            if decisions[-1].act is Act.ROLL_BACK:
                governor.roll_back(decisions[-1])
        return decisions

    @property
    def asked_of_ray(self) -> Any:
        """What is asked of a Ray cluster."""
        from esper_run.engines import EngineContext
        from esper_scale.engines import sessions

        settings, asked = self.composition.resolution.engine.settings, []
        context = EngineContext(self.composition, settings, on_node=lambda node: None, on_wait=lambda: None)

        def connect(*_: Any, **others: Any) -> Any:
            asked.append(SimpleNamespace(wait_seconds=others["wait_seconds"]))
            return SimpleNamespace(workers=1)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sessions, "RayEngine", connect)
            sessions.open_ray(context)
        return asked[0]

    def written(self, name: str) -> str:
        """Return the content of a file of the run directory; empty if it does not exist."""
        path = self.directory / name
        return path.read_text(encoding="utf-8") if path.exists() else ""


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., World]:
    """``world("episode.steps=2")``: return the small run with this set; the same object each time."""
    folder = tmp_path_factory.mktemp("world")
    (folder / "small.yaml").write_text(SMALL, encoding="utf-8")
    (folder / "own.py").write_text(OWN, encoding="utf-8")
    worlds: dict[tuple[str, ...], World] = {}

    def make(*sets: str) -> World:
        return worlds.setdefault(sets, World(sets, folder))

    return make
