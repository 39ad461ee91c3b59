"""``python -m benchmarks.science.forecaster``: train curves, fit the policy ``forecaster``, and compare it.

The folder receives the curves of each problem, the coefficients, the rewards on held-out problems, and the results. An
interrupted command continues when it is repeated. The published results are beside this module.
``--install`` also writes the coefficients of all training problems into the package.
"""

from __future__ import annotations

import argparse
import datetime
import json
import logging
import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch

import esper_policies
from benchmarks.science.forecaster.curves import Curves
from benchmarks.science.forecaster.episodes import Played, best_known, play
from benchmarks.science.forecaster.problems import FAMILIES, LEARNED_ON, PRICE, problems
from benchmarks.science.forecaster.regressions import Rows, coefficients, coverage, rows_of, standardised
from benchmarks.science.forecaster.tables import best_on_table, play_on_table, table_rows
from benchmarks.science.learned_policies.policies import HEURISTIC, InOrder
from esper_policies.forecaster import Forecaster
from esper_policies.heuristic import Heuristic
from esper_policies.posteriors import COEFFICIENTS
from esper_run.runs.statistics import paired_comparison
from esper_study.growbench import Bench, shipped_table
from esper_study.growbench.puzzles import DECIDE_EVERY, LAST_DECISION, RAMP

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from benchmarks.science.forecaster.problems import Problem
    from benchmarks.science.forecaster.regressions import Row
    from esper_core.leyline import ActionSpace, Policy

    Maker = Callable[[ActionSpace], Policy]

COMMAND: Final = "python -m benchmarks.science.forecaster"
TABLE: Final = "table of growbench"
TOGETHER: Final = "families learned on"
TRAINING: Final = 18
"""Training problems of each family that is learned on, beside the table."""
HELD_OUT: Final = {"pointwise-mlp": 27, "wide-cnn1d": 27, "cnn1d": 27}
"""Held-out problems of each family, beside the table."""
TRAININGS: Final = 3
"""Independent fits, each on a bootstrap sample of the training problems."""
SETTINGS: Final[dict[str, Any]] = {"speed": RAMP}
ON_TABLE: Final[dict[str, Any]] = {**SETTINGS, "every": DECIDE_EVERY, "last": LAST_DECISION}
TUNED: Final[dict[str, Any]] = {"points": 120.0, "preview": 12, "rise": 0.0, "caution": 0.5}
"""What the study of learned policies tuned on the training problems of the table, at the price of this study."""
ORDER: Final = ("depthwise_separable", "pointwise", "dilated", "mlp")
"""The order in which the tuned rules try blueprints."""
BEST, NEVER, FORECASTER = "best possible", "no growth", "forecaster"
RULES, TUNED_RULES = "heuristic", "heuristic, tuned"


def main(arguments: Sequence[str] | None = None) -> int:
    """Train what is missing, fit, evaluate, and write the results."""
    parser = argparse.ArgumentParser(prog=COMMAND)
    parser.add_argument("--quick", action="store_true", help="Few problems, to see that it runs: some minutes.")
    parser.add_argument("--into", type=Path, default=Path("runs/forecaster"), metavar="FOLDER")
    parser.add_argument("--install", action="store_true", help="Write the coefficients into the package, too.")
    parsed = parser.parse_args(arguments)
    torch.set_num_threads(1)
    logging.getLogger("esper").setLevel(logging.ERROR)
    folder, bench = parsed.into, Bench(shipped_table())
    count = 2 if parsed.quick else TRAINING
    learned: dict[str, list[Curves]] = {
        family: [open_curves(problem, folder) for problem in problems("train", family, count)] for family in LEARNED_ON
    }
    fitted = write_coefficients(bench, learned, folder)
    if parsed.install:
        home = Path(esper_policies.__file__).parent / COEFFICIENTS
        home.write_text(json.dumps(fitted, indent=1) + "\n", encoding="utf-8")
    groups = [on_table(bench, folder, fitted, 6 if parsed.quick else None)]
    for family in FAMILIES:
        count = 2 if parsed.quick else HELD_OUT[family]
        unseen = [open_curves(problem, folder) for problem in problems("held_out", family, count)]
        groups.append(on_curves(family, unseen, folder, fitted))
    lines = [line for group in groups for line in group.lines()]
    (folder / "rewards.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    covered = {group.family: group.coverage for group in groups}
    results = {"fitted": fitted["fitted"], "price": PRICE, "coverage": covered, "groups": summarise(lines)}
    (folder / "results.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    sys.stderr.write(f"written: {folder / 'results.json'}\n")
    return 0


def open_curves(problem: Problem, folder: Path) -> Curves:
    """Return the curves of a problem, each candidate from the first step."""
    curves = Curves(problem, folder / "curves")
    for slot, name in problem.candidates:
        curves.curve(slot, name, 0)
    return curves


def write_coefficients(bench: Bench, learned: Mapping[str, Sequence[Curves]], folder: Path) -> dict[str, Any]:
    """Fit the policy on all training problems and on bootstrap samples of them; return the first."""
    puzzles = bench.table.of_part("train")
    several = [table_rows(bench, puzzles), *(curve_rows(curves) for curves in learned.values())]
    untried, tried = (Rows.of_families(rows) for rows in zip(*several, strict=True))
    every = [curves for family in learned.values() for curves in family]
    stays = [flag for curves in every for seed in curves.seeds(0) for flag in curves.curve(*seed).stays]
    hazard = 1.0 - (sum(stays) + 1.0) / (len(stays) + 2.0)
    names = list(dict.fromkeys(untried.problems))
    provenance = {
        "command": COMMAND,
        "date": datetime.datetime.now(tz=datetime.UTC).date().isoformat(),
        "problems": {TABLE: len(puzzles), **{family: len(curves) for family, curves in learned.items()}},
        "seeds": len(untried.gains),
    }
    fitted = {"fitted": provenance, **coefficients(untried, tried, hazard)}
    coefficients_file(folder, None).write_text(json.dumps(fitted) + "\n", encoding="utf-8")
    for training in range(TRAININGS):
        sample = np.random.RandomState(training).choice(names, len(names)).tolist()
        refitted = coefficients(untried.again(sample), tried.again(sample), hazard)
        coefficients_file(folder, training).write_text(json.dumps(refitted) + "\n", encoding="utf-8")
    return fitted


def coefficients_file(folder: Path, training: int | None) -> Path:
    """Return the file of a fit; None: of the one on all training problems."""
    return folder / ("coefficients.json" if training is None else f"coefficients-{training}.json")


def curve_rows(several: Sequence[Curves]) -> tuple[list[Row], list[Row]]:
    """Return what was known before each seed of some problems germinated in the first step, and at each look at it."""
    before: list[Row] = []
    looks: list[Row] = []
    for curves in several:
        for seed in curves.seeds(0):
            first, further = rows_of(curves, seed)
            before.append(first)
            looks += further
    return before, looks


# --- evaluation


@dataclass(frozen=True, slots=True)
class Group:
    """The episodes of each policy on some held-out problems of one family, and the coverage of its intervals."""

    family: str
    problems: tuple[str, ...]
    played: Mapping[str, Sequence[Played]]
    coverage: Mapping[str, Mapping[str, float]]

    def lines(self) -> list[dict[str, Any]]:
        """Return the reward and the kept seed of each policy, problem by problem."""
        return [
            {
                "family": self.family,
                "problem": problem,
                "rewards": {name: round(episodes[place].reward, 4) for name, episodes in self.played.items()},
                "kept": {name: episodes[place].kept for name, episodes in self.played.items()},
            }
            for place, problem in enumerate(self.problems)
        ]


def makers(folder: Path, settings: Mapping[str, Any]) -> dict[str, Maker]:
    """Return functions that build the compared policies."""

    def forecaster(training: int | None) -> Maker:
        file = str(coefficients_file(folder, training))
        return lambda space: Forecaster(space, coefficients=file, **settings)

    order = tuple(f"blueprints/{name}" for name in ORDER)
    return {
        RULES: Heuristic,
        TUNED_RULES: lambda space: InOrder(Heuristic(space, **HEURISTIC, **TUNED), order),
        **{f"{FORECASTER} {training}": forecaster(training) for training in range(TRAININGS)},
        f"{FORECASTER}, all problems": forecaster(None),
    }


def on_table(bench: Bench, folder: Path, fitted: Mapping[str, Any], count: int | None) -> Group:
    """Play every policy on the held-out problems of the table."""
    puzzles = bench.table.of_part("held_out")[:count]
    played = {name: play_on_table(bench, make(bench.space), puzzles) for name, make in makers(folder, ON_TABLE).items()}
    played |= {NEVER: [Played(None, 0.0)] * len(puzzles), BEST: best_on_table(bench, puzzles)}
    names = tuple(bench.table.puzzles[puzzle].name for puzzle in puzzles)
    return Group(TABLE, names, played, coverages(table_rows(bench, puzzles), fitted))


def on_curves(family: str, unseen: Sequence[Curves], folder: Path, fitted: Mapping[str, Any]) -> Group:
    """Play every policy on problems whose seeds are trained when a policy first tries them."""
    covered = coverages(curve_rows(unseen), fitted)
    played = {name: [play(make, curves) for curves in unseen] for name, make in makers(folder, SETTINGS).items()}
    played |= {NEVER: [Played(None, 0.0)] * len(unseen), BEST: [best_known(curves) for curves in unseen]}
    return Group(family, tuple(curves.problem.name for curves in unseen), played, covered)


def coverages(rows: tuple[Sequence[Row], Sequence[Row]], fitted: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Return how often gains lie in the intervals of the two regressions."""
    samples = dict(zip(("untried", "tried"), map(Rows.of, rows), strict=True))
    return {name: coverage(standardised(fitted[name], sample), sample.weights) for name, sample in samples.items()}


def summarise(lines: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the comparison for each family, and for those that are learned on together, without the table.

    The forecaster of a problem is the mean of the trainings.
    """
    families = dict.fromkeys(line["family"] for line in lines)
    groups = {family: [line for line in lines if line["family"] == family] for family in families}
    groups[TOGETHER] = [line for line in lines if line["family"] in LEARNED_ON]
    return {name: compared([line["rewards"] for line in group]) for name, group in groups.items()}


def compared(lines: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    """Return mean rewards, the forecaster's advantages over the others with 95 % intervals, and regrets."""
    rewards = {name: [line[name] for line in lines] for name in lines[0]}
    trainings = zip(*(rewards[f"{FORECASTER} {training}"] for training in range(TRAININGS)), strict=True)
    rewards[FORECASTER] = [fmean(problem_rewards) for problem_rewards in trainings]
    best, advantages = sum(rewards[BEST]), {}
    for name, other in rewards.items():
        if name != FORECASTER:
            comparison = paired_comparison(rewards[FORECASTER], other, direction="up", margin=0.0)
            advantages[name] = [_short(end) for end in (comparison.difference, comparison.low, comparison.high)]
    return {
        "problems": len(lines),
        "reward": {name: _short(fmean(policy_rewards)) for name, policy_rewards in rewards.items()},
        "advantage": advantages,
        "regret": {
            name: _short(1.0 - sum(policy_rewards) / best) if best else 0.0 for name, policy_rewards in rewards.items()
        },
    }


def _short(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


if __name__ == "__main__":
    sys.exit(main())
