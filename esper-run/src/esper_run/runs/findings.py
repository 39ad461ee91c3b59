"""What a finished run found: in one sentence, the same in the terminal and on its page, and what to do next."""

from __future__ import annotations

import shlex
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from esper_core.leyline.constants import MIN_SEEDS_FOR_VERDICT
from esper_core.leyline.errors import plural
from esper_run.config.model import CAPACITY, TWIN
from esper_run.formats import NO_BREAK, format_difference, format_difference_interval, format_value, metric_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from esper_core.leyline.signals import Metric

NO_DIFFERENCE: Final = "no difference shown"

TOO_FEW: Final = frozenset({"too few seeds", "too few seeds for so many comparisons"})
"""What verdicts lack that more networks would give them."""


def is_control(arm: str) -> bool:
    """Return whether an arm is a control, in which nothing grows."""
    return arm in (TWIN, CAPACITY) or arm.startswith(f"{CAPACITY}-of-")


def against_twin(comparisons: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the comparisons of growing arms with the twin."""
    return [comparison for comparison in comparisons if comparison["b"] == TWIN and not is_control(comparison["a"])]


def finding(comparisons: Sequence[Mapping[str, Any]], *, grew: bool, lost: bool) -> str:
    """Return what a run with several arms found.

    Args:
        comparisons: Those of its results.
        grew: Whether a network of an arm that is compared with the twin kept anything.
        lost: Whether seeds were lost.
    """
    growing = against_twin(comparisons)
    if not growing:
        shown = sum(comparison["verdict"] != NO_DIFFERENCE for comparison in comparisons)
        return f"{shown} of {plural(len(comparisons), 'comparison')} showed a difference."
    findings = []
    for verdict, effect in (("better", "helped"), ("worse", "hurt")):
        if arms := [comparison["a"] for comparison in growing if comparison["verdict"] == verdict]:
            listed = " and ".join(filter(None, [", ".join(arms[:-1]), arms[-1]]))
            findings.append(f"Growing {effect}: {listed} ended {verdict} than the same networks without growth.")
    if findings:
        return " ".join(findings)
    if not grew:
        nothing = "Nothing was kept: every network ended with the parts it started with, like its twin."
        return f"{nothing} {'Seeds were lost to errors.' if lost else 'There is no lasting growth to judge.'}"
    sentence = "No difference was shown between networks with growth and the same networks without"
    too_few = {comparison.get("why") for comparison in growing} <= TOO_FEW
    return f"{sentence}: there were too few networks." if too_few else f"{sentence}."


def summary_sentence(results: Mapping[str, Any], *, lost: bool) -> str:
    """Return what a run found, with the gain of each growing arm over its twin and its interval."""
    comparisons, metric = results["comparisons"], metric_of(results)
    if len(results["arms"]) == 1:
        return "The run had one arm, so there is nothing to compare."
    growing, grew = against_twin(comparisons), _grew(results)
    sentence = finding(comparisons, grew=grew, lost=lost)
    if not grew:
        return sentence
    gains = []
    for comparison in growing:
        interval = format_difference_interval(metric, comparison["ci_low"], comparison["ci_high"])
        difference = format_difference(metric, comparison["difference"])
        gains.append(f"{comparison['a']} {difference} over its twin, 95{NO_BREAK}% interval {interval}")
    return f"{sentence} {'; '.join(gains)}." if gains else sentence


def last_weights_text(metric: Metric, tests: Mapping[str, float | None]) -> str | None:
    """Return what arms reach with the weights of their last batch, if averages of weights were tested; else None."""
    figures = [f"{arm} {format_value(metric, test)}" for arm, test in tests.items() if test is not None]
    if not figures:
        return None
    return f"Tested with running averages of the weights. With those of the last batch: {', '.join(figures)}."


def conclusions_text(arm: str, conclusions: Mapping[str, int], networks: int) -> list[str]:
    """Return what the policy of an arm concluded, each conclusion with how many networks it was of."""
    return [
        f"{arm}, in {number} of {plural(networks, 'network')}: {conclusion}."
        for conclusion, number in sorted(conclusions.items(), key=lambda pair: -pair[1])
    ]


def ways_text(reasons: Sequence[str | None]) -> str | None:
    """Return which networks were trained as one program, given why each was trained alone; None if one is unknown."""
    if None in reasons:
        return None
    alone = Counter(reason for reason in reasons if reason)
    together = len(reasons) - alone.total()
    parts = [f"{plural(number, 'network')} one after another: {reason}" for reason, number in alone.most_common()]
    if together:
        parts.insert(0, f"{plural(together, 'network')} as one program with those of the same structure")
    return f"Trained {'; '.join(parts)}." if parts else None


def missing_networks_text(comparisons: Sequence[Mapping[str, Any]]) -> str | None:
    """Return how many networks a verdict needs, if there are too few for any."""
    from esper_run.runs.statistics import seeds_needed

    reasons = [comparison.get("why") for comparison in comparisons]
    if reasons and set(reasons) == {"too few seeds"}:
        return f"A verdict needs {MIN_SEEDS_FOR_VERDICT} networks of each arm; there are {comparisons[0]['n']}."
    if "too few seeds for so many comparisons" in reasons:
        needed = seeds_needed(len(reasons))
        return f"With {len(reasons)} comparisons a verdict needs {needed} networks of each arm."
    return None


def next_command(results: Mapping[str, Any], path: str, *, lost: str) -> tuple[str, str]:
    """Return what to do next, and the command. path: quoted for a shell; lost: tests a blueprint with lost seeds."""
    if lost:
        return "Fix the blueprints whose seeds were lost, and test them", lost
    reasons = {comparison.get("why") for comparison in against_twin(results["comparisons"])}
    if len(results["arms"]) == 1 and any(arm["test"]["mean"] is not None for arm in results["arms"].values()):
        return "Compare it with the same networks without growth", f"esper run {path} --set twin=true"
    if reasons and not _grew(results):
        return "See why nothing was kept", f"esper runs show {path} --seeds"
    if reasons & TOO_FEW:
        from esper_run.runs.statistics import seeds_needed

        needed = seeds_needed(len(results["comparisons"]))
        return "Train enough networks for a verdict", f"esper run {path} --set environments={needed}"
    return "See why seeds were kept or pruned", f"esper runs show {path} --seeds"


def _grew(results: Mapping[str, Any]) -> bool:
    """Return whether a network of an arm that is compared with the twin kept anything."""
    growing = against_twin(results["comparisons"])
    return any(results["arms"].get(comparison["a"], {}).get("fossils") for comparison in growing)


def check_command(blueprint: str, package: str) -> str:
    """Return what tests a blueprint: named by its id, or by its file if it is of a one-file plugin."""
    plugin = blueprint.partition("/")[0].replace("-", "_")
    target = f"{plugin}.py" if package.startswith("local file") else blueprint.partition("(")[0]
    return f"esper plugins check {shlex.quote(target)}"


def lost_text(blueprint: str, package: str, what: str, lost: int, tried: int) -> str:
    """Return how many seeds of a blueprint were lost, whose code it is, and what it did first."""
    return f"Lost {lost:,} of {plural(tried, 'seed')} of {blueprint}, from {package or 'an unknown package'}: it {what}"
