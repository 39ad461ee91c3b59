"""What was measured, by the files that the studies wrote, and by what the pages of runs show?

A source is a list of figures: a number, from where to where something lies, or a mean with both.
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
"""What stands in the results of the gardeners beside what players came to: settings, and runs."""

CONTROL = "capacity-of-"
REFERENCES = ("heuristic", "twin")
"""What everybody is held against; other pairs of arms are so many that they are known by their intervals alone."""


class Whole(tuple[float, ...]):
    """A mean with its interval, to be told with it: one of so many that their means alone are nearly any number."""

    __slots__ = ()


Source = list[tuple[float, ...]]


@cache
def results(path: str) -> Any:
    """What a study wrote."""
    return json.loads((ROOT / "benchmarks" / path).read_text(encoding="utf-8"))


def tables(page: str, *kept: str, cell: int | None = None) -> Source:
    """The figures in the tables of a page, and in what its commands print.

    kept: the beginnings of the lines that count, if not all do. cell: which cell of them, if not each.
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
    """The numbers of a cell."""
    own = (found["mean"], found["low"], found["high"]) if found["mean"] else (found[0],)
    return tuple(float(one.replace(",", "").replace("−", "-")) for one in own)


def intervals(found: Any) -> Source:
    """Every mean with its interval, anywhere in what a study wrote, and every other number that is no count."""
    if isinstance(found, Mapping):
        if {"mean", "low", "high"} <= set(found):
            return [tuple(found[key] for key in ("mean", "low", "high") if found[key] is not None)]
        return [one for value in found.values() for one in intervals(value)]
    if isinstance(found, Sequence) and not isinstance(found, str):
        return [one for value in found for one in intervals(value)]
    return [(found,)] if isinstance(found, float) else []


# --- benchmarks/science/incubation


def forced(place: str, blueprint: str, *ways: str) -> list[Mapping[str, Any]]:
    """The cells in which a seed was forced in; ways: of these incubations, if not of all."""
    return [
        one
        for one in results("science/incubation/results.json")["forced"]
        if (one["place"], one["blueprint"]) == (place, blueprint)
        and one["incubation"] in (ways or (one["incubation"],))
    ]


def incubated(what: str, place: str, blueprint: str, *ways: str) -> Source:
    """What such a seed came to, in ``points`` say: in each cell, and from the least to the most."""
    found = [one[what] for one in forced(place, blueprint, *ways)]
    each: Source = [tuple(one[:3]) if isinstance(one, list) else (one,) for one in found]
    return [*each, *spans(each)[:1]]


def cost(place: str, blueprint: str, way: str) -> Source:
    """Operations of an episode in which it grew, over those of its twin's."""
    return [(one["cost"],) for one in forced(place, blueprint, way)]


def twins(place: str) -> Source:
    """What a host came to that grew nothing, in percent."""
    return [(one["metric"],) for one in results("science/incubation/results.json")["twins"] if one["place"] == place]


# --- benchmarks/science/gardeners


def judged(found: Mapping[str, Any]) -> Source:
    """All that was found without the engine; regrets, and how often what is new is bought when due, in percent."""
    own = {name: value for name, value in found.items() if name not in NOT_JUDGED}
    shares = [one["regret"] for player in found["table"]["players"].values() for one in player.values()]
    shares += [one["bought"] / one["episodes"] if one["episodes"] else None for one in found["newcomers"]]
    return intervals(own) + [(100 * one,) for one in shares if one is not None]


def engine(cells: Sequence[Mapping[str, Any]]) -> Source:
    """The runs of the engine: each arm, what it has over its controls, and each arm less each other on the same seeds.

    The controllers of one gardener, ``ppo-0`` and on, are also taken together, seed by seed. What these came to, what a
    gardener came to in all cells, and what everybody but chance has over static capacity, is also told as from the
    least to the most.
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
                to_what = CONTROL if other.startswith(CONTROL) else gardener(other)
                found.append(own if to_what in ("", CONTROL, *REFERENCES) else Whole(own))
                everybody = [("everybody",)] if to_what == CONTROL and one != "random" else []
                for key in [(gardener(one), cell["cell"]), (gardener(one),), *everybody]:
                    several.setdefault((what, to_what, *key), []).append(own)
    return found + [span for own in several.values() if len(own) > 1 for span in spans(own)]


def gardener(arm: str) -> str:
    """An arm without the number of its controller."""
    return re.sub(r"-\d+$", "", arm)


def spans(several: Source) -> Source:
    """From the least mean to the largest, and from where the lowest interval begins to where the highest ends."""
    means = [own[0] for own in several]
    return [(min(means), max(means)), (min(map(min, several)), max(map(max, several)))]


def pairs(worth: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Which arms are held against each other: all that play, and each with its own control."""
    players = sorted((name for name in worth if not name.startswith(CONTROL)), key=lambda name: name in REFERENCES)
    yield from combinations(players, 2)
    yield from ((name, CONTROL + name) for name in players if CONTROL + name in worth)


def by_seed(episodes: Mapping[int, Mapping[str, Any]], what: str, scale: float) -> dict[int, float]:
    """A figure of an arm's episodes, where it is known."""
    return {seed: scale * one[what] for seed, one in episodes.items() if one[what] is not None}


def together(worth: Mapping[str, Mapping[int, float]]) -> dict[str, dict[int, float]]:
    """The mean over the controllers of each gardener that has several, by seed."""
    groups: dict[str, list[Mapping[int, float]]] = {}
    for name, own in worth.items():
        if gardener(name) != name and not name.startswith(CONTROL):
            groups.setdefault(gardener(name), []).append(own)
    return {
        name: {seed: sum(one[seed] for one in own) / len(own) for seed in own[0]}
        for name, own in groups.items()
        if len(own) > 1 and all(one.keys() == own[0].keys() for one in own)
    }


def interval(values: Iterable[float]) -> tuple[float, ...]:
    """Their mean, and from where to where it may be, if there is more than one."""
    found = mean_interval(list(values), CONFIDENCE)
    return (found.mean,) if found.low is None or found.high is None else (found.mean, found.low, found.high)


def less(one: Mapping[int, float], other: Mapping[int, float]) -> tuple[float, ...]:
    """One arm less another, on the seeds that both have."""
    return interval(one[seed] - other[seed] for seed in one if seed in other)


# --- benchmarks/science/shown

SHOWN = "science/shown/results.json"


def runs() -> Mapping[str, Any]:
    """The runs that the pages show, by name. The test that asks is skipped as long as nobody has run them."""
    if not (ROOT / "benchmarks" / SHOWN).exists():
        pytest.skip("not run yet: python -m benchmarks.science.shown --write")
    found: Mapping[str, Any] = results(SHOWN)["runs"]
    return found


def ran(*names: str) -> Source:
    """What the arms of some runs came to, by how many points each is above each other, and their rewards."""
    found: Source = []
    for own in (runs()[name]["results"] for name in names):
        for arm in own["arms"].values():
            found.append(tuple(100 * arm["test"][key] for key in ("mean", "ci_low", "ci_high")))
            found += [(arm["reward"],)] if arm["reward"] is not None else []
        found += [tuple(100 * one[key] for key in ("difference", "ci_low", "ci_high")) for one in own["comparisons"]]
    return found


# --- benchmarks/science/verdicts.py


def wrong_verdicts() -> Source:
    """Of studies of arms that are the same: the least and the largest share with a verdict, where there can be one."""
    found = [one for one in results("science/verdicts.json")["wrong"] if any(one["told"].values())]
    return spans([(share,) for one in found for share in one["told"].values()])[:1]


def wrong_without_pairs() -> Source:
    """From where to where the shares lie of arms that spread alike, and the largest where one spreads further."""
    shares: dict[str, list[float]] = {}
    for one in results("science/verdicts.json")["wrong_without_pairs"]:
        shares.setdefault(one["spread"], []).append(one["told"])
    alike = shares.pop("alike")
    return [(min(alike), max(alike)), *((max(own),) for own in shares.values())]


# --- benchmarks/perf


def performance(*numbers: str) -> Source:
    """Every figure of some promises, ``P3`` say, with its bound; of all where none is named."""
    rows = [
        row
        for one in results("perf/results.json")["tables"]
        if one["number"] in (numbers or (one["number"],))
        for row in one["rows"]
    ]
    return [(value,) for row in rows for value in (row["value"], row["bound"]) if value is not None]
