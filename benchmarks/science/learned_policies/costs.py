"""Compute what an episode costs: parameters left, parameters trained, operations and seconds.

Each is a multiple of the cost of the host that never grows, since hosts have several sizes. Episodes on a table train
nothing and have no seconds.
"""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Final

from esper_core.leyline import WAIT, Op
from esper_study.growbench import CANDIDATES, COLUMNS, Node, after, mask_at
from esper_study.growbench.puzzles import DECIDE_EVERY, DECISIONS, STEPS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from esper_core.leyline import Action, Candidate, Place, Played
    from esper_study.growbench import Bench, Match, PuzzleRun

SPENT: Final = ("parameters", "parameter_steps", "flops", "flops_over_steps")
"""In this order."""

SECONDS: Final = "seconds"

_FIRST: Final = 1
"""The step before the first decision."""
_LENGTHS: Final = (*[DECIDE_EVERY] * (DECISIONS - 1), STEPS - _FIRST - DECIDE_EVERY * (DECISIONS - 1))
"""Steps behind each decision."""


def spent(bench: Bench, match: Match, episode: Played, end: Node) -> tuple[float, float, float, float]:
    """Return the values that ``SPENT`` names: parameters at the end and over the steps, and likewise operations.

    An incubating seed is trained as well, in a branch with a copy of the host. The operations of that copy are counted,
    its parameters are not.
    """
    host = float(bench.table.row(match.puzzle, Node(0))[COLUMNS.index("parameters")])
    places = bench.table.places[match.puzzle]
    own = [_candidate(places, sprout) for sprout in range(len(CANDIDATES))]
    parameters, flops = ([_known(getattr(one, what)) for one in own] for what in ("parameters", "flops"))
    of_host = _known(next(iter(places.values())).host_flops)
    steps, work = host * _FIRST, of_host * _FIRST
    actions = [turn.action for turn in episode.turns]
    for length, (kept, looked_at) in zip(_LENGTHS, living(actions), strict=True):
        trained = kept if looked_at is None else [*kept, looked_at]
        hosts = 1 if looked_at is None else 2
        steps += length * (host + sum(parameters[sprout] for sprout in trained))
        work += length * (hosts * of_host + sum(flops[sprout] for sprout in trained))
    left = [one.candidate for one in end.kept]
    return (
        (host + sum(parameters[sprout] for sprout in left)) / host,
        steps / (host * STEPS),
        (of_host + sum(flops[sprout] for sprout in left)) / of_host,
        work / (of_host * STEPS),
    )


def seconds(course: PuzzleRun, actions: Sequence[Action]) -> float:
    """Return the training time of an episode, relative to the host that never grows; the twin is left out."""
    alone, own = ([course.seconds(node) for node in way] for way in (passed([WAIT] * DECISIONS), passed(actions)))
    return sum(own) / sum(alone)


def passed(actions: Sequence[Action]) -> list[Node]:
    """Return the nodes of an episode, from its beginning to its end."""
    return list(accumulate(actions, after, initial=Node(0)))


def living(actions: Sequence[Action]) -> list[tuple[list[int], int | None]]:
    """Return the trained seeds after each decision: those kept, and the incubating one, if any."""
    found: list[tuple[list[int], int | None]] = []
    for action, (node, now) in zip(actions, pairwise(passed(actions)), strict=True):
        possible = mask_at(node).allows(action)
        looked_at = None
        if possible and action.op is Op.GERMINATE and action.slot is not None and action.blueprint is not None:
            looked_at = CANDIDATES.index((action.slot, action.blueprint))
        elif node.pending is not None and (not possible or action.op is Op.WAIT):
            looked_at = node.pending[0]
        found.append(([one.candidate for one in now.kept], looked_at))
    return found


def _candidate(places: Mapping[str, Place], sprout: int) -> Candidate:
    slot, blueprint = CANDIDATES[sprout]
    found = places[slot].candidate(blueprint)
    assert found is not None, f"nothing is known of {blueprint} in {slot}"
    return found


def _known(number: float | None) -> float:
    assert number is not None, "everything of the table was counted"
    return float(number)
