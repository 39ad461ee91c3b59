"""``python -m benchmarks.science.learned_policies``: run the parts of the study that are not done, and sum them up.

The folder receives the trained policies, a line for each result in ``*.jsonl``, and ``results.json``. An interrupted
command continues when it is repeated. The files of the published study are beside this module.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from benchmarks.science.learned_policies.evaluation import BEST, best_possible, policies_by_price, write_rewards
from benchmarks.science.learned_policies.learning_rates import (
    growing_runs,
    run_growing,
    run_static_control,
    static_controls,
)
from benchmarks.science.learned_policies.many_seeds import FRESH, SEEDS, Problem, evaluate_problem
from benchmarks.science.learned_policies.policies import MAIN_PRICE, PRICES, TRAININGS, matches, trained
from benchmarks.science.learned_policies.runs import cells, run_cell
from benchmarks.science.learned_policies.summary import summarise
from benchmarks.science.learned_policies.training import (
    RECIPES,
    Training,
    append_line,
    load_bench,
    read_lines,
    run_training,
    tune_heuristic,
)
from esper_study.growbench import best_fixed_plan

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from benchmarks.science.learned_policies.training import Rules
    from esper_core.leyline import Policy

WORKERS: Final = 2
OTHERS: Final = "imitation, then PPO: three other trainings"
FOLDERS: Final = {OTHERS: "others", "imitation only": "imitation", "PPO from scratch": "scratch"}


def main() -> int:
    """Run every missing part of the study, and write the results."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.science.learned_policies")
    parser.add_argument("--quick", action="store_true", help="A little of everything, to see that it runs.")
    parser.add_argument("--into", type=Path, default=Path("runs/learned-policies"), metavar="FOLDER")
    parsed = parser.parse_args()
    folder, quick = parsed.into, parsed.quick
    folder.mkdir(parents=True, exist_ok=True)
    bench = load_bench()
    study = {"table": bench.table.checksum, "quick": quick}
    if (previous := once(folder / "study.json", lambda: study)) != study:
        msg = f"{folder} holds another study: {previous}. This one: {study}. Use another folder (--into)."
        raise SystemExit(msg)
    learn_on, held_out = (bench.table.of_part(part)[: 6 if quick else None] for part in ("train", "held_out"))
    rules = once(folder / "heuristic.json", lambda: tune_heuristic(bench, learn_on))
    train_policies(folder, rules, quick=quick)

    policies = policies_by_price(bench, learn_on, folder, rules)
    write_rewards(folder / "table.jsonl", bench, held_out, {**policies, BEST: best_possible(bench, held_out)})
    by_scheme = {
        name: [trained(bench, folder / f"{prefix}-{seed}") for seed in range(TRAININGS)]
        for name, prefix in FOLDERS.items()
    }
    by_price = {name: dict.fromkeys(PRICES, trainings) for name, trainings in by_scheme.items()}
    write_rewards(folder / "trainings.jsonl", bench, held_out, by_price)

    table_size, count, seeds = len(bench.table.of_part("held_out")), 2 if quick else None, 2 if quick else SEEDS
    main_price: dict[str, Sequence[Policy]] = {
        name: at_prices[MAIN_PRICE] for name, at_prices in policies.items() if name != "random actions"
    }
    inside = [Problem(number, seeds, main_price) for number in range(table_size)[:count]]
    with_others = {**main_price, OTHERS: by_scheme[OTHERS]}
    outside = [Problem(number, seeds, with_others) for number in range(table_size, table_size + FRESH)[:count]]
    run_missing(folder / "other_rng_seeds.jsonl", "problem", evaluate_problem, inside, lambda problem: problem.number)
    run_missing(folder / "fresh_problems.jsonl", "problem", evaluate_problem, outside, lambda problem: problem.number)

    every = cells(folder, best_fixed_plan(bench, matches(learn_on, PRICES)), quick=quick)
    every = every[:1] if quick else every
    run_missing(folder / "runs.jsonl", "cell", run_cell, every, lambda cell: cell.name)
    growing = growing_runs(every)
    lines = run_missing(folder / "learning_rates.jsonl", "key", run_growing, growing, lambda run: run.key)
    controls = static_controls(growing, lines)
    run_missing(folder / "static_controls.jsonl", "key", run_static_control, controls, lambda control: control.key)
    (folder / "results.json").write_text(json.dumps(summarise(folder), indent=1) + "\n", encoding="utf-8")
    return 0


def train_policies(folder: Path, rules: Rules, *, quick: bool) -> None:
    """Train the policies that are missing, several at once."""
    recipes = {
        name: replace(recipe, updates=min(recipe.updates, 2)) if quick else recipe for name, recipe in RECIPES.items()
    }
    first = recipes["imitation, then PPO"]
    trainings = [Training(seed, first, rules, folder / f"ppo-{seed}") for seed in range(TRAININGS)]
    for name, prefix in FOLDERS.items():
        shift = TRAININGS if name == OTHERS else 0
        trainings += [
            Training(seed + shift, recipes.get(name, first), rules, folder / f"{prefix}-{seed}")
            for seed in range(TRAININGS)
        ]
    with multiprocessing.get_context("spawn").Pool(WORKERS) as pool:
        for name, seconds in pool.imap_unordered(
            run_training, [training for training in trainings if not training.is_done]
        ):
            sys.stderr.write(f"{name}: {seconds:.0f} s\n")


def once(file: Path, make: Callable[[], Any]) -> Any:
    """Return the content of a JSON file, which is made if it is missing."""
    if not file.exists():
        file.write_text(json.dumps(make(), indent=1) + "\n", encoding="utf-8")
    return json.loads(file.read_text(encoding="utf-8"))


def run_missing(
    file: Path, key: str, act: Callable[[Any], dict[str, Any]], tasks: Sequence[Any], key_of: Callable[[Any], Any]
) -> list[dict[str, Any]]:
    """Run each task without a line in the file, in a process of its own; return the lines in the order of the tasks."""
    done = [line[key] for line in read_lines(file)]
    missing = [task for task in tasks if key_of(task) not in done]
    with multiprocessing.get_context("spawn").Pool(WORKERS, maxtasksperchild=1) as pool:
        for line in pool.imap_unordered(act, missing, chunksize=1):
            append_line(file, line)
            sys.stderr.write(f"{file.stem}: {line[key]}\n")
    lines = read_lines(file)
    return [next(line for line in lines if line[key] == key_of(task)) for task in tasks]


if __name__ == "__main__":
    raise SystemExit(main())
