"""A small run that takes a second, and the command line, called in this process."""

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from esper_core.leyline import SeedSignals, Stage
from esper_core.leyline.events import Event, GovernorActed, SeedLost, StageChanged, StepFinished
from esper_run import read_events
from esper_run.cli import main
from esper_testing.pytest_plugin import Answer
from tests.support.configurations import GROWING

LONG_ENOUGH = 4
"""Steps in isolation after which a seed's loss must have fallen."""


def run_once(folder: Path, text: str = GROWING, *options: str) -> Path:
    """Run a configuration in a folder, for several tests to read, and return the run directory."""
    folder.mkdir(exist_ok=True)
    (folder / "run.yaml").write_text(text)
    with pytest.raises(SystemExit):
        main(["run", str(folder / "run.yaml"), "--runs-dir", str(folder / "runs"), "--quiet", *options])
    (path,) = (folder / "runs").iterdir()
    return path


@pytest.fixture
def esper(esper_cli: Callable[..., Answer], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Answer]:
    """``esper("run", file)``: the command, without the cost of a process.

    Every run is checked: a host equals its twin until a seed acts on it, and incubating seeds learn.
    """
    seen: set[Path] = set()

    def call(*arguments: str | Path) -> Answer:
        monkeypatch.setattr(sys, "argv", ["esper", *map(str, arguments)])
        answer = esper_cli(*map(str, arguments))
        for events_file in _events_below(arguments):
            if events_file not in seen:
                seen.add(events_file)
                hold_against_the_oracle(list(read_events(events_file)))
        return answer

    return call


def _events_below(arguments: Sequence[str | Path]) -> list[Path]:
    """Return the events of the runs in the folder that the arguments name."""
    places = [Path(str(value)) for name, value in pairwise(arguments) if name == "--runs-dir"]
    return sorted(file for place in places for file in place.glob("*/events.jsonl"))


def compared(results: Any, first: str, second: str) -> Any:
    """Return the comparison of an arm with another one, of which there is one in results of a run."""
    pairs = [pair for pair in results["comparisons"] if (pair["a"], pair["b"]) == (first, second)]
    (comparison,) = pairs
    return comparison


def hold_against_the_oracle(events: Sequence[Event]) -> None:
    """Check that a host has its twin's measurements, to the last bit, until a seed acts on it or a rollback."""
    of_twins = [event for event in events if isinstance(event, StepFinished) and event.arm == "twin"]
    twins = {(event.round, event.seed, event.step): event.signals for event in of_twins}
    touched: set[tuple[int, str, int]] = set()
    learnt: dict[tuple[int, str, int, int], list[SeedSignals]] = {}
    for event in events:
        # On a branch a seed acts some steps after it says so, but never before.
        acts = isinstance(event, StageChanged) and event.now in (Stage.BLENDING, Stage.FOSSILISED)
        if isinstance(event, SeedLost | GovernorActed) or acts:
            touched.add((event.round, event.arm, event.seed))
        if not isinstance(event, StepFinished) or event.arm.startswith(("twin", "capacity")):
            continue
        twin, signals = twins.get((event.round, event.seed, event.step)), event.signals
        if twin is not None and (event.round, event.arm, event.seed) not in touched:
            measurements = [(side.train_loss, side.validation_loss, side.validation_metric) for side in (signals, twin)]
            assert measurements[0] == measurements[1], (event.arm, event.seed, event.step)
        for place, seed in enumerate(signals.seeds):
            if seed.stage is Stage.TRAINING and seed.incubation_loss is not None:
                learnt.setdefault((event.round, event.arm, event.seed, place), []).append(seed)
    for seeds in learnt.values():
        if len(seeds) >= LONG_ENOUGH and len({seed.blueprint for seed in seeds}) == 1:
            gains = [seed.gain for seed in seeds if seed.gain is not None]
            assert len(gains) == len(seeds)
            # A gain in accuracy has no deviation while the seed changes no prediction.
            assert all((gain.deviation > 0) == (gain.best > gain.worst) for gain in gains)
            assert min(seed.incubation_loss or 0.0 for seed in seeds[1:]) < (seeds[0].incubation_loss or 0.0)


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A configuration file of a small run."""
    file = tmp_path / "small.yaml"
    file.write_text(GROWING)
    return file


def add_plugin(file: Path, source: str, more: str = "") -> None:
    """Add a one-file plugin to a configuration file, and lines that use it."""
    (file.parent / "own.py").write_text(source)
    file.write_text(f"{file.read_text()}plugins: {{local: [./own.py]}}\n{more}")


@dataclass(frozen=True)
class Ran:
    """A run, and the output of its command."""

    answer: Answer
    runs: Path

    @property
    def path(self) -> Path:
        (path,) = self.runs.iterdir()
        return path

    def text(self, name: str) -> str:
        return (self.path / name).read_text(encoding="utf-8")

    def json(self, name: str) -> Any:
        return json.loads(self.text(name))

    def events(self, kind: type = object) -> list[Any]:
        return [event for event in read_events(self.path / "events.jsonl") if isinstance(event, kind)]


@pytest.fixture
def run(esper: Callable[..., Answer], small: Path, tmp_path: Path) -> Callable[..., Ran]:
    """``run("seed=1")``: run a configuration, by default the small one, with these settings."""

    def call(
        *sets: str, file: Path | None = None, runs: str = "runs", options: Sequence[str] = ("--quiet",), code: int = 0
    ) -> Ran:
        more = [part for setting in sets for part in ("--set", setting)]
        answer = esper("run", file or small, "--runs-dir", tmp_path / runs, *options, *more)
        assert answer.status == code, answer.err
        return Ran(answer, tmp_path / runs)

    return call
