"""Sections of a report: which there are, in which order, and what they say. ``sections.html`` has their templates."""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from esper_core.leyline import Stage
from esper_core.leyline.constants import MIN_SEEDS_FOR_VERDICT
from esper_core.leyline.errors import plural
from esper_watch import figures
from esper_watch.formats import (
    MAX_SECONDS,
    UNKNOWN,
    as_number,
    format_difference,
    format_difference_interval,
    format_p,
)
from esper_watch.history import CAPACITY, TWIN, is_control, is_usable, metric_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from esper_core import Run
    from esper_core.leyline import Metric
    from esper_watch.figures import ArmResult, Chart
    from esper_watch.history import History, SeedLife

NO_DIFFERENCE: Final = "no difference shown"

NETWORKS_AT_ONCE: Final = 8
"""Networks of an arm whose lives are shown; the others are folded up."""

MAX_LIVES: Final = 4_000
MAX_GAINS: Final = 40
MAX_ROWS: Final = 400
"""Rows of a table of seeds, or of the governor's acts."""
MAX_KINDS: Final = 6
"""Different networks that are drawn for an arm, the most frequent first."""

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

_SEED_AND_STEP: Final = re.compile(r"\bseed \d+, step \d+")

_REGION_NAMES: Final = {"shadow": "shadow (seeds training in isolation)"}


@dataclass(frozen=True, slots=True)
class Section:
    """A section of the report: its anchor, its title, and the data for the template macro ``kind``."""

    anchor: str
    title: str
    kind: str
    data: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that a report shows."""

    history: History
    run: Run | None
    """Manifest and summary; None if they cannot be read."""
    problem: str
    """Why they cannot be read."""
    config: str
    has_checkpoint: bool

    @property
    def manifest(self) -> Mapping[str, Any]:
        """What ``manifest.json`` says; empty if it cannot be read."""
        return {} if self.run is None else self.run.manifest

    @property
    def summary(self) -> Mapping[str, Any] | None:
        """What ``summary.json`` says; None if there is none, or it cannot be read."""
        return None if self.run is None else self.run.summary

    @property
    def comparisons(self) -> list[Mapping[str, Any]]:
        """The comparisons of the summary, those of growing arms with controls first."""
        found = [] if self.summary is None else self.summary["results"]["comparisons"]
        return sorted(found, key=lambda one: (is_control(one["a"]), not is_control(one["b"])))

    @property
    def metric(self) -> Metric:
        """The metric of the task."""
        return self.history.metric if self.summary is None else metric_of(self.summary["results"])

    def sections(self) -> list[Section]:
        """Return the sections that have something to show."""
        results = figures.arm_results(self.history, self.metric)
        found = [
            _verdict(self),
            _arms(self.metric, results),
            _curves(self.history, self.metric),
            _size(self.metric, results),
            _lives(self.history),
            _networks(self.history),
            _gains(self.history),
            _updates(self.history),
            _time(self.summary),
            _governor(self.history),
            *_plugin_sections(self.summary),
            Section("provenance", "Provenance", "provenance", {"report": self, "facts": list(_facts(self))}),
        ]
        return [section for section in found if section is not None]


def arm_description(arm: str) -> str:
    """Describe what an arm is."""
    if arm == TWIN:
        return "the same networks on the same data in the same order, without growth."
    if arm.startswith(CAPACITY):
        grown_by = arm.removeprefix(f"{CAPACITY}-of-")
        other = "the growing arm" if grown_by == arm else grown_by
        return f"networks that have, from their first batch on, the blocks that {other} grew, and train for as long."
    return "networks that can grow while they train; the arm's policy decides what, where and when."


# --- verdict


def _verdict(report: Report) -> Section:
    reason = report.history.reason.strip()
    data = {
        "headline": headline(report),
        "reason": reason,
        "counts_from_zero": _SEED_AND_STEP.search(reason) is not None,
        "hints": list(_hints(report)),
        "sentences": [(_colour(one), _sentence(report.metric, one)) for one in report.comparisons],
        "remarks": list(_remarks(report)),
    }
    return Section("verdict", "Result", "verdict", data)


def headline(report: Report) -> str:
    """Return the main finding in one sentence or two."""
    history = report.history
    if history.status != "done":
        status = _STATUS.get(history.status, _STATUS_UNKNOWN)
        return f"{status} {100 * history.share_done:.0f} % of the training is done; there is no verdict before the end."
    if len(history.arms) == 1:
        return "The run had one arm, so there is nothing to compare."
    if not report.comparisons:
        return f"There is no verdict: {report.problem or 'summary.json has no comparison of the arms'}."
    against_twin = [one for one in report.comparisons if one["b"] == TWIN and not is_control(one["a"])]
    if not against_twin:
        shown = sum(one["verdict"] != NO_DIFFERENCE for one in report.comparisons)
        return f"{shown} of {plural(len(report.comparisons), 'comparison')} showed a difference."
    found = []
    if better := [one["a"] for one in against_twin if one["verdict"] == "better"]:
        found.append(f"Growing helped: {_listed(better)} ended better than the same networks without growth.")
    if worse := [one["a"] for one in against_twin if one["verdict"] == "worse"]:
        found.append(f"Growing hurt: {_listed(worse)} ended worse than the same networks without growth.")
    return " ".join(found) or _nothing_shown(history, against_twin)


def _nothing_shown(history: History, against_twin: Sequence[Mapping[str, Any]]) -> str:
    grew = {one["a"] for one in against_twin}
    if not any(episode.fossils for episode in history.episodes if episode.arm in grew):
        return (
            "Nothing was kept: every network ended with the parts it started with, like its twin. "
            "There is no lasting growth to judge."
        )
    told = "No difference was shown between networks with growth and the same networks without"
    too_few = {one.get("why") for one in against_twin} <= {"too few seeds", "too few seeds for so many comparisons"}
    return f"{told}: there were too few networks." if too_few else f"{told}."


def _hints(report: Report) -> Iterator[str]:
    """Yield how to get to a verdict, if there is none."""
    history = report.history
    if history.status in _RESUME_NOTES and report.has_checkpoint:
        yield f"Resume it from its latest checkpoint, with the same results:  esper resume {history.name}"
        if note := _RESUME_NOTES[history.status]:
            yield note
    elif history.status == "done" and report.summary is None and len(history.arms) > 1:
        yield "Copy manifest.json and summary.json from the run's own folder, and write the report again."
        if report.config:
            yield f"If they are lost, repeat the run:  esper run runs/{history.name}"


def _sentence(metric: Metric, comparison: Mapping[str, Any]) -> str:
    a, b, verdict, size = (comparison[key] for key in ("a", "b", "verdict", "difference"))
    if size is None or not is_usable(size):
        return f"{a} against {b}: a figure is not finite, so there is no verdict."
    p = comparison["p"] if comparison.get("p_holm") is None else comparison["p_holm"]
    many = "pairs of networks" if comparison.get("paired", True) else "or more networks of each, not paired"
    interval = format_difference_interval(metric, comparison["ci_low"], comparison["ci_high"])
    told = f"95 % interval {interval}; {comparison['n']} {many}; p = {format_p(p)}"
    if verdict == NO_DIFFERENCE:
        return f"{a} against {b}: no difference shown. Measured: {format_difference(metric, size)} ({told})."
    sentence = f"{a} was {verdict} than {b} by {format_difference(metric, size, signed=False)} ({told})."
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
    lacks = {one.get("why") for one in comparisons}
    if "too few seeds" in lacks:
        yield (
            f"A verdict needs at least {MIN_SEEDS_FOR_VERDICT} RNG seeds, with a network of each arm for each "
            f"seed; this run has {comparisons[0]['n']}."
        )
    if "too few seeds for so many comparisons" in lacks:
        yield "So many comparisons at once need more networks for a verdict than this run has."
    if len(comparisons) > 1:
        yield "p-values are adjusted for all comparisons of the run (Holm). The intervals are not adjusted."
    for warning in (report.summary or {}).get("warnings", []):
        yield f"Warning: {warning}"


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


# --- arms


def _arms(metric: Metric, results: Sequence[ArmResult]) -> Section | None:
    if not results:
        return None
    data = {"chart": figures.arm_intervals(metric, results), "metric": metric, "results": results}
    return Section("arms", "Arms", "arms", data)


def _curves(history: History, metric: Metric) -> Section | None:
    curves = figures.latest_curves(history, metric)
    if not curves:
        return None
    styles = figures.arm_styles(history.arms)
    longest = max(points[-1].at for points in curves.values())
    data = {
        "metric": metric,
        "rounds": len(history.rounds),
        "chart": figures.learning_curves(history, metric, curves),
        "legend": [(arm, styles[arm]) for arm in curves],
        "tested": bool(history.episodes),
        "dropouts": "; ".join(
            f"{arm} from {points[0].n} to {points[-1].n}, until step {points[-1].at + 1}"
            for arm, points in curves.items()
            if points[-1].n < points[0].n or points[-1].at < longest
        ),
        "by_round": figures.curves_by_round(history, metric),
    }
    return Section("courses", "Learning curves", "curves", data)


def _size(metric: Metric, results: Sequence[ArmResult]) -> Section | None:
    known = [result for result in results if math.isfinite(result.mean)]
    if len({episode.parameters for result in known for episode in result.episodes}) < 2:
        return None
    chart = figures.metric_against_size(metric, known)
    host = {episode.host_parameters for result in known for episode in result.episodes}
    data = {
        "metric": metric,
        "chart": chart,
        "legend": [(result.name, result.style) for result in known],
        "host": host.pop() if len(host) == 1 else 0,
        "largest": max(known, key=lambda result: result.parameters),
    }
    return Section("parameters", "Metric against size", "size", data)


# --- seeds


def _lives(history: History) -> Section | None:
    if not history.seeds:
        return None
    last = max(life.round for life in history.seeds)
    latest = [life for life in history.seeds if life.round == last]
    left, arms = MAX_LIVES, []
    for arm in history.arms:
        picked: dict[int, list[SeedLife]] = {}
        for seed, seeds in history.seeds_by_environment(last, arm).items():
            if len(seeds) <= left:
                picked[seed] = seeds
                left -= len(seeds)
        if picked:
            arms.append((arm, list(_life_charts(history, last, arm, picked))))
    fates = Counter(figures.STAGE_NAMES[life.stage] if life.ended else "still living" for life in latest)
    stages = {stage for life in latest for stage, *_ in figures.life_spans(life, history.steps_of(life.environment))}
    data = {
        "seeds": len(latest),
        "fates": sorted(fates.items(), key=lambda one: (-one[1], one[0])),
        "round": last if len(history.rounds) > 1 else None,
        "legend": stage_legend(untrained=Stage.GERMINATED in stages),
        "arms": arms,
        "missing": len(latest) - (MAX_LIVES - left),
    }
    return Section("lives", "Seed lives", "lives", data)


def _life_charts(
    history: History, round_: int, arm: str, lives: Mapping[int, Sequence[SeedLife]]
) -> Iterator[tuple[int, Chart]]:
    """Yield the charts of an arm, each with how many networks are folded up in it; 0 for the first."""
    acts = [act for act in history.governor if (act.round, act.arm) == (round_, arm) and act.act != "warn"]
    seeds = list(lives)
    first, rest = seeds[:NETWORKS_AT_ONCE], seeds[NETWORKS_AT_ONCE:]
    yield 0, figures.seed_lives(history, arm, {seed: lives[seed] for seed in first}, acts)
    if rest:
        yield len(rest), figures.seed_lives(history, arm, {seed: lives[seed] for seed in rest}, acts)


def stage_legend(*, untrained: bool) -> list[tuple[str, str]]:
    """Return name and CSS class of the stages. untrained: whether a seed that never trained is drawn."""
    return [
        (f"{name} ✕" if stage is Stage.PRUNED else name, f"stage-{stage.value}")
        for stage, name in figures.STAGE_NAMES.items()
        if untrained or stage is not Stage.GERMINATED
    ]


def _networks(history: History) -> Section | None:
    arms = []
    for arm in history.arms:
        episodes = [episode for episode in history.episodes if episode.arm == arm]
        kinds = Counter(map(figures.grown_seeds, episodes))
        if not any(kinds):
            continue
        how = "built in" if arm.startswith(CAPACITY) else "grown"
        host = plural(episodes[0].host_parameters, "parameter")
        charts = []
        for grown, number in kinds.most_common(MAX_KINDS):
            more = sum(parameters for _, _, parameters in grown)
            text = f"{number} of {plural(len(episodes), 'network')}: {host} of the host, {more:,} {how}"
            charts.append(figures.network(history.slots.get(arm, ()), grown, text))
        arms.append((arm, charts, len(kinds) - len(charts)))
    return Section("networks", "Resulting networks", "networks", {"arms": arms}) if arms else None


def _gains(history: History) -> Section | None:
    place = {arm: number for number, arm in enumerate(history.arms)}
    measured = [(life, life.gain) for life in history.seeds if life.gain is not None]
    measured.sort(key=lambda one: (not one[0].kept, one[0].round, place.get(one[0].arm, 0), one[0].seed))
    if not measured:
        return None
    classes = {figures.fate_class(life) for life, _ in measured}
    names = (("kept", "stage-fossilized"), ("not kept", "stage-pruned"), ("still living", "living"))
    data = {
        "legend": [one for one in names if one[1] in classes],
        "chart": figures.seed_gains(measured[:MAX_GAINS]),
        "drawn": MAX_GAINS,
        "seeds": len(measured),
        "rows": measured[:MAX_ROWS],
    }
    return Section("evidence", "Evidence for each seed", "gains", data)


# --- the rest


def _updates(history: History) -> Section | None:
    latest = {update.arm: update for update in history.updates}
    if not latest:
        return None
    rows = [(update, name, value) for update in latest.values() for name, value in update.figures.items()]
    return Section("learning", "Policy updates", "updates", {"updates": len(history.updates), "rows": rows})


def _time(summary: Mapping[str, Any] | None) -> Section | None:
    timing = {name: as_number(value) for name, value in (summary or {}).get("timing", {}).items()}
    known = [
        (_REGION_NAMES.get(name, name), value)
        for name, value in timing.items()
        if name != "total" and value is not None and 0 <= value < MAX_SECONDS
    ]
    spent = dict(sorted(known, key=lambda one: -one[1]))
    total = timing.get("total")
    if total is None or not 0 < total < MAX_SECONDS:
        total = sum(spent.values())
    if not spent or total <= 0:
        return None
    longest = enumerate(list(spent.items())[:4])
    legend = [(f"{name} {100 * value / total:.0f} %", f"region-{number}") for number, (name, value) in longest]
    data = {"chart": figures.time_shares(spent, total), "legend": legend, "spent": spent, "total": total}
    return Section("time", "Time", "time", data)


def _governor(history: History) -> Section | None:
    if not (history.governor or history.lost or history.rounds):
        return None
    acts = [act for act in history.governor if act.act != "warn"]
    data = {
        "warnings": sorted(Counter(act.arm for act in history.governor if act.act == "warn").items()),
        "acts": acts[:MAX_ROWS],
        "lost": history.lost[:MAX_ROWS],
        "missing": max(0, len(acts) - MAX_ROWS) + max(0, len(history.lost) - MAX_ROWS),
    }
    return Section("governor", "Governor and lost seeds", "governor", data)


def _plugin_sections(summary: Mapping[str, Any] | None) -> list[Section]:
    known = (summary or {}).get("sections", [])
    return [Section(f"plugin-{number}", own["title"], "plugin", own) for number, own in enumerate(known)]


def _facts(report: Report) -> Iterator[tuple[str, str]]:
    """Yield the provenance: command, versions, machine."""
    manifest, history = report.manifest, report.history
    yield "run", history.name
    yield "status", f"{history.status}: {history.reason}" if history.reason else history.status
    yield from ((name, str(manifest[name])) for name in ("started", "finished") if manifest.get(name))
    if isinstance(argv := manifest.get("argv"), list) and argv:
        yield "command", " ".join(["esper", *map(str, argv[1:])])
    for name, prefix in (("machine", ""), ("seeds", "seeds: "), ("git", "git ")):
        if isinstance(known := manifest.get(name), dict):
            yield from ((f"{prefix}{key}", str(value)) for key, value in known.items())
    yield from (("events not read", text) for text in history.skipped)


def plugins_of(manifest: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Return id, package with version, and shortened hash of the plugins that a manifest lists."""
    listed = manifest.get("plugins")
    return [
        (str(one.get("id")), f"{one.get('package')} {one.get('version')}", str(one.get("sha256") or "")[:12])
        for one in (listed if isinstance(listed, list) else [])
        if isinstance(one, dict)
    ]


def subtitle(report: Report) -> str:
    """Return the size of the run, its status and its start."""
    told, history = [], report.history
    if (started := history.started) is not None:
        rounds = "" if started.rounds == 1 else f"{plural(started.rounds, 'round')} of "
        told.append(plural(len(history.arms), "arm"))
        told.append(f"{rounds}{plural(started.environments, 'network')} each")
        told.append(plural(started.steps, "step"))
    return " · ".join([*told, history.status, f"started {report.manifest.get('started', UNKNOWN)}"])
