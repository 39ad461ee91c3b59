"""Can the arms of several runs be compared, and what is to be known about it? Their figures side by side, or why not.

Arms of two runs are compared where both measured the same. What else differs between the runs, beside their arms, is
told: it may be what makes the difference. Which pairs are compared is told by ``pairing``.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from itertools import combinations
from typing import TYPE_CHECKING, Any, Final

from esper_core.config.files import read_file
from esper_core.config.reading import read_document
from esper_core.leyline.errors import ConfigError, Problem, RunFolderError, suggestion
from esper_core.runs.comparing import Sample, compare_pairs, shared_seeds
from esper_core.runs.pairing import JoinedArm, asked_for
from esper_core.runs.records import resume_hint, words_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from esper_core.runs.records import Run

ARMS_AND_NAMES: Final = frozenset(
    (
        *("name", "policy", "arms", "twin", "capacity", "sinks", "plugins", "margin"),
        *("seed", "environments", "rounds", "devices", "lanes", "workers", "checkpoints"),
    )
)
"""Parts of a configuration in which two runs may differ without a word: who acts, what is told, what is told by
itself as seeds and margins are, and what changes no number."""

DIFFERENCES_TOLD: Final = 8
"""Differences between configurations that a warning names."""


@dataclass(frozen=True, slots=True)
class Joined:
    """The arms of one or several runs, ready to be compared. ``margin``: the largest that a run declared."""

    metric: Mapping[str, Any]
    arms: Sequence[JoinedArm]
    margin: float
    pairs: Sequence[tuple[JoinedArm, JoinedArm]]
    """Those that are compared, and judged together."""
    warnings: Sequence[str] = field(default_factory=list)

    @property
    def left_out(self) -> int:
        """Pairs of arms that are not compared."""
        return math.comb(len(self.arms), 2) - len(self.pairs)

    def comparisons(self) -> list[dict[str, Any]]:
        """The comparison of each of the pairs."""
        samples = [(one.sample, other.sample) for one, other in self.pairs]
        return compare_pairs(samples, direction=self.metric["direction"], margin=self.margin)


def join(runs: Sequence[Run], only: Sequence[str] = (), *, every: bool = False) -> Joined:
    """The arms of ``runs`` side by side, or those of the names in ``only``.

    Of all arms those pairs are compared that ``asked_for`` names, or ``every`` one; of arms that were named each pair.
    RunFolderError E431 where they cannot be compared, E430 where a configuration cannot be read.
    """
    unique = list({run.path.resolve(): run for run in runs}.values())
    metric = _common_metric(unique)
    configs = [_config(run) for run in unique]
    arms = _chosen(_arms(unique, configs), only)
    margins = [_margin(config) for config in configs]
    pairs = list(combinations(arms, 2)) if every or only else asked_for(unique, arms)
    return Joined(metric, arms, max(margins), pairs, list(_warnings(unique, configs, margins, arms, pairs)))


def _common_metric(runs: Sequence[Run]) -> Mapping[str, Any]:
    """The metric of all; E431 where a run has no end, or another metric."""
    problems = [_unfinished(run) for run in runs if run.results is None]
    if problems:
        raise RunFolderError(problems)
    measured = [(run, run.results["metric"]) for run in runs if run.results is not None]
    first, metric = measured[0]
    wanted = _measure(metric)
    for run, other in measured:
        if _measure(other) != wanted:
            message = f"runs that measured something else: {first.name} has {wanted}, {run.name} has {_measure(other)}"
            raise RunFolderError(Problem("E431", message, hint="Compare runs of one task."))
    return dict(metric)


def _measure(metric: Mapping[str, Any]) -> str:
    direction = "more is better" if metric["direction"] == "up" else "less is better"
    return (
        f"{metric['name']} in {metric['unit']}, {direction}" if metric.get("unit") else f"{metric['name']}, {direction}"
    )


def _unfinished(run: Run) -> Problem:
    reason = f": {run.reason.splitlines()[0]}" if run.reason else ""
    message = f"{run.name} has no summary to compare: its status is {run.status}{reason}"
    return Problem("E431", message, hint=resume_hint(run.path, run.status))


def _config(run: Run) -> Mapping[str, Any]:
    try:
        value = read_document(read_file(run.path / "config.yaml"), str(run.path / "config.yaml")).value
    except ConfigError as error:
        first = error.problems[0]
        message = f"cannot read {run.path / 'config.yaml'}: {first.message}"
        raise RunFolderError(Problem("E430", message, line=first.line, hint=first.hint)) from None
    return dict(value)


def _margin(config: Mapping[str, Any]) -> float:
    margin = config.get("margin")
    return float(margin) if isinstance(margin, int | float) and math.isfinite(margin) and margin >= 0 else 0.0


def _arms(runs: Sequence[Run], configs: Sequence[Mapping[str, Any]]) -> list[JoinedArm]:
    """Every arm of every run; where two have the same name, course and figures, they are one."""
    labels = _labels(runs)
    found: list[JoinedArm] = []
    for number, (run, config, label) in enumerate(zip(runs, configs, labels, strict=True)):
        course = json.dumps(config.get("task"), sort_keys=True, default=str)
        for arm, figures in (run.results or {})["arms"].items():
            by_seed = {one["seed"]: _number(one["test"]) for one in figures["episodes"]}
            for known in found:
                if (known.arm, known.sample.by_seed, known.sample.course) == (arm, by_seed, course):
                    known.runs.append(run.name)
                    known.numbers.append(number)
                    break
            else:
                name = arm if len(runs) == 1 else f"{label}/{arm}"
                found.append(JoinedArm(Sample(name, by_seed, course), figures, arm, [run.name], [number]))
    for one in found:
        if len(one.runs) == len(runs):
            one.sample = Sample(one.arm, one.sample.by_seed, one.sample.course)
    return found


def _chosen(arms: list[JoinedArm], only: Sequence[str]) -> list[JoinedArm]:
    """The arms of these names, or all; E431 where no run has one of them."""
    known = dict.fromkeys(one.arm for one in arms)
    if unknown := [name for name in only if name not in known]:
        raise RunFolderError(Problem("E431", f'no run has an arm "{unknown[0]}"', hint=suggestion(unknown[0], known)))
    return [one for one in arms if not only or one.arm in only]


def _number(value: float | None) -> float:
    return math.nan if value is None else float(value)


def _labels(runs: Sequence[Run]) -> list[str]:
    """What each run is called in front of its arms: its words, else its id, else its path; all of the same kind."""
    ids = [run.name for run in runs]
    words = [words_of(id_) for id_ in ids]
    for names in (words, ids):
        if len(set(names)) == len(names):
            return names
    return [str(run.path) for run in runs]


def _warnings(
    runs: Sequence[Run],
    configs: Sequence[Mapping[str, Any]],
    margins: Sequence[float],
    arms: Sequence[JoinedArm],
    pairs: Sequence[tuple[JoinedArm, JoinedArm]],
) -> Iterator[str]:
    first, own = runs[0], configs[0]
    for other, theirs in zip(runs[1:], configs[1:], strict=True):
        pair = f"{first.name} and {other.name}"
        if differences := list(_differences(_compared_part(own), _compared_part(theirs))):
            more = len(differences) - DIFFERENCES_TOLD
            told = ", ".join(differences[:DIFFERENCES_TOLD]) + (f", and {more} more" if more > 0 else "")
            yield f"{pair} differ in more than their arms: {told}"
        if differences := list(_differences(_code(first), _code(other))):
            yield f"{pair} ran other code: {', '.join(differences)}"
    if len(set(margins)) > 1:
        told = ", ".join(f"{run.name} {margin:g}" for run, margin in zip(runs, margins, strict=True))
        yield f"the runs declared other margins ({told}); the largest counts"
    for one in arms:
        if len(one.runs) > 1:
            yield f"{one.arm} has the same figures in {' and '.join(one.runs)}: it is taken once"
    yield from _pairing(pairs)


def _pairing(pairs: Sequence[tuple[JoinedArm, JoinedArm]]) -> Iterator[str]:
    """What is said of arms that cannot be paired, or in part only: once for each pair of runs."""
    told: set[str] = set()
    for one, other in pairs:
        a, b = one.sample, other.sample
        shared = len(shared_seeds(a, b))
        where = f"the arms of {one.runs[0]} and {other.runs[0]}"
        if shared == len(a.by_seed) == len(b.by_seed) or where in told:
            continue
        told.add(where)
        counts = f"{len(a.by_seed)} and {len(b.by_seed)}"
        if shared:
            yield f"{where} are paired by the {shared} seeds that both have; they have {counts}"
        else:
            common = len(a.by_seed.keys() & b.by_seed.keys())
            why = "their tasks differ" if a.course != b.course else f"they share {common} seeds of {counts}"
            yield f"{where} are not paired, as {why}: Mann-Whitney test and Welch's interval, which show less"


def _compared_part(config: Mapping[str, Any]) -> Mapping[str, Any]:
    return {key: value for key, value in config.items() if key not in ARMS_AND_NAMES}


def _code(run: Run) -> dict[str, Any]:
    """What computed: versions of the core, of torch, and of each plugin, with the hash of its code."""
    machine, plugins = run.manifest.get("machine"), run.manifest.get("plugins")
    told = {key: machine.get(key) for key in ("esper-core", "torch")} if isinstance(machine, dict) else {}
    for plugin in plugins if isinstance(plugins, list) else []:
        if isinstance(plugin, dict):
            told[str(plugin.get("package"))] = f"{plugin.get('version')} ({str(plugin.get('sha256'))[:8]})"
    return told


def _differences(own: Any, theirs: Any, path: str = "") -> Iterator[str]:
    """Where two configurations differ, each place with both values; of a component of another name nothing below."""
    if own == theirs:
        return
    both = isinstance(own, dict) and isinstance(theirs, dict)
    if both and own.get("use") == theirs.get("use"):
        for key in dict.fromkeys((*own, *theirs)):
            yield from _differences(own.get(key), theirs.get(key), f"{path}.{key}".removeprefix("."))
        return
    yield f"{path} ({_short(own)}, {_short(theirs)})"


def _short(value: Any) -> str:
    if isinstance(value, dict) and "use" in value:
        return str(value["use"])
    text = json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= 40 else f"{text[:39]}…"
