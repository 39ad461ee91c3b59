"""Which pairs of arms does who names several runs ask about? Not all: each further one makes every verdict dearer.

Holm's adjustment counts the comparisons that are made. Two runs with two controls each have fifteen pairs of arms, for
which eight seeds are too few; what a run showed by itself would be taken away by what nobody asked for.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Any, Final

from esper_core.config.limits import CAPACITY

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from esper_core.runs.comparing import Sample
    from esper_core.runs.records import Run

TWIN: Final = "twin"
"""What a run calls its arm without growth."""


@dataclass(slots=True)
class JoinedArm:
    """One arm of the comparison: its figures, and the runs that have it, by name and by their place among all."""

    sample: Sample
    figures: Mapping[str, Any]
    arm: str
    runs: list[str]
    numbers: list[int]


def asked_for(runs: Sequence[Run], arms: Sequence[JoinedArm]) -> list[tuple[JoinedArm, JoinedArm]]:
    """Of one run the pairs that its own summary compares; of several what stands in each row.

    Within a run: of the pairs of its summary those of two arms that act, and of such an arm with its own controls.
    Between two runs: arms that act and have the same name; where there are none, each with each.
    """
    made = [_made_by(run) for run in runs]
    if len(runs) == 1:
        return [pair for pair in combinations(arms, 2) if _names(*pair) in made[0]]
    acting = [_acting(run) for run in runs]
    found = []
    for one, other in combinations(arms, 2):
        if shared := set(one.numbers) & set(other.numbers):
            wanted = _belong_together(one.arm, other.arm) and any(_names(one, other) in made[run] for run in shared)
        else:
            wanted = any(_face_each_other(one, other, acting[i], acting[j]) for i in one.numbers for j in other.numbers)
        if wanted:
            found.append((one, other))
    return found


def _made_by(run: Run) -> set[frozenset[str]]:
    """The pairs of arms that a run's own summary compares."""
    return {frozenset((one["a"], one["b"])) for one in (run.results or {})["comparisons"]}


def _names(one: JoinedArm, other: JoinedArm) -> frozenset[str]:
    return frozenset((one.arm, other.arm))


def _acting(run: Run) -> set[str]:
    """The arms that are no control; all of them where there is nothing else."""
    names = set((run.results or {})["arms"])
    return {name for name in names if not _is_control(name)} or names


def _belong_together(one: str, other: str) -> bool:
    """Whether two arms of a run both act, or one of them is a control of the other."""
    controls = [name for name in (one, other) if _is_control(name)]
    if len(controls) != 1:
        return not controls
    (acts,) = {one, other} - set(controls)
    return controls[0] in (TWIN, CAPACITY, f"{CAPACITY}-of-{acts}")


def _face_each_other(one: JoinedArm, other: JoinedArm, own: set[str], theirs: set[str]) -> bool:
    """Whether arms of two runs are compared, of which these names act."""
    if one.arm not in own or other.arm not in theirs:
        return False
    return one.arm == other.arm or not own & theirs


def _is_control(name: str) -> bool:
    return name in (TWIN, CAPACITY) or name.startswith(f"{CAPACITY}-of-")
