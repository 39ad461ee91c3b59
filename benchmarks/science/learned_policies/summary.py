"""The results of the study, from the lines that its parts wrote.

A policy's reward on a problem is the mean over its trainings. Intervals are over problems, or over RNG seeds in runs of
the engine, and comparisons pair them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from benchmarks.science.learned_policies.evaluation import BEST
from benchmarks.science.learned_policies.learning_rates import TWIN, best_rates, by_cell, mean_of
from benchmarks.science.learned_policies.policies import MAIN_PRICE, TRAININGS
from benchmarks.science.learned_policies.training import read_lines
from esper_core.leyline.constants import CONFIDENCE
from esper_run.runs.statistics import mean_interval

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    Lines = Sequence[Mapping[str, Any]]

JUDGED, RULES = "ppo", "heuristic"
MAIN: Final = f"{MAIN_PRICE:g}"
LEARNED: Final = tuple(f"ppo-{seed}" for seed in range(TRAININGS))


def summarise(folder: Path) -> dict[str, Any]:
    """Return all results of the study in a folder."""
    lines = {file.stem: read_lines(file) for file in folder.glob("*.jsonl")}
    for name in ("other_rng_seeds", "fresh_problems"):
        lines[name].sort(key=lambda line: line["problem"])
    table, trainings = lines["table"], lines["trainings"]
    return {
        "table": of_table(table),
        "trainings": {
            "imitation, then PPO": of_training(table, JUDGED, table),
            **{name: of_training(trainings, name, table) for name in trainings[0]["policies"]},
        },
        "other_rng_seeds": of_many_seeds(lines["other_rng_seeds"]),
        "fresh_problems": of_many_seeds(lines["fresh_problems"]),
        "runs": [of_cell(line["cell"], line["arms"]) for line in lines["runs"]],
        "learning_rates": of_learning_rates(lines["learning_rates"], lines["static_controls"]),
    }


def interval(values: Iterable[float]) -> dict[str, float | int | None]:
    """Return the mean of the values with its interval, and their number."""
    estimate = mean_interval([float(value) for value in values], CONFIDENCE)
    return {"mean": estimate.mean, "low": estimate.low, "high": estimate.high, "n": estimate.n}


def rewards(lines: Lines, policy: str, price: str, quantity: str = "reward") -> NDArray[np.float64]:
    """Return the rewards of a policy on the table: (problems, trainings)."""
    return np.array([line["policies"][policy][price][quantity] for line in lines], dtype=np.float64)


def of_table(lines: Lines) -> dict[str, Any]:
    """Return every policy's rewards on the held-out problems, and the advantage of ``ppo``."""
    names = list(lines[0]["policies"])
    best = {price: rewards(lines, BEST, price).mean() for price in lines[0]["policies"][BEST]}
    compared = [name for name in names if name != JUDGED]
    judged, rules = (rewards(lines, name, MAIN) for name in (JUDGED, RULES))
    return {
        "problems": len(lines),
        "policies": {
            name: {
                price: {
                    "reward": interval(rewards(lines, name, price).mean(1)),
                    "on_test": interval(rewards(lines, name, price, "on_test").mean(1)),
                    "regret": float(1 - rewards(lines, name, price).mean() / most),
                    "seeds_kept": float(
                        np.mean([[len(kept) for kept in line["policies"][name][price]["kept"]] for line in lines])
                    ),
                }
                for price, most in best.items()
            }
            for name in names
        },
        **{
            f"advantage{'' if quantity == 'reward' else '_on_test'}": {
                name: interval(
                    rewards(lines, JUDGED, MAIN, quantity).mean(1) - rewards(lines, name, MAIN, quantity).mean(1)
                )
                for name in compared
            }
            for quantity in ("reward", "on_test")
        },
        "advantage_over_heuristic_by_price": {
            price: interval(rewards(lines, JUDGED, price).mean(1) - rewards(lines, RULES, price).mean(1))
            for price in best
        },
        "advantage_of_each_training": [interval(training - rules.mean(1)) for training in judged.T],
    }


def of_training(lines: Lines, name: str, table: Lines) -> dict[str, Any]:
    """Return the reward of a training scheme, and its advantage over the heuristic and under the compared scheme."""
    scheme, rules, first = rewards(lines, name, MAIN), rewards(table, RULES, MAIN), rewards(table, JUDGED, MAIN)
    return {
        "reward": interval(scheme.mean(1)),
        "over_heuristic": interval(scheme.mean(1) - rules.mean(1)),
        "under_ppo": interval(first.mean(1) - scheme.mean(1)),
        "each_over_heuristic": [interval(training - rules.mean(1)) for training in scheme.T],
    }


def of_many_seeds(lines: Lines) -> dict[str, Any]:
    """Return every policy's reward, gains and costs, and the advantage of ``ppo``."""

    def values(name: str, quantity: str = "reward") -> NDArray[np.float64]:
        return np.array([line["policies"][name][quantity] for line in lines], dtype=np.float64)

    names = list(lines[0]["policies"])
    differences = values(JUDGED).mean(1) - values(RULES).mean(1)
    intervals = [interval(row) for row in differences]
    return {
        "problems": len(lines),
        "seeds": values(JUDGED).shape[2],
        "policies": {
            name: {
                "reward": interval(values(name).mean((1, 2))),
                "over_heuristic": interval(values(name).mean((1, 2)) - values(RULES).mean((1, 2))),
                "accuracy": interval(values(name, "accuracy").mean(1)),
                "costs": values(name, "costs").mean((0, 1)).tolist(),
            }
            for name in names
        },
        **{
            f"advantage{'' if quantity == 'reward' else '_on_test'}": {
                name: interval(values(JUDGED, quantity).mean((1, 2)) - values(name, quantity).mean((1, 2)))
                for name in names
                if name != JUDGED
            }
            for quantity in ("reward", "on_test")
        },
        "better_in": sum(bounds["low"] is not None and bounds["low"] > 0 for bounds in intervals),
        "worse_in": sum(bounds["high"] is not None and bounds["high"] < 0 for bounds in intervals),
        "deviation_of_seeds": float(np.sqrt(differences.var(1, ddof=1).mean())),
        "deviation_of_problems": float(differences.mean(1).std(ddof=1)),
    }


def of_cell(cell: str, arms: Mapping[str, Lines]) -> dict[str, Any]:
    """Return reward and accuracy of the heuristic, of each training, and of their mean per RNG seed."""
    values = {
        quantity: {name: np.array([times * episode[quantity] for episode in arms[name]]) for name in (RULES, *LEARNED)}
        for quantity, times in (("reward", 1.0), ("test", 100.0))
    }
    for by_arm in values.values():
        by_arm[JUDGED] = np.mean([by_arm[name] for name in LEARNED], axis=0)
    return {
        "cell": cell,
        "seeds": len(arms[RULES]),
        "arms": {
            name: {
                "reward": interval(arm_rewards),
                "over_heuristic": interval(arm_rewards - values["reward"][RULES]),
                "accuracy_over_heuristic": interval(values["test"][name] - values["test"][RULES]),
            }
            for name, arm_rewards in values["reward"].items()
        },
    }


def of_learning_rates(growing: Lines, controls: Lines) -> list[dict[str, Any]]:
    """Return, by cell and arm, accuracy at the best learning rate: grown, and trained from the start."""
    static: dict[tuple[str, str], dict[bool, Any]] = {}
    for line in controls:
        cell, _, tuning, arm = line["key"]
        static.setdefault((cell, arm), {})[tuning] = line["by_rate"]
    results = []
    for cell, by_tuning in by_cell(growing).items():
        rates = best_rates(by_tuning)
        twin, arms = by_tuning[False][rates[TWIN]][TWIN], {}
        for arm in rates:
            if arm == TWIN:
                continue
            tuned, evaluated = static[cell, arm][True], static[cell, arm][False]
            if not all((*tuned.values(), *evaluated.values())):
                continue  # nothing had grown
            grown = by_tuning[False][rates[arm]][arm]
            control = evaluated[max(tuned, key=lambda rate: mean_of(tuned[rate], "validation"))]
            arms[arm] = {
                "grown": 100 * mean_of(grown, "test"),
                "static": 100 * mean_of(control, "test"),
                "over_static": _paired(grown, control),
                "over_twin": _paired(grown, twin),
            }
        results.append({"cell": cell, "arms": arms})
    return results


def _paired(episodes: Lines, baseline: Lines) -> dict[str, Any]:
    """Return the difference in points of test accuracy, by RNG seed."""
    beside = {episode["seed"]: episode["test"] for episode in baseline}
    return interval(100 * (episode["test"] - beside[episode["seed"]]) for episode in episodes)
