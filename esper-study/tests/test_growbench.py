"""growbench's puzzles, graph, tables and bench, on tables of random numbers; ``test_growbench_engine`` trains."""

import json
import math
from dataclasses import asdict
from itertools import product

import numpy as np
import pytest

from esper_core.leyline import WAIT, Action, Candidate, Op, SlotDescription, SlotState
from esper_run.app.episode import Episode
from esper_study.growbench import (
    CANDIDATES,
    COLUMNS,
    PARTS,
    Bench,
    FixedPlan,
    Kept,
    Match,
    Node,
    Oracle,
    after,
    best_fixed_plan,
    best_plan,
    end_nodes,
    load_table,
    mask_at,
    nodes,
    pack_table,
    plan_rewards,
    puzzle,
    score,
)
from esper_study.growbench.engine import puzzle_file
from esper_study.growbench.graph import branches, node_index, parents
from esper_study.growbench.puzzles import (
    CHANNELS,
    DECIDE_EVERY,
    DECISIONS,
    EASY,
    HIDDEN,
    NOISE,
    SHARES,
    SLOTS,
    STEPS,
    VOID,
)
from esper_study.growbench.table import CARD, GAIN_FIELDS, NUMBERS, SLOT_STATES

NODES = nodes()
ENDS = end_nodes()
GOING_ON = tuple(node for node in NODES if not node.over)
HOST = 1000
SEED_COLUMNS = [COLUMNS.index(name) for name in COLUMNS if name.startswith(("incubation", "seed", "gradients", "gain"))]


def all_actions():
    """Yield all actions, including ones on slots and blueprints that do not exist."""
    for op, slot, name in product(
        Op, [*SLOTS, "middle", None], [*{b for _, b in CANDIDATES}, "blueprints/noise", None]
    ):
        yield Action(op, slot, name)


def random_measurements(puzzle_):
    """Return random but consistent measurements of a puzzle: (nodes, columns)."""
    values = np.random.default_rng(puzzle_.seed).random((len(NODES), len(COLUMNS))).astype(np.float32)
    at = {name: number for number, name in enumerate(COLUMNS)}
    for number, node in enumerate(NODES):
        living = node.pending is not None
        values[number, at["parameters"]] = HOST + 50 * (len(node.kept) + living)
        for slot in SLOTS:
            holds_seed = living and CANDIDATES[node.pending[0]][0] == slot
            values[number, at[f"state_{slot}"]] = SLOT_STATES.index(
                SlotState.OCCUPIED if holds_seed else SlotState.FREE
            )
        if not living:
            values[number, SEED_COLUMNS] = np.nan
    values[:, at["gain_n"]] = np.where(np.isnan(values[:, at["gain_n"]]), np.nan, 300)
    values[:, at["seed_parameters"]] = np.where(np.isnan(values[:, at["seed_parameters"]]), np.nan, 50)
    return values


def trained(folder, puzzle_, channels=8):
    """Write the file of a puzzle as ``train_to_file`` does, with random measurements."""
    seed = Candidate("blueprints/pointwise", 50, None, 1, identity=True, traits=("compile",))
    places = {"early": asdict(SlotDescription("sequence", channels, (40,), 0.0, HOST, None, (seed,)))}
    file = puzzle_file(puzzle_, folder)
    np.savez(
        file,
        values=random_measurements(puzzle_),
        places=np.frombuffer(json.dumps(places).encode(), dtype=np.uint8),
    )
    return puzzle_, file


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    """Return the folder of a table with six puzzles."""
    folder = tmp_path_factory.mktemp("growbench")
    built = [trained(folder, puzzle(n, part), channels=8 + n % 2) for n in range(3) for part in PARTS]
    pack_table([*built, (puzzle(7), folder / "nowhere.npz")], folder / "table")
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


class RandomPlayer:
    """Draws from all actions, allowed or not."""

    def __init__(self, seed):
        self.draw = np.random.default_rng(seed)

    def act(self, observations, masks):
        possible = list(all_actions())
        return [possible[self.draw.integers(len(possible))] for _ in observations]


class WaitingPlayer:
    def act(self, observations, masks):
        return [WAIT] * len(observations)


# Puzzles


def test_puzzles_are_deterministic_and_within_their_ranges():
    puzzles = [puzzle(n, part) for n in range(200) for part in PARTS]
    assert puzzles == [puzzle(n, part) for n in range(200) for part in PARTS]
    assert {drawn_puzzle.kind for drawn_puzzle in puzzles} == set(SHARES)
    assert {drawn_puzzle.channels for drawn_puzzle in puzzles} == set(CHANNELS)
    assert {drawn_puzzle.hidden for drawn_puzzle in puzzles} == set(HIDDEN)
    assert all(NOISE[0] <= drawn_puzzle.noise <= NOISE[1] for drawn_puzzle in puzzles)
    assert all(0 <= drawn_puzzle.easy <= EASY and 0 <= drawn_puzzle.void <= VOID for drawn_puzzle in puzzles)
    mixed = {drawn_puzzle.kind for drawn_puzzle in puzzles if drawn_puzzle.easy or drawn_puzzle.void}
    assert mixed == {"near", "far", "value", "joint"}, "only four kinds mix in easy and void examples"
    first = [
        (drawn_puzzle.kind, drawn_puzzle.noise, drawn_puzzle.channels)
        for drawn_puzzle in (puzzle(0), puzzle(1), puzzle(0, "held_out"))
    ]
    assert first == [("far", 0.953, 8), ("far", 1.26, 8), ("value", 0.838, 12)]


@pytest.mark.parametrize("kind", SHARES)
def test_the_configuration_of_every_kind_of_puzzle_is_valid(kind, tmp_path):
    example = next(candidate for candidate in map(puzzle, range(400)) if candidate.kind == kind)
    file = tmp_path / "puzzle.yaml"
    file.write_text(json.dumps(example.config(12.5)))
    assert Episode.of(file).space.slots == tuple(SLOTS)


def test_train_and_held_out_share_no_seed():
    seeds = {part: {puzzle(n, part).seed for n in range(500)} for part in PARTS}
    assert [len(part_seeds) for part_seeds in seeds.values()] == [500, 500]
    assert not seeds["train"] & seeds["held_out"]


@pytest.mark.parametrize(("number", "part"), [(-1, "train"), (0, "validation")])
def test_an_invalid_puzzle_number_or_part_is_rejected(number, part):
    with pytest.raises(ValueError, match=f"Received: {number}, '{part}'"):
        puzzle(number, part)


# Graph


def test_every_node_is_listed_once_and_before_its_successors():
    assert NODES[0] == Node(0)
    assert len(set(NODES)) == len(NODES) == len(node_index())
    for number, node in enumerate(NODES):
        assert node_index()[node] == number
        assert all(node_index()[successor] > number for successor in node.successors())
    led_to = {successor for node in NODES for successor in node.successors()}
    assert led_to == set(NODES) - {Node(0)}


def test_the_mask_allows_exactly_the_actions_with_a_successor():
    for node in GOING_ON:
        allowed = [action for action in all_actions() if mask_at(node).allows(action)]
        assert WAIT in allowed
        assert {after(node, action) for action in allowed} == set(node.successors())
        refused = [action for action in all_actions() if action not in allowed]
        assert {after(node, action) for action in refused} == {node.waited()}


def test_no_action_is_possible_at_an_end():
    for end in ENDS:
        assert end.successors() == ()
        assert end.pending is None
        assert [action for action in all_actions() if mask_at(end).allows(action) and action.op is not Op.WAIT] == []
        with pytest.raises(ValueError, match="the episode is over"):
            after(end, WAIT)


def test_training_reaches_every_node_by_one_path():
    reached = [led_to for node in NODES for _, led_to in branches(node)]
    assert sorted(map(node_index().get, reached)) == list(range(1, len(NODES)))
    assert all(mask_at(before).allows(action) for before, action in parents().values())
    assert all(after(before, action) == node for node, (before, action) in parents().items())


# Table


def test_a_packed_table_can_be_loaded(packed, table):
    built = [puzzle(n, part) for n in range(3) for part in PARTS]
    assert table.puzzles == tuple(built)
    np.testing.assert_array_equal(table.values, np.stack([random_measurements(drawn_puzzle) for drawn_puzzle in built]))
    assert [places["early"].channels for places in table.places] == [8, 8, 9, 9, 8, 8]
    assert table.places[0]["early"].candidates[0].traits == ("compile",)
    assert table.of_part("train") == (0, 2, 4)
    assert table.of_part("held_out") == (1, 3, 5)
    np.testing.assert_array_equal(table.column("parameters"), table.values[:, :, COLUMNS.index("parameters")])
    assert json.loads((packed / CARD).read_text())["missing"] == ["train-007"]


def changed(packed, folder, **fields):
    """Copy the table and change fields of its card."""
    (folder / NUMBERS).write_bytes((packed / NUMBERS).read_bytes())
    (folder / CARD).write_text(json.dumps({**json.loads((packed / CARD).read_text()), **fields}))
    return folder


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"format": 0}, "another format than this version reads"),
        ({"columns": [*COLUMNS, "mood"]}, "another format than this version reads"),
        ({"nodes": 98}, "another format than this version reads"),
        ({"sha256": "0" * 64}, r"the checksum of growbench\.npz is not the one"),
        ({"puzzles": ...}, "puzzle train-000 differs from the one in the table"),
    ],
)
def test_a_card_that_does_not_fit_is_rejected(packed, tmp_path, fields, message):
    first, *unchanged = json.loads((packed / CARD).read_text())["puzzles"]
    fields = {"puzzles": [{**first, "noise": 0.5}, *unchanged]} if "puzzles" in fields else fields
    with pytest.raises(ValueError, match=message):
        load_table(changed(packed, tmp_path, **fields))


def test_a_pickle_is_not_loaded(tmp_path):
    file = tmp_path / "train-000.npz"
    trap = np.empty(1, dtype=object)
    trap[0] = {"a": "pickle"}
    np.savez(file, values=trap, places=trap)
    with pytest.raises(ValueError, match="allow_pickle=False"):
        pack_table([(puzzle(0), file)], tmp_path / "table")


def test_packing_without_any_trained_puzzle_is_rejected(tmp_path):
    with pytest.raises(ValueError, match=r"none of the puzzles has been trained\. Received: 1"):
        pack_table([(puzzle(0), tmp_path / "nowhere.npz")], tmp_path / "table")
    assert not (tmp_path / "table").exists()


# Bench


def test_the_rewards_of_an_episode_add_up_to_the_potential_of_its_end(bench, matches):
    for seed in range(5):
        rollout, reached = bench.play(RandomPlayer(seed), matches, round_=seed)
        assert rollout.round == seed
        for match, played, end in zip(matches, rollout.trajectories, reached, strict=True):
            assert end in node_index()
            assert end.over
            assert len(played.turns) == DECISIONS
            paid = math.fsum(turn.reward.total for turn in played.turns)
            assert paid == pytest.approx(bench.total_reward(match, end), abs=1e-9)
            steps = [turn.observation.step for turn in played.turns]
            assert [*steps, played.final.step] == [0, 4, 8, 12, 19]


def test_every_end_is_reachable_and_growing_nothing_earns_nothing(bench, matches):
    for end in ENDS:
        _, reached = bench.play(FixedPlan(end), matches)
        assert set(reached) == {end}
    rollout, reached = bench.play(WaitingPlayer(), matches)
    assert set(reached) == {Node(DECISIONS)}
    assert {turn.reward.total for played in rollout.trajectories for turn in played.turns} == {0.0}


def test_observations_show_the_measurements_of_the_table(table, bench):
    for node in NODES:
        observation, mask = bench.observe(Match(3, 12.5), node)
        row = dict(zip(COLUMNS, table.values[3, node_index()[node]].tolist(), strict=True))
        now = observation.signals
        shown = (now.train_loss, now.validation_loss, now.validation_metric, now.parameters)
        assert shown == (row["train_loss"], row["validation_loss"], row["validation_metric"], row["parameters"])
        assert (now.host_parameters, now.fossils, observation.price) == (HOST, len(node.kept), 12.5)
        assert (observation.step, observation.steps) == (node.step, STEPS)
        assert observation.twin == bench.observe(Match(3, 0.0), Node(node.decision))[0].signals
        assert observation.descriptions is table.places[3]
        assert mask is mask_at(node)
        assert len(now.seeds) == (node.pending is not None)
        for seed in now.seeds:
            sprout, planted = node.pending
            assert (seed.blueprint, seed.age) == (CANDIDATES[sprout][1], DECIDE_EVERY * (node.decision - planted))
            assert [getattr(seed.gain, name) for name in GAIN_FIELDS] == [row[f"gain_{name}"] for name in GAIN_FIELDS]


def test_excluded_blueprints_cannot_germinate(table, matches):
    late = Node(DECISIONS, (Kept(CANDIDATES.index(("late", "blueprints/mlp")), 0, 1),))
    bench = Bench(table, without=["blueprints/mlp", "blueprints/pointwise"])
    assert bench.space.blueprints == {"early": ("blueprints/depthwise_separable", "blueprints/dilated"), "late": ()}
    _, mask = bench.observe(matches[0], Node(0))
    possible = {action for action in all_actions() if mask.allows(action) and action.op is not Op.WAIT}
    assert possible == {Action(Op.GERMINATE, "early", blueprint) for blueprint in bench.space.blueprints["early"]}
    _, reached = bench.play(FixedPlan(late), matches)
    assert set(reached) == {Node(DECISIONS)}


def test_playing_without_matches_is_rejected(bench):
    with pytest.raises(ValueError, match="at least one match"):
        bench.play(WaitingPlayer(), [])


# Score


def test_the_oracle_has_no_regret(bench, matches):
    _, reached = bench.play(Oracle(bench, matches), matches)
    result = score(bench, matches, reached)
    assert result.regret == 0.0
    assert result.reward == result.best > 0
    for match in matches:
        worth, end = best_plan(bench, match)
        assert worth == bench.total_reward(match, end) == max(bench.total_reward(match, plan_end) for plan_end in ENDS)


def test_the_best_fixed_plan_has_the_highest_mean_reward(bench, matches):
    rewards = plan_rewards(bench, matches)
    assert rewards.shape == (len(matches), len(ENDS))
    assert rewards[4, 7] == bench.total_reward(matches[4], ENDS[7])
    means = {end: np.mean([bench.total_reward(match, end) for match in matches]) for end in ENDS}
    assert means[best_fixed_plan(bench, matches)] == max(means.values())
