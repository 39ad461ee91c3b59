"""Curves: what is measured while one seed of a problem trains, from its germination to the end of the episode.

On a branch the host stays what it is without the seed, and blending changes nothing that is measured later. So an
episode consists of its host alone and of the curves of the seeds that were tried, whatever was decided about them, and
each curve is trained once. ``Curves`` trains what is asked for and keeps it in a JSON file.
"""

from __future__ import annotations

import json
import math
import tempfile
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from esper_core.leyline import WAIT, Action, Candidate, Op, SlotDescription
from esper_run.app.episode import Episode
from esper_study.growbench.puzzles import STEPS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from benchmarks.science.forecaster.problems import Problem
    from esper_core.leyline import SeedSignals


@dataclass(frozen=True, slots=True)
class Curve:
    """One seed from its germination to the end.

    Attributes:
        parameters: Of the seed.
        looks: By age from 1: examples, mean and deviation of the gain, loss in incubation, and whether a blended seed
            could be kept then. None: not measured.
        metric: Validation metric in the end if the seed is kept; NaN if it could never be.
    """

    parameters: int
    looks: tuple[tuple[float | None, ...], ...]
    metric: float

    @property
    def stays(self) -> list[bool]:
        """For each step but the last in which the seed could be kept, whether it could be in a later one."""
        possible = [bool(look[-1]) for look in self.looks]
        return [any(possible[place + 1 :]) for place, now in enumerate(possible[:-1]) if now]


class Curves:
    """The curves of one problem, from the file or trained when they are asked for.

    Args:
        problem: The problem.
        folder: Where its file is.
    """

    def __init__(self, problem: Problem, folder: Path) -> None:
        self.problem = problem
        self._file = folder / f"{problem.name}.json"
        self._stored: dict[str, Any] = json.loads(self._file.read_text()) if self._file.exists() else {}

    @property
    def host(self) -> Mapping[str, list[float]]:
        """The host alone: training loss, validation loss and metric by step, and ``parameters``."""
        if "host" not in self._stored:
            self.episode.begin(self.problem.seed)
            twin = self.episode.twin
            measured = {name: [getattr(signals, name) for signals in twin.signals] for name in SERIES}
            measured["parameters"] = [self.episode.host_parameters]
            places = {name: asdict(place) for name, place in self.episode.space.descriptions.items()}
            self._keep({"host": measured, "places": places, "curves": {}})
        series: dict[str, list[float]] = self._stored["host"]
        return series

    @property
    def places(self) -> dict[str, SlotDescription]:
        """The slots, and what may grow in them."""
        assert self.host
        return {name: _place(plain) for name, plain in self._stored["places"].items()}

    def seeds(self, germinated: int | None = None) -> list[tuple[str, str, int]]:
        """Return slot, blueprint and step of germination of every known curve whose seed can be kept.

        germinated: only of those that germinated after this step.
        """
        trained = [(slot, name, int(step)) for slot, name, step in (key.split() for key in self._stored["curves"])]
        selected = [seed for seed in trained if germinated is None or seed[2] == germinated]
        return [seed for seed in selected if not math.isnan(self.curve(*seed).metric)]

    def curve(self, slot: str, blueprint: str, step: int) -> Curve:
        """Return the curve of a seed that germinates after ``step``."""
        assert self.host
        key = f"{slot} {blueprint} {step}"
        if key not in self._stored["curves"]:
            self._stored["curves"][key] = asdict(self._train(slot, blueprint, step))
            self._keep(self._stored)
        record = self._stored["curves"][key]
        return Curve(record["parameters"], tuple(map(tuple, record["looks"])), record["metric"])

    @cached_property
    def episode(self) -> Episode:
        """The problem in the engine, to step through."""
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "problem.yaml"
            file.write_text(json.dumps(self.problem.config()))
            return Episode.of(file)

    def _train(self, slot: str, blueprint: str, step: int) -> Curve:
        """Advance the seed at once, record every step, and keep the seed at the last step where that is possible."""
        now = self.episode.begin(self.problem.seed)
        while now.observation.step < step:
            now = self.episode.act(WAIT)
        keep, advance = Action(Op.FOSSILISE, slot), Action(Op.ADVANCE, slot, blueprint)
        now, looks, parameters, state = self.episode.act(Action(Op.GERMINATE, slot, blueprint)), [], 0, None
        while now.observation.step < STEPS - 1:
            looks.append(_look(now.observation.signals.seeds, float(now.mask.allows(keep))))
            parameters = max([parameters, *(seed.parameters for seed in now.observation.signals.seeds)])
            state = self.episode.state_dict() if now.mask.allows(keep) else state
            now = self.episode.act(advance if now.mask.allows(advance) else WAIT)
        if state is None:
            return Curve(parameters, tuple(looks), math.nan)
        self.episode.load_state_dict(state)
        now = self.episode.act(keep)
        while not now.over:
            now = self.episode.act(WAIT)
        assert now.ending is not None
        return Curve(parameters, tuple(looks), now.ending.signals.validation_metric)

    def _keep(self, stored: dict[str, Any]) -> None:
        self._stored = stored
        self._file.parent.mkdir(parents=True, exist_ok=True)
        unfinished = self._file.with_suffix(".new")
        unfinished.write_text(json.dumps(stored) + "\n")
        unfinished.replace(self._file)


SERIES: Final = ("train_loss", "validation_loss", "validation_metric")
"""What is recorded of the host in every step."""


def _look(seeds: Sequence[SeedSignals], keepable: float) -> tuple[float | None, ...]:
    """Return a look at the only seed; nothing is known of one that is gone."""
    for seed in seeds:
        gain = (None,) * 3 if seed.gain is None else (seed.gain.n, seed.gain.mean, seed.gain.deviation)
        return (*gain, seed.incubation_loss, keepable)
    return (None, None, None, None, 0.0)


def _place(plain: Mapping[str, Any]) -> SlotDescription:
    candidates = tuple(
        Candidate(**{**candidate, "traits": tuple(candidate["traits"])}) for candidate in plain["candidates"]
    )
    return SlotDescription(**{**plain, "size": tuple(plain["size"]), "candidates": candidates})
