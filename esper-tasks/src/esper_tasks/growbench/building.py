"""How is it known what comes of everything? It is trained: every way once, from where ways part.

Two ways that have the same beginning share it: the engine's state is kept where they part, and brought back for each.
"""

from __future__ import annotations

import json
import math
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from esper_core import Play
from esper_core.leyline import WAIT, Action, Op, SlotState, Stage
from esper_tasks.growbench.plans import SPROUTS, Node, decides, nodes, place_of
from esper_tasks.growbench.puzzles import RAMP, ROOM

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from esper_core import Moment
    from esper_core.leyline import SeedSignals, State
    from esper_tasks.growbench.puzzles import Puzzle

OF_HOST: Final = ("train_loss", "validation_loss", "validation_metric", "parameters", "test_metric")
OF_GRADIENTS: Final = (
    "global_norm",
    "mean_parameter_norm",
    "largest_parameter_norm",
    "vanishing",
    "exploding",
    "non_finite",
)
OF_GAIN: Final = ("n", "mean", "deviation", "skewness", "worst", "best")
COLUMNS: Final = (
    *OF_HOST,
    *(f"state_{slot}" for slot in ROOM),
    "incubation_loss",
    "seed_parameters",
    *(f"gradients_{name}" for name in OF_GRADIENTS),
    *(f"gain_{name}" for name in OF_GAIN),
)
"""What is written down of each node; NaN is what was not measured. States of slots are numbers among SlotState."""

STATES: Final = tuple(SlotState)


def game(puzzle: Puzzle) -> Play:
    """The engine's game of a puzzle."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / f"{puzzle.name}.yaml"
        file.write_text(json.dumps(puzzle.config()))
        return Play.of(file)


def build(puzzle: Puzzle) -> tuple[NDArray[np.float32], dict[str, Any]]:
    """Train everything that can be done in a puzzle: (nodes, columns), and what is known of its places."""
    play = game(puzzle)
    values = np.full((len(nodes()), len(COLUMNS)), np.nan, dtype=np.float32)
    begun = play.begin(puzzle.seed)
    _explore(play, Node(0), begun, values)
    play.close()
    return values, {name: asdict(place) for name, place in play.space.places.items()}


def file_of(puzzle: Puzzle, folder: Path) -> Path:
    """Where what came of a puzzle is kept until all are packed."""
    return folder / f"{puzzle.name}.npz"


def written(task: tuple[Puzzle, Path]) -> tuple[str, float]:
    """Build a puzzle into a folder, whole or not at all; its name, and how many seconds it took."""
    puzzle, folder = task
    begin = time.monotonic()
    values, places = build(puzzle)
    file = file_of(puzzle, folder)
    beside = file.with_suffix(".new")
    with beside.open("wb") as stream:
        np.savez_compressed(stream, values=values, places=np.frombuffer(json.dumps(places).encode(), dtype=np.uint8))
    beside.replace(file)
    return puzzle.name, time.monotonic() - begin


def go(play: Play, action: Action) -> Moment:
    """Act, and go on to the next decision, or the end: what holds at its target is kept on the way."""
    moment = play.act(action)
    while not moment.over and not decides(moment.observation.step):
        moment = play.act(_kept_by_itself(moment))
    return moment


def _kept_by_itself(moment: Moment) -> Action:
    for slot in moment.observation.signals.slots:
        keep = Action(Op.FOSSILISE, slot.name)
        if any(seed.stage is Stage.HOLDING for seed in slot.seeds) and moment.mask.allows(keep):
            return keep
    return WAIT


def _explore(play: Play, node: Node, moment: Moment, values: NDArray[np.float32]) -> None:
    """Write down a node, which ``play`` is at, and whatever it leads to that no other way leads to."""
    values[place_of()[node]] = numbers(moment)
    if node.over:
        return
    here = play.state()
    for action, after in ways(node):
        _explore(play, after, _gone(play, here, action), values)


def _gone(play: Play, here: State, action: Action) -> Moment:
    play.load(here)
    return go(play, action)


def ways(node: Node) -> list[tuple[Action, Node]]:
    """Actions by which a node leads to nodes that are reached in no other way."""
    found = [(WAIT, node.waited())]
    if node.pending is not None:
        slot, blueprint = SPROUTS[node.pending[0]]
        found = found if node.waited().pending else []  # dropped at the end: as if it had not been planted
        return [*found, (Action(Op.ADVANCE, slot, blueprint), node.advanced())]
    for sprout in node.plantable():
        if node.planted(sprout).pending:
            slot, blueprint = SPROUTS[sprout]
            found.append((Action(Op.GERMINATE, slot, blueprint, speed=RAMP), node.planted(sprout)))
    return found


def numbers(moment: Moment) -> list[float]:
    """What is written down of where an episode is, column by column."""
    now = moment.observation.signals
    states = {slot.name: float(STATES.index(slot.state)) for slot in now.slots}
    test = math.nan if moment.ending is None else moment.ending.test_metric
    known = [now.train_loss, now.validation_loss, now.validation_metric, float(now.parameters), test]
    living = now.seeds
    if len(living) > 1:
        msg = f"one seed at a time is what is tried here. Received: {len(living)}"
        raise RuntimeError(msg)
    return [*known, *(states[slot] for slot in ROOM), *_of_seed(living[0] if living else None)]


def _of_seed(seed: SeedSignals | None) -> list[float]:
    nothing = [math.nan] * len(OF_GRADIENTS), [math.nan] * len(OF_GAIN)
    if seed is None:
        return [math.nan, math.nan, *nothing[0], *nothing[1]]
    gradients = nothing[0] if seed.gradients is None else [getattr(seed.gradients, name) for name in OF_GRADIENTS]
    gain = nothing[1] if seed.gain is None else [float(getattr(seed.gain, name)) for name in OF_GAIN]
    loss = math.nan if seed.incubation_loss is None else seed.incubation_loss
    return [loss, float(seed.parameters), *gradients, *gain]
