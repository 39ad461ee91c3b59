"""What does a run show, in words? No more than its comparisons do; of a run without an end: how far it came."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from esper_core.leyline.constants import MIN_SEEDS_FOR_VERDICT
from esper_watch.report.figure import section
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

CAPACITY = "capacity"
"""What the arm begins with that has from the start what another one grew."""

CHOSEN = {
    "done": "It ran to its end.",
    "failed": "It failed.",
    "interrupted": "It was interrupted, and can be gone on with.",
    "stopped": "It was stopped by the governor.",
}


def verdict(record: Record) -> Element:
    """The first part of the page: a headline, then a sentence for each comparison."""
    sentences = [element("li", _sentence(record.metric, one), class_=_class(one)) for one in _ordered(record)]
    return section(
        "verdict",
        "In a word",
        element("p", headline(record), class_="headline"),
        element("ul", *sentences, class_="verdicts") if sentences else None,
        *(element("p", remark, class_="note") for remark in _remarks(record)),
    )


def headline(record: Record) -> str:
    """One sentence on what was found."""
    if record.status != "done" or not record.comparisons:
        share = f"{100 * record.share_done:.0f} % of it was trained"
        if record.status == "done":
            return "The run had a single arm, and nothing to compare it with."
        why = f" {record.reason.strip().splitlines()[0]}" if record.reason.strip() else ""
        told = CHOSEN.get(record.status, "It has not come to its end, or was killed.")
        return f"{told}{why} {share}; there is no verdict before the end."
    grown = [one for one in _ordered(record) if _is_control(one["b"]) and not _is_control(one["a"])]
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


def _nothing_shown(record: Record, against_twin: list[Mapping[str, Any]]) -> str:
    grew = {one["a"] for one in against_twin}
    if not any(one.fossils for one in record.episodes if one.arm in grew):
        return "Nothing was kept: no network is another one than its twin at the end, but for what it went through."
    few = {one.get("why") for one in against_twin} <= {"too few seeds", "too few seeds for so many comparisons"}
    told = "No difference was shown between networks that grew and the same networks that never did"
    return f"{told}: there were too few seeds to show one." if few else f"{told}."


def _sentence(metric: Mapping[str, Any], comparison: Mapping[str, Any]) -> str:
    a, b = comparison["a"], comparison["b"]
    p = comparison.get("p_holm") if comparison.get("p_holm") is not None else comparison["p"]
    many = "pairs of seeds" if comparison["paired"] else "or more of each, not paired"
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
    if b == "twin" and not _is_control(a):
        return "The twin is the same network on the same data in the same order; it never grew."
    if b.startswith(CAPACITY) and not _is_control(a):
        return "That control had from its first batch what the other grew, and was trained as long."
    return ""


def _class(comparison: Mapping[str, Any]) -> str:
    return {"better": "better", "worse": "worse"}.get(comparison["verdict"], "neither")


def _ordered(record: Record) -> list[Mapping[str, Any]]:
    """What grew against its controls comes first."""
    return sorted(record.comparisons, key=lambda one: (_is_control(one["a"]), not _is_control(one["b"])))


def _is_control(arm: str) -> bool:
    return arm == "twin" or arm.startswith(CAPACITY)


def _remarks(record: Record) -> list[str]:
    told: list[str] = []
    lacks = {one.get("why") for one in record.comparisons}
    if "too few seeds" in lacks:
        few = record.comparisons[0]["n"]
        told.append(f"A verdict takes {MIN_SEEDS_FOR_VERDICT} environment seeds at least; here there are {few}.")
    if "too few seeds for so many comparisons" in lacks:
        told.append("For so many comparisons at once a verdict takes more environment seeds than there are.")
    if len(record.comparisons) > 1:
        told.append("The probabilities are Holm's: they hold for all comparisons of the run together.")
    warnings = None if record.summary is None else record.summary.get("warnings")
    return told + [f"Warning: {one}" for one in (warnings if isinstance(warnings, list) else [])]


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
