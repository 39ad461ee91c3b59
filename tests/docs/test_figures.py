"""Every figure in the prose of the documentation comes from a stored result or from a constant of the code.

``PAGES`` lists the sources of each page. A figure that is in none of them fails with its line, so that new measurements
cannot leave a page behind. A figure is a number with a fraction, a sign or a unit; a range; or a mean with a range.
Code, tables and generated parts are not prose, and have tests of their own.
"""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from benchmarks.science.gates import CORRELATION, DEVIATION
from esper_core.leyline.constants import (
    CHECKPOINT_SHARE,
    CONFIDENCE,
    GATE_ALPHA,
    NATS_PER_PARAMETER,
    SINK_DRAIN_SECONDS,
)
from esper_core.leyline.observations import LIMIT
from esper_tasks.digits import digits
from tests.docs import measured

ROOT = Path(__file__).parents[2]
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


Source = Iterable[tuple[float, ...]]
incubated, intervals, results, tables = measured.incubated, measured.intervals, measured.results, measured.tables


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
    for found in FIGURE.finditer(words):
        yield Figure(words.count("\n", 0, found.start()) + 1, tuple(re.findall(NUMBER, found[0])))


def is_in(source: Source, numbers: tuple[str, ...]) -> bool:
    """Return whether one of the source's figures rounds to these numbers.

    A single number may be the mean of an interval, and without a sign it may be negative. All signs of an interval may
    be inverted, since an advantage of one side is a disadvantage of the other.
    """
    if len(numbers) == 1:
        signed = numbers[0][0] in "+−-"
        alone = [own[0] for own in source if len(own) != 2]
        return any(rounds(one, numbers[0]) or (not signed and rounds(-one, numbers[0])) for one in alone)
    known = [own[-len(numbers) :] for own in source if len(own) >= len(numbers)]
    turned = [(*(-one for one in own[:-2]), -own[-1], -own[-2]) for own in known]
    return any(all(map(rounds, own, numbers)) for own in [*known, *turned])


def rounds(value: float, number: str) -> bool:
    """Return whether the value rounds to ``number``, with as many digits."""
    plain = number.replace(",", "").replace("−", "-")
    return float(f"{value:.{len(plain.partition('.')[2])}f}") == float(plain)


@dataclass(frozen=True)
class Page:
    """A page and the sources of its figures.

    sources: of the whole page. parts: of single paragraphs instead, by how they begin. given: figures that were not
    measured, and what they are.
    """

    path: str
    sources: Callable[[], Source] = list
    parts: Mapping[str, Callable[[], Source]] = field(default_factory=dict)
    given: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.path

    def read(self) -> str:
        return (ROOT / self.path).read_text(encoding="utf-8")

    def unsupported(self, page: str) -> list[str]:
        """Return the figures of the text that are in no source, with their lines."""
        sources = {begin: [(100 * CONFIDENCE,), *own()] for begin, own in {"": self.sources, **self.parts}.items()}
        return [
            f"{self.path}:{one.line}: {one}"
            for one in figures_in(page)
            if str(one) not in self.given and not is_in(sources[self.part_of(page, one.line)], one.numbers)
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


def over_the_rules() -> Source:
    """Return the advantage of learned policies over the rules, on growbench and in real runs."""
    found = results(measured.LEARNED)
    parts = [found[name]["advantage"]["heuristic"] for name in ("table", "other_rng_seeds", "fresh_problems")]
    parts.append(found["trainings"]["imitation, then PPO: three other trainings"]["over_heuristic"])
    return intervals([*parts, *(cell["arms"]["ppo"]["over_heuristic"] for cell in found["runs"])])


def default_run() -> Source:
    """Return the results of the default run that the first page shows; a slow test repeats that run."""
    return tables(FIRST_RUN, "heuristic")


def gates() -> Source:
    """Return the constants of the gates and of their simulation, and the gains that the page's table shows."""
    return [(GATE_ALPHA,), (DEVIATION,), (CORRELATION,), *tables(GATES, "| `conv_light` behind")]


def incubation() -> Source:
    """Return the gains of a seed on both ways to incubate, its final benefit, and how far the two ways differ."""
    gains = [incubated("gain_in_training", "plain", "conv_light", way) for way in ("shadow", "branch")]
    between = [tuple(one["points"][:3]) for one in results(measured.INCUBATION)["between"]]
    apart = [(abs(mean),) for mean, low, high in between if low > 0 or high < 0]
    return [*(one for own in gains for one in own), *incubated("nats", "plain", "conv_light"), *apart]


def linear_on_digits() -> float:
    """Return the percentage in the docstring of ``digits``, which another test checks."""
    return float(re.search(r"linear model classifies (\d+) %", digits.__doc__)[1])


PAGES = [
    Page("README.md", given={"3.11": "a version of Python", "0.1": "a version of Esper"}),
    Page(
        "docs/why-grow.md",
        parts={
            "**A learned": over_the_rules,
            "**Computation": lambda: tables(FIRST_RUN, "heuristic", "twin"),
            "**Parameters": lambda: [
                *incubated("points", "plain", "mlp"),
                *incubated("nats", "plain", "mlp"),
                *incubated("points", "no deficit", "conv_light"),
            ],
            "**That growth beats a better": lambda: measured.twins("no deficit"),
            "**Missed gains": lambda: [
                *incubated("points", "plain", "pointwise", "shadow"),
                *incubated("points", "shuffled", "conv_light"),
            ],
        },
    ),
    Page(POLICIES, lambda: [(NATS_PER_PARAMETER,)]),
    Page("docs/guides/probe-a-model.md", lambda: [(NATS_PER_PARAMETER,)]),
    Page("docs/guides/write-a-blueprint.md"),
    Page(FIRST_RUN, default_run, given={"3.11": "a version of Python"}),
    Page("docs/glossary.md", given={"0 to 1": "the range of alpha", "40": "points, in an example"}),
    Page("docs/concepts/overview.md", given={"0 to 1": "the range of alpha"}),
    Page("docs/concepts/counterfactuals.md"),
    Page("docs/concepts/incubation.md", incubation),
    Page(GATES, gates, given={"−3": "a skewness to simulate"}),
    Page(
        STATISTICS,
        lambda: [(1 - CONFIDENCE,), (100 * (1 - CONFIDENCE),)],
        {
            "With eight RNG": lambda: [(results(VERDICTS)["found"]["deviations"],)],
            "Without pairs": measured.wrong_without_pairs,
            "- **Skewed": lambda: [(one["told"],) for one in results(VERDICTS)["leaning"]],
        },
    ),
    Page("docs/gallery.md"),
    Page("docs/concepts/slots.md"),
    Page(
        "docs/concepts/twins.md",
        lambda: measured.cost("plain", "conv_light", "shadow"),
        given={"+0.0 (+0.0 to +0.0)": "a host less itself"},
    ),
    Page("docs/guides/use-a-notebook.md", given={"0 to 1": "what a share may be"}),
    Page("docs/guides/resume-a-run.md", lambda: [(100 * CHECKPOINT_SHARE,)]),
    Page("docs/guides/use-an-rl-library.md", lambda: [(-LIMIT,), (LIMIT,)]),
    Page("docs/guides/use-your-own-data.md", given={"15": "the share of examples in a split"}),
    Page("docs/guides/write-a-sink.md", lambda: [(SINK_DRAIN_SECONDS,)]),
    Page("docs/reference/blueprints.md"),
    Page("docs/reference/configuration.md", given={"1.2": "a version of YAML"}),
    Page("docs/reference/growbench.md", lambda: [(100 * math.sqrt(0.25 / examples),) for examples in (600, 500)]),
    Page("docs/reference/rewards.md", given={"0.25": "nats, in a model", "12": "percent of parameters, in a model"}),
    Page("docs/reference/tasks.md", lambda: [*measured.twins("no deficit"), (linear_on_digits(),)]),
    Page(
        "docs/project/learned-policies.md",
        measured.learned,
        {
            "If one fixed": measured.to_be_won,
            "- **Transfer": measured.learned_in_runs,
            "- **Restraint": measured.learned_in_runs,
        },
    ),
    Page(
        "docs/project/learned-policies-report.md",
        measured.learned,
        {"Each arm": measured.learned_in_runs},
        given=dict.fromkeys(("0.003", "0.01", "0.03", "0.1"), "a learning rate"),
    ),
    Page("docs/project/performance.md", measured.performance),
]

LEFT_OUT = ("docs/decisions/", "docs/reference/errors/")
"""Decisions state what was known when they were made, and pages of errors what their examples print."""


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_every_figure_of_a_page_has_a_source_and_every_listed_one_is_there(page):
    assert page.unsupported(page.read()) == []
    text = page.read()
    assert {*page.given} - {str(one) for one in figures_in(text)} == set()
    assert {*page.parts} - {page.part_of(text, line) for line in range(1, text.count("\n") + 1)} == set()


def test_every_page_with_figures_is_listed():
    texts = {one.relative_to(ROOT).as_posix(): one for one in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]}
    held = {page.path for page in PAGES} | {one for one in texts if one.startswith(LEFT_OUT)}
    assert [
        one for one, file in texts.items() if one not in held and any(figures_in(file.read_text(encoding="utf-8")))
    ] == []
