"""Train policies on the table: rounds of drawn problems at drawn prices, with an update after each.

A policy may begin by imitating the heuristic. The kept policy may be an average over updates, since single updates vary
by more than they improve.
"""

from __future__ import annotations

import json
import logging
import time
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np
import torch

from benchmarks.science.learned_policies.players import PPO, PRICES, draws, heuristic, matches, new_bandit
from esper_core.leyline import Rollout
from esper_policies.ppo.policy import Ppo
from esper_study.growbench import Bench, Match, load_table, score, shipped_table

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from pathlib import Path

    from torch import Tensor

    from esper_core.leyline import Played
    from esper_policies.bandit import Bandit
    from esper_study.growbench import Score


PARTS: Final = 4
"""Into so many parts are the problems to learn on cut, to see which way to learn is best: on each by one who learnt
without it."""

NOTE_EVERY: Final = 10
"""Updates from one note of how far a gardener is to the next."""


Rules = dict[str, dict[str, Any]]
"""Settings of the heuristic, by price."""


@dataclass(frozen=True, slots=True)
class School:
    """A training scheme.

    first: what the policy imitates to begin with. averaged: share of the old weights in their running mean, which is
    kept; 0: the last weights are kept. rooms: whether most rounds go without one of the blueprints, drawn at random.
    """

    updates: int = 60
    episodes: int = 256
    first: Literal["nobody", "heuristic"] = "nobody"
    averaged: float = 0.0
    rooms: bool = False
    settings: dict[str, Any] = field(default_factory=dict)


def parted(puzzles: Sequence[int], part: int) -> tuple[list[int], list[int]]:
    """Split the training problems into those to learn on and the fold with this number.

    >>> parted(range(8), 0), parted(range(8), 3)
    (([2, 3, 4, 5, 6, 7], [0, 1]), ([0, 1, 2, 3, 4, 5], [6, 7]))
    """
    begin, end = (len(puzzles) * number // PARTS for number in (part, part + 1))
    return [*puzzles[:begin], *puzzles[end:]], list(puzzles[begin:end])


def taught(
    bench: Bench, puzzles: Sequence[int], seed: int, school: School, rules: Rules, folder: Path | None = None
) -> Ppo:
    """Train a policy on these problems; save it to ``folder``, if given, with its figures."""
    gardener = Ppo(bench.space, seed=seed, **PPO, **school.settings)
    draw = np.random.RandomState(seed)
    figures: list[dict[str, float]] = []
    if school.first != "nobody":
        figures.append(dict(gardener.imitate(_shown(bench, puzzles, rules), passes=20)))
    mean = Mean(gardener, school.averaged)
    rooms = [bench, *(_without(bench, one) for one in _blueprints(bench))] if school.rooms else [bench]
    draw_room = np.random.RandomState(seed).randint  # its own draws: who learns in one room draws the same problems
    for update in range(school.updates):
        rollout, _ = rooms[draw_room(len(rooms))].play(gardener, draws(draw, puzzles, school.episodes), update)
        told = dict(gardener.update(rollout))
        mean.add()
        if (update + 1) % NOTE_EVERY == 0:
            figures.append({"update": float(update), **told})
    best = mean.gardener(bench)
    if folder is not None:
        best.save(str(folder))
        (folder / "figures.json").write_text(
            json.dumps({"school": asdict(school), "figures": figures}, indent=1) + "\n"
        )
    return best


def _blueprints(bench: Bench) -> list[str]:
    return [blueprint for several in bench.space.blueprints.values() for blueprint in several]


def _without(bench: Bench, blueprint: str) -> Bench:
    return Bench(bench.table, {*bench.without, blueprint})


def _shown(bench: Bench, puzzles: Sequence[int], rules: Rules) -> Rollout:
    """Return the episodes of the tuned heuristic on these problems at each price."""
    played: list[Played] = []
    for price in PRICES:
        policy = heuristic(bench, rules[f"{price:g}"])
        played += bench.play(policy, matches(puzzles, (price,)))[0].episodes
    return Rollout("shown", 0, tuple(played))


class Mean:
    """The running mean of a policy's weights.

    share: weight of the old mean.
    """

    def __init__(self, learner: Ppo, share: float) -> None:
        self.learner = learner
        self.share = share
        self._weights: dict[str, Tensor] | None = None

    def add(self) -> None:
        """Add the policy's present weights."""
        now = {name: one.clone() for name, one in self.learner.network.state_dict().items()}
        if self._weights is not None:
            now = {name: self.share * self._weights[name] + (1 - self.share) * one for name, one in now.items()}
        self._weights = now

    def gardener(self, bench: Bench) -> Ppo:
        """Return a policy with the mean weights, which learns no more."""
        still = greedy(bench, self.learner)
        if self._weights is not None:
            still.network.load_state_dict(self._weights)
        return still


def greedy(bench: Bench, gardener: Ppo) -> Ppo:
    """Return a copy of the policy that learns no more and takes its most probable action."""
    still = Ppo(bench.space, **{**gardener.settings.model_dump(exclude={"load", "save", "learn"}), "learn": False})
    still.load_state_dict(gardener.state_dict())
    return still


def examined(bench: Bench, gardener: Ppo, puzzles: Sequence[int], prices: Sequence[float] = PRICES) -> Score:
    """Return the policy's score on some problems."""
    asked = matches(puzzles, prices)
    return score(bench, asked, bench.play(greedy(bench, gardener), asked)[1])


def exercised(bench: Bench, puzzles: Sequence[int], seed: int, price: float, rounds: int = 40) -> Bandit:
    """Train a bandit on these problems at one price, which it does not see; return it frozen on its best arm."""
    bandit, draw = new_bandit(bench, seed), np.random.RandomState(seed)
    for round_ in range(rounds):
        asked = [Match(puzzles[int(n)], price) for n in draw.choice(len(puzzles), 16)]
        bandit.update(bench.play(bandit, asked, round_)[0])
    still = new_bandit(bench, seed, learn=False)
    still.load_state_dict(bandit.state_dict())
    return still


@dataclass(frozen=True, slots=True)
class Lesson:
    """A training in a process of its own.

    table: None is the shipped one. home: the folder of the trained policy.
    """

    table: Path | None
    without: tuple[str, ...]
    seed: int
    school: School
    rules: Rules
    home: Path

    @property
    def done(self) -> bool:
        """Whether the training is complete."""
        return (self.home / "figures.json").exists()


def bench_of(table: Path | None, without: Collection[str] = ()) -> Bench:
    """Load the table in a worker process: on one thread, with logging off."""
    torch.set_num_threads(1)
    logging.getLogger("esper").setLevel(logging.ERROR)
    return Bench(shipped_table() if table is None else load_table(table), without)


def given(lesson: Lesson) -> tuple[str, float]:
    """Train a policy; return its name and the seconds it took."""
    begin = time.monotonic()
    bench = bench_of(lesson.table, lesson.without)
    taught(bench, bench.table.of_part("train"), lesson.seed, lesson.school, lesson.rules, lesson.home)
    return lesson.home.name, time.monotonic() - begin
