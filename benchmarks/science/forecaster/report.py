"""Tables of the documentation, from the results."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

ROWS: Final = {
    "pointwise-mlp": "`pointwise-mlp`",
    "wide-cnn1d": "`wide-cnn1d`",
    "families learned on": "both",
    "cnn1d": "`cnn1d`, held out",
    "table of growbench": "growbench",
}
POLICIES: Final = {
    "heuristic": "`heuristic`",
    "heuristic, tuned": "tuned",
    "forecaster": "`forecaster`",
    "best possible": "best possible",
}


def rewards(results: Mapping[str, Any]) -> str:
    """Return the mean rewards by family, the advantages, and the regret."""
    head = ("held-out problems", "", *POLICIES.values(), "over `heuristic`", "over tuned", "regret")
    rows = []
    for name, label in ROWS.items():
        group = results["groups"][name]
        means = [number(group["reward"][policy]) for policy in POLICIES]
        advantages = [interval(group["advantage"][policy]) for policy in ("heuristic", "heuristic, tuned")]
        rows.append(
            (label, str(group["problems"]), *means, *advantages, f"{100 * group['regret']['forecaster']:.0f} %")
        )
    return table(head, rows)


def coverage(results: Mapping[str, Any]) -> str:
    """Return how many gains lie in the intervals of the two regressions, by family."""
    rows = []
    for name in ROWS:
        if (group := results["coverage"].get(name)) is None:
            continue
        shares = [
            f"{100 * group[regression][size]:.0f} %"
            for regression in ("untried", "tried")
            for size in ("50", "80", "95")
        ]
        rows.append((ROWS[name], *shares))
    sizes = [f"{phase}: 50 %" for phase in ("before", "in training")]
    return table(("held-out problems", sizes[0], "80 %", "95 %", sizes[1], "80 %", "95 %"), rows)


def table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """Return a Markdown table."""
    return "".join("| " + " | ".join(line) + " |\n" for line in (head, ("---",) * len(head), *rows))


def number(value: float, digits: int = 1) -> str:
    """Return a number with a typographic minus."""
    return f"{value:.{digits}f}".replace("-", "−")


def interval(ends: list[float]) -> str:
    """Return a difference with its interval."""
    return "{} ({} to {})".format(*(number(end) for end in ends))


PARTS: Final[Mapping[str, Callable[[Mapping[str, Any]], str]]] = {
    "forecaster-rewards": rewards,
    "forecaster-coverage": coverage,
}
