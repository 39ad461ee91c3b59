"""Notebook views: what a run, a grafted model and its slots show as the last line of a cell.

The core finds these functions by the entry points of the group ``esper.notebook``.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from esper_core import EsperError
from esper_core.leyline.errors import plural
from esper_run.formats import format_flops
from esper_run.runs.records import changed_events
from esper_watch import figures
from esper_watch.formats import (
    format_difference,
    format_difference_interval,
    format_interval,
    format_number,
    format_p,
    format_percent,
    format_seconds,
    format_value,
)
from esper_watch.history import History, is_usable, mean, metric_of, read_history
from esper_watch.pages import render

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import nn

    from esper_core.leyline import Metric
    from esper_run import Run

MAX_ARMS: Final = 12
"""Arms that are drawn."""

MAX_KINDS: Final = 4
"""Kinds of kept seeds that are named for an arm."""

MAX_LINES: Final = 6
"""Remarks on events that could not be read."""


def run_html(run: Run) -> str:
    """Return a run as HTML with inline styles only. If its events cannot be read, it says so instead of failing."""
    try:
        history, problems = read_history(run.path), []
    except EsperError as error:
        history, problems = History(run.id), [problem.message for problem in error.problems]
    if not run.events.exists() and run.summary is None:
        problems = []  # it has not started to train
    metric = history.metric if run.results is None else metric_of(run.results)
    curves = figures.latest_curves(history, metric)
    drawn = dict(list(curves.items())[:MAX_ARMS])
    return render(
        "notebook.html",
        title=f"Run {run.id}",
        state=" · ".join(_state(run, history)),
        reason=run.reason,
        arms=_arms(run, history, metric),
        comparisons=_comparisons(run, metric),
        chart=figures.learning_curves(history, metric, drawn, left=62.0) if drawn else None,
        names=list(drawn),
        caption=f"Validation {metric.name}, mean over networks, by step"
        + (f"; {MAX_ARMS} of {len(curves)} arms" if len(curves) > MAX_ARMS else ""),
        remarks=[
            *_remarks(history),
            *([changed] if (changed := changed_events(run)) else []),
            *(f"Not read: {line}" for line in [*problems, *history.skipped][:MAX_LINES]),
        ],
    )


def _state(run: Run, history: History) -> Iterator[str]:
    yield run.status
    yield f"started {run.started:%Y-%m-%d %H:%M}"
    if run.seconds is not None:
        yield f"took {format_seconds(run.seconds)}"
    if (started := history.started) is not None:
        if run.summary is None:
            yield f"{format_percent(history.share_done, 0)} trained"
        if started.rounds > 1:
            yield plural(started.rounds, "round")
        yield plural(started.environments, "network")
        yield plural(started.steps, "step")


def _arms(run: Run, history: History, metric: Metric) -> list[tuple[str, ...]]:
    """Return the head and the rows of the table of arms: with intervals if the run has an end, so far without."""
    if run.results is not None:
        head = (
            "arm",
            f"test {metric.name}",
            "95\N{NO-BREAK SPACE}% interval",
            "n",
            "parameters",
            "FLOPs",
            "grew on average",
        )
        finished = []
        for arm, result in run.results["arms"].items():
            test = result["test"]
            interval = format_interval(metric, test["ci_low"], test["ci_high"])
            size = f"{result['params']:,.0f}"
            cost = format_flops(result.get("flops"))
            finished.append(
                (
                    arm,
                    format_value(metric, test["mean"]),
                    interval,
                    str(test["n"]),
                    size,
                    cost,
                    grown_on_average(history, arm),
                )
            )
        return [head, *finished]
    rows = [
        (arm, format_value(metric, mean(values)), str(len(values)), grown_on_average(history, arm))
        for arm in history.arms
        if (values := [episode.test_metric for episode in history.episodes if episode.arm == arm])
    ]
    return [("arm", f"test {metric.name} so far", "n", "grew on average"), *rows] if rows else []


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


def _comparisons(run: Run, metric: Metric) -> list[tuple[str, ...]]:
    """Return the head and the rows of the table of comparisons."""
    comparisons = [] if run.results is None else run.results["comparisons"]
    if not comparisons:
        return []
    rows = []
    for comparison in comparisons:
        p = comparison["p"] if comparison.get("p_holm") is None else comparison["p_holm"]
        why = f": {comparison['why']}" if comparison.get("why") else ""
        interval = format_difference_interval(metric, comparison["ci_low"], comparison["ci_high"])
        by = format_difference(metric, comparison["difference"])
        rows.append(
            (
                comparison["a"],
                comparison["b"],
                by,
                interval,
                str(comparison["n"]),
                format_p(p),
                f"{comparison['verdict']}{why}",
            )
        )
    return [("", "against", "by", "95\N{NO-BREAK SPACE}% interval", "n", "p, adjusted", "verdict"), *rows]


def _remarks(history: History) -> Iterator[str]:
    if history.governor:
        acts = Counter(act.act for act in history.governor).most_common(6)
        yield f"Acts of the governor: {', '.join(f'{number:,} × {act}' for act, number in acts)}."
    if history.lost:
        yield f"Seeds that went wrong and were removed: {len(history.lost):,}."
    missing = sum(not is_usable(step.validation_metric) for step in history.steps)
    if missing:
        yield f"Values that are not finite and not drawn: {missing:,}."


def network_html(model: nn.Module) -> str | None:
    """Return a model's layers, its slots, and what grows there, as HTML with inline styles only; None without slots."""
    from esper_core.growth import Host  # here, since runs are shown without torch

    host = Host(model)
    if not host.is_grafted:  # such as a new list of the class of a grafted one
        return None
    grown = [seed.parameter_count for slot in host.slots.each() for seed in slot.seeds]
    host_size = sum(parameter.numel() for parameter in host.parameters().values())
    title = f"{type(model).__name__}: {plural(host_size, 'parameter')}, and {sum(grown):,} in seeds"
    most = max([1, *grown, *(layer.parameters for layer in host.layers)])
    return render("network.html", title=title, layers=host.layers, slots=host.slots, most=most)
