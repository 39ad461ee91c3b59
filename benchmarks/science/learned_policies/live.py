"""Run the same policies in the engine, on new draws, on a host of the table and two others.

Nothing is tuned here: the plan, the heuristic and the policies are used as they were trained on the table. Twin and
static capacity control run beside them, on the same seeds. A bandit cannot be trained beforehand: it plays two rounds
of other seeds first, and in the third it uses the best arm. Where gromo is installed, it and its own twin are among
them (``other_grower``).
"""

from __future__ import annotations

import json
import logging
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch

from benchmarks.science.learned_policies import other_grower
from benchmarks.science.learned_policies.players import CONTROLLERS, HEADLINE, RULES
from esper_core.app.compose import prepare
from esper_core.app.run import run
from esper_core.leyline.events import EpisodeFinished, StepFinished
from esper_study.growbench import CANDIDATES, Node
from esper_study.growbench.puzzles import DECIDE_EVERY, LAST_DECISION, RAMP, RUN_SETTINGS, SLOTS, STEPS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from esper_core.app.compose import Composition
    from esper_core.leyline import Place
    from esper_core.leyline.events import Event

SEEDS_OF_CELL: Final = 20
FIRST_SEED: Final = 90_000
BANDIT_ROUNDS: Final = 3

_DATA: Final = {"samples": 2000, "validation": 600}


@dataclass(frozen=True, slots=True)
class Cell:
    """One task under one host. late: the host's slot after its last features. seeds, batches: amount of training."""

    name: str
    task: Mapping[str, Any]
    host: Mapping[str, Any]
    late: str
    seeds: int = SEEDS_OF_CELL
    batches: int = 10

    def config(self, arms: Mapping[str, Any], seed: int, order: Sequence[str], **more: Any) -> dict[str, Any]:
        """Return the configuration of some arms.

        order: in which the heuristic tries blueprints.
        """
        early = [name for name in order if name in SLOTS["early"]]
        slots = {"early": {"blueprints": early}, self.late: {"blueprints": list(SLOTS["late"])}}
        return {
            "task": dict(self.task),
            "host": dict(self.host),
            "slots": slots if order[0] in early else dict(reversed(slots.items())),
            "arms": {name: {"policy": policy} for name, policy in arms.items()},
            "reward": {"use": "rewards/team", "settings": {"price": HEADLINE}},
            "seed": seed,
            "environments": self.seeds,
            "episode": {"steps": STEPS, "batches": self.batches, "batch_size": 100},
            **RUN_SETTINGS,
            **more,
        }


def cells(*, quick: bool) -> Iterator[Cell]:
    """Yield every task under both hosts: plain, shuffled, and without a deficit."""
    plain, shuffled = ({"use": f"tasks/{name}", "settings": _DATA} for name in ("mnist1d", "mnist1d-shuffled"))
    easy = {"use": "tasks/riddles", "settings": {"kind": "easy", "seed": 1}}
    narrow = {"use": "tasks/pointwise-mlp", "settings": {"channels": 8, "hidden": 16, "kernel": 1}}
    blind = {"use": "tasks/cnn1d", "settings": {"channels": 4, "kernel": 1}}
    wide = {"use": "tasks/wide-cnn1d"}
    every = [
        Cell("plain, pointwise-mlp", plain, narrow, "late"),
        Cell("plain, cnn1d that sees no neighbours", plain, blind, "features"),
        Cell("shuffled, pointwise-mlp", shuffled, narrow, "late"),
        Cell("shuffled, cnn1d that sees no neighbours", shuffled, blind, "features"),
        Cell("no deficit: easy riddle, pointwise-mlp", easy, narrow, "late"),
        Cell("no deficit: plain, wide cnn1d", plain, wide, "features"),
    ]
    for cell in every:
        yield Cell(cell.name, cell.task, cell.host, cell.late, 2, 2) if quick else cell


@dataclass(frozen=True, slots=True)
class Visit:
    """One cell to run in a process of its own, with the tuned and trained policies in ``folder``.

    best: the best price-blind plan.
    """

    cell: Cell
    folder: Path
    best: Node


def arms_of(visit: Visit) -> tuple[dict[str, Any], Sequence[str]]:
    """Return every arm but the bandit, and the order in which the tuned heuristic tries blueprints."""
    rules = dict(json.loads((visit.folder / "heuristic.json").read_text(encoding="utf-8"))[f"{HEADLINE:g}"])
    order = rules.pop("order")
    gardener = {"learn": False, "auto_fossilise": True, "one_at_a_time": True}
    common = {"decide_every": DECIDE_EVERY, "last": LAST_DECISION, "speeds": [RAMP]}
    homes = [str((visit.folder / f"gardener-{seed}").resolve()) for seed in range(CONTROLLERS)]
    arms = {
        "random": {"use": "policies/random", "settings": {"speeds": [RAMP]}},
        "plan": {"use": "policies/schedule", "settings": {"plan": plan_to(visit.best, visit.cell.late)}},
        "heuristic": {"use": "policies/heuristic", "settings": {**RULES, **rules}},
        **{
            f"ppo-{number}": {"use": "policies/ppo", "settings": {"load": home, **gardener, **common}}
            for number, home in enumerate(homes)
        },
    }
    return arms, order


def run_cell(visit: Visit) -> dict[str, Any]:
    """Run all arms on one cell; return its episodes by arm and seed."""
    torch.set_num_threads(1)
    logging.getLogger("esper").setLevel(logging.ERROR)
    begin = time.monotonic()
    cell, (arms, order) = visit.cell, arms_of(visit)
    settings = {"preview": DECIDE_EVERY, "first": 0.0, "speed": RAMP, "explore_rounds": BANDIT_ROUNDS - 1}
    bandit = {"bandit": {"use": "policies/bandit", "settings": settings}}
    before = FIRST_SEED - (BANDIT_ROUNDS - 1) * cell.seeds
    episodes, places, _ = played(cell.config(arms, FIRST_SEED, order))
    learnt, _, _ = played(cell.config(bandit, before, order, rounds=BANDIT_ROUNDS, capacity=False))
    for name, own in learnt.items():
        if name != "twin":
            episodes[name] = [one for one in own if one["round"] == BANDIT_ROUNDS - 1]
    told_by_arm = {name: [_with_flops(one, places) for one in own] for name, own in episodes.items()}
    elsewhere, seconds_elsewhere = by_other_growers(cell)
    seconds = time.monotonic() - begin
    timed = {name: _seconds(cell, {name: arm}, order) for name, arm in [*arms.items(), *bandit.items()]}
    return {
        "cell": cell.name,
        "seconds": seconds,
        "arms": {**told_by_arm, **elsewhere},
        "seconds_of_two": {**timed, **seconds_elsewhere},
    }


def by_other_growers(cell: Cell) -> tuple[dict[str, list[dict[str, Any]]], dict[str, float]]:
    """Return episodes of other growing libraries and the seconds of two of them; empty if none is installed."""
    if not other_grower.is_there():
        return {}, {}
    return other_grower.played_cell(cell, FIRST_SEED), other_grower.seconds_of_two(cell, FIRST_SEED)


def _seconds(cell: Cell, arm: Mapping[str, Any], order: Sequence[str]) -> float:
    """Return how long two episodes of an arm take, with their twins."""
    return played(cell.config(arm, FIRST_SEED, order, environments=2, capacity=False))[2]


class _Notes:
    """A listener that keeps ended episodes, and parameters over steps, those of incubating seeds included."""

    def __init__(self) -> None:
        self.ended: list[EpisodeFinished] = []
        self.parameter_steps: dict[tuple[str, int], int] = {}

    def hear(self, event: Event) -> None:
        """Record one event."""
        if isinstance(event, EpisodeFinished):
            self.ended.append(event)
        elif isinstance(event, StepFinished):
            key = (event.arm, event.seed)
            self.parameter_steps[key] = self.parameter_steps.get(key, 0) + event.signals.parameters

    def settle(self) -> None:
        """Do nothing at the end of a step."""


@contextmanager
def prepared(config: Mapping[str, Any]) -> Iterator[tuple[Composition, Path]]:
    """Yield a composed run, and a folder for it that is removed after the block."""
    with tempfile.TemporaryDirectory() as home:
        file = Path(home) / "cell.yaml"
        file.write_text(json.dumps(config), encoding="utf-8")
        yield prepare(file), Path(home)


def played(config: Mapping[str, Any]) -> tuple[dict[str, list[dict[str, Any]]], Mapping[str, Place], float]:
    """Run a configuration; return its episodes by arm, its places, and its seconds."""
    notes = _Notes()
    with prepared(config) as (ready, home):
        places = dict(ready.space.places)
        begin = time.monotonic()
        run(ready, runs_dir=home / "runs", listeners=[notes], on_warning=lambda warning: None)
        seconds = time.monotonic() - begin
    arms: dict[str, list[dict[str, Any]]] = {}
    for one in sorted(notes.ended, key=lambda event: (event.round, event.seed)):
        arms.setdefault(one.arm, []).append(
            {
                "seed": one.seed,
                "round": one.round,
                "test": one.test_metric,
                "validation": one.validation_metric,
                "reward": one.reward,
                "parameters": one.parameters,
                "host": one.host_parameters,
                "parameter_steps": notes.parameter_steps.get((one.arm, one.seed), 0),
                "grown": [(seed["slot"], seed["blueprint"]) for seed in one.grown],
            }
        )
    return arms, places, seconds


def _with_flops(episode: dict[str, Any], places: Mapping[str, Place]) -> dict[str, Any]:
    """Return the episode with the forward operations of one example in its network; None if unknown."""
    grown = [places[slot].candidate(blueprint) for slot, blueprint in episode["grown"]]
    parts = [next(iter(places.values())).host_flops, *(None if one is None else one.flops for one in grown)]
    known = [part for part in parts if part is not None]
    return {**episode, "flops": sum(known) if len(known) == len(parts) else None}


def plan_to(end: Node, late: str) -> list[dict[str, Any]]:
    """Return a plan of the table for the engine's ``schedule``: seeds are kept when they hold.

    >>> from esper_study.growbench import Kept
    >>> [entry["op"] for entry in plan_to(Node(4, (Kept(2, 0, 1),)), "late")]
    ['germinate', 'advance', 'fossilise']
    """
    entries: list[dict[str, Any]] = []
    for one in end.kept:
        slot, blueprint = CANDIDATES[one.candidate]
        where = {"slot": late if slot == "late" else slot}
        entries += [
            {"step": one.planted * DECIDE_EVERY, "op": "germinate", "speed": RAMP, "blueprint": blueprint, **where},
            {"step": one.advanced * DECIDE_EVERY, "op": "advance", **where},
            {"step": one.advanced * DECIDE_EVERY + RAMP, "op": "fossilise", **where},
        ]
    return entries
