"""``python -m benchmarks.science.learned_policies``: tune, train and judge what is not done yet, and write the results.

The folder receives ``tried.jsonl`` (trials of settings), the trained policies, ``fresh.jsonl`` (problems that are in no
table), ``again.jsonl`` (those of the table), ``chance.jsonl`` (random actions on both), ``live.jsonl``, ``more.jsonl``,
``careful.jsonl``, ``steps.jsonl`` and ``from_the_start.jsonl`` (runs of the engine), ``table.jsonl``,
``schools.jsonl``, ``newcomers.jsonl`` and ``home.jsonl`` (rewards on each problem of the table), and for reading
``results.json``, ``results.md`` and ``figure.svg``. An interrupted command continues when it is repeated.
"""

from __future__ import annotations

import argparse
import datetime
import json
import logging
import multiprocessing
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch

from benchmarks.science.learned_policies import careful, fresh, more, steps
from benchmarks.science.learned_policies.evaluation import (
    at_home,
    everybody,
    judged,
    oracle,
    schooling,
    summary,
    to_be_won,
    written_down,
)
from benchmarks.science.learned_policies.figure import picture
from benchmarks.science.learned_policies.live import Visit, cells, run_cell
from benchmarks.science.learned_policies.newcomers import AT_ONCE, highest, newcomers, worth_beside
from benchmarks.science.learned_policies.page import page
from benchmarks.science.learned_policies.players import CONTROLLERS, HEADLINE, PRICES, chance, matches, trained
from benchmarks.science.learned_policies.training import Lesson, given
from benchmarks.science.learned_policies.tuning import (
    OTHER_SCHOOLS,
    SCHOOLS,
    SCHOOLS_FOR_NEWCOMERS,
    note,
    noted,
    tuned_heuristic,
    tuned_school,
)
from esper_study.growbench import Bench, best_fixed_plan, load_table, shipped_table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from benchmarks.science.learned_policies.evaluation import Result
    from benchmarks.science.learned_policies.training import Rules
    from esper_core.leyline import Policy
    from esper_study.growbench import Part

NEW_TO_SOME = ("blueprints/dilated",)
"""Blueprints that some gardeners are trained without, to see what they do when it is there."""

PARTS_OF_IT: Final[tuple[Part, Part]] = ("train", "held_out")
FEW = 6
"""Problems of each part, where it is only seen that everything runs."""

OTHERS = "three others by the same recipe"
"""Gardeners as those that are judged, from other seeds."""

CHANCE = "random"
"""Who never does the same twice: where everything has to be trained, each of its episodes is."""

ORACLE = "oracle"

UPDATES = 60
WORKERS = 2
"""Gardeners that learn at once, each in a process of one thread."""


def main() -> int:
    """Run every missing part of the study, and write the results."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.science.learned_policies")
    parser.add_argument("--quick", action="store_true", help="A little of everything, to see that it runs.")
    parser.add_argument("--into", type=Path, default=None, metavar="FOLDER", help="Default: runs/learned-policies.")
    parser.add_argument("--table", type=Path, default=None, metavar="FOLDER", help="Default: the shipped one.")
    parser.add_argument("--no-live", action="store_true", help="Leave out the runs of the engine.")
    asked = parser.parse_args()
    folder = asked.into or Path("runs/learned-policies-quick" if asked.quick else "runs/learned-policies")
    folder.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    logging.getLogger("esper").setLevel(logging.ERROR)
    bench = Bench(shipped_table() if asked.table is None else load_table(asked.table))
    learn_on, held_out = (bench.table.of_part(part)[: FEW if asked.quick else None] for part in PARTS_OF_IT)
    _demand_the_same(folder, {"table": bench.table.checksum, "updates": UPDATES, "quick": asked.quick})
    settings = _once(folder / "heuristic.json", lambda: tuned_heuristic(bench, learn_on, folder / "tried.jsonl"))
    _train(folder, asked.table, settings, quick=asked.quick)
    players = everybody(bench, learn_on, folder, settings)
    results = {
        name: {price: judged(bench, held_out, price, own) for price, own in by_price.items()}
        for name, by_price in players.items()
    }
    schools = _of_other_schools(bench, folder)
    others = {name: {price: judged(bench, held_out, price, own) for price in PRICES} for name, own in schools.items()}
    at_play = {name: own[HEADLINE] for name, own in players.items() if name != CHANCE}
    best = {price: oracle(bench, held_out, price) for price in PRICES}
    home = _home(bench, learn_on, folder, players)
    looks = {one: worth_beside(home[_looking(one)], home[_usual(one)]) for one in NEW_TO_SOME}
    new = {one: _ways(bench, held_out, folder, one, highest(looks[one])) for one in NEW_TO_SOME}
    plan = best_fixed_plan(bench, matches(learn_on, PRICES))
    visits = [] if asked.no_live else [Visit(cell, folder, plan) for cell in cells(quick=asked.quick)]
    again = visits[:1] if asked.quick else visits
    live = _each_visited(folder / "live.jsonl", run_cell, visits)
    found: dict[str, Any] = {
        "date": datetime.datetime.now(tz=datetime.UTC).date().isoformat(),
        "torch": torch.__version__,
        "checksum": bench.table.checksum,
        "problems": {"learnt_on": len(learn_on), "held_out": len(held_out)},
        "to_be_won": to_be_won(bench, learn_on),
        "heuristic": settings,
        "at_home": at_home({name: home[name][HEADLINE] for name in ("heuristic", "ppo")}, home[ORACLE][HEADLINE]),
        "table": summary(results, best),
        "newcomers": [one for blueprint, ways in new.items() for one in newcomers(blueprint, ways, best)],
        "look_at_home": looks,
        "schooling": schooling(results["heuristic"], {"that learnt on": results["ppo"], **others}),
        **_from_many_seeds(folder, bench, at_play, {OTHERS: schools[OTHERS]}, quick=asked.quick),
        "live": live,
        "more": more.summed_up(_each_visited(folder / "more.jsonl", more.run_more, again)),
        "careful": _careful(folder, home, live, visits),
        "steps": _steps(folder, live, again),
    }
    written_down(folder / "table.jsonl", bench, held_out, {**results, ORACLE: best})
    written_down(folder / "schools.jsonl", bench, held_out, others)
    written_down(folder / "home.jsonl", bench, learn_on, home)
    for ways in new.values():
        written_down(folder / "newcomers.jsonl", bench, held_out, {**ways, ORACLE: best})
    (folder / "results.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    (folder / "results.md").write_text(page(found), encoding="utf-8")
    (folder / "figure.svg").write_text(picture(found), encoding="utf-8")
    return 0


def _train(folder: Path, table: Path | None, rules: Rules, *, quick: bool) -> None:
    """Train the policies that are missing, several at once: on all blueprints, or without one."""
    updates = 2 if quick else UPDATES
    school = SCHOOLS[tuned_school(table, rules, folder / "tried.jsonl", updates, WORKERS)]
    school = replace(school, updates=updates)
    lessons = [Lesson(table, (), seed, school, rules, folder / f"gardener-{seed}") for seed in range(2 * CONTROLLERS)]
    for blueprint in NEW_TO_SOME:
        homes = _without(folder, blueprint)
        lessons += [Lesson(table, (blueprint,), seed, school, rules, home) for seed, home in enumerate(homes)]
        for learns, other in SCHOOLS_FOR_NEWCOMERS.items():
            other = replace(other, updates=min(other.updates, updates))
            homes = _without(folder, blueprint, learns)
            lessons += [Lesson(table, (blueprint,), seed, other, rules, home) for seed, home in enumerate(homes)]
    for name, other in OTHER_SCHOOLS.items():
        other = replace(other, updates=min(other.updates, updates))
        lessons += [
            Lesson(table, (), seed, other, rules, folder / f"{_as_file(name)}-{seed}") for seed in range(CONTROLLERS)
        ]
    missing = [lesson for lesson in lessons if not lesson.done]
    with multiprocessing.get_context("spawn").Pool(WORKERS) as pool:
        for name, seconds in pool.imap_unordered(given, missing):
            sys.stderr.write(f"{name}: {seconds:.0f} s\n")


def _as_file(name: str) -> str:
    return name.replace(",", "").replace(" ", "-")


def _without(folder: Path, blueprint: str, learns: str = "") -> list[Path]:
    """Return the folders of the policies trained without a blueprint, in the usual way or in another one."""
    name = "-".join(filter(None, ["without", blueprint.rpartition("/")[2], _as_file(learns)]))
    return [folder / f"{name}-{seed}" for seed in range(CONTROLLERS)]


def _home(
    bench: Bench, learnt_on: Sequence[int], folder: Path, players: Mapping[str, Mapping[float, Sequence[Policy]]]
) -> dict[str, dict[float, Result]]:
    """Evaluate tuned, trained, cautious and exploring policies on the training problems."""
    gardeners = [folder / f"gardener-{seed}" for seed in range(CONTROLLERS)]
    asked: dict[str, tuple[Sequence[float], Sequence[Path], dict[str, Any]]] = {
        **{careful.arm_of("ppo", sure): ((HEADLINE,), gardeners, {"sure": sure}) for sure in careful.SURE},
        **{_usual(one): (PRICES, _without(folder, one), {}) for one in NEW_TO_SOME},
        **{_looking(one): (PRICES, _without(folder, one), dict(AT_ONCE)) for one in NEW_TO_SOME},
    }
    found = {
        name: {HEADLINE: judged(bench, learnt_on, HEADLINE, players[name][HEADLINE])} for name in ("heuristic", "ppo")
    }
    for name, (prices, homes, how) in asked.items():
        own = [trained(bench, home, **how) for home in homes]
        found[name] = {price: judged(bench, learnt_on, price, own) for price in prices}
    return {**found, ORACLE: {HEADLINE: oracle(bench, learnt_on, HEADLINE)}}


def _usual(blueprint: str) -> str:
    return f"without {blueprint}"


def _looking(blueprint: str) -> str:
    return f"without {blueprint}, looks first"


def _ways(
    bench: Bench, puzzles: Sequence[int], folder: Path, blueprint: str, bound: float
) -> dict[str, dict[float, Result]]:
    """Evaluate each way to handle a new blueprint; ``bound``: the highest price at which it is tried."""
    usual = _without(folder, blueprint)
    ways: dict[str, tuple[Sequence[Path], dict[str, Any]]] = {
        "its description": (usual, {}),
        **{
            f"its description: {way}": (_without(folder, blueprint, way), {"forget_names": 1.0})
            for way in SCHOOLS_FOR_NEWCOMERS
        },
        "a first look": (usual, {**AT_ONCE}),
        f"a first look, at prices up to {bound:g}": (usual, {**AT_ONCE, "look_up_to": bound}),
    }
    gardeners = {way: [trained(bench, home, **how) for home in homes] for way, (homes, how) in ways.items()}
    return {way: {price: judged(bench, puzzles, price, own) for price in PRICES} for way, own in gardeners.items()}


def _of_other_schools(bench: Bench, folder: Path) -> dict[str, list[Policy]]:
    """Return the policies of other training schemes; the first used that of the main policies."""
    homes = {OTHERS: [folder / f"gardener-{seed}" for seed in range(CONTROLLERS, 2 * CONTROLLERS)]}
    for name in OTHER_SCHOOLS:
        homes[name] = [folder / f"{_as_file(name)}-{seed}" for seed in range(CONTROLLERS)]
    return {name: [trained(bench, home) for home in own] for name, own in homes.items()}


def _demand_the_same(folder: Path, study: dict[str, Any]) -> None:
    """End where the folder holds a study of another table, or of another length."""
    found = _once(folder / "study.json", lambda: study)
    if found != study:
        msg = f"{folder} holds another study: {found}. This one: {study}. Give another folder (--into)."
        raise SystemExit(msg)


def _once(file: Path, make: Any) -> Any:
    if not file.exists():
        file.write_text(json.dumps(make(), indent=1) + "\n", encoding="utf-8")
    return json.loads(file.read_text(encoding="utf-8"))


def _from_many_seeds(
    folder: Path, bench: Bench, players: fresh.Players, others: fresh.Players, *, quick: bool
) -> dict[str, Any]:
    """Evaluate policies on problems inside and outside the table.

    others: policies that only play problems outside.
    """
    known = range(len(bench.table.of_part("held_out")))
    unknown = range(len(known), len(known) + fresh.FRESH)
    passes = {
        "fresh": fresh.tasks(unknown, {**players, **others}, quick=quick),
        "again": fresh.tasks(known, players, quick=quick),
    }
    by_chance = {
        name: [replace(one, players={CHANCE: [chance(bench, one.number)]}) for one in every]
        for name, every in passes.items()
    }
    luck = _played(folder / "chance.jsonl", [one for every in by_chance.values() for one in every])
    return {
        name: fresh.summed_up(fresh.with_chance(_played(folder / f"{name}.jsonl", every), luck))
        for name, every in passes.items()
    }


def _played(file: Path, every: Sequence[fresh.Task]) -> list[dict[str, Any]]:
    done = {line["problem"] for line in noted(file)}
    with multiprocessing.get_context("spawn").Pool(WORKERS) as pool:
        for line in pool.imap_unordered(fresh.played, [task for task in every if task.number not in done]):
            note(file, line)
            sys.stderr.write(f"problem {line['problem']}\n")
    found = {line["problem"]: line for line in noted(file)}
    return [found[task.number] for task in every]


def _each_visited(file: Path, act: Callable[[Visit], dict[str, Any]], visits: Sequence[Visit]) -> list[dict[str, Any]]:
    """Run each cell that is not done yet; return the results of all."""
    done = {line["cell"] for line in noted(file)}
    for line in _each_alone(act, [visit for visit in visits if visit.cell.name not in done]):
        note(file, line)
        sys.stderr.write(f"{file.stem}: {line['cell']}\n")
    found = {line["cell"]: line for line in noted(file)}
    return [found[visit.cell.name] for visit in visits]


def _careful(
    folder: Path,
    home: Mapping[str, Mapping[float, Result]],
    live: Sequence[dict[str, Any]],
    visits: Sequence[Visit],
) -> list[dict[str, Any]]:
    lines = _each_visited(folder / "careful.jsonl", careful.run_careful, careful.controls(visits))
    by_caution = {sure: home[careful.arm_of("ppo", sure)][HEADLINE] for sure in (0.0, *careful.SURE)}
    return careful.compared(by_caution, live, lines) if lines else []


def _steps(folder: Path, live: Sequence[dict[str, Any]], visits: Sequence[Visit]) -> list[dict[str, Any]]:
    every = steps.walks(visits)
    walked = _each_of(folder / "steps.jsonl", steps.walked, every)
    replanted = _each_of(folder / "from_the_start.jsonl", steps.replanted, steps.replantings(every, walked))
    return steps.compared(walked, replanted, live)


def _each_of(file: Path, act: Callable[[Any], dict[str, Any]], every: Sequence[Any]) -> list[dict[str, Any]]:
    """Run each task that is not done yet, by its key; return the results of all."""
    done = [line["key"] for line in noted(file)]
    for line in _each_alone(act, [one for one in every if one.key not in done]):
        note(file, line)
        sys.stderr.write(f"{file.stem}: {line['key']}\n")
    found = noted(file)
    return [next(line for line in found if line["key"] == one.key) for one in every]


def _each_alone(act: Callable[[Any], dict[str, Any]], tasks: Sequence[Any]) -> Iterator[dict[str, Any]]:
    """Yield the result of each task as it completes, several at once, each in a process of its own."""
    with multiprocessing.get_context("spawn").Pool(WORKERS, maxtasksperchild=1) as pool:
        yield from pool.imap_unordered(act, tasks, chunksize=1)


if __name__ == "__main__":
    raise SystemExit(main())
