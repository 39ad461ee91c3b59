"""How does a gardener learn on the table? Round after round of drawn problems at drawn prices, each an update."""

from __future__ import annotations

import json
import logging
import time
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch

from benchmarks.science.gardeners.players import PPO, PRICES, draws, matches, new_bandit
from esper_policies.ppo.policy import Ppo
from esper_tasks.growbench.playing import Bench, Match
from esper_tasks.growbench.regret import Oracle, standing
from esper_tasks.growbench.table import load_table, shipped

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from pathlib import Path

    from esper_core.leyline import State
    from esper_policies.bandit import Bandit
    from esper_tasks.growbench.regret import Standing


HELD_BACK: Final = 0.25
"""Share of the problems to learn on by which it is seen which way to learn is best, and when a gardener is: learning
longer, it would know its problems by heart."""

LOOK_EVERY: Final = 10
"""Updates from one look at how far a gardener is to the next."""


@dataclass(frozen=True, slots=True)
class School:
    """How long and from what a gardener learns. shown: whether it is shown the best plans to begin with.

    held_back: share of the problems that it does not learn on; it is kept as it was when it did best on these.
    """

    updates: int = 300
    episodes: int = 256
    shown: bool = False
    settings: dict[str, Any] = field(default_factory=dict)
    held_back: float = 0.0


def parted(puzzles: Sequence[int], held_back: float) -> tuple[Sequence[int], Sequence[int]]:
    """Those to learn on, and the share of them by which it is seen what that was worth."""
    part = len(puzzles) - int(held_back * len(puzzles))
    return puzzles[:part], puzzles[part:]


def taught(bench: Bench, puzzles: Sequence[int], seed: int, school: School, folder: Path | None = None) -> Ppo:
    """A gardener that learnt on these puzzles; written into ``folder``, where there is one, with its figures."""
    gardener = Ppo(bench.space, seed=seed, **PPO, **school.settings)
    draw = np.random.RandomState(seed)
    figures: list[dict[str, float]] = []
    puzzles, beside = parted(puzzles, school.held_back)
    kept: tuple[float, State] | None = None
    if school.shown:
        best = matches(puzzles, PRICES)
        rollout, _ = bench.play(Oracle(bench, best), best)
        figures.append(dict(gardener.imitate(rollout, passes=20)))
    for update in range(school.updates):
        rollout, _ = bench.play(gardener, draws(draw, puzzles, school.episodes), update)
        told = dict(gardener.update(rollout))
        if (update + 1) % LOOK_EVERY == 0:
            figures.append({"update": float(update), **told})
            if beside:
                figures[-1]["held_back"] = reward = examined(bench, gardener, beside).reward
                kept = (
                    max(kept, (reward, gardener.state()), key=lambda one: one[0])
                    if kept
                    else (reward, gardener.state())
                )
    if kept:
        gardener.load(kept[1])
    if folder is not None:
        gardener.save(str(folder))
        (folder / "figures.json").write_text(
            json.dumps({"school": asdict(school), "figures": figures}, indent=1) + "\n"
        )
    return gardener


def greedy(bench: Bench, gardener: Ppo) -> Ppo:
    """The same gardener, which learns no more and does what it thinks best."""
    still = Ppo(bench.space, **{**gardener.settings.model_dump(exclude={"load", "save", "learn"}), "learn": False})
    still.load(gardener.state())
    return still


def examined(bench: Bench, gardener: Ppo, puzzles: Sequence[int], prices: Sequence[float] = PRICES) -> Standing:
    """How it does on some puzzles."""
    asked = matches(puzzles, prices)
    return standing(bench, asked, bench.play(greedy(bench, gardener), asked)[1])


def exercised(bench: Bench, puzzles: Sequence[int], seed: int, price: float, rounds: int = 40) -> Bandit:
    """A bandit that tried its arms on these puzzles, at one price, which it does not see; it takes its best arm now."""
    bandit, draw = new_bandit(bench, seed), np.random.RandomState(seed)
    for round_ in range(rounds):
        asked = [Match(puzzles[int(n)], price) for n in draw.choice(len(puzzles), 16)]
        bandit.update(bench.play(bandit, asked, round_)[0])
    still = new_bandit(bench, seed, learn=False)
    still.load(bandit.state())
    return still


@dataclass(frozen=True, slots=True)
class Lesson:
    """A gardener that is to learn, in a process of its own. table: None is the shipped one. home: where it goes."""

    table: Path | None
    without: tuple[str, ...]
    seed: int
    school: School
    home: Path

    @property
    def done(self) -> bool:
        """Whether it has learnt already."""
        return (self.home / "figures.json").exists()


def bench_of(table: Path | None, without: Collection[str] = ()) -> Bench:
    """The table of a process that does nothing else: on one thread, and quiet."""
    torch.set_num_threads(1)
    logging.getLogger("esper").setLevel(logging.ERROR)
    return Bench(shipped() if table is None else load_table(table), without)


def given(lesson: Lesson) -> tuple[str, float]:
    """Let a gardener learn; its name, and how many seconds it took."""
    begin = time.monotonic()
    bench = bench_of(lesson.table, lesson.without)
    taught(bench, bench.table.of_part("train"), lesson.seed, lesson.school, lesson.home)
    return lesson.home.name, time.monotonic() - begin
