"""Comparison of the arms of one or several finished runs, seed by seed.

Holm's adjustment counts every comparison of a family. The pairs of a run are a family, the same in its own summary and
in any comparison with other runs, so that one question has one p-value; the pairs between runs are another one. Of
several runs only the pairs that a reader expects are compared; see ``_pairs_between``.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from itertools import combinations
from typing import TYPE_CHECKING, Any, Final

from esper_core.leyline import Problem, RunFolderError
from esper_core.leyline.constants import MIN_SEEDS_FOR_VERDICT
from esper_core.leyline.errors import suggestion
from esper_run.runs.records import changed_events, words_of
from esper_run.runs.statistics import Sample, as_record, compare_paired, judge_together, shared_seeds
from esper_watch.formats import cut
from esper_watch.history import CAPACITY, TWIN, is_control, metric_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from esper_core.leyline import Metric
    from esper_run import Run

EXPECTED_TO_DIFFER: Final = frozenset(
    (
        *("name", "policy", "arms", "twin", "capacity", "sinks", "plugins"),
        *("seed", "environments", "rounds", "devices", "lanes", "engine", "checkpoints"),
    )
)
"""Keys of a configuration that belong to its arms, are reported by themselves, or change no number."""

MAX_DIFFERENCES: Final = 8
"""Differences between configurations that a warning names."""


@dataclass(slots=True)
class ComparedArm:
    """One arm of the comparison. Arms of several runs with the same figures are one."""

    arm: str
    """Its name in its run."""
    sample: Sample
    figures: Mapping[str, Any]
    """What the summary says about it."""
    runs: list[int] = field(default_factory=list)
    """Which of the runs have it."""


@dataclass(frozen=True, slots=True)
class ComparedRuns:
    """The arms of one or several runs, and how they compare."""

    runs: Sequence[Run]
    metric: Metric
    arms: Sequence[ComparedArm]
    comparisons: Sequence[Mapping[str, Any]]
    """As in summary.json."""
    warnings: Sequence[str]

    @property
    def left_out(self) -> int:
        """Number of pairs of arms that are not compared."""
        return math.comb(len(self.arms), 2) - len(self.comparisons)

    @property
    def identical(self) -> list[str]:
        """Arms that have the same figures in several runs, in words."""
        labels = _labels(self.runs)
        merged = [arm for arm in self.arms if len(arm.runs) > 1]
        return [f"{' against '.join(f'{labels[at]}/{arm.arm}' for at in arm.runs)}: identical" for arm in merged]

    def as_json(self) -> dict[str, Any]:
        """Return the comparison as ``esper compare --json`` prints it."""
        return {
            "runs": [{"path": str(run.path), "id": run.id, "status": run.status} for run in self.runs],
            "metric": {"name": self.metric.name, "direction": self.metric.direction, "unit": self.metric.unit},
            "arms": {
                arm.sample.name: {"arm": arm.arm, "runs": [self.runs[at].name for at in arm.runs], **arm.figures}
                for arm in self.arms
            },
            "comparisons": list(self.comparisons),
            "warnings": list(self.warnings),
        }


def compare_runs(runs: Sequence[Run], only: Sequence[str] = (), *, every: bool = False) -> ComparedRuns:
    """Compare the arms of finished runs.

    Args:
        runs: The runs.
        only: Compare only the arms of these names, and all of their pairs.
        every: Compare every pair of arms.

    Raises:
        RunFolderError: E431 if the runs cannot be compared, E430 if a configuration cannot be read.
    """
    unique = list({run.path.resolve(): run for run in runs}.values())
    metric = _common_metric(unique)
    configs = [run.config() for run in unique]
    _require_one_task(unique, configs)
    arms_of_runs = _arms(unique)
    names = dict.fromkeys(compared.arm for compared in arms_of_runs)
    if unknown := [name for name in only if name not in names]:
        raise RunFolderError(Problem("E431", f'no run has an arm "{unknown[0]}"', hint=suggestion(unknown[0], names)))
    arms = [compared for compared in arms_of_runs if not only or compared.arm in only]
    pairs = list(combinations(arms, 2)) if every or only else _pairs(unique, arms)
    changed = [f"{run.id}: {why}" for run in unique if (why := changed_events(run)) is not None]
    warnings = [*changed, *_differing_runs(unique, configs), *_partly_paired_arms(unique, pairs)]
    comparisons = _compare(unique, arms_of_runs, pairs, metric)
    return ComparedRuns(unique, metric, arms, comparisons, warnings)


# --- what is compared


def _common_metric(runs: Sequence[Run]) -> Metric:
    problems = []
    for run in runs:
        if run.results is None:
            reason = f": {run.reason.splitlines()[0]}" if run.reason else ""
            message = f"{run.name} has no summary to compare: its status is {run.status}{reason}"
            problems.append(Problem("E431", message, hint=run.resume_hint))
    if problems:
        raise RunFolderError(problems)
    first, expected = runs[0], metric_of(runs[0].results or {})
    for run in runs[1:]:
        if (metric := metric_of(run.results or {})) != expected:
            message = (
                f"the runs have different metrics: {first.name} has {_describe(expected)}, "
                f"{run.name} has {_describe(metric)}"
            )
            raise RunFolderError(Problem("E431", message, hint="Compare runs of one task."))
    return expected


def _require_one_task(runs: Sequence[Run], configs: Sequence[Mapping[str, Any]]) -> None:
    first, *others = [{"task": config.get("task")} for config in configs]
    for run, other in zip(runs[1:], others, strict=True):
        if differences := list(_differences(first, other)):
            message = f"the runs have different tasks: {runs[0].name} and {run.name} differ in: {_listed(differences)}"
            hint = "Compare runs of one task with the same settings: run one of them again with those of the other."
            raise RunFolderError(Problem("E431", message, hint=hint))


def _describe(metric: Metric) -> str:
    unit = f" in {metric.unit}" if metric.unit else ""
    return f"{metric.name}{unit}, {'more' if metric.direction == 'up' else 'less'} is better"


def _arms(runs: Sequence[Run]) -> list[ComparedArm]:
    """Return every arm of every run; arms with the same name and figures are one."""
    arms: list[ComparedArm] = []
    for number, (run, label) in enumerate(zip(runs, _labels(runs), strict=True)):
        for arm, figures in (run.results or {})["arms"].items():
            by_seed = {
                episode["seed"]: math.nan if episode["test"] is None else episode["test"]
                for episode in figures["episodes"]
            }
            same = [compared for compared in arms if (compared.arm, compared.sample.by_seed) == (arm, by_seed)]
            if not same:
                name = arm if len(runs) == 1 else f"{label}/{arm}"
                same = [ComparedArm(arm, Sample(name, by_seed), figures)]
                arms += same
            same[0].runs.append(number)
    for compared in arms:
        if len(compared.runs) == len(runs):
            compared.sample = Sample(compared.arm, compared.sample.by_seed)
    return arms


def _labels(runs: Sequence[Run]) -> list[str]:
    """Return what runs are called in front of their arms: words of ids, else ids, else paths."""
    for names in ([words_of(run.name) for run in runs], [run.name for run in runs]):
        if len(set(names)) == len(names):
            return names
    return [str(run.path) for run in runs]


def _pairs(runs: Sequence[Run], arms: Sequence[ComparedArm]) -> list[tuple[ComparedArm, ComparedArm]]:
    """Return the pairs to compare: of one run those of its summary.

    Of several runs, within each run the pairs of its summary in which both arms act, or one is a control of the other;
    between two runs see ``_pairs_between``.
    """
    in_summary = [
        {frozenset((comparison["a"], comparison["b"])) for comparison in (run.results or {})["comparisons"]}
        for run in runs
    ]
    acting = [_acting(run) for run in runs]
    pairs = []
    for first, second in combinations(arms, 2):
        names = frozenset((first.arm, second.arm))
        if shared := set(first.runs) & set(second.runs):
            is_compared = any(names in in_summary[run] for run in shared) and (
                len(runs) == 1 or _belong_together(first, second)
            )
        else:
            is_compared = any(
                _pairs_between(first, second, acting[i], acting[j]) for i in first.runs for j in second.runs
            )
        if is_compared:
            pairs.append((first, second))
    return pairs


def _acting(run: Run) -> set[str]:
    """Return the arms that are not controls; all of them if there is nothing else."""
    names = set((run.results or {})["arms"])
    return {name for name in names if not is_control(name)} or names


def _belong_together(first: ComparedArm, second: ComparedArm) -> bool:
    """Return whether two arms of a run both act, or one of them is a control of the other."""
    controls = [arm for arm in (first.arm, second.arm) if is_control(arm)]
    if len(controls) != 1:
        return not controls
    (acting,) = {first.arm, second.arm} - set(controls)
    return controls[0] in (TWIN, CAPACITY, f"{CAPACITY}-of-{acting}")


def _pairs_between(first: ComparedArm, second: ComparedArm, first_acting: set[str], second_acting: set[str]) -> bool:
    """Return whether arms of two runs are compared: acting arms of one name, or all acting ones if they share none."""
    if first.arm not in first_acting or second.arm not in second_acting:
        return False
    return first.arm == second.arm or not first_acting & second_acting


# --- how they compare


def _compare(
    runs: Sequence[Run],
    arms: Sequence[ComparedArm],
    pairs: Sequence[tuple[ComparedArm, ComparedArm]],
    metric: Metric,
) -> list[dict[str, Any]]:
    """Return a record of each pair, judged together with its family, whose size is its ``family``."""
    records: dict[tuple[int, int], dict[str, Any]] = {}

    def judge(family: Sequence[tuple[ComparedArm, ComparedArm]]) -> None:
        samples = [(first.sample, second.sample) for first, second in family]
        judged = judge_together([compare_paired(a, b, direction=metric.direction) for a, b in samples])
        for (first, second), (a, b), comparison in zip(family, samples, judged, strict=True):
            # Arms that are the same in two runs may have two families: the first run's counts, as its page says.
            if (id(first), id(second)) not in records:
                records[id(first), id(second)] = {**as_record(a, b, comparison), "family": len(family)}

    for number in range(len(runs)):
        judge(list(combinations([arm for arm in arms if number in arm.runs], 2)))
    judge([pair for pair in pairs if not set(pair[0].runs) & set(pair[1].runs)])
    return [records[id(first), id(second)] for first, second in pairs]


# --- warnings


def _differing_runs(runs: Sequence[Run], configs: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    first, reference = runs[0], _comparable(configs[0])
    for other, config in zip(runs[1:], configs[1:], strict=True):
        pair = f"{first.name} and {other.name}"
        if differences := list(_differences(reference, _comparable(config))):
            yield f"the configurations of {pair} differ in: {_listed(differences)}"
        if differences := list(_differences(_code(first), _code(other))):
            yield f"{pair} ran different code: {', '.join(map(_in_words, differences))}"
        before, now = first.manifest.get("data", {}), other.manifest.get("data", {})
        alike = [name for name in before if name in now and len(now[name]) == len(before[name])]  # or both of a sample
        if changed := [name for name in alike if now[name] != before[name]]:
            yield f"{pair} have different data ({', '.join(changed)}): differences may be due to it, not to the arms"


def _comparable(config: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in config.items() if key not in EXPECTED_TO_DIFFER}


def _code(run: Run) -> dict[str, Any]:
    """Return the versions of the core, of torch, and of each plugin with its hash."""
    machine = run.manifest.get("machine", {})
    versions = {key: machine.get(key) for key in ("esper-core", "torch")}
    for plugin in run.manifest.get("plugins", []):
        local = plugin["package"] == "local file"  # whose version is the start of its hash
        key = str(plugin.get("entry_point" if local else "package"))
        versions[key] = f"{'' if local else plugin.get('version')} ({str(plugin.get('sha256'))[:8]})".strip()
    return versions


def _listed(differences: Sequence[tuple[str, Any, Any]]) -> str:
    more = len(differences) - MAX_DIFFERENCES
    return ", ".join(map(_in_words, differences[:MAX_DIFFERENCES])) + (f", and {more} more" if more > 0 else "")


def _in_words(difference: tuple[str, Any, Any]) -> str:
    path, first, second = difference
    return f"{path} ({_short(first)}, {_short(second)})"


def _differences(first: Any, second: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield each place where two configurations differ, with both values. Settings of other components are skipped."""
    if first == second:
        return
    if isinstance(first, dict) and isinstance(second, dict) and first.get("use") == second.get("use"):
        for key in dict.fromkeys((*first, *second)):
            yield from _differences(first.get(key), second.get(key), f"{path}.{key}".removeprefix("."))
    else:
        yield path, first, second


def _short(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, dict) and "use" in value:
        return str(value["use"])
    return cut(json.dumps(value, default=str, ensure_ascii=False), 40)


def _partly_paired_arms(runs: Sequence[Run], pairs: Sequence[tuple[ComparedArm, ComparedArm]]) -> Iterator[str]:
    """Yield, once for each pair of runs, that arms are paired only in part; E431 if they cannot be paired."""
    reported: set[str] = set()
    for first, second in pairs:
        a, b = first.sample.by_seed.keys(), second.sample.by_seed.keys()
        names = f"{runs[first.runs[0]].name} and {runs[second.runs[0]].name}"
        if a == b or names in reported:
            continue
        reported.add(names)
        if shared := shared_seeds(first.sample, second.sample):
            paired = f"the arms of {names} are paired by the {len(shared)} RNG seeds that both have"
            yield f"{paired}; they have {len(a)} and {len(b)}"
        else:
            message = f"{names} have different RNG seeds: they share {len(a & b)} of {len(a)} and {len(b)}"
            hint = "Run one of them again with the values of seed, environments and rounds of the other. "
            enough = f"At least {MIN_SEEDS_FOR_VERDICT} RNG seeds in common are enough."
            raise RunFolderError(Problem("E431", message, hint=hint + enough))
