"""Simulate how often a verdict is wrong, and how large a difference must be to be found.

The code that judges a run judges simulated arms: arms that are the same; arms whose difference is found four times out
of five; and skewed differences. Values are normal, skewed (log-normal), heavy-tailed (Student's t with 2 degrees of
freedom) or coarse (21 values).

``--write`` writes ``verdicts.json`` and ``verdicts.md`` beside this file or into another folder; the pages show their
tables. It takes some minutes on one core. Each figure has random numbers of its own.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import platform
import sys
from importlib.metadata import version
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from esper_core.leyline.constants import CONFIDENCE
from esper_run.runs.statistics import decide, holm, mean_interval, paired_p, seeds_needed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.random import RandomState
    from numpy.typing import NDArray

    from esper_run.runs.statistics import Interval

    Draw = Callable[[RandomState, tuple[int, ...]], NDArray[np.float64]]
    Found = dict[str, Any]

HERE: Final = Path(__file__).parent
SEED: Final = 4_711

LOG_NORMAL_MEAN: Final = math.exp(0.5)

KINDS: Final[dict[str, Draw]] = {
    "normal": lambda random, size: random.standard_normal(size),
    "skewed": lambda random, size: random.lognormal(size=size) - LOG_NORMAL_MEAN,
    "heavy": lambda random, size: random.standard_t(2, size=size),
    "coarse": lambda random, size: random.binomial(20, 0.5, size=size) / 20 - 0.5,
}
"""Distributions of the values of an arm. The true mean is 0."""

STUDIES_OF: Final = ((8, 2), (8, 3), (8, 5), (20, 2), (20, 3), (20, 5))
"""Seeds and arms."""

FOUND: Final = 0.8
"""Share of studies in which a difference must be found."""


WHOLE: Final = 10_000
QUICK: Final = 40
"""Numbers of studies."""


def simulated(studies: int) -> Found:
    """Return every figure; shares are in percent."""
    return {
        "wrong": [wrong(n, arms, studies) for n, arms in STUDIES_OF],
        "found": {"n": 8, "share": 100 * FOUND, "deviations": detectable(8, studies)},
        "leaning": [{"n": n, "told": wrong_on_skewed(n, studies)} for n in (8, 20, 40)],
    }


def generator(*labels: str | int) -> RandomState:
    """Return a generator for one figure. RandomState's stream is the same in every version of numpy."""
    return np.random.RandomState([SEED, *"/".join(map(str, labels)).encode()])


def percent(outcomes: Sequence[bool]) -> float:
    """Return the share of true values, in percent."""
    return 100 * sum(outcomes) / len(outcomes)


def wrong(n: int, arms: int, studies: int) -> Found:
    """Return the share of studies of equal arms in which one is called better, by kind of figures."""
    shares: Found = {"n": n, "arms": arms, "intervals": {}, "told": {}}
    for kind, draw in KINDS.items():
        values = draw(generator("wrong", n, arms, kind), (studies, arms, n))
        first, second = np.array(list(combinations(range(arms), 2))).T
        judged = [any_told(study) for study in (values[:, first] - values[:, second]).tolist()]
        shares["intervals"][kind] = percent([by_interval for by_interval, _ in judged])
        shares["told"][kind] = percent([by_verdict for _, by_verdict in judged])
    return shares


def any_told(study: Sequence[Sequence[float]]) -> tuple[bool, bool]:
    """Return whether any interval of a study's comparisons excludes zero, and whether any verdict is given."""
    intervals = [mean_interval(row, CONFIDENCE) for row in study]
    if not any(map(clear, intervals)):
        return False, False
    adjusted = holm([paired_p(row) for row in study])
    return True, any(told(interval, p, len(study)) for interval, p in zip(intervals, adjusted, strict=True))


def clear(interval: Interval) -> bool:
    """Return whether the interval excludes zero."""
    return interval.low is not None and interval.high is not None and (interval.low > 0 or interval.high < 0)


def told(interval: Interval, p: float, comparisons: int = 1) -> bool:
    """Return whether a verdict is given."""
    verdict, _ = decide(interval, p, comparisons=comparisons)
    return verdict != "no difference shown"


def wrong_on_skewed(n: int, studies: int) -> float:
    """Return how often a verdict is given on log-normal differences whose mean is 0."""
    rows = KINDS["skewed"](generator("leaning", n), (studies, n)).tolist()
    return percent([any_told([row])[1] for row in rows])


def detectable(n: int, studies: int) -> float:
    """Return the difference found in four of five studies, in standard deviations of the paired differences."""
    rows = KINDS["normal"](generator("seen", n), (studies, n))
    low, high = 0.0, 4.0
    while high - low > 0.001:
        middle = (low + high) / 2
        share = percent([any_told([row])[1] for row in (rows + middle).tolist()])
        low, high = (middle, high) if share < 100 * FOUND else (low, middle)
    return high


# --- what is printed and written


def text(figures: Mapping[str, Any]) -> str:
    """Return all figures, a line each."""
    lines = ["wrong verdicts on identical arms, % of studies: by intervals alone, by all conditions"]
    for row in figures["wrong"]:
        cells = [f"{kind} {row['intervals'][kind]:5.1f} {row['told'][kind]:4.1f}" for kind in row["told"]]
        lines.append(f"  {row['n']:>2} seeds, {row['arms']} arms   {'   '.join(cells)}")
    power = figures["found"]
    lines.append(
        f"found by {power['n']} seeds in {power['share']:.0f} % of studies: {power['deviations']:.2f} deviations"
    )
    lines += [f"skewed differences, {row['n']:>2} seeds: {row['told']:.1f} %" for row in figures["leaning"]]
    return "\n".join(lines) + "\n"


def page(figures: Mapping[str, Any]) -> str:
    """Return the tables of the page on statistics, each below its heading, then all figures."""
    by = figures["by"]
    return f"""# Error rates of verdicts

{by["date"]}, Python {by["python"]}, numpy {by["numpy"]}.
`python -m benchmarks.science.verdicts --write` writes this anew.

## RNG seeds needed for a verdict

{needed_seeds()}
## Wrong verdicts

{wrong_verdicts(figures)}
## All figures

```text
{text(figures)}```
"""


def needed_seeds() -> str:
    """Return how many seeds a verdict takes, by the number of arms."""
    several = [(arms, math.comb(arms, 2)) for arms in (2, 4, 5, 8, 12)]
    rows = [(str(arms), str(pairs), str(seeds_needed(pairs))) for arms, pairs in several]
    return table(("arms, including the twin", "comparisons", "RNG seeds needed"), rows)


def wrong_verdicts(figures: Mapping[str, Any]) -> str:
    """Return the range of shares of studies of equal arms in which a verdict is given, by kind."""
    rows = []
    for row in figures["wrong"]:
        alone, by_verdict = (
            f"{min(shares):.0f}–{max(shares):.0f} %" for shares in (row["intervals"].values(), row["told"].values())
        )
        needed = seeds_needed(math.comb(row["arms"], 2))
        none = f"needs {needed} RNG seeds"
        rows.append((f"{row['n']}, {row['arms']}", alone, by_verdict if row["n"] >= needed else none))
    return table(("RNG seeds, arms", "intervals alone", "verdicts"), rows)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table."""
    return "".join(f"| {' | '.join(line)} |\n" for line in (head, ["---"] * len(head), *rows))


def write(folder: Path, figures: Mapping[str, Any], studies: int) -> None:
    """Write the figures with their origin, and the page."""
    by = {"date": datetime.datetime.now(tz=datetime.UTC).date().isoformat(), "python": platform.python_version()}
    by |= {name: version(name) for name in ("numpy", "torch", "esper-core")}
    document = {"by": by, "size": {"seed": SEED, "studies": studies}, **figures}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "verdicts.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    (folder / "verdicts.md").write_text(page(document), encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> int:
    """Simulate and print all figures, and write them if requested."""
    description = (__doc__ or "").partition("\n")[0]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.science.verdicts", description=description)
    parser.add_argument("--quick", action="store_true", help="Tiny sizes, to see that it runs.")
    parser.add_argument(
        "--write", nargs="?", type=Path, const=HERE, metavar="FOLDER", help="Write verdicts.json and .md."
    )
    parsed = parser.parse_args(arguments)
    if parsed.quick and parsed.write == HERE:
        parser.error("--quick results are not stored beside this file; name a folder")
    studies = QUICK if parsed.quick else WHOLE
    figures = simulated(studies)
    sys.stdout.write(text(figures))
    if parsed.write is not None:
        write(parsed.write, figures, studies)
    return 0


if __name__ == "__main__":
    sys.exit(main())
