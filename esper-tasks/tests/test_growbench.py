"""Is all that can be done in growbench in its graph, its table whole, and what is played on it paid to the point?

The tables here are invented, so that nothing has to be trained; ``test_growbench_exact`` asks the engine.
"""

from __future__ import annotations

import json
import math
import time
from collections import Counter
from dataclasses import asdict
from itertools import pairwise, product

import numpy as np
import pytest

from esper_core.app.preparing import prepare
from esper_core.leyline import WAIT, Action, Blend, Candidate, Op, Place, SlotState
from esper_tasks.growbench.building import COLUMNS, OF_GAIN, STATES, file_of
from esper_tasks.growbench.plans import SPROUTS, Kept, Node, ends, nodes, place_of
from esper_tasks.growbench.playing import Bench, Match, actions_to, after, mask_at
from esper_tasks.growbench.puzzles import (
    CHANNELS,
    DECISIONS,
    EASY,
    EVERY,
    HIDDEN,
    NOISE,
    PARTS,
    ROOM,
    SEEDS,
    SHARES,
    STEPS,
    VOID,
    puzzle,
)
from esper_tasks.growbench.regret import Fixed, Oracle, best_fixed, best_of, standing, worths
from esper_tasks.growbench.table import CARD, NUMBERS, load_table, pack

NODES = nodes()
ENDS = tuple(ends())
GOING_ON = tuple(node for node in NODES if not node.over)
HOST = 1000
OF_SEED = [COLUMNS.index(name) for name in COLUMNS if name.startswith(("incubation", "seed", "gradients", "gain"))]


def everything():
    """Every action of which somebody could think, also of what does not exist."""
    for op, slot, name in product(Op, [*ROOM, "middle", None], [*{b for _, b in SPROUTS}, "blueprints/noise", None]):
        yield Action(op, slot, name)


def invented(one):
    """What might have come of a puzzle: (nodes, columns)."""
    values = np.random.default_rng(one.seed).random((len(NODES), len(COLUMNS))).astype(np.float32)
    at = {name: number for number, name in enumerate(COLUMNS)}
    for number, node in enumerate(NODES):
        living = node.pending is not None
        values[number, at["parameters"]] = HOST + 50 * (len(node.kept) + living)
        for slot in ROOM:
            here = living and SPROUTS[node.pending[0]][0] == slot
            values[number, at[f"state_{slot}"]] = STATES.index(SlotState.OCCUPIED if here else SlotState.FREE)
        if not living:
            values[number, OF_SEED] = np.nan
    values[:, at["gain_n"]] = np.where(np.isnan(values[:, at["gain_n"]]), np.nan, 300)
    values[:, at["seed_parameters"]] = np.where(np.isnan(values[:, at["seed_parameters"]]), np.nan, 50)
    return values


def written(folder, one, channels=8):
    """The file of a puzzle as ``building`` would have left it."""
    seed = Candidate("blueprints/pointwise", 50, None, 1, identity=True, traits=("compile",))
    places = {"early": asdict(Place("sequence", channels, (40,), 0.0, HOST, None, (seed,)))}
    file = file_of(one, folder)
    np.savez(file, values=invented(one), places=np.frombuffer(json.dumps(places).encode(), dtype=np.uint8))
    return one, file


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    """The folder of a table of six puzzles."""
    folder = tmp_path_factory.mktemp("growbench")
    built = [written(folder, puzzle(n, part), channels=8 + n % 2) for n in range(3) for part in PARTS]
    pack([*built, (puzzle(7), folder / "nowhere.npz")], folder / "table")
    return folder / "table"


@pytest.fixture(scope="module")
def table(packed):
    return load_table(packed)


@pytest.fixture
def bench(table):
    return Bench(table)


@pytest.fixture
def matches(table):
    return [Match(n, price) for n in range(len(table.puzzles)) for price in (0.0, 3.0, 40.0)]


class Whim:
    """Does anything that is allowed, or is not."""

    def __init__(self, seed):
        self.draw = np.random.default_rng(seed)

    def act(self, observations, masks):
        possible = list(everything())
        return [possible[self.draw.integers(len(possible))] for _ in observations]


class Waits:
    def act(self, observations, masks):
        return [WAIT] * len(observations)


# The problems.


def test_a_puzzle_is_always_the_same_one_and_within_its_bounds():
    some = [puzzle(n, part) for n in range(200) for part in PARTS]
    assert some == [puzzle(n, part) for n in range(200) for part in PARTS]
    assert {one.kind for one in some} == set(SHARES)
    assert {one.channels for one in some} == set(CHANNELS)
    assert {one.hidden for one in some} == set(HIDDEN)
    assert all(NOISE[0] <= one.noise <= NOISE[1] for one in some)
    assert all(0 <= one.easy <= EASY and 0 <= one.void <= VOID for one in some)
    mixed = {one.kind for one in some if one.easy or one.void}
    assert mixed == {"near", "far", "value", "joint"}, "digits have no easy examples, and the easy riddle no others"
    first = puzzle(0), puzzle(1), puzzle(0, "held_out")
    assert [(one.kind, one.noise, one.channels) for one in first] == [
        ("far", 0.953, 8),
        ("far", 1.26, 8),
        ("value", 0.838, 12),
    ]


@pytest.mark.parametrize("kind", SHARES)
def test_every_kind_of_puzzle_is_a_run_that_the_engine_takes(kind, tmp_path):
    one = next(own for own in map(puzzle, range(400)) if own.kind == kind)
    file = tmp_path / "puzzle.yaml"
    file.write_text(json.dumps(one.config(12.5)))
    assert prepare(file).composition.space.slots == tuple(ROOM)


def test_the_kinds_come_as_often_as_is_said():
    many = Counter(puzzle(n, part).kind for n in range(1000) for part in PARTS)
    assert sum(SHARES.values()) == pytest.approx(1.0)
    assert all(many[kind] / 2000 == pytest.approx(share, abs=0.03) for kind, share in SHARES.items())


def test_no_puzzle_to_learn_on_is_one_that_is_held_out():
    seeds = {part: {puzzle(n, part).seed for n in range(500)} for part in PARTS}
    assert [len(own) for own in seeds.values()] == [500, 500]
    assert not seeds["train"] & seeds["held_out"]


@pytest.mark.parametrize(("number", "part"), [(-1, "train"), (0, "validation")])
def test_what_is_no_puzzle_is_refused(number, part):
    with pytest.raises(ValueError, match=f"Received: {number}, '{part}'"):
        puzzle(number, part)


# The graph.


def test_every_place_to_be_is_there_once_and_before_what_it_leads_to():
    assert NODES[0] == Node(0)
    assert len(set(NODES)) == len(NODES) == len(place_of())
    for number, node in enumerate(NODES):
        assert place_of()[node] == number
        assert all(place_of()[one] > number for one in node.successors())
    led_to = {one for node in NODES for one in node.successors()}
    assert led_to == set(NODES) - {Node(0)}


def test_what_the_mask_allows_is_exactly_what_leads_somewhere():
    for node in GOING_ON:
        allowed = [action for action in everything() if mask_at(node).allows(action)]
        assert WAIT in allowed
        assert {after(node, action) for action in allowed} == set(node.successors())
        others = [action for action in everything() if action not in allowed]
        assert {after(node, action) for action in others} == {node.waited()}


def test_nothing_is_possible_at_the_end():
    for end in ENDS:
        assert end.successors() == ()
        assert end.pending is None
        assert [action for action in everything() if mask_at(end).allows(action) and action.op is not Op.WAIT] == []
        with pytest.raises(ValueError, match="the episode is over"):
            after(end, WAIT)


def test_there_is_room_for_whatever_is_kept():
    for node in NODES:
        assert len(node.kept) <= SEEDS
        assert all(node.fossils(slot) <= 1 for slot in ROOM)
        full = len(node.kept) == SEEDS or node.pending is not None
        assert not (full and node.plantable())
        growing = [(one.planted, one.advanced) for one in node.kept]
        assert all(begin < then < node.decision for begin, then in growing)
        assert all(then < begin for (_, then), (begin, _) in pairwise(growing))


def test_a_plan_has_as_many_ends_as_can_be_counted_by_hand():
    """One seed: pairs of a decision to plant and a later one to blend in. Two: the only way to do it in four."""
    pairs = math.comb(DECISIONS, 2)
    two = sum(first != second for (first, _), (second, _) in product(SPROUTS, repeat=2))
    assert len(ENDS) == 1 + pairs * len(SPROUTS) + two


def test_to_be_dropped_is_as_never_to_have_been_planted():
    pending = [node for node in GOING_ON if node.pending is not None]
    assert pending
    for node in pending:
        bare = Node(node.decision, node.kept)
        assert node.dropped() == bare.waited()
        slot, blueprint = SPROUTS[node.pending[0]]
        assert after(node, Action(Op.PRUNE, slot, blueprint)) == after(node, Action(Op.PRUNE, slot)) == bare.waited()


@pytest.mark.parametrize("end", ENDS, ids=lambda end: f"end-{ENDS.index(end)}")
def test_the_actions_to_an_end_lead_there_and_are_allowed(end):
    node = Node(0)
    for action in actions_to(end):
        assert mask_at(node).allows(action)
        node = after(node, action)
    assert node == end


def test_how_a_seed_is_to_be_blended_in_makes_no_difference():
    plain, other = (Action(Op.GERMINATE, *SPROUTS[0], **how) for how in ({}, {"blend": Blend.GATE, "speed": 9}))
    assert after(Node(0), plain) == after(Node(0), other) == Node(1, (), (0, 0))


def test_steps_are_those_after_which_a_gardener_is_asked():
    assert [Node(decision).step for decision in range(DECISIONS + 1)] == [0, EVERY, 2 * EVERY, 3 * EVERY, STEPS - 1]


# The table.


def test_what_is_packed_comes_back(packed, table):
    built = [puzzle(n, part) for n in range(3) for part in PARTS]
    assert table.puzzles == tuple(built)
    np.testing.assert_array_equal(table.values, np.stack([invented(one) for one in built]))
    assert [own["early"].channels for own in table.places] == [8, 8, 9, 9, 8, 8]
    assert table.places[0]["early"].candidates[0].traits == ("compile",)
    assert table.of_part("train") == (0, 2, 4)
    assert table.of_part("held_out") == (1, 3, 5)
    np.testing.assert_array_equal(table.column("parameters"), table.values[:, :, COLUMNS.index("parameters")])
    assert json.loads((packed / CARD).read_text())["missing"] == ["train-007"]


def changed(packed, folder, **fields):
    """A copy of the table whose card says something else."""
    (folder / NUMBERS).write_bytes((packed / NUMBERS).read_bytes())
    (folder / CARD).write_text(json.dumps({**json.loads((packed / CARD).read_text()), **fields}))
    return folder


@pytest.mark.parametrize("told", [{"format": 0}, {"format": None}, {"columns": [*COLUMNS, "mood"]}, {"nodes": 98}])
def test_a_table_of_another_format_is_refused(packed, tmp_path, told):
    with pytest.raises(ValueError, match="another format than this version reads: build it again"):
        load_table(changed(packed, tmp_path, **told))


@pytest.mark.parametrize("told", [{"sha256": "0" * 64}, {"sha256": None}])
def test_numbers_that_the_card_does_not_describe_are_refused(packed, tmp_path, told):
    with pytest.raises(ValueError, match="its checksum is another"):
        load_table(changed(packed, tmp_path, **told))


def test_a_single_byte_that_was_lost_is_noticed(packed, tmp_path):
    folder = changed(packed, tmp_path)
    (folder / NUMBERS).write_bytes((packed / NUMBERS).read_bytes()[:-1])
    with pytest.raises(ValueError, match="its checksum is another"):
        load_table(folder)


def test_a_puzzle_that_is_another_one_by_now_is_refused(packed, tmp_path):
    first, *rest = json.loads((packed / CARD).read_text())["puzzles"]
    with pytest.raises(ValueError, match="train-000 is another one here than in the table"):
        load_table(changed(packed, tmp_path, puzzles=[{**first, "noise": 0.5}, *rest]))


def test_a_file_that_would_run_a_program_is_not_opened(tmp_path):
    file = tmp_path / "train-000.npz"
    trap = np.empty(1, dtype=object)
    trap[0] = {"a": "pickle"}
    np.savez(file, values=trap, places=trap)
    with pytest.raises(ValueError, match="allow_pickle=False"):
        pack([(puzzle(0), file)], tmp_path / "table")


def test_to_pack_nothing_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"none of the puzzles was built\. Received: 1"):
        pack([(puzzle(0), tmp_path / "nowhere.npz")], tmp_path / "table")
    assert not (tmp_path / "table").exists()


# Episodes.


def test_whoever_plays_is_paid_what_the_end_is_worth(bench, matches):
    for seed in range(5):
        rollout, reached = bench.play(Whim(seed), matches, round_=seed)
        assert rollout.round == seed
        for match, played, end in zip(matches, rollout.episodes, reached, strict=True):
            assert end in place_of()
            assert end.over
            assert len(played.turns) == DECISIONS
            paid = math.fsum(turn.reward.total for turn in played.turns)
            assert paid == pytest.approx(bench.total(match, end), abs=1e-9)
            steps = [turn.observation.step for turn in played.turns]
            assert [*steps, played.final.step] == [0, 4, 8, 12, 19]


def test_every_end_can_be_reached_and_nothing_grown_is_worth_nothing(bench, matches):
    for end in ENDS:
        _, reached = bench.play(Fixed(end), matches)
        assert set(reached) == {end}
    rollout, reached = bench.play(Waits(), matches)
    assert set(reached) == {Node(DECISIONS)}
    assert {turn.reward.total for played in rollout.episodes for turn in played.turns} == {0.0}


def test_what_is_shown_is_what_was_measured_there(table, bench):
    for node in NODES:
        observation, mask = bench.look(Match(3, 12.5), node)
        row = dict(zip(COLUMNS, table.values[3, place_of()[node]].tolist(), strict=True))
        now = observation.signals
        shown = (now.train_loss, now.validation_loss, now.validation_metric, now.parameters)
        assert shown == (row["train_loss"], row["validation_loss"], row["validation_metric"], row["parameters"])
        assert (now.host_parameters, now.fossils, observation.price) == (HOST, len(node.kept), 12.5)
        assert (observation.step, observation.steps) == (node.step, STEPS)
        assert observation.twin == bench.look(Match(3, 0.0), Node(node.decision))[0].signals
        assert observation.places is table.places[3]
        assert mask is mask_at(node)
        assert len(now.seeds) == (node.pending is not None)
        for seed in now.seeds:
            sprout, planted = node.pending
            assert (seed.blueprint, seed.age) == (SPROUTS[sprout][1], EVERY * (node.decision - planted))
            assert [getattr(seed.gain, name) for name in OF_GAIN] == [row[f"gain_{name}"] for name in OF_GAIN]


def test_a_price_takes_from_what_is_kept_and_from_nothing_else(bench):
    two = (Kept(0, 0, 1), Kept(3, 2, 3))
    dear, cheap = (bench.worth(Match(0, price), Node(DECISIONS, two)) for price in (40.0, 0.0))
    assert cheap == {"improvement": dear["improvement"], "rent": 0.0, "fossil_fee": 0.0}
    assert dear["rent"] == pytest.approx(-40.0 * 100 / HOST)
    assert dear["fossil_fee"] == pytest.approx(-40.0 * 0.2)


def test_other_prices_cost_no_memory(bench):
    node = Node(1, (), (0, 0))
    seen = {id(bench.look(Match(0, price), node)[0].signals) for price in np.linspace(0, 50, 100).tolist()}
    assert len(seen) == 1


def test_what_is_left_out_cannot_be_planted(table, matches):
    late = Node(DECISIONS, (Kept(SPROUTS.index(("late", "blueprints/mlp")), 0, 1),))
    bench = Bench(table, without=["blueprints/mlp", "blueprints/pointwise"])
    assert bench.space.blueprints == {"early": ("blueprints/depthwise_separable", "blueprints/dilated"), "late": ()}
    _, mask = bench.look(matches[0], Node(0))
    possible = {action for action in everything() if mask.allows(action) and action.op is not Op.WAIT}
    assert possible == {Action(Op.GERMINATE, "early", one) for one in bench.space.blueprints["early"]}
    _, reached = bench.play(Fixed(late), matches)
    assert set(reached) == {Node(DECISIONS)}


def test_to_play_nothing_is_refused(bench):
    with pytest.raises(ValueError, match="one match at least"):
        bench.play(Waits(), [])


def test_episodes_are_played_fast(bench, matches):
    bench.play(Waits(), matches)
    times = []
    for _ in range(5):
        begin = time.perf_counter()
        bench.play(Waits(), matches)
        times.append(time.perf_counter() - begin)
    assert len(matches) * DECISIONS / min(times) > 2000


# The best, and how far behind others are.


def test_who_knows_the_table_is_never_behind(bench, matches):
    _, reached = bench.play(Oracle(bench, matches), matches)
    found = standing(bench, matches, reached)
    assert found.regret == 0.0
    assert found.reward == found.best > 0
    for match in matches:
        worth, end = best_of(bench, match)
        assert worth == bench.total(match, end) == max(bench.total(match, one) for one in ENDS)


def test_who_grows_nothing_is_all_behind_and_others_are_in_between_or_worse(bench, matches):
    _, reached = bench.play(Waits(), matches)
    assert standing(bench, matches, reached) == standing(bench, matches, [Node(DECISIONS)] * len(matches))
    assert standing(bench, matches, reached).regret == 1.0
    _, reached = bench.play(Whim(0), matches)
    assert standing(bench, matches, reached).regret > 0.0


def test_where_nothing_pays_nobody_is_behind(bench, table):
    ruinous = [Match(n, 1e6) for n in range(len(table.puzzles))]
    found = standing(bench, ruinous, [Node(DECISIONS)] * len(ruinous))
    assert (found.reward, found.best, found.regret) == (0.0, 0.0, 0.0)


def test_the_best_that_does_the_same_everywhere_is_the_best_of_all_plans(bench, matches):
    each = worths(bench, matches)
    assert each.shape == (len(matches), len(ENDS))
    assert each[4, 7] == bench.total(matches[4], ENDS[7])
    means = {end: np.mean([bench.total(match, end) for match in matches]) for end in ENDS}
    assert means[best_fixed(bench, matches)] == max(means.values())
