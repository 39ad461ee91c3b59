"""Sources of figures: the files that studies wrote, and the tables of pages.

A source is a list of figures, each a number, the ends of a range, or a mean with both ends.
"""

import importlib.util
import json
import re
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from esper_study.growbench import Bench, Match, best_fixed_plan, best_plan, shipped_table

ROOT = Path(__file__).parents[2]
NUMBER = r"[+−-]?\d[\d,]*(?:\.\d+)?"
IN_A_TABLE = re.compile(
    rf"(?P<mean>{NUMBER})(?: %| points)?(?: \(| \| |  +)(?P<low>{NUMBER})(?: %)? to (?P<high>{NUMBER})|{NUMBER}"
)
Source = list[tuple[float, ...]]


def script(path: Path) -> ModuleType:
    """A Python file of the project that no package holds."""
    found = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(found)
    sys.modules.setdefault(path.stem, module)
    found.loader.exec_module(module)
    return module


@cache
def results(path: str) -> Any:
    return json.loads((ROOT / "benchmarks" / path).read_text(encoding="utf-8"))


def tables(page: str, *kept: str, cell: int | None = None) -> Source:
    """Return the figures in the tables of a page and in the output of its commands.

    kept: the beginnings of the lines to use; all by default. cell: the cell of them to use; all by default.
    """
    text = (ROOT / page).read_text(encoding="utf-8")
    printed = re.findall(r"^```text\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    lines = [line for block in printed for line in block.splitlines()]
    lines += [line for line in text.splitlines() if line.startswith("|")]
    own = [line for line in lines if line.startswith(kept or "")]
    assert own, f"{page} has no such line: {kept}"
    cells = own if cell is None else [line.strip()[1:-1].split("|")[cell] for line in own]
    return [figures_of(found) for one in cells for found in IN_A_TABLE.finditer(one)]


def figures_of(found: re.Match[str]) -> tuple[float, ...]:
    own = (found["mean"], found["low"], found["high"]) if found["mean"] else (found[0],)
    return tuple(float(one.replace(",", "").replace("−", "-")) for one in own)


def intervals(found: Any) -> Source:
    """Return every mean with its interval, and every other float, anywhere in the results of a study."""
    if isinstance(found, Mapping):
        if {"mean", "low", "high"} <= set(found):
            return [tuple(found[key] for key in ("mean", "low", "high") if found[key] is not None)]
        return [one for value in found.values() for one in intervals(value)]
    if isinstance(found, Sequence) and not isinstance(found, str):
        return [one for value in found for one in intervals(value)]
    return [(found,)] if isinstance(found, float) else []


INCUBATION = "science/incubation.json"


def forced(place: str, blueprint: str, *ways: str) -> list[Mapping[str, Any]]:
    """Return the cells in which a seed was kept by force; ways: only with these kinds of incubation."""
    return [
        one
        for one in results(INCUBATION)["forced"]
        if (one["place"], one["blueprint"]) == (place, blueprint)
        and one["incubation"] in (ways or (one["incubation"],))
    ]


def incubated(what: str, place: str, blueprint: str, *ways: str) -> Source:
    """Return a result of such seeds, such as ``points``: in each cell, and the range of the means."""
    found = [one[what] for one in forced(place, blueprint, *ways)]
    each: Source = [tuple(one[:3]) if isinstance(one, list) else (one,) for one in found]
    return [*each, *spans(each)[:1]]


def cost(place: str, blueprint: str, way: str) -> Source:
    """Return the operations of an episode in which it grew, relative to the twin."""
    return [(one["cost"],) for one in forced(place, blueprint, way)]


def twins(place: str) -> Source:
    return [(one["metric"],) for one in results(INCUBATION)["twins"] if one["place"] == place]


LEARNED = "science/learned_policies/results.json"


def learned(*parts: str) -> Source:
    """Return the results of some parts of the study, or of all but the runs; regrets in percent."""
    found = results(LEARNED)
    regrets = [one["regret"] for own in found["table"]["policies"].values() for one in own.values()]
    names = parts or [name for name in found if name not in ("runs", "learning_rates")]
    return [*intervals([found[name] for name in names]), *((100 * regret,) for regret in regrets)]


def learned_in_runs() -> Source:
    """Return the results of real runs and of tuned learning rates, and ranges over the arms of these."""
    found = results(LEARNED)
    each = [one for cell in found["learning_rates"] for one in cell["arms"].values()]
    over_twin = spans([tuple(one["over_twin"][end] for end in ("mean", "low", "high")) for one in each])
    return [*learned("runs", "learning_rates"), *over_twin]


def to_be_won() -> Source:
    """Return the reward of the best fixed plan, and of the best plan of each training problem, at a price of 40."""
    bench = Bench(shipped_table())
    matches = [Match(number, 40.0) for number in bench.table.of_part("train")]
    plan = best_fixed_plan(bench, matches)
    fixed, best = ([bench.total_reward(one, plan) for one in matches], [best_plan(bench, one)[0] for one in matches])
    return [(sum(own) / len(own),) for own in (fixed, best)]


def spans(several: Source) -> Source:
    """Return the range of the means, and the range of the intervals."""
    means = [own[0] for own in several]
    return [(min(means), max(means)), (min(map(min, several)), max(map(max, several)))]


SHOWN = "science/shown/results.json"


def runs() -> Mapping[str, Any]:
    """Return the runs that the pages show, by name; skip the test if they were not run."""
    if not (ROOT / "benchmarks" / SHOWN).exists():
        pytest.skip("not run yet: python -m benchmarks.science.shown --write")
    found: Mapping[str, Any] = results(SHOWN)["runs"]
    return found


def wrong_without_pairs() -> Source:
    """Return the range for arms of equal spread, and the largest share if one arm spreads further."""
    shares: dict[str, list[float]] = {}
    for one in results("science/verdicts.json")["wrong_without_pairs"]:
        shares.setdefault(one["spread"], []).append(one["told"])
    alike = shares.pop("alike")
    return [(min(alike), max(alike)), *((max(own),) for own in shares.values())]


def performance() -> Source:
    figures = results("baseline.json")["figures"]
    return [(value,) for one in figures for value in (one["value"], one["bound"]) if value is not None]
