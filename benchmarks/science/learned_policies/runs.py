"""Runs of the engine on other tasks and hosts: the heuristic and the trained policies, as they are.

Each cell is a task under a host. It has one data set and a hundred RNG seeds, since those of one problem differ by
several points, and the advantage of a policy on the table is below one.
"""

from __future__ import annotations

import json
import logging
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch

from benchmarks.science.learned_policies.policies import HEURISTIC, MAIN_PRICE, TRAININGS
from esper_core.leyline.events import EpisodeFinished
from esper_run.app.compose import prepare
from esper_run.app.run import run
from esper_study.growbench import CANDIDATES, Node
from esper_study.growbench.puzzles import DECIDE_EVERY, LAST_DECISION, RAMP, RUN_SETTINGS, SLOTS, STEPS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from esper_core.leyline.events import Event
    from esper_run.app.compose import Composition

SEEDS: Final = 100
FIRST_SEED: Final = 100_000
_DATA: Final = {"samples": 2000, "validation": 600}


@dataclass(frozen=True, slots=True)
class Cell:
    """A task under a host. late: the slot after the host's last features. folder: the trained policies.

    plan: the best fixed plan of the table.
    """

    name: str
    task: Mapping[str, Any]
    host: Mapping[str, Any]
    late: str
    folder: Path
    plan: Node
    seeds: int = SEEDS
    batches: int = 10

    def config(self, arms: Sequence[str], seed: int, **more: Any) -> dict[str, Any]:
        """Return the configuration of some arms."""
        every, order = self.arms()
        early = [name for name in order if name in SLOTS["early"]]
        slots = {"early": {"blueprints": early}, self.late: {"blueprints": list(SLOTS["late"])}}
        return {
            "task": dict(self.task),
            "host": dict(self.host),
            "slots": slots if order[0] in early else dict(reversed(slots.items())),
            "arms": {name: {"policy": every[name]} for name in arms},
            "reward": {"use": "rewards/team", "settings": {"price": MAIN_PRICE}},
            "seed": seed,
            "environments": self.seeds,
            "episode": {"steps": STEPS, "batches": self.batches, "batch_size": 100},
            **RUN_SETTINGS,
            **more,
        }

    def arms(self) -> tuple[dict[str, Any], Sequence[str]]:
        """Return every arm, and the order in which the tuned heuristic tries blueprints."""
        rules = dict(json.loads((self.folder / "heuristic.json").read_text(encoding="utf-8"))[f"{MAIN_PRICE:g}"])
        order = rules.pop("order")
        settings: dict[str, Any] = {"learn": False, "auto_fossilise": True, "one_at_a_time": True}
        settings |= {"decide_every": DECIDE_EVERY, "last": LAST_DECISION, "speeds": [RAMP]}
        arms = {
            "plan": {"use": "policies/schedule", "settings": {"plan": schedule_of(self.plan, self.late)}},
            "heuristic": {"use": "policies/heuristic", "settings": {**HEURISTIC, **rules}},
        }
        for seed in range(TRAININGS):
            load = str((self.folder / f"ppo-{seed}").resolve())
            arms[f"ppo-{seed}"] = {"use": "policies/ppo", "settings": {"load": load, **settings}}
        return arms, order


def cells(folder: Path, plan: Node, *, quick: bool) -> list[Cell]:
    """Return every task under its hosts: plain digits, permuted digits, and where nothing is lacking."""
    plain, permuted = ({"use": f"tasks/{name}", "settings": _DATA} for name in ("mnist1d", "mnist1d-shuffled"))
    easy = {"use": "tasks/riddles", "settings": {"kind": "easy", "seed": 1}}
    mlp = {"use": "tasks/pointwise-mlp", "settings": {"channels": 8, "hidden": 16, "kernel": 1}}
    cnn = {"use": "tasks/cnn1d", "settings": {"channels": 4, "kernel": 1}}
    wide = {"use": "tasks/wide-cnn1d"}
    size = (2, 2) if quick else (SEEDS, 10)
    return [
        Cell("plain, pointwise-mlp", plain, mlp, "late", folder, plan, *size),
        Cell("plain, cnn1d", plain, cnn, "features", folder, plan, *size),
        Cell("permuted, pointwise-mlp", permuted, mlp, "late", folder, plan, *size),
        Cell("permuted, cnn1d", permuted, cnn, "features", folder, plan, *size),
        Cell("easy riddle, pointwise-mlp", easy, mlp, "late", folder, plan, *size),
        Cell("plain, wide-cnn1d", plain, wide, "features", folder, plan, *size),
    ]


def run_cell(cell: Cell) -> dict[str, Any]:
    """Run one cell; return its episodes by arm and RNG seed."""
    torch.set_num_threads(1)
    logging.getLogger("esper").setLevel(logging.ERROR)
    arms = ("heuristic", *(f"ppo-{seed}" for seed in range(TRAININGS)))
    ended = _Ended()
    with prepared(cell.config(arms, FIRST_SEED, capacity=False)) as (composition, folder):
        run(composition, runs_dir=folder / "runs", listeners=[ended], on_warning=lambda warning: None)
    by_arm: dict[str, list[dict[str, Any]]] = {}
    for finished in sorted(ended.episodes, key=lambda episode: episode.seed):
        episode = {
            "seed": finished.seed,
            "reward": finished.reward,
            "test": finished.test_metric,
            "kept": len(finished.grown),
        }
        by_arm.setdefault(finished.arm, []).append(episode)
    return {"cell": cell.name, "arms": by_arm}


class _Ended:
    """A listener that keeps ended episodes."""

    def __init__(self) -> None:
        self.episodes: list[EpisodeFinished] = []

    def hear(self, event: Event) -> None:
        """Record one event."""
        if isinstance(event, EpisodeFinished):
            self.episodes.append(event)

    def settle(self) -> None:
        """Do nothing at the end of a step."""


@contextmanager
def prepared(config: Mapping[str, Any]) -> Iterator[tuple[Composition, Path]]:
    """Yield a composed run, and a folder for it that is removed after the block."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "cell.yaml"
        file.write_text(json.dumps(config), encoding="utf-8")
        yield prepare(file), Path(folder)


def schedule_of(end: Node, late: str) -> list[dict[str, Any]]:
    """Return a plan of the table for the policy ``schedule``: seeds are fossilised when they hold.

    >>> from esper_study.growbench import Kept
    >>> [entry["op"] for entry in schedule_of(Node(4, (Kept(2, 0, 1),)), "late")]
    ['germinate', 'advance', 'fossilise']
    """
    entries: list[dict[str, Any]] = []
    for seed in end.kept:
        slot, blueprint = CANDIDATES[seed.candidate]
        place = {"slot": late if slot == "late" else slot}
        entries += [
            {"step": seed.planted * DECIDE_EVERY, "op": "germinate", "speed": RAMP, "blueprint": blueprint, **place},
            {"step": seed.advanced * DECIDE_EVERY, "op": "advance", **place},
            {"step": seed.advanced * DECIDE_EVERY + RAMP, "op": "fossilise", **place},
        ]
    return entries
