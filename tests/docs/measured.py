"""Sources of figures: the files that studies wrote, and the tables of pages.

A source is a list of figures, each a number, the ends of a range, or a mean with both ends.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from esper_core.leyline.constants import CONFIDENCE
from esper_core.runs.statistics import mean_interval

ROOT = Path(__file__).parents[2]
NUMBER = r"[+−-]?\d[\d,]*(?:\.\d+)?"
IN_A_TABLE = re.compile(
    rf"(?P<mean>{NUMBER})(?: %| points)?(?: \(| \| |  +)(?P<low>{NUMBER})(?: %)? to (?P<high>{NUMBER})|{NUMBER}"
)
NOT_JUDGED = ("heuristic", "live", "more", "steps")
"""Keys in the results of the study of learned policies that are settings or real runs."""

CONTROL = "capacity-of-"
REFERENCES = ("heuristic", "twin")
"""Arms that others are compared with; other pairs are so many that only their intervals count."""


class Whole(tuple[float, ...]):
    """A mean that counts only together with its interval, because there are too many of its kind."""

    __slots__ = ()


Source = list[tuple[float, ...]]


@cache
def results(path: str) -> Any:
    """Read the results of a study."""
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
    """Return the numbers of a cell."""
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


# --- benchmarks/science/incubation


def forced(place: str, blueprint: str, *ways: str) -> list[Mapping[str, Any]]:
    """Return the cells in which a seed was kept by force; ways: only with these kinds of incubation."""
    return [
        one
        for one in results("science/incubation/results.json")["forced"]
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
    """Return the accuracy of a host without growth, in percent."""
    return [(one["metric"],) for one in results("science/incubation/results.json")["twins"] if one["place"] == place]


# --- benchmarks/science/learned_policies


def judged(found: Mapping[str, Any]) -> Source:
    """Return the results on growbench; regrets, and how often a new blueprint is chosen when best, in percent."""
    own = {name: value for name, value in found.items() if name not in NOT_JUDGED}
    shares = [one["regret"] for player in found["table"]["players"].values() for one in player.values()]
    shares += [one["bought"] / one["episodes"] if one["episodes"] else None for one in found["newcomers"]]
    return intervals(own) + [(100 * one,) for one in shares if one is not None]


def engine(cells: Sequence[Mapping[str, Any]]) -> Source:
    """Return the real runs: each arm, its advantage over its controls, and over each other arm on the same RNG seeds.

    The trainings of one policy, ``ppo-0`` and so on, are also averaged per RNG seed. For these, for a policy in all
    cells, and for advantages over the static control, the range of the means is added.
    """
    found: Source = []
    several: dict[tuple[str, ...], Source] = {}
    for cell in cells:
        arms = {name: {one["seed"]: one for one in own} for name, own in cell["arms"].items()}
        for what, scale in (("test", 100.0), ("reward", 1.0)):
            worth = {name: values for name, own in arms.items() if (values := by_seed(own, what, scale))}
            worth |= together(worth)
            each = {(name, ""): interval(own.values()) for name, own in worth.items() if not name.startswith(CONTROL)}
            each |= {(one, other): less(worth[one], worth[other]) for one, other in pairs(worth)}
            for (one, other), own in each.items():
                to_what = CONTROL if other.startswith(CONTROL) else policy_of(other)
                found.append(own if to_what in ("", CONTROL, *REFERENCES) else Whole(own))
                everybody = [("everybody",)] if to_what == CONTROL and one != "random" else []
                for key in [(policy_of(one), cell["cell"]), (policy_of(one),), *everybody]:
                    several.setdefault((what, to_what, *key), []).append(own)
    return found + [span for own in several.values() if len(own) > 1 for span in spans(own)]


def policy_of(arm: str) -> str:
    """Return the name of an arm without the number of its training."""
    return re.sub(r"-\d+$", "", arm)


def spans(several: Source) -> Source:
    """Return the range of the means, and the range of the intervals."""
    means = [own[0] for own in several]
    return [(min(means), max(means)), (min(map(min, several)), max(map(max, several)))]


def pairs(worth: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the pairs of arms to compare: all policies, and each policy with its own control."""
    players = sorted((name for name in worth if not name.startswith(CONTROL)), key=lambda name: name in REFERENCES)
    yield from combinations(players, 2)
    yield from ((name, CONTROL + name) for name in players if CONTROL + name in worth)


def by_seed(episodes: Mapping[int, Mapping[str, Any]], what: str, scale: float) -> dict[int, float]:
    """Return a figure of an arm's episodes by RNG seed, where it is known."""
    return {seed: scale * one[what] for seed, one in episodes.items() if one[what] is not None}


def together(worth: Mapping[str, Mapping[int, float]]) -> dict[str, dict[int, float]]:
    """Return the mean over the trainings of each policy that has several, by RNG seed."""
    groups: dict[str, list[Mapping[int, float]]] = {}
    for name, own in worth.items():
        if policy_of(name) != name and not name.startswith(CONTROL):
            groups.setdefault(policy_of(name), []).append(own)
    return {
        name: {seed: sum(one[seed] for one in own) / len(own) for seed in own[0]}
        for name, own in groups.items()
        if len(own) > 1 and all(one.keys() == own[0].keys() for one in own)
    }


def interval(values: Iterable[float]) -> tuple[float, ...]:
    """Return the mean, with its interval if there is more than one value."""
    found = mean_interval(list(values), CONFIDENCE)
    return (found.mean,) if found.low is None or found.high is None else (found.mean, found.low, found.high)


def less(one: Mapping[int, float], other: Mapping[int, float]) -> tuple[float, ...]:
    """Return the difference of two arms on the RNG seeds that both have."""
    return interval(one[seed] - other[seed] for seed in one if seed in other)


# --- benchmarks/science/shown

SHOWN = "science/shown/results.json"


def runs() -> Mapping[str, Any]:
    """Return the runs that the pages show, by name; skip the test if they were not run."""
    if not (ROOT / "benchmarks" / SHOWN).exists():
        pytest.skip("not run yet: python -m benchmarks.science.shown --write")
    found: Mapping[str, Any] = results(SHOWN)["runs"]
    return found


def ran(*names: str) -> Source:
    """Return the results of the arms of some runs, their differences in points, and their rewards."""
    found: Source = []
    for own in (runs()[name]["results"] for name in names):
        for arm in own["arms"].values():
            found.append(tuple(100 * arm["test"][key] for key in ("mean", "ci_low", "ci_high")))
            found += [(arm["reward"],)] if arm["reward"] is not None else []
        found += [tuple(100 * one[key] for key in ("difference", "ci_low", "ci_high")) for one in own["comparisons"]]
    return found


# --- benchmarks/science/verdicts.py


def wrong_verdicts() -> Source:
    """Return the range of wrong verdicts among identical arms, where a verdict is possible."""
    found = [one for one in results("science/verdicts.json")["wrong"] if any(one["told"].values())]
    return spans([(share,) for one in found for share in one["told"].values()])[:1]


def wrong_without_pairs() -> Source:
    """Return the range for arms of equal spread, and the largest share if one arm spreads further."""
    shares: dict[str, list[float]] = {}
    for one in results("science/verdicts.json")["wrong_without_pairs"]:
        shares.setdefault(one["spread"], []).append(one["told"])
    alike = shares.pop("alike")
    return [(min(alike), max(alike)), *((max(own),) for own in shares.values())]


# --- benchmarks/baseline.json


def performance() -> Source:
    """Return the figures and bounds of the benchmarks."""
    figures = results("baseline.json")["figures"]
    return [(value,) for one in figures for value in (one["value"], one["bound"]) if value is not None]
