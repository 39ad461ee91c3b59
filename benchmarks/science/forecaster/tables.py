"""What the table of growbench has to learn from, and episodes on it.

Its problems have one host family, ``pointwise-mlp``, at one learning rate. They have looks at every fourth step only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from benchmarks.science.forecaster.episodes import Played
from benchmarks.science.forecaster.problems import PRICE
from benchmarks.science.forecaster.regressions import Row
from esper_policies.forecaster import Recollection
from esper_policies.posteriors import EVIDENCE, SITUATION, error_of, evidence, reach_of, situation, values_of
from esper_study.growbench import CANDIDATES, COLUMNS, Kept, Match, Node, best_plan
from esper_study.growbench.puzzles import DECISIONS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from esper_core.leyline import Policy
    from esper_study.growbench import Bench

METRIC: Final = COLUMNS.index("validation_metric")


def table_rows(bench: Bench, puzzles: Sequence[int]) -> tuple[list[Row], list[Row]]:
    """Return what was known before each seed germinated, and at each look at it."""
    before: list[Row] = []
    looks: list[Row] = []
    for puzzle in puzzles:
        for candidate, _ in enumerate(CANDIDATES):
            for planted in range(DECISIONS - 1):
                first, *further = _rows(bench, puzzle, candidate, planted)
                before.append(first)
                looks += further
    return before, looks


def play_on_table(bench: Bench, policy: Policy, puzzles: Sequence[int]) -> list[Played]:
    """Return the episode of each problem."""
    matches = [Match(puzzle, PRICE) for puzzle in puzzles]
    _, ends = bench.play(policy, matches)
    return [played_to(bench, match, end) for match, end in zip(matches, ends, strict=True)]


def best_on_table(bench: Bench, puzzles: Sequence[int]) -> list[Played]:
    """Return the best plan of each problem."""
    matches = [Match(puzzle, PRICE) for puzzle in puzzles]
    return [played_to(bench, match, best_plan(bench, match)[1]) for match in matches]


def played_to(bench: Bench, match: Match, end: Node) -> Played:
    """Return the episode that ends at a node of the table."""
    kept = [(*CANDIDATES[seed.candidate], seed.planted) for seed in end.kept]
    return Played(kept[0] if kept else None, bench.total_reward(match, end))


def _rows(bench: Bench, puzzle: int, candidate: int, planted: int) -> Iterator[Row]:
    """Yield the rows of a seed: that at its germination, then those of the looks at it."""
    memory, (slot, blueprint) = Recollection(), CANDIDATES[candidate]
    place, name = bench.table.places[puzzle][slot], bench.table.puzzles[puzzle].name
    end = Node(DECISIONS, (Kept(candidate, planted, planted + 1),))
    kept, alone = (float(bench.table.row(puzzle, node)[METRIC]) for node in (end, Node(DECISIONS)))
    parameters, reach = reach_of(place, blueprint)
    for decision in range(DECISIONS):
        node = Node(decision, (), (candidate, planted) if decision > planted else None)
        seen, _ = bench.observe(Match(puzzle, PRICE), node)
        memory.look(seen)
        features, share = situation(seen, memory.losses, parameters or 0, reach), (kept - alone) / error_of(seen)
        curve = f"{name} {candidate} {planted}"
        if decision == planted:
            yield Row(name, curve, tuple(values_of(features, SITUATION)), share)
        elif decision > planted and (gains := memory.gains.get(slot, {}).get(blueprint)):
            (seed,) = seen.signals.seeds
            yield Row(name, curve, tuple(values_of(evidence(features, seen, seed, gains), EVIDENCE)), share)
