"""The headline of a report: in words, what a run found, how far it is, and what growth cost."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from esper_core.leyline import Cause
from esper_core.leyline.constants import CONFIDENCE
from esper_run.runs.findings import NO_DIFFERENCE, against_twin, finding, lost_text, missing_networks_text
from esper_run.runs.statistics import mean_interval
from esper_watch import figures
from esper_watch.formats import (
    as_number,
    format_difference,
    format_difference_interval,
    format_number,
    format_p,
    format_percent,
    format_rate,
    format_seconds,
    format_value,
    short_name,
)
from esper_watch.history import CAPACITY, TWIN, is_control, is_usable
from esper_watch.sections import Report, Section

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from esper_core.leyline import Metric
    from esper_watch.history import History

LAST_EVENT: Final = "Last event"
"""The fact whose answer is a time, to which the page adds how long ago it was."""

_STATUS: Final = {
    "failed": "The run failed.",
    "interrupted": "The run was interrupted.",
    "stopped": "The governor stopped the run.",
    "running": "The run is still going.",
    "died": "The run died: its process is gone, and there is no final event.",
}
_STATUS_UNKNOWN: Final = "The run has no final event: it is still running, or was killed."

_RESUME_NOTES: Final = {
    "died": "",
    "interrupted": "",
    "failed": "Fix the cause first: resuming repeats the failed step.",
    "stopped": "With the same settings it is stopped at the same step again. With other settings it is a new run.",
}
"""By status: what to know before resuming."""


def verdict(report: Report) -> Section:
    """Return the section that says what the run found."""
    reason = report.history.reason.strip()
    data = {
        "headline": headline(report),
        "troubles": list(lost_seeds(report.history)),
        "facts": list(facts(report)),
        "reason": reason,
        "status": report.history.status,
        "hints": list(_hints(report)),
        "sentences": [(_colour(comparison), _sentence(report.metric, comparison)) for comparison in report.comparisons],
        "remarks": list(_remarks(report)),
    }
    return Section("verdict", "Result", "verdict", data)


def headline(report: Report) -> str:
    """Return the main finding in one sentence or two."""
    history = report.history
    if history.status != "done":
        status = _STATUS.get(history.status, _STATUS_UNKNOWN)
        done = format_percent(history.share_done, 0)
        return f"{status} {done} of the training is done; there is no verdict before the end."
    if len(history.arms) == 1:
        return _loop_headline(report) if report.is_own_loop else "The run had one arm, so there is nothing to compare."
    if not report.comparisons:
        return f"There is no verdict: {report.problem or 'summary.json has no comparison of the arms'}."
    grew = {comparison["a"] for comparison in against_twin(report.comparisons)}
    kept = any(episode.fossils for episode in history.episodes if episode.arm in grew)
    return finding(report.comparisons, grew=kept, lost=bool(history.lost))


def _loop_headline(report: Report) -> str:
    """Say what a loop kept, and what its metric was before and after; there is no twin to compare it with."""
    history, metric = report.history, report.metric
    kept = [life for life in history.seeds if life.kept]
    if not kept:
        return "Nothing was kept in this loop: the model is as it was built."
    sentences = []
    for life in kept:
        step = life.changes[-1].step
        course = history.courses(life.round, life.arm, 1).get(life.seed, {})
        sentence = f"{short_name(life.blueprint)} was kept in slot {life.slot} after step {step + 1}"
        if step in course and step + 1 in course:
            before, after = (format_value(metric, course[at]) for at in (step, step + 1))
            sentence += f": validation {metric.name} {before} before, {after} a step later"
        sentences.append(f"{sentence}.")
    return " ".join(sentences)


def lost_seeds(history: History) -> Iterator[str]:
    """Yield, for each blueprint with lost seeds, how many of how many were lost, to what, and whose code it is."""
    for blueprint in dict.fromkeys(loss.blueprint for loss in history.lost):
        losses = [loss for loss in history.lost if loss.blueprint == blueprint]
        lives = [life for life in history.seeds if life.blueprint == blueprint]
        # A block that could not be built is lost without a life.
        tried = len(lives) + len(losses) - sum(life.reason.cause is Cause.LOST for life in lives)
        first = losses[0]
        yield f"{lost_text(blueprint, first.package, first.what, len(losses), tried)}."


def facts(report: Report) -> Iterator[tuple[str, str]]:
    """Yield what a reader asks first, each with its answer: how far the run is, what it gained, and what that cost."""
    history = report.history
    if history.status != "done":
        yield "Progress", _progress(report)
        if report.last_event is not None:
            yield LAST_EVENT, datetime.fromtimestamp(report.last_event, UTC).isoformat(timespec="seconds")
        yield from (("So far", text) for text in differences_so_far(history, report.metric))
    else:
        for comparison in against_twin(report.comparisons):
            if comparison["difference"] is not None:
                yield "Gain", _gain(report, comparison)
    if len(history.arms) == 1:
        means = [value for value in history.mean_metric(history.arms[0]) if is_usable(value)]
        if means:
            first, last = (format_value(report.metric, value) for value in (means[0], means[-1]))
            yield "Course", f"validation {report.metric.name} {first} after the first step, {last} after the latest"
    yield from (("Cost", text) for text in _costs(report))
    if total := as_number((report.summary or {}).get("timing", {}).get("total")):
        yield "Time", f"{format_seconds(total)} in all, {format_rate(history.finished_steps / total)}"


def _gain(report: Report, comparison: Mapping[str, Any]) -> str:
    metric, ends = report.metric, {result.name: result for result in figures.arm_results(report.history, report.metric)}
    text = f"{comparison['a']} {format_difference(metric, comparison['difference'])} over its twin"
    if comparison["a"] in ends and TWIN in ends:
        text += f" ({format_value(metric, ends[comparison['a']].mean)} against {format_value(metric, ends[TWIN].mean)})"
    interval = format_difference_interval(metric, comparison["ci_low"], comparison["ci_high"])
    return f"{text}, 95\N{NO-BREAK SPACE}% interval {interval}"


def _progress(report: Report) -> str:
    history = report.history
    parts = [f"{format_percent(history.share_done, 0)} ({history.finished_steps:,} of {history.total_steps:,} steps)"]
    if history.status == "running" and report.elapsed is not None:
        if report.manifest.get("resumed"):  # for how long nothing ran in between is not known
            return f"{parts[0]}, resumed"
        parts.append(f"{format_seconds(report.elapsed)} so far")
        if history.share_done > 0 and report.elapsed > 0:
            parts.append(format_rate(history.finished_steps / report.elapsed))
            left = report.elapsed * (1 / history.share_done - 1)
            parts.append(f"about {format_seconds(left)} left")
    return ", ".join(parts)


def differences_so_far(history: History, metric: Metric) -> Iterator[str]:
    """Yield each growing arm's difference to its twin on validation data, with an interval, at the latest step."""
    for arm in history.arms:
        step, pairs = (-1, []) if is_control(arm) else history.latest_pairs(arm, TWIN)
        differences = [metric.gain(grown, twin) for grown, twin in pairs if is_usable(grown) and is_usable(twin)]
        if not differences:
            continue
        interval = mean_interval(differences, CONFIDENCE)
        text = (
            f"{arm} {format_difference(metric, interval.mean)} over its twin on validation data after step {step + 1}"
        )
        if interval.low is not None and interval.high is not None:
            most = 1.0 if metric.is_share else math.inf
            low, high = max(-most, interval.low), min(most, interval.high)
            text += f", 95\N{NO-BREAK SPACE}% interval {format_difference_interval(metric, low, high)}"
        yield f"{text}; n = {interval.n}"


def _costs(report: Report) -> Iterator[str]:
    """Yield what growth cost each growing arm: parameters and operations."""
    results = {result.name: result for result in figures.arm_results(report.history, report.metric)}
    for name, arm in results.items():
        if is_control(name):
            continue
        host = arm.episodes[0].host_parameters
        times = arm.parameters / host
        more = format_number(arm.parameters - host, signed=True, decimals=0)
        relative = format_percent(times - 1, 0, signed=True) if times < 2 else f"{format_number(times)} times as many"
        cost = f"{name} {more} parameters ({relative})"
        twin = results.get(TWIN)
        if twin is not None and arm.flops and twin.flops:
            flops = format_number(arm.flops / twin.flops)
            cost += f", {flops} times the FLOPs of its twin, trials and discarded seeds included"
        yield cost


def _hints(report: Report) -> Iterator[str]:
    """Yield how to get to a verdict, if there is none."""
    history = report.history
    if history.status in _RESUME_NOTES and report.has_checkpoint:
        yield f"Resume it from its latest checkpoint, with the same results:  esper resume {history.name}"
        if note := _RESUME_NOTES[history.status]:
            yield note
    elif history.status == "done" and report.summary is None and len(history.arms) > 1:
        yield "Copy manifest.json and summary.json from the run's own folder, and write the report again."


def _sentence(metric: Metric, comparison: Mapping[str, Any]) -> str:
    a, b, verdict, size = (comparison[key] for key in ("a", "b", "verdict", "difference"))
    if size is None or not is_usable(size):
        return f"{a} against {b}: a figure is not finite, so there is no verdict."
    p = comparison["p"] if comparison.get("p_holm") is None else comparison["p_holm"]
    interval = format_difference_interval(metric, comparison["ci_low"], comparison["ci_high"])
    adjusted = "" if comparison.get("p_holm") is None else ", adjusted for all comparisons of the run"
    chances = f"{comparison['n']} pairs of networks; p = {format_p(p)}{adjusted}"
    evidence = f"95\N{NO-BREAK SPACE}% interval {interval}; {chances}"
    if verdict == NO_DIFFERENCE:
        return f"{a} against {b}: no difference shown. Measured: {format_difference(metric, size)} ({evidence})."
    sentence = f"{a} was {verdict} than {b} by {format_difference(metric, size, signed=False)} ({evidence})."
    if b == TWIN and not is_control(a):
        return f"{sentence} The twin is the same network on the same data in the same order, without growth."
    if b.startswith(CAPACITY) and not is_control(a):
        return f"{sentence} This control has the grown blocks from its first batch on, and trains for as long."
    return sentence


def _colour(comparison: Mapping[str, Any]) -> str:
    """Return the CSS class of a comparison. A control is neither good nor bad."""
    if is_control(comparison["a"]) or comparison["verdict"] not in ("better", "worse"):
        return "neither"
    return str(comparison["verdict"])


def _remarks(report: Report) -> Iterator[str]:
    comparisons = report.comparisons
    if report.changed:
        yield report.changed
    if lacking := missing_networks_text(comparisons):
        yield lacking
    if len(comparisons) > 1:
        yield f"p-values are adjusted for the {len(comparisons)} comparisons of the run (Holm). The intervals are not."
    for warning in (report.summary or {}).get("warnings", []):
        yield f"Warning: {warning}"
