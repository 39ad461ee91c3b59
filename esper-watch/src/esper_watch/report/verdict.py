"""What does a run show, in words? No more than its comparisons do; of a run without an end: how far it came."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from esper_core.leyline.constants import MIN_SEEDS_FOR_VERDICT
from esper_watch.report.figure import note, section
from esper_watch.report.glossary import CAPACITY, glossary, is_control
from esper_watch.report.markup import Element, element
from esper_watch.report.wording import (
    NO_DIFFERENCE,
    count,
    difference,
    difference_interval,
    probability,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from esper_watch.report.record import Record

HOW_IT_STANDS = {
    "failed": "It failed.",
    "interrupted": "It was interrupted.",
    "stopped": "It was stopped by the governor.",
    "running": "It is still running.",
    "died": "It died: its process is gone, and it has no end.",
}

GOES_ON = {
    "died": "",
    "interrupted": "",
    "failed": "Mend first what failed: it is done again.",
    "stopped": "As it is, it is stopped at the same step again. With other settings it is a run of its own.",
}
"""How a run ended that can go on, and what has to be known before."""

COUNTING = re.compile(r"\bseed \d+, step \d+")
COUNTED_OTHERWISE = "This is the run's own message: by seed it means the network's number, and it counts steps from 0."

UNKNOWN_END = "It did not end, as far as its events tell: it is still running, or was killed."


def verdict(record: Record) -> Element:
    """The first part of the page: a headline, then a sentence for each comparison."""
    sentences = [element("li", _sentence(record.metric, one), class_=_class(one)) for one in _ordered(record)]
    return section(
        "verdict",
        "In a word",
        element("p", headline(record), class_="headline"),
        element("pre", record.reason.strip(), tabindex=0) if record.reason.strip() else None,
        note(COUNTED_OTHERWISE) if COUNTING.search(record.reason) else None,
        *(note(remark) for remark in _ways_on(record)),
        element("ul", *sentences, class_="verdicts") if sentences else None,
        *(note(remark) for remark in _remarks(record)),
        glossary(),
    )


def headline(record: Record) -> str:
    """One sentence or two on what was found."""
    if record.status != "done":
        told = HOW_IT_STANDS.get(record.status, UNKNOWN_END)
        return f"{told} {100 * record.share_done:.0f} % of it was trained; there is no verdict before the end."
    if not record.comparisons:
        return _nothing_compared(record)
    grown = [one for one in _ordered(record) if is_control(one["b"]) and not is_control(one["a"])]
    against_twin = [one for one in grown if one["b"] == "twin"]
    if not against_twin:
        shown = [one for one in record.comparisons if one["verdict"] != NO_DIFFERENCE]
        return f"Of {count(len(record.comparisons), 'comparison')} {len(shown)} showed a difference."
    helped = [one["a"] for one in against_twin if one["verdict"] == "better"]
    harmed = [one["a"] for one in against_twin if one["verdict"] == "worse"]
    found = []
    if helped:
        found.append(f"Growing helped: {_listed(helped)} ended better than the same networks that never grew.")
    if harmed:
        found.append(f"Growing did harm: {_listed(harmed)} ended worse than the same networks that never grew.")
    return " ".join(found) or _nothing_shown(record, against_twin)


def _nothing_compared(record: Record) -> str:
    if len(record.arms) == 1:
        return "The run had a single arm, and nothing to compare it with."
    if record.summary is None:
        return f"There is no verdict: the run came to its end, but its summary.json {record.summary_fault}."
    return "There is no verdict: its summary.json holds no comparison of its arms."


def _ways_on(record: Record) -> list[str]:
    """How to come to a verdict, where there is none and there is a way."""
    if record.status in GOES_ON and record.can_go_on:
        told = f"It goes on from its newest checkpoint, to the same numbers:  esper resume {record.name}"
        return [told, GOES_ON[record.status]] if GOES_ON[record.status] else [told]
    if record.status != "done" or record.summary is not None or len(record.arms) == 1:
        return []
    ways = ["summary.json stands in the run's own folder: put it beside events.jsonl, and write the report anew."]
    if record.config:
        ways.append(f"Where it is lost, the same numbers can be trained again:  esper run runs/{record.name}")
    return ways


def _nothing_shown(record: Record, against_twin: list[Mapping[str, Any]]) -> str:
    grew = {one["a"] for one in against_twin}
    if not any(one.fossils for one in record.episodes if one.arm in grew):
        return (
            "Nothing was kept: every network ended with the parts it began with, as its twin did. "
            "No lasting growth is there to be judged."
        )
    few = {one.get("why") for one in against_twin} <= {"too few seeds", "too few seeds for so many comparisons"}
    told = "No difference was shown between networks that grew and the same networks that never did"
    return f"{told}: there were too few networks to show one." if few else f"{told}."


def _sentence(metric: Mapping[str, Any], comparison: Mapping[str, Any]) -> str:
    a, b = comparison["a"], comparison["b"]
    p = comparison.get("p_holm") if comparison.get("p_holm") is not None else comparison["p"]
    many = "pairs of networks" if comparison["paired"] else "or more networks of each, not paired"
    figures = (
        f"95 % interval {difference_interval(metric, comparison['ci_low'], comparison['ci_high'])}; "
        f"{comparison['n']} {many}; p = {probability(p)}"
    )
    if comparison["difference"] is None:
        return f"{a} against {b}: a figure is not finite, so there is no verdict."
    if comparison["verdict"] == NO_DIFFERENCE:
        measured = difference(metric, comparison["difference"])
        return f"{a} against {b}: no difference shown. Measured: {measured} ({figures})."
    size = difference(metric, comparison["difference"], signed=False)
    return f"{a} was {comparison['verdict']} than {b} by {size} ({figures}). {_meaning(a, b)}".strip()


def _meaning(a: str, b: str) -> str:
    if b == "twin" and not is_control(a):
        return "The twin is the same network on the same data in the same order; it never grew."
    if b.startswith(CAPACITY) and not is_control(a):
        return "That control had from its first batch what the other grew, and was trained as long."
    return ""


def _class(comparison: Mapping[str, Any]) -> str:
    """Its colour: only of what may grow something good or bad is said, and never of a control."""
    if is_control(comparison["a"]):
        return "neither"
    return {"better": "better", "worse": "worse"}.get(comparison["verdict"], "neither")


def _ordered(record: Record) -> list[Mapping[str, Any]]:
    """What grew against its controls comes first."""
    return sorted(record.comparisons, key=lambda one: (is_control(one["a"]), not is_control(one["b"])))


def _remarks(record: Record) -> list[str]:
    told: list[str] = []
    lacks = {one.get("why") for one in record.comparisons}
    if "too few seeds" in lacks:
        few = record.comparisons[0]["n"]
        told.append(
            f"A verdict takes {MIN_SEEDS_FOR_VERDICT} environment seeds at least, a network of each arm for "
            f"each; here there are {few}."
        )
    if "too few seeds for so many comparisons" in lacks:
        told.append("For so many comparisons at once a verdict takes more networks than there are.")
    if len(record.comparisons) > 1:
        told.append(
            "Each p is Holm's, adjusted for all comparisons of the run together. The intervals are not adjusted: each "
            "holds for its own comparison alone."
        )
    warnings = None if record.summary is None else record.summary.get("warnings")
    return told + [f"Warning: {one}" for one in (warnings if isinstance(warnings, list) else [])]


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
