"""Views of a comparison: text for a terminal, and one HTML page that loads nothing."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from esper_core import EsperError, __version__
from esper_core.leyline.constants import CONFIDENCE, MIN_SEEDS_FOR_VERDICT
from esper_core.leyline.errors import plural
from esper_run.cli.output import print_line, print_table, print_wrapped
from esper_run.runs.findings import NO_DIFFERENCE
from esper_run.runs.statistics import seeds_needed
from esper_watch import figures
from esper_watch.figures import Scale
from esper_watch.formats import (
    UNKNOWN,
    format_command,
    format_difference,
    format_difference_interval,
    format_flops,
    format_interval,
    format_number,
    format_p,
    format_seconds,
    format_value,
)
from esper_watch.history import History, is_control, is_usable, read_history
from esper_watch.pages import render
from esper_watch.report import page_policy
from esper_watch.sections import Section

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from esper_core.leyline import Metric
    from esper_run import Run
    from esper_watch.comparison import ComparedRuns

WIDTH: Final = 220
"""Width of the drawing of an interval."""

MAX_KINDS: Final = 4
"""Kinds of kept seeds that are named for an arm."""


def print_comparison(compared: ComparedRuns) -> None:
    """Print a table of the arms, then each comparison in words with all of its figures."""
    interval = "95\N{NO-BREAK SPACE}% interval"
    head = ["arm", _metric_title(compared.metric), interval, "n", "parameters", "FLOPs", "reward"]
    print_table(head, _arm_rows(compared))
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
    return [*identical, *([_left_out(compared)] if compared.left_out else [])]


def _metric_title(metric: Metric) -> str:
    return f"test {metric.name}, less is better" if metric.direction == "down" else f"test {metric.name}"


def _arm_rows(compared: ComparedRuns) -> Iterator[tuple[str, ...]]:
    for arm in compared.arms:
        test, reward = arm.figures["test"], arm.figures.get("reward")
        yield (
            arm.sample.name,
            format_value(compared.metric, test["mean"]),
            format_interval(compared.metric, test["ci_low"], test["ci_high"]),
            str(test["n"]),
            f"{arm.figures['params']:,.0f}",
            format_flops(arm.figures.get("flops")),
            format_number(reward, signed=True, decimals=1),
        )


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
    n = comparison["n"]
    counted = plural(n, "pair") if comparison["paired"] else f"not paired, {n} or more of each"
    adjusted = f" ({format_p(comparison['p_holm'])} adjusted for {together} comparisons)" if together > 1 else ""
    chances = [f"p = {format_p(comparison['p'])}{adjusted}"]
    if comparison["effect_size"] is not None:
        chances.append(f"effect size {format_number(comparison['effect_size'], signed=True)}")
    return [*lines, f"  {', '.join(sizes)}; {counted}", f"  {', '.join(chances)}"]


def _lack(compared: ComparedRuns, comparison: Mapping[str, Any]) -> str:
    together = comparison["family"]
    among = f" among {together} comparisons" if together > 1 else ""
    adjusted = f", adjusted for {together} comparisons," if together > 1 else ""
    margin = format_difference(compared.metric, compared.margin, signed=False)
    needed = seeds_needed(together)
    reasons = {
        "too few seeds": f"a verdict needs {MIN_SEEDS_FOR_VERDICT} networks of each arm",
        "too few seeds for so many comparisons": f"a verdict needs {needed} networks of each arm{among}",
        "interval": f"the interval does not clear {f'the margin of {margin}' if compared.margin else '0'}",
        "p": f"p{adjusted} is above {1 - CONFIDENCE:.2g}",
        "not finite": "a figure is not finite",
    }
    return reasons[comparison["why"]]


def _left_out(compared: ComparedRuns) -> str:
    pairs = "1 other pair of arms was" if compared.left_out == 1 else f"{compared.left_out} other pairs of arms were"
    return f"{pairs} not compared: esper compare --all compares every pair."


# --- page


def _axis(numbers: Iterable[float | None]) -> Scale:
    usable = [figure for figure in numbers if figure is not None and is_usable(figure)]
    low, high = min(usable, default=0.0), max(usable, default=0.0)
    return Scale(low, high, 8, WIDTH - 8) if high > low else Scale(low - 0.5, high + 0.5, 8, WIDTH - 8)


def _interval(axis: Scale, text: str, *numbers: float | None) -> dict[str, Any]:
    """Return a figure with its interval, as the page draws it. Positions are None where the figure is unknown."""
    middle, low, high = (None if number is None or not is_usable(number) else axis(number) for number in numbers)
    return {"text": text, "middle": middle, "low": low, "high": high}


def comparison_page(compared: ComparedRuns) -> str:
    """Return a comparison as one HTML page: verdicts, arms, learning curves, sizes, and settings that differ.

    A run without events has no curves.
    """
    metric = compared.metric
    shown = _shown_arms(compared, [_history(run) for run in compared.runs])
    sections = [_comparisons(compared), _arms(compared, shown), *_charts(metric, shown), _settings(compared)]
    sections.append(_provenance(compared))
    labels = dict.fromkeys(compared.labels)
    return render(
        "comparison.html",
        title=", ".join(labels),
        metric=metric,
        sections=[section for section in sections if section is not None],
        warnings=compared.warnings,
        policy=page_policy(),
        version=__version__,
    )


@dataclass(frozen=True, slots=True)
class _ShownArm:
    """An arm with what the events of its run say about it."""

    result: figures.ArmResult
    curve: Sequence[figures.Point]
    steps: int
    grown: str
    """What a network kept on average, in words."""


def grown_on_average(history: History, arm: str) -> str:
    """Return what a network of an arm kept on average, in words: the most frequent kinds of seeds."""
    episodes = [episode for episode in history.episodes if episode.arm == arm]
    counts = Counter(
        f"{seed.get('blueprint', 'unknown')} in {seed.get('slot', 'unknown')}"
        for episode in episodes
        for seed in episode.grown
    )
    if not episodes or (not counts and any(episode.fossils for episode in episodes)):
        return "unknown"
    kinds = [f"{format_number(number / len(episodes))} × {name}" for name, number in counts.most_common(MAX_KINDS)]
    return ", ".join([*kinds, *(["…"] if len(counts) > MAX_KINDS else [])]) or "nothing"


def _history(run: Run) -> History:
    try:
        return read_history(run.path)
    except EsperError:
        return History(run.id)


def _shown_arms(compared: ComparedRuns, histories: Sequence[History]) -> list[_ShownArm]:
    styles = figures.arm_styles([arm.sample.name for arm in compared.arms])
    shown = []
    for arm in compared.arms:
        history, test = histories[arm.runs[0]], arm.figures["test"]
        episodes = [episode for episode in history.episodes if episode.arm == arm.arm]
        mean = math.nan if test["mean"] is None else test["mean"]
        name = arm.sample.name
        result = figures.ArmResult(name, styles[name], episodes, mean, test["ci_low"], test["ci_high"])
        by_step = history.metric_by_step(max(history.rounds, default=0), arm.arm)
        curve = figures.curve_points(by_step, share=compared.metric.is_share)
        grown = (
            "–" if is_control(arm.arm) else grown_on_average(history, arm.arm)
        )  # a control has its parts from the start
        shown.append(_ShownArm(result, curve, history.steps_per_episode, grown))
    return shown


def _comparisons(compared: ComparedRuns) -> Section | None:
    """Return the section of the verdicts: an interval of each drawn on one scale, and in words."""
    metric, margin = compared.metric, compared.margin
    keys = ("difference", "ci_low", "ci_high")
    axis = _axis([*(comparison[key] for comparison in compared.comparisons for key in keys), 0.0, margin, -margin])
    rows = []
    for comparison in compared.comparisons:
        size = format_difference(metric, comparison["difference"])
        ends = format_difference_interval(metric, comparison["ci_low"], comparison["ci_high"])
        title = f"{comparison['a']} against {comparison['b']}"
        drawing = _interval(axis, f"{title}: {size}, {ends}", *(comparison[key] for key in keys))
        cells = (ends, str(comparison["n"]), format_p(comparison["p"]), format_p(comparison["p_holm"]))
        colour = (
            comparison["verdict"]
            if comparison["verdict"] in ("better", "worse") and not is_control(comparison["a"])
            else "neither"
        )
        rows.append(((title, comparison["verdict"], size), drawing, cells, (colour, in_words(compared, comparison))))
    data = {
        "rows": rows,
        "zero": axis(0.0),
        "band": (axis(-margin), axis(margin)) if margin > 0 else None,
        "notes": _notes(compared),
    }
    return Section("comparisons", "Comparisons", "comparisons", data) if rows or data["notes"] else None


def _arms(compared: ComparedRuns, shown: Sequence[_ShownArm]) -> Section:
    chart = figures.arm_intervals(compared.metric, [arm.result for arm in shown])
    data = {
        "chart": chart,
        "metric": compared.metric,
        "rows": [(*row, arm.grown) for row, arm in zip(_arm_rows(compared), shown, strict=True)],
        "rings": any(arm.result.episodes for arm in shown),
    }
    return Section("arms", "Arms", "arms", data)


def _charts(metric: Metric, shown: Sequence[_ShownArm]) -> Iterator[Section]:
    """Yield the sections of the learning curves and of the metric against size, as far as events are known."""
    legend = [(arm.result.name, arm.result.style) for arm in shown]
    if curves := {arm.result.name: arm.curve for arm in shown if arm.curve}:
        chart = figures.curves_chart(metric, curves, dict(legend), max(arm.steps for arm in shown if arm.curve))
        drawn = [entry for entry in legend if entry[0] in curves]
        yield Section("courses", "Learning curves", "curves", {"chart": chart, "legend": drawn, "metric": metric})


def _settings(compared: ComparedRuns) -> Section | None:
    if len(compared.runs) == 1:
        return None
    data = {"head": ("setting", *compared.labels), "rows": list(compared.settings.items())}
    return Section("settings", "Settings that differ", "settings", data)


def _provenance(compared: ComparedRuns) -> Section:
    rows = [
        (
            run.id,
            f"{run.started:%Y-%m-%d %H:%M}",
            UNKNOWN if run.seconds is None else format_seconds(run.seconds),
            format_command(run.manifest.get("argv")),
        )
        for run in compared.runs
    ]
    return Section("runs", "Runs", "runs", {"rows": rows})
