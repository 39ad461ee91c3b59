"""Check that every figure in the prose of the pages comes from a stored result or from a constant of the code.

``PAGES`` lists the sources of each page: lists of figures, each a number, the ends of a range, or a mean with both
ends. A figure that is in none of them is named with its line, so that new measurements cannot leave a page behind. A
figure is a number with a fraction, a sign or a unit; a range; or a mean with a range. Code, tables and generated parts
are not prose, and are checked elsewhere.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from esper_core.growth.averages import LEAST_CORRELATION
from esper_core.growth.gates import MOST_SEEN
from esper_core.leyline.constants import (
    CHECKPOINT_SHARE,
    CONFIDENCE,
    GATE_ALPHA,
    PRICE_OF_DOUBLING,
    SEED_IN_DOUBLINGS,
    SINK_DRAIN_SECONDS,
)
from esper_run.runs.statistics import mean_interval
from esper_scale.stores.plugin import MAX_GIB

ROOT = Path(__file__).parents[1]
PLAIN = r"[+−-]?\d[\d,]*(?:\.\d+)?"
IN_A_TABLE = re.compile(
    rf"(?P<mean>{PLAIN})(?: %| points)?(?: \(| \| |  +)(?P<low>{PLAIN})(?: %)? to (?P<high>{PLAIN})|{PLAIN}"
)
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
    selected = [line for line in lines if line.startswith(kept or "")]
    assert selected, f"{page} has no such line: {kept}"
    cells = selected if cell is None else [line.strip()[1:-1].split("|")[cell] for line in selected]
    return [figures_of(match) for content in cells for match in IN_A_TABLE.finditer(content)]


def figures_of(match: re.Match[str]) -> tuple[float, ...]:
    """Return the numbers of a cell."""
    numbers = (match["mean"], match["low"], match["high"]) if match["mean"] else (match[0],)
    return tuple(float(number.replace(",", "").replace("−", "-")) for number in numbers)


def intervals(data: Any) -> Source:
    """Return every mean with its interval, and every other float, anywhere in the results of a study."""
    if isinstance(data, Mapping):
        if {"mean", "low", "high"} <= set(data):
            return [tuple(data[key] for key in ("mean", "low", "high") if data[key] is not None)]
        return [interval for value in data.values() for interval in intervals(value)]
    if isinstance(data, Sequence) and not isinstance(data, str):
        return [interval for value in data for interval in intervals(value)]
    return [(data,)] if isinstance(data, float) else []


# --- benchmarks/science/incubation.py

INCUBATION = "science/incubation.json"


def forced(place: str, blueprint: str, *ways: str) -> list[Mapping[str, Any]]:
    """Return the cells in which a seed was kept by force; ways: only with these kinds of incubation."""
    return [
        cell
        for cell in results(INCUBATION)["forced"]
        if (cell["place"], cell["blueprint"]) == (place, blueprint)
        and cell["incubation"] in (ways or (cell["incubation"],))
    ]


def incubated(quantity: str, place: str, blueprint: str, *ways: str) -> Source:
    """Return a result of such seeds, such as ``points``: in each cell, and the range of the means."""
    values = [cell[quantity] for cell in forced(place, blueprint, *ways)]
    figures: Source = [tuple(value[:3]) if isinstance(value, list) else (value,) for value in values]
    return [*figures, *spans(figures)[:1]]


def cost(place: str, blueprint: str, way: str) -> Source:
    """Return the operations of an episode in which it grew, relative to the twin."""
    return [(cell["cost"],) for cell in forced(place, blueprint, way)]


def twins(place: str) -> Source:
    """Return the accuracy of a host without growth, in percent."""
    return [(twin["metric"],) for twin in results(INCUBATION)["twins"] if twin["place"] == place]


def spans(several: Source) -> Source:
    """Return the range of the means, and the range of the intervals."""
    means = [figure[0] for figure in several]
    return [(min(means), max(means)), (min(map(min, several)), max(map(max, several)))]


# --- benchmarks/baseline.json


def performance() -> Source:
    """Return the figures and bounds of the benchmarks."""
    figures = results("baseline.json")["figures"]
    return [(value,) for figure in figures for value in (figure["value"], figure["bound"]) if value is not None]


# --- figures of pages

NOT_PROSE = re.compile(
    r"^```.*?^```|<!-- from the code.*?<!-- end -->|<!--.*?-->|^\|.*?$|^    .*?$|`[^`]*`|\]\([^)]*\)", re.DOTALL | re.M
)
NUMBER = r"(?<![\w.,+−-])[+−-]?\d+(?:,\d{3})*(?:\.\d+)?(?!\w|\.\d)"
UNIT = r"\s(?:%|percent|points?|nats?|ms|µs|s|seconds|minutes|times|GB|MiB|GiB)(?!\w)"
SPAN = rf"{NUMBER}(?:{UNIT})?(?:\sto\s|–){NUMBER}"
FIGURE = re.compile(
    rf"{NUMBER}(?:\s[a-z%]+){{0,4}}(?:\s\(|,\s){SPAN}|{SPAN}|{NUMBER}(?={UNIT})"
    rf"|(?=[+−]){NUMBER}|(?=[+−-]?[\d,]+\.\d){NUMBER}"
)


@dataclass(frozen=True)
class Figure:
    """A figure on a page. numbers: as written; a number, the ends of a range, or a mean with both ends."""

    line: int
    numbers: tuple[str, ...]

    def __str__(self) -> str:
        """Format the figure the same way however the page writes it."""
        if len(self.numbers) == 1:
            return self.numbers[0]
        *mean, low, high = self.numbers
        return f"{mean[0]} ({low} to {high})" if mean else f"{low} to {high}"


def figures_in(page: str) -> Iterator[Figure]:
    """Yield the figures in a page's prose, in order."""
    words = NOT_PROSE.sub(lambda left: re.sub(r"[^\n]", " ", left[0]), page)
    for match in FIGURE.finditer(words):
        yield Figure(words.count("\n", 0, match.start()) + 1, tuple(re.findall(NUMBER, match[0])))


def is_in(source: Source, numbers: tuple[str, ...]) -> bool:
    """Return whether one of the source's figures rounds to these numbers.

    A single number may be the mean of an interval, and without a sign it may be negative. All signs of an interval may
    be inverted, since an advantage of one side is a disadvantage of the other.
    """
    if len(numbers) == 1:
        signed = numbers[0][0] in "+−-"
        alone = [figure[0] for figure in source if len(figure) != 2]
        return any(rounds(number, numbers[0]) or (not signed and rounds(-number, numbers[0])) for number in alone)
    candidates = [figure[-len(numbers) :] for figure in source if len(figure) >= len(numbers)]
    turned = [(*(-number for number in figure[:-2]), -figure[-1], -figure[-2]) for figure in candidates]
    return any(all(map(rounds, figure, numbers)) for figure in [*candidates, *turned])


def rounds(value: float, number: str) -> bool:
    """Return whether the value rounds to ``number``, with as many digits."""
    plain = number.replace(",", "").replace("−", "-")
    return float(f"{value:.{len(plain.partition('.')[2])}f}") == float(plain)


@dataclass(frozen=True)
class Page:
    """A page and the sources of its figures.

    sources: of the whole page. parts: of single paragraphs instead, by how they begin. exempt: figures that were not
    measured, and what they are.
    """

    path: str
    sources: Callable[[], Source] = list
    parts: Mapping[str, Callable[[], Source]] = field(default_factory=dict)
    exempt: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.path

    def read(self) -> str:
        """Return the text of the page."""
        return (ROOT / self.path).read_text(encoding="utf-8")

    def unsupported(self, page: str) -> list[str]:
        """Return the figures of the text that are in no source, with their lines."""
        sources = {
            begin: [(100 * CONFIDENCE,), *source()] for begin, source in {"": self.sources, **self.parts}.items()
        }
        return [
            f"{self.path}:{figure.line}: {figure}"
            for figure in figures_in(page)
            if str(figure) not in self.exempt and not is_in(sources[self.part_of(page, figure.line)], figure.numbers)
        ]

    def part_of(self, page: str, line: int) -> str:
        """Return the beginning of the part that contains a line, or an empty string."""
        before = "\n".join(page.splitlines()[:line])
        paragraph = re.split(r"\n\s*\n|\n(?=- )", before)[-1].lstrip()
        return next((begin for begin in self.parts if paragraph.startswith(begin)), "")


FIRST_RUN = "docs/get-started.md"
POLICIES = "docs/reference/policies.md"
GATES, STATISTICS = "docs/concepts/gates.md", "docs/concepts/statistics.md"
VERDICTS = "science/verdicts.json"


def default_run() -> Source:
    """Return the results of the default run that the first page shows; a slow test repeats that run."""
    return tables(FIRST_RUN, "heuristic")


def gates() -> Source:
    """Return the constants of gates and prices, how often sets and gains that wander pass, and intervals cover."""
    candidates = [100 * GATE_ALPHA / (place * (place + 1)) for place in (1, 2, 3)]
    numbers = [GATE_ALPHA, 100 * GATE_ALPHA, PRICE_OF_DOUBLING, SEED_IN_DOUBLINGS, *candidates]
    numbers += [LEAST_CORRELATION, MOST_SEEN]
    printed = (ROOT / "benchmarks" / "science" / "gates.txt").read_text(encoding="utf-8")
    (covered,) = (float(number) for number in re.findall(r"cover the gain in ([\d.]+) %", printed))
    sets = (ROOT / "benchmarks" / "science" / "sets.txt").read_text(encoding="utf-8")
    numbers += [float(number) for number in re.findall(r"largest upper end: ([\d.]+) %", sets)]
    wandering = (ROOT / "benchmarks" / "science" / "wandering.txt").read_text(encoding="utf-8")
    numbers += [float(number) for number in re.findall(r"(0\.98|[\d.]+) (?:%| +0\.71)", wandering)]
    spread = 1.96 * (covered * (100 - covered) / 9000) ** 0.5
    return [*((number,) for number in numbers), (covered, covered - spread, covered + spread)]


def incubation() -> Source:
    """Return the gains of a seed on both ways to incubate, its final benefit, and how far the two ways differ."""
    shares = [incubated("gain_in_training", "plain", "conv_light", way) for way in ("shadow", "branch")]
    gains = [tuple(100 * share for share in gain) for source in shares for gain in source]
    between = [tuple(cell["points"][:3]) for cell in results(INCUBATION)["between"]]
    apart = [(abs(mean),) for mean, low, high in between if low > 0 or high < 0]
    return [*gains, *incubated("points", "plain", "conv_light"), *apart]


def placement() -> Source:
    """Return how much worse plans for images are than adapters everywhere, and how plans rank single places."""
    lines = (ROOT / "benchmarks/placement/records-images.jsonl").read_text(encoding="utf-8").splitlines()
    losses = {(row["arm"], row["budget"], row["seed"]): row["test_loss"] for row in map(json.loads, lines)}
    worse = [losses["esper", 10_000, seed] - losses["all", 40_000, seed] for seed in range(5)]
    interval = mean_interval(worse)
    assert interval.low is not None
    assert interval.high is not None
    ranked = tables("benchmarks/placement/PREREGISTRATION.md", "| 5 | Spearman")
    return [(interval.mean, interval.low, interval.high), *ranked]


def linear_on_digits() -> float:
    """Return the percentage in the docstring of ``digits``, which another test checks."""
    from esper_tasks.digits import digits  # which imports torch

    (percentage,) = re.findall(r"linear model classifies (\d+) %", digits.__doc__ or "")
    return float(percentage)


PAGES = [
    Page("README.md", exempt={"3.11": "a version of Python", "0.1": "a version of Esper"}),
    Page("docs/why-grow.md", exempt={"95": "a confidence"}),
    Page(POLICIES),
    Page("docs/guides/probe-a-model.md"),
    Page("docs/guides/write-a-blueprint.md"),
    Page("docs/guides/where-should-lora-go.md", placement),
    Page(FIRST_RUN, default_run, exempt={"3.11": "a version of Python"}),
    Page("docs/project/releases.md", exempt={"3.11": "a version of Python"}),
    Page("docs/glossary.md", exempt={"0 to 1": "the range of alpha"}),
    Page("docs/concepts/overview.md", exempt={"0 to 1": "the range of alpha"}),
    Page("docs/concepts/counterfactuals.md"),
    Page("docs/concepts/incubation.md", incubation),
    Page(
        GATES,
        gates,
        exempt={"0.0002": "a price, in an example", "1.3": "of a simulation"},
    ),
    Page(
        STATISTICS,
        lambda: [(1 - CONFIDENCE,), (100 * (1 - CONFIDENCE),)],
        {
            "With eight RNG": lambda: [(results(VERDICTS)["found"]["deviations"],)],
            "- **Skewed": lambda: [(row["told"],) for row in results(VERDICTS)["leaning"]],
        },
    ),
    Page("docs/gallery.md"),
    Page("docs/concepts/slots.md"),
    Page(
        "docs/concepts/twins.md",
        lambda: cost("plain", "conv_light", "shadow"),
        exempt={"+0.0 (+0.0 to +0.0)": "a host less itself"},
    ),
    Page("docs/guides/use-a-notebook.md", exempt={"0 to 1": "what a share may be"}),
    Page("docs/guides/resume-a-run.md", lambda: [(100 * CHECKPOINT_SHARE,)]),
    Page("docs/guides/use-your-own-data.md", exempt={"15": "the share of examples in a split"}),
    Page("docs/guides/store-runs.md", lambda: [(MAX_GIB,)]),
    Page("docs/guides/write-a-sink.md", lambda: [(SINK_DRAIN_SECONDS,)]),
    Page("docs/reference/blueprints.md"),
    Page("docs/reference/configuration.md", exempt={"1.2": "a version of YAML"}),
    Page("docs/reference/tasks.md", lambda: [*twins("no deficit"), (linear_on_digits(),)]),
    Page("docs/project/performance.md", performance),
]

LEFT_OUT = ("docs/decisions/", "docs/reference/errors/")
"""Decisions state what was known when they were made, and pages of errors what their examples print."""


def problems(page: Page) -> list[str]:
    """Return the figures of a page without a source, and what is listed for it and not on it."""
    text = page.read()
    parts = {page.part_of(text, line) for line in range(1, text.count("\n") + 1)}
    gone = ({*page.exempt} - {str(figure) for figure in figures_in(text)}) | ({*page.parts} - parts)
    return [*page.unsupported(text), *(f"{page}: not on the page: {name}" for name in sorted(gone))]


def unlisted() -> list[str]:
    """Return the pages with figures that ``PAGES`` does not list."""
    texts = {file.relative_to(ROOT).as_posix(): file for file in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]}
    held = {page.path for page in PAGES} | {path for path in texts if path.startswith(LEFT_OUT)}
    return [path for path, file in texts.items() if path not in held and any(figures_in(file.read_text("utf-8")))]


def main() -> int:
    """Print what is wrong, and return the exit status."""
    wrong = [problem for page in PAGES for problem in problems(page)]
    wrong += [f"{path}: has figures, and is not listed in docs/figures.py" for path in unlisted()]
    sys.stderr.writelines(f"no source for this figure: {problem}\n" for problem in wrong)
    return int(bool(wrong))
