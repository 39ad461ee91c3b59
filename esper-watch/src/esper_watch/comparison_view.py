"""A comparison as text: a table of the arms, and each pair in words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from esper_core.leyline.constants import CONFIDENCE, MIN_SEEDS_FOR_VERDICT
from esper_core.leyline.errors import plural
from esper_run.cli.output import print_arms, print_line, print_wrapped
from esper_run.runs.findings import NO_DIFFERENCE
from esper_run.runs.statistics import seeds_needed
from esper_watch.formats import (
    format_difference,
    format_difference_interval,
    format_p,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from esper_watch.comparison import ComparedRuns


def print_comparison(compared: ComparedRuns) -> None:
    """Print a table of the arms, then each comparison in words with all of its figures."""
    print_arms(compared.metric, {arm.sample.name: arm.figures for arm in compared.arms})
    for comparison in compared.comparisons:
        print_line()
        for line in in_words(compared, comparison):
            print_wrapped(line, indent=4)
    for note in _notes(compared):
        print_line()
        print_wrapped(note)


def _notes(compared: ComparedRuns) -> list[str]:
    """Return what is not compared: arms with the same figures in several runs, one arm alone, other pairs."""
    identical = compared.identical
    if len(compared.arms) == 1 and not identical:
        return ["There is one arm, so there is nothing to compare."]
    pairs = "1 other pair of arms was" if compared.left_out == 1 else f"{compared.left_out} other pairs of arms were"
    left_out = f"{pairs} not compared: esper compare --all compares every pair."
    return [*identical, left_out] if compared.left_out else identical


def in_words(compared: ComparedRuns, comparison: Mapping[str, Any]) -> list[str]:
    """Return what a comparison shows: the verdict, or what it lacks, then all figures."""
    metric, together = compared.metric, comparison["family"]
    a, b, verdict = comparison["a"], comparison["b"], comparison["verdict"]
    if verdict == NO_DIFFERENCE:
        lines = [f"{a} against {b}: no difference shown, because {_lack(compared, comparison)}"]
    else:
        lines = [f"{a} is {verdict} than {b}"]
    if comparison["difference"] is None:
        return lines
    sizes = [format_difference(metric, comparison["difference"])]
    if comparison["ci_low"] is not None:
        interval = format_difference_interval(metric, comparison["ci_low"], comparison["ci_high"])
        sizes.append(f"95\N{NO-BREAK SPACE}% interval {interval}")
    adjusted = f" ({format_p(comparison['p_holm'])} adjusted for {together} comparisons)" if together > 1 else ""
    return [
        *lines,
        f"  {', '.join(sizes)}; {plural(comparison['n'], 'pair')}",
        f"  p = {format_p(comparison['p'])}{adjusted}",
    ]


def _lack(compared: ComparedRuns, comparison: Mapping[str, Any]) -> str:
    together = comparison["family"]
    among = f" among {together} comparisons" if together > 1 else ""
    adjusted = f", adjusted for {together} comparisons," if together > 1 else ""
    needed = seeds_needed(together)
    reasons = {
        "too few seeds": f"a verdict needs {MIN_SEEDS_FOR_VERDICT} networks of each arm",
        "too few seeds for so many comparisons": f"a verdict needs {needed} networks of each arm{among}",
        "interval": "the interval does not clear 0",
        "p": f"p{adjusted} is above {1 - CONFIDENCE:.2g}",
        "not finite": "a figure is not finite",
    }
    return reasons[comparison["why"]]
