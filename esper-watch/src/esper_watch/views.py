"""Sections of a report: which there are, in which order, and what they say.

Each section is made by itself from a ``Report``, so that a live page can renew one of them. The templates are in
``sections.html``; ``section.html`` renders one of them.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Final

from esper_core.leyline import Stage
from esper_core.leyline.errors import plural
from esper_run.runs.findings import conclusions_text, last_weights_text, ways_text
from esper_run.runs.statistics import conclusions_of, mean_known
from esper_watch import figures
from esper_watch.formats import (
    format_command,
    format_number,
    format_start,
    short_name,
)
from esper_watch.growth import AT_ONCE, pictures
from esper_watch.headline import verdict
from esper_watch.history import CAPACITY, TWIN, UNFINISHED
from esper_watch.sections import Report, Section

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from esper_watch.figures import ArmResult, Chart
    from esper_watch.history import History, SeedLife
    from esper_watch.history_records import Look

    Maker = Callable[[Report], Section | None]

MAX_GATES: Final = 48
GATES_AT_ONCE: Final = 12
MAX_LIVES: Final = 4_000
MAX_LOOKS: Final = 25
MAX_GAINS: Final = 40
MAX_ROWS: Final = 400
"""Rows of a table of seeds, or of the governor's acts."""

EQUALITY: Final = {
    "branch": "Seeds on a branch, a copy of their network (growth.incubation: branch), change no curve until "
    "one is kept: up to then a network is what it would be without growth.",
    "shadow": "Seeds in the shadow of their network (growth.incubation: shadow) change no curve until one is "
    "blended in: up to then a network is what it would be without growth.",
}
"""By kind of incubation: until when an arm equals its twin."""


def sections(report: Report) -> list[Section]:
    """Return the sections that have something to show, in the order of the page."""
    return [section for make in SECTIONS if (section := make(report)) is not None]


def arm_description(arm: str) -> str:
    """Describe what an arm is."""
    if arm == TWIN:
        return "the same networks on the same data in the same order, without growth."
    if arm.startswith(CAPACITY):
        grown_by = arm.removeprefix(f"{CAPACITY}-of-")
        other = "the growing arm" if grown_by == arm else grown_by
        return f"networks that have, from their first batch on, the blocks that {other} grew, and train for as long."
    return "networks that can grow while they train; the arm's policy decides what, where and when."


# --- arms


def arms(report: Report) -> Section | None:
    """Return the section of the arms at the end, on the test split."""
    metric, results = report.metric, figures.arm_results(report.history, report.metric)
    if not _tested(report.history):
        return None
    networks = list(_each_network(report.history, results))
    data = {
        "chart": figures.arm_intervals(metric, results),
        "metric": metric,
        "results": results,
        "networks": networks[:MAX_ROWS],
        "missing": max(0, len(networks) - MAX_ROWS),
        "conclusions": [
            text
            for result in results
            for text in conclusions_text(result.name, conclusions_of(result.episodes), len(result.episodes))
        ],
        "ways": ways_text([episode.alone for result in results for episode in result.episodes]),
        "last": last_weights_text(
            metric, {result.name: mean_known([episode.test_last for episode in result.episodes]) for result in results}
        ),
    }
    return Section("arms", "Arms", "arms", data)


def _each_network(history: History, results: Sequence[ArmResult]) -> Iterator[tuple[str, list[float | None]]]:
    """Yield each network with its test metric in each arm."""
    arm_tests = [
        {(episode.round, episode.seed): episode.test_metric for episode in result.episodes} for result in results
    ]
    has_rounds = len(history.rounds) > 1
    for round_, seed in sorted({place for tests in arm_tests for place in tests}):
        name = f"{seed} in round {round_}" if has_rounds else f"{seed}"
        yield name, [tests.get((round_, seed)) for tests in arm_tests]


def _tested(history: History) -> bool:
    """Return whether there is a result on a test split. A loop of one's own has none."""
    return any(not math.isnan(episode.test_metric) for episode in history.episodes)


def curves(report: Report) -> Section | None:
    """Return the section of the learning curves."""
    history, metric = report.history, report.metric
    drawn = figures.latest_curves(history, metric)
    if not drawn:
        return None
    styles = figures.arm_styles(history.arms)
    longest = max(points[-1].at for points in drawn.values())
    data = {
        "metric": metric,
        "rounds": len(history.rounds),
        "networks": max(point.n for points in drawn.values() for point in points),
        "chart": figures.curves_chart(metric, drawn, styles, history.steps_per_episode),
        "legend": [(arm, styles[arm]) for arm in drawn],
        "tested": _tested(history),
        "ended": bool(history.episodes),
        "equality": _equality(report),
        "dropouts": "; ".join(
            f"{arm} from {points[0].n} to {points[-1].n}, until step {points[-1].at + 1}"
            for arm, points in drawn.items()
            if points[-1].n < points[0].n or points[-1].at < longest
        ),
    }
    return Section("courses", "Learning curves", "curves", data)


def _equality(report: Report) -> str:
    """Say until when a network equals its twin; of an unknown incubation, what holds for each kind."""
    return EQUALITY.get(report.incubation) or " ".join(EQUALITY.values())


# --- seeds


def lives(report: Report) -> Section | None:
    """Return the section of the lives of seeds in each network."""
    history = report.history
    if not history.seeds:
        return None
    last = max(life.round for life in history.seeds)
    latest = [life for life in history.seeds if life.round == last]
    left, charts = MAX_LIVES, []
    for arm in history.arms:
        picked: dict[int, list[SeedLife]] = {}
        for seed, seeds in history.seeds_by_environment(last, arm).items():
            if len(seeds) <= left:
                picked[seed] = seeds
                left -= len(seeds)
        if picked:
            charts.append((arm, list(_life_charts(history, last, arm, picked))))
    fates = Counter(figures.STAGE_NAMES[life.stage] if life.ended else "still living" for life in latest)
    stages = {stage for life in latest for stage, *_ in figures.life_spans(life, history.steps_of(life.environment))}
    data = {
        "seeds": len(latest),
        "fates": sorted(fates.items(), key=lambda fate_count: (-fate_count[1], fate_count[0])),
        "round": last if len(history.rounds) > 1 else None,
        "legend": [
            (name, "cross" if stage is Stage.PRUNED else f"stage-{stage.value}")
            for stage, name in figures.STAGE_NAMES.items()
            if stage is not Stage.GERMINATED or stage in stages  # a seed that never trained is drawn
        ],
        "arms": charts,
        "equality": _equality(report),
        "missing": len(latest) - (MAX_LIVES - left),
    }
    return Section("lives", "Seed lives", "lives", data)


def _life_charts(
    history: History, round_: int, arm: str, lives: Mapping[int, Sequence[SeedLife]]
) -> Iterator[tuple[int, Chart]]:
    """Yield the charts of an arm, each with how many networks are folded up in it; 0 for the first."""
    acts = [act for act in history.governor if (act.round, act.arm) == (round_, arm) and act.act != "warn"]
    seeds = list(lives)
    first, folded = seeds[:AT_ONCE], seeds[AT_ONCE:]
    yield 0, figures.seed_lives(history, arm, {seed: lives[seed] for seed in first}, acts)
    if folded:
        yield len(folded), figures.seed_lives(history, arm, {seed: lives[seed] for seed in folded}, acts)


def gains(report: Report) -> Section | None:
    """Return the section of the gain of each seed against its price."""
    history = report.history
    place = {arm: number for number, arm in enumerate(history.arms)}
    measured = [(life, life.gain) for life in history.seeds if life.gain is not None]
    measured.sort(key=lambda pair: (not pair[0].kept, pair[0].round, place.get(pair[0].arm, 0), pair[0].seed))
    if not measured:
        return None
    classes = {figures.fate_class(life) for life, _ in measured}
    names = (("kept", "stage-fossilised"), ("not kept", "stage-pruned"), ("still living", "living"))
    data = {
        "legend": [legend_entry for legend_entry in names if legend_entry[1] in classes],
        "chart": figures.seed_gains(measured[:MAX_GAINS], history.gains_in),
        "drawn": MAX_GAINS,
        "seeds": len(measured),
        "rows": measured[:MAX_ROWS],
    }
    return Section("evidence", "Evidence for each seed", "gains", data)


def gates(report: Report) -> Section | None:
    """Return the section of what each gate saw, step by step: the confidence sequence of the gain against the price."""
    history = report.history
    last = history.rounds[-1] if history.rounds else 0
    charts: list[tuple[SeedLife, Chart]] = []
    place = {arm: number for number, arm in enumerate(history.arms)}
    for life in sorted(history.seeds, key=lambda life: (place.get(life.arm, 0), life.seed)):
        if life.round != last or not life.looks.judged or len(charts) == MAX_GATES:
            continue
        if looks := [look for look in life.looks if math.isfinite(look.lower + look.upper + look.mean)]:
            charts.append((life, _gate_chart(life, looks)))
    if not charts:
        return None
    judged = sum(life.looks.judged > 0 for life in history.seeds if life.round == last)
    data = {
        "shown": charts[:GATES_AT_ONCE],
        "folded": charts[GATES_AT_ONCE:],
        "missing": judged - len(charts),
    }
    return Section("gates", "What the gates saw", "gates", data)


def _gate_chart(life: SeedLife, looks: Sequence[Look]) -> Chart:
    """Chart the mean gain with its bounds in each look, and the price."""
    edges = [edge for look in looks for edge in (look.lower, look.upper, look.price)]
    y = figures.scale_around([*edges, 0.0], start=96.0, end=8.0, room=0.08)
    first, last = (edge(look.step for look in looks) + 1 for edge in (min, max))
    x = figures.Scale(first - 0.5, last + 0.5, 44.0, 214.0)
    opened = next((look for look in looks if look.opens), None)
    opening = f"open from step {opened.step + 1}" if opened else "never open"
    title = f"{life.arm} {life.seed}: {short_name(life.blueprint)} in {life.slot}"
    every = -(-len(looks) // MAX_LOOKS)
    drawn = [look for at, look in enumerate(looks) if at % every == 0 or at == len(looks) - 1]
    return figures.Chart(
        "gate",
        title,
        f"{plural(len(looks), 'look')}, {opening}; {figures.fate(life)}.",
        128.0,
        {"looks": drawn, "css_class": figures.fate_class(life), "opened": opened, "opening": opening},
        x=figures.Axis(x, 96.0, 8.0, lambda step: f"{step:g}" if step == int(step) else ""),
        y=figures.Axis(y, 44.0, 214.0, format_number),
        width=220.0,
    )


# --- the rest


def updates(report: Report) -> Section | None:
    """Return the section of what policies learnt."""
    history = report.history
    latest = {update.arm: update for update in history.updates}
    if not latest:
        return None
    rows = [(update, name, value) for update in latest.values() for name, value in update.figures.items()]
    return Section("learning", "Policy updates", "updates", {"updates": len(history.updates), "rows": rows})


def governor(report: Report) -> Section | None:
    """Return the section of what the governor did, and of lost seeds."""
    history = report.history
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


def provenance(report: Report) -> Section:
    """Return the section of what made these numbers."""
    return Section("provenance", "Provenance", "provenance", {"report": report, "facts": list(_facts(report))})


def _facts(report: Report) -> Iterator[tuple[str, str]]:
    """Yield the provenance: command, versions, machine."""
    manifest, history = report.manifest, report.history
    yield "run", history.name
    yield "status", f"{history.status}: {history.reason}" if history.reason else history.status
    yield from ((name, str(manifest[name])) for name in ("started", "finished") if manifest.get(name))
    if command := format_command(manifest.get("argv")):
        yield "command", command
    for name, prefix in (("machine", ""), ("seeds", "seeds: "), ("git", "git ")):
        if isinstance(details := manifest.get(name), dict):
            yield from ((f"{prefix}{key}", str(value)) for key, value in details.items())
    yield from (("events not read", text) for text in history.skipped)


def subtitle(report: Report) -> str:
    """Return the size of the run, its status and its start."""
    parts, history = [], report.history
    if (started := history.started) is not None:
        rounds = "" if started.rounds == 1 else f"{plural(started.rounds, 'round')} of "
        planned = [arm for phase in history.phases for arm in phase if history.status in ("running", UNFINISHED)]
        later = [arm for arm in planned if arm not in history.arms]
        parts.append(plural(len(history.arms), "arm") + (f", then {' and '.join(later)}" if later else ""))
        suffix = " each" if len(history.arms) + len(later) > 1 else ""
        parts.append(f"{rounds}{plural(started.environments, 'network')}{suffix}")
        parts.append(plural(started.steps, "step"))
    return " · ".join([*parts, history.status, f"started {format_start(report.manifest.get('started'))}"])


SECTIONS: Final[tuple[Maker, ...]] = (
    verdict,
    arms,
    curves,
    pictures,
    lives,
    gains,
    gates,
    updates,
    governor,
    provenance,
)
"""What makes the sections, in the order of the page."""
