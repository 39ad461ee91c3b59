"""growbench: small growth problems with a known optimum, because every plan of each was trained.

An episode has twenty steps and four decisions, and a host may keep two seeds, one after the other. The results of all
plans are recorded in a table. On it a policy plays episodes in microseconds, with the numbers of the engine, and its
regret against the best plan is known. Start reading with ``bench``.

    puzzles    the problems, drawn from one family, to learn on or held out
    graph      the states of an episode, and what leads from one to another
    table      the recorded measurements, and their files
    bench      episodes on a table; the best plans; regret
    engine     training: a whole table, or only what a policy does
"""

from esper_study.growbench.bench import (
    Bench,
    FixedPlan,
    Match,
    Oracle,
    Score,
    best_fixed_plan,
    best_plan,
    plan_rewards,
    score,
)
from esper_study.growbench.engine import LiveTable, PuzzleRun, live_table
from esper_study.growbench.graph import CANDIDATES, Kept, Node, actions_to, after, end_nodes, mask_at, nodes
from esper_study.growbench.puzzles import PARTS, Part, Puzzle, puzzle
from esper_study.growbench.table import COLUMNS, Table, load_table, pack_table, shipped_table

__all__ = [
    "CANDIDATES",
    "COLUMNS",
    "PARTS",
    "Bench",
    "FixedPlan",
    "Kept",
    "LiveTable",
    "Match",
    "Node",
    "Oracle",
    "Part",
    "Puzzle",
    "PuzzleRun",
    "Score",
    "Table",
    "actions_to",
    "after",
    "best_fixed_plan",
    "best_plan",
    "end_nodes",
    "live_table",
    "load_table",
    "mask_at",
    "nodes",
    "pack_table",
    "plan_rewards",
    "puzzle",
    "score",
    "shipped_table",
]
