"""Write the results of the runs as tables of Markdown, and the default run as a terminal shows it."""

from __future__ import annotations

import contextlib
import io
from typing import TYPE_CHECKING, Any, Final

from esper_core.cli.output import print_results

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    Runs = Mapping[str, Mapping[str, Any]]
    """By name, as ``results.json`` has them."""

DEFAULTS: Final = ("default", "default from 1000", "default from 2000")
CHANCE: Final = ("chance", "chance, 1", "chance, 2")


def default_run(runs: Runs) -> str:
    """Return the results that ``esper run plugins.yaml`` prints."""
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        print_results(runs["default"]["results"])
    lines = [line.rstrip() for line in printed.getvalue().splitlines()]
    return "```text\n" + "\n".join(lines).strip("\n") + "\n```\n"


def other_seeds(runs: Runs) -> str:
    """Return the advantage over the twin of the default run, and of the same run with other RNG seeds."""
    rows = [
        (own["says"], against(own, "heuristic", "twin"), f"`{own['command']}`")
        for own in (runs[name] for name in DEFAULTS)
    ]
    return table(("first RNG seed", "points over the twin", "command"), rows)


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
    "runs-from-other-seeds": other_seeds,
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
