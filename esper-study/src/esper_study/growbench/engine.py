"""Train puzzles with Esper: every node of a puzzle once for a table, or only the nodes that an episode reaches.

Paths through the graph share the training of their common beginning: the state of the episode is kept at each node and
loaded again for each way that leads on from there.
"""

from __future__ import annotations

import json
import math
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from esper_core.leyline import WAIT, Action, Op, Stage
from esper_study.growbench.graph import Node, branches, is_decision_step, node_index, nodes, parents
from esper_study.growbench.puzzles import SLOTS
from esper_study.growbench.table import COLUMNS, GAIN_FIELDS, GRADIENT_FIELDS, SLOT_STATES, Table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from esper_core.leyline import SeedSignals, State
    from esper_run.app.episode import Episode, EpisodeStep
    from esper_study.growbench.puzzles import Puzzle


def open_puzzle(puzzle: Puzzle) -> Episode:
    """Return an ``Episode`` that steps through episodes of a puzzle."""
    from esper_run.app.episode import Episode  # imports torch, which playing a table does not need

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / f"{puzzle.name}.yaml"
        file.write_text(json.dumps(puzzle.config()))
        return Episode.of(file)


def act_until_decision(play: Episode, action: Action) -> EpisodeStep:
    """Act, then step on to the next decision or the end, and fossilise seeds that have been blended in on the way."""
    latest = play.act(action)
    while not latest.over and not is_decision_step(latest.observation.step):
        latest = play.act(_fossilise_or_wait(latest))
    return latest


def measurements(latest: EpisodeStep) -> NDArray[np.float32]:
    """Return the row of a table for the present state of an episode."""
    now = latest.observation.signals
    if len(now.seeds) > 1:
        msg = f"growbench has at most one incubating seed. Received: {len(now.seeds)}"
        raise RuntimeError(msg)
    states = {slot.name: float(SLOT_STATES.index(slot.state)) for slot in now.slots}
    test = math.nan if latest.ending is None else latest.ending.test_metric
    host = [now.train_loss, now.validation_loss, now.validation_metric, float(now.parameters), test]
    seed = _seed_columns(now.seeds[0]) if now.seeds else [math.nan] * (2 + len(GRADIENT_FIELDS) + len(GAIN_FIELDS))
    return np.array([*host, *(states[slot] for slot in SLOTS), *seed], dtype=np.float32)


class PuzzleRun:
    """The training of one puzzle from one RNG seed, up to the states that were requested."""

    def __init__(self, play: Episode, seed: int) -> None:
        self._play = play
        self._seed = seed
        self._rows: dict[Node, NDArray[np.float32]] = {}
        self._states: dict[Node, State] = {}
        self._seconds: dict[Node, float] = {}
        self._twin = play.twin_of(seed)
        started = time.process_time()
        self._record(Node(0), play.begin(seed), started)

    @property
    def visited(self) -> frozenset[Node]:
        """The nodes that have been trained."""
        return frozenset(self._rows)

    def row(self, node: Node) -> NDArray[np.float32]:
        """Return the measurements of a node, after training the path to it as far as that is missing."""
        if node not in self._rows:
            before, action = parents()[node]
            self.row(before)
            if not self._play.knows_twin(self._seed):  # an Episode keeps a few twins, and several runs may share it
                self._play.know_twin(self._seed, self._twin)
            self._play.load_state_dict(self._states[before])
            started = time.process_time()
            self._record(node, act_until_decision(self._play, action), started)
        return self._rows[node]

    def seconds(self, node: Node) -> float:
        """Return the processor time of the steps between the previous node and this one."""
        self.row(node)
        return self._seconds[node]

    def _record(self, node: Node, latest: EpisodeStep, started: float) -> None:
        self._seconds[node] = time.process_time() - started
        self._rows[node] = measurements(latest)
        if not node.over:
            self._states[node] = self._play.state_dict()


@dataclass(frozen=True, slots=True, eq=False)
class LiveTable(Table):
    """A table that is trained while it is played: one puzzle from several training seeds, one entry for each."""

    runs: tuple[PuzzleRun, ...] = ()

    def row(self, puzzle: int, node: Node) -> NDArray[np.float32]:
        """Return all columns of one node from one seed; it is trained if necessary."""
        return self.runs[puzzle].row(node)

    def column(self, name: str) -> NDArray[np.float32]:
        """Return one column as an array of shape (seeds, nodes), with NaN at nodes that have not been trained."""
        values = np.full((len(self.runs), len(nodes())), np.nan, dtype=np.float32)
        for number, run in enumerate(self.runs):
            for node in run.visited:
                values[number, node_index()[node]] = run.row(node)[COLUMNS.index(name)]
        return values


def live_table(puzzle: Puzzle, seeds: Sequence[int]) -> LiveTable:
    """Return a table of one puzzle from these training seeds, on which nothing has been trained yet.

    The data are the same for each seed; initial weights and the order of batches differ.
    """
    play = open_puzzle(puzzle)
    runs = tuple(PuzzleRun(play, seed) for seed in seeds)
    places = (dict(play.space.descriptions),) * len(seeds)
    return LiveTable((puzzle,) * len(seeds), np.empty((len(seeds), 0, 0), dtype=np.float32), places, runs=runs)


def train_puzzle(puzzle: Puzzle) -> tuple[NDArray[np.float32], dict[str, Any]]:
    """Train every node of a puzzle. Return an array of shape (nodes, columns), and the slots as plain data."""
    play = open_puzzle(puzzle)
    values = np.full((len(nodes()), len(COLUMNS)), np.nan, dtype=np.float32)
    _train_from(play, Node(0), play.begin(puzzle.seed), values)
    play.close()
    return values, {name: asdict(place) for name, place in play.space.descriptions.items()}


def puzzle_file(puzzle: Puzzle, folder: Path) -> Path:
    """Return the file that keeps a trained puzzle until the table is packed."""
    return folder / f"{puzzle.name}.npz"


def train_to_file(job: tuple[Puzzle, Path]) -> tuple[str, float]:
    """Train a puzzle and write its file into a folder, atomically. Return its name and the seconds it took."""
    puzzle, folder = job
    started = time.monotonic()
    values, places = train_puzzle(puzzle)
    file = puzzle_file(puzzle, folder)
    unfinished = file.with_suffix(".new")
    with unfinished.open("wb") as stream:
        np.savez_compressed(stream, values=values, places=np.frombuffer(json.dumps(places).encode(), dtype=np.uint8))
    unfinished.replace(file)
    return puzzle.name, time.monotonic() - started


def _train_from(play: Episode, node: Node, latest: EpisodeStep, values: NDArray[np.float32]) -> None:
    """Record a node, at which the episode is, and train everything behind it, depth first."""
    values[node_index()[node]] = measurements(latest)
    if node.over:
        return
    snapshot = play.state_dict()
    for action, led_to in branches(node):
        play.load_state_dict(snapshot)
        _train_from(play, led_to, act_until_decision(play, action), values)


def _fossilise_or_wait(latest: EpisodeStep) -> Action:
    for slot in latest.observation.signals.slots:
        keep = Action(Op.FOSSILISE, slot.name)
        if any(seed.stage is Stage.HOLDING for seed in slot.seeds) and latest.mask.allows(keep):
            return keep
    return WAIT


def _seed_columns(seed: SeedSignals) -> list[float]:
    loss = math.nan if seed.incubation_loss is None else seed.incubation_loss
    gradients = [math.nan if seed.gradients is None else getattr(seed.gradients, name) for name in GRADIENT_FIELDS]
    gain = [math.nan if seed.gain is None else float(getattr(seed.gain, name)) for name in GAIN_FIELDS]
    return [loss, float(seed.parameters), *gradients, *gain]
