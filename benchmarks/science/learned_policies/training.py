"""Settings of the heuristic and training of policies, on the training problems only.

A policy may begin by imitating the heuristic. The running mean of the weights is kept, since single updates vary by
more than they improve.
"""

from __future__ import annotations

import json
import logging
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from itertools import permutations, product
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch

from benchmarks.science.learned_policies.policies import PPO, PRICES, OnePreview, draws, heuristic, matches
from esper_core.leyline import Rollout
from esper_policies.ppo.policy import Ppo
from esper_study.growbench import CANDIDATES, Bench, score, shipped_table
from esper_study.growbench.puzzles import DECIDE_EVERY, DECISIONS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from torch import Tensor

    from esper_core.leyline import Trajectory

LOG_EVERY: Final = 10
"""Updates between two lines of the training's log."""

Rules = dict[str, dict[str, Any]]
"""Settings of the heuristic, by price."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """A training scheme.

    imitate: whether training starts by imitating the heuristic. averaged: weight of the old running mean of the
    network's weights.
    """

    imitate: bool = False
    updates: int = 60
    episodes: int = 256
    averaged: float = 0.9
    settings: dict[str, Any] = field(default_factory=dict)


RECIPES: Final[dict[str, Recipe]] = {
    "imitation, then PPO": Recipe(imitate=True, settings={"learning_rate": 5e-4}),
    "imitation only": Recipe(imitate=True, updates=0, settings={"learning_rate": 5e-4}),
    "PPO from scratch": Recipe(),
}
"""The first is that of the compared policy; it was the best of four in an earlier cross-validation."""


@dataclass(frozen=True, slots=True)
class Training:
    """A training in a process of its own. folder: where the policy is saved."""

    seed: int
    recipe: Recipe
    rules: Rules
    folder: Path

    @property
    def is_done(self) -> bool:
        """Whether the training is complete."""
        return (self.folder / "figures.json").exists()


def run_training(training: Training) -> tuple[str, float]:
    """Train a policy and save it; return its name and the seconds it took."""
    begin = time.monotonic()
    bench = load_bench()
    train(bench, bench.table.of_part("train"), training)
    return training.folder.name, time.monotonic() - begin


def load_bench() -> Bench:
    """Load the shipped table, and compute on one thread with logging off."""
    torch.set_num_threads(1)
    logging.getLogger("esper").setLevel(logging.ERROR)
    return Bench(shipped_table())


def train(bench: Bench, puzzles: Sequence[int], training: Training) -> None:
    """Train a policy on these problems: rounds of problems at drawn prices, with an update after each."""
    recipe, seed = training.recipe, training.seed
    policy, generator = Ppo(bench.space, seed=seed, **PPO, **recipe.settings), np.random.RandomState(seed)
    figures: list[dict[str, float]] = []
    if recipe.imitate:
        figures.append(dict(policy.imitate(episodes_of_heuristic(bench, puzzles, training.rules), passes=20)))
    weights: dict[str, Tensor] | None = None
    for update in range(recipe.updates):
        rollout, _ = bench.play(policy, draws(generator, puzzles, recipe.episodes), update)
        losses = dict(policy.update(rollout))
        now = {name: weight.clone() for name, weight in policy.network.state_dict().items()}
        if weights is not None:
            now = {
                name: recipe.averaged * weights[name] + (1 - recipe.averaged) * weight for name, weight in now.items()
            }
        weights = now
        if (update + 1) % LOG_EVERY == 0:
            figures.append({"update": float(update), **losses})
    kept = frozen(bench, policy)
    if weights is not None:
        kept.network.load_state_dict(weights)
    kept.save(str(training.folder))
    text = json.dumps({"recipe": asdict(recipe), "figures": figures}, indent=1) + "\n"
    (training.folder / "figures.json").write_text(text)


def episodes_of_heuristic(bench: Bench, puzzles: Sequence[int], rules: Rules) -> Rollout:
    """Return the episodes of the tuned heuristic on these problems at each price."""
    played: list[Trajectory] = []
    for price in PRICES:
        played += bench.play(heuristic(bench, rules[f"{price:g}"]), matches(puzzles, (price,)))[0].trajectories
    return Rollout("heuristic", 0, tuple(played))


def frozen(bench: Bench, policy: Ppo) -> Ppo:
    """Return a copy of the policy that does not learn and takes its most probable action."""
    copy = Ppo(bench.space, **{**policy.settings.model_dump(exclude={"load", "save", "learn"}), "learn": False})
    copy.load_state_dict(policy.state_dict())
    return copy


def tune_heuristic(bench: Bench, puzzles: Sequence[int]) -> Rules:
    """Return, for each price, the heuristic's best settings on these problems."""
    early, late = ([blueprint for slot, blueprint in CANDIDATES if slot == target] for target in ("early", "late"))
    orders = [(*permutation, *late) for permutation in permutations(early)] + [
        (*late, *permutation) for permutation in permutations(early)
    ]
    points, caution = (15.0, 30.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1920.0), (0.0, 0.5, 1.0)
    previews = [number * DECIDE_EVERY for number in range(1, DECISIONS)]
    tried = [
        {"order": order, "points": nat, "preview": preview, "rise": 0.0, "caution": careful}
        for order, nat, preview, careful in product(orders, points, previews, caution)
    ]
    best: Rules = {}
    for price in PRICES:
        at_price = matches(puzzles, (price,))
        rewards = [
            score(bench, at_price, bench.play(heuristic(bench, settings), at_price)[1]).reward for settings in tried
        ]
        best[f"{price:g}"] = tried[int(np.argmax(rewards))]
    return best


def tune_one_preview(bench: Bench, puzzles: Sequence[int], price: float) -> OnePreview:
    """Return the best plan with one decision point on these problems at this price."""
    at_price, candidates = matches(puzzles, (price,)), range(len(CANDIDATES))
    ways = [(1, then) for then in (None, *candidates)] + [(decision, None) for decision in range(2, DECISIONS)]
    gains, metrics = (-1.0, 0.0, 0.01, 0.03, 0.06, 0.1, 0.2), (0.5, 0.65, 0.75, 0.85, 1.0)
    tried = [
        OnePreview(first, decision, gain, metric, then)
        for first, (decision, then), gain, metric in product(candidates, ways, gains, metrics)
    ]
    return max(tried, key=lambda plan: score(bench, at_price, bench.play(plan, at_price)[1]).reward)


def append_line(log: Path, line: dict[str, Any]) -> None:
    """Append a result as a line of its own, even after a line that an interruption cut short."""
    cut = log.exists() and not log.read_bytes().endswith(b"\n")
    with log.open("a", encoding="utf-8") as file:
        file.write(("\n" if cut else "") + json.dumps(line) + "\n")


def read_lines(log: Path) -> list[dict[str, Any]]:
    """Read the results so far. A line that an interruption cut short is ignored."""
    lines = []
    for line in log.read_text(encoding="utf-8").splitlines() if log.exists() else []:
        with suppress(json.JSONDecodeError):
            lines.append(json.loads(line))
    return lines
