"""Write the results of the runs as tables of Markdown, and the default run as a terminal shows it."""

from __future__ import annotations

import contextlib
import io
from typing import TYPE_CHECKING, Any, Final

from esper_core.cli.output import print_results
from esper_core.config.model import CAPACITY
from esper_core.runs.statistics import format_flops

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    Runs = Mapping[str, Mapping[str, Any]]
    """By name, as ``results.json`` has them."""

RATES: Final = ("low rate", "default", "high rate")
CHANCE: Final = ("chance", "chance, 1", "chance, 2")


def default_run(runs: Runs) -> str:
    """Return the results that ``esper run plugins.yaml`` prints."""
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        print_results(runs["default"]["results"])
    lines = [line.rstrip() for line in printed.getvalue().splitlines()]
    return "```text\n" + "\n".join(lines).strip("\n") + "\n```\n"


def rates(runs: Runs) -> str:
    """Return accuracy and operations of each arm of the default run at three learning rates."""
    rows = []
    for own in (runs[name] for name in RATES):
        arms = own["results"]["arms"]
        cells = [
            f"{percent(arms[arm]['test']['mean'])}, {format_flops(arms[arm]['flops'])}" if arm in arms else "unknown"
            for arm in ("heuristic", CAPACITY, "twin")
        ]
        rows.append((own["says"], *cells, against(own, "heuristic", CAPACITY)))
    return table(("rate", "grown", "static control", "twin", "grown over static, in points"), rows)


def longer(runs: Runs) -> str:
    """Return the default host without growth, trained for longer, beside the default run."""
    sides = [
        ("40 steps, the twin", runs["default"]["results"]["arms"]["twin"]),
        ("200 steps", next(iter(runs["longer"]["results"]["arms"].values()))),
        ("40 steps, grown", runs["default"]["results"]["arms"]["heuristic"]),
    ]
    rows = [
        (
            says,
            percent(arm["test"]["mean"]),
            f"{100 * arm['test']['ci_low']:.1f} to {percent(arm['test']['ci_high'])}",
            str(arm["test"]["n"]),
        )
        for says, arm in sides
    ]
    return table(("", "test accuracy", "interval", "n"), rows)


PARTS: Final[Mapping[str, Callable[[Runs], str]]] = {
    "default-run": default_run,
    "longer-run": longer,
    "runs-at-rates": rates,
}
"""By the names that the pages mark them with."""

# --- parts of a line


def comparison(own: Mapping[str, Any], one: str, other: str) -> Mapping[str, Any] | None:
    """Return the comparison of two arms; None if one is missing, as static capacity is if no seed was kept."""
    pairs = {(found["a"], found["b"]): found for found in own["results"]["comparisons"]}
    return pairs.get((one, other))


def against(own: Mapping[str, Any], one: str, other: str) -> str:
    """Return the difference of two arms in points, with its interval."""
    found = comparison(own, one, other)
    if found is None:
        return "unknown"
    mean, low, high = (100 * found[key] for key in ("difference", "ci_low", "ci_high"))
    return f"{signed(mean)} ({minus(f'{low:.1f}')} to {minus(f'{high:.1f}')})"


def percent(share: float) -> str:
    """Return a share in percent."""
    return f"{100 * share:.1f} %"


def signed(value: float, digits: int = 1) -> str:
    """Return a number with its sign."""
    return minus(f"{value:+.{digits}f}")


def minus(number: str) -> str:
    """Return a number with a typographic minus, and zero without a sign."""
    return number.lstrip("-") if not float(number) and number[0] == "-" else number.replace("-", "−")


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join("| " + " | ".join(cells) + " |\n" for cells in lines)
