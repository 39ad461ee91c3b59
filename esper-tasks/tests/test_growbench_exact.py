"""Is what is told in the table what the engine comes to, whatever is tried on the way?

As long as this machine rounds as the one did that built the table, numbers are held to be equal to the last bit of a
float32. Where it does so no more, which may be at a block that is computed by other code than its host, they part by a
rounding, and nothing larger; from there on a training takes another course by and by: all but the measurements has to
be the same, and an episode has to be worth the same to a few points.
"""

from __future__ import annotations

import json
import math
from dataclasses import astuple, fields, replace
from importlib import resources

import numpy as np
import pytest

from esper_core import Play
from esper_core.leyline import WAIT, Action, ActionMask, Op, rows_of
from esper_tasks.growbench.building import COLUMNS, build, go
from esper_tasks.growbench.plans import SPROUTS, Kept, Node, decides, nodes, place_of
from esper_tasks.growbench.playing import Bench, Match, actions_to, after, mask_at
from esper_tasks.growbench.puzzles import DECISIONS, EVERY, RAMP
from esper_tasks.growbench.regret import best_of
from esper_tasks.growbench.table import CARD, NUMBERS, shipped

PRICE = 25.0
ROUNDED = 1e-6
"""By how much numbers differ at most at the first decision after a rounding, of their size and in all."""

POINTWISE, SEPARABLE, DILATED, MLP = range(4)


@pytest.fixture(scope="module")
def bench():
    home = resources.files("esper_tasks.growbench")
    if not (home / NUMBERS).is_file() and not (home / CARD).is_file():
        pytest.skip("no table is shipped with this copy: python -m esper_tasks.growbench --pack FOLDER makes one")
    return Bench(shipped())


@pytest.fixture(scope="module")
def plays(bench, tmp_path_factory):
    """``plays(0)``: the engine's game of a puzzle of the table."""
    folder, made = tmp_path_factory.mktemp("plays"), {}

    def make(number):
        if number not in made:
            one = bench.table.puzzles[number]
            file = folder / f"{one.name}.yaml"
            file.write_text(json.dumps(one.config(PRICE)))
            made[number] = Play.of(file)
        return made[number]

    yield make
    for play in made.values():
        play.close()


def plant(sprout):
    return Action(Op.GERMINATE, *SPROUTS[sprout], speed=RAMP)


def advance(sprout):
    return Action(Op.ADVANCE, *SPROUTS[sprout])


def drop(sprout):
    return Action(Op.PRUNE, *SPROUTS[sprout])


def same_course(bench, play, number):
    """Whether the twin's losses are the table's, bit by bit: then this machine rounds as that one did."""
    told = [play.twin.signals[Node(decision).step] for decision in range(DECISIONS)]
    known = [bench.look(Match(number, PRICE), Node(decision))[0].signals for decision in range(DECISIONS)]
    return all(np.float32(own.train_loss) == np.float32(one.train_loss) for own, one in zip(told, known, strict=True))


def flat(thing):
    """Every number and name in a record, in its order; numbers as the table can hold them."""
    if isinstance(thing, tuple | list):
        return [one for part in thing for one in flat(part)]
    return [float(np.float32(thing))] if isinstance(thing, float) else [thing]


def whatever_the_slots_are(signals):
    return replace(signals, slots=tuple(replace(slot, state="any") for slot in signals.slots))


def hold_signals(live, told, *, exactly, over):
    """All that was measured; at the end but for a slot that was emptied then, and is closed for a while.

    exactly: whether the two were equal so far. Returns whether they still are.
    """
    if over:
        live, told = whatever_the_slots_are(live), whatever_the_slots_are(told)
    ours, theirs = flat(astuple(live)), flat(astuple(told))
    if exactly and theirs == ours:
        return True
    assert [one for one in theirs if not isinstance(one, float)] == [one for one in ours if not isinstance(one, float)]
    if exactly:
        own, others = ([one for one in told_ if isinstance(one, float)] for told_ in (ours, theirs))
        np.testing.assert_allclose(others, own, rtol=ROUNDED, atol=ROUNDED, err_msg="more than a rounding parts them")
    return False


def hold_moment(bench, play, moment, match, node, *, exactly):
    """What is seen at a node, what can be done there, and what it looks like in rows of numbers; see hold_signals."""
    observation, mask = bench.look(match, node)
    live = moment.observation
    assert (observation.step, observation.steps, observation.price) == (live.step, live.steps, live.price)
    own = hold_signals(live.signals, observation.signals, exactly=exactly, over=node.over)
    twins = hold_signals(live.twin, observation.twin, exactly=exactly, over=node.over)
    exactly = own and twins
    assert observation.places == play.space.places
    if node.over:
        return exactly
    hold_masks(moment.mask, mask, node)
    if exactly:
        rows, others = rows_of(play.space, live, mask), rows_of(bench.space, observation, mask)
        for name in (field.name for field in fields(rows)):
            ours, theirs = getattr(rows, name), getattr(others, name)
            if name in ("whole", "slots", "candidates"):
                np.testing.assert_allclose(theirs, ours, rtol=0, atol=1e-6, err_msg=name)
            else:
                assert theirs == ours
    return exactly


def hold_masks(live: ActionMask, mask: ActionMask, node: Node):
    """The same, but that the engine lets a second seed be planted beside one that incubates."""
    assert mask.seeds == live.seeds
    for slot, ops in live.ops.items():
        beside = node.pending is not None
        assert mask.ops[slot] == (ops - {Op.GERMINATE} if beside else ops)
        assert mask.blueprints[slot] == (() if beside else live.blueprints[slot])


def hold_to_the_engine(bench, play, number, actions):
    """Play it live, and hold every decision, the rewards and the end against the table."""
    match, node, paid = Match(number, PRICE), Node(0), 0.0
    moment = play.begin(bench.table.puzzles[number].seed)
    exactly = same_course(bench, play, number)
    exactly = hold_moment(bench, play, moment, match, node, exactly=exactly)
    for action in actions:
        assert mask_at(node).allows(action)
        node, before = after(node, action), node
        moment, rewards = gone(play, action)
        told = math.fsum(bench.worth(match, node).values()) - math.fsum(bench.worth(match, before).values())
        paid += rewards
        exactly = hold_moment(bench, play, moment, match, node, exactly=exactly)
        if exactly:
            assert told == pytest.approx(rewards, abs=1e-4)
    assert moment.over
    test = float(bench.table.column("test_metric")[number, place_of()[node]])
    assert moment.ending.test_metric == (pytest.approx(test, abs=1e-6 if exactly else 0.05))
    assert bench.total(match, node) == pytest.approx(paid, abs=1e-4 if exactly else 5.0)
    return node


def gone(play, action):
    """Act, and wait until the next decision or the end, keeping what holds: the moment, and what all of it was paid."""
    moment = play.act(action)
    rewards = [moment.reward.total]
    while not moment.over and not decides(moment.observation.step):
        keep = next((one for one in keeps(moment) if moment.mask.allows(one)), WAIT)
        moment = play.act(keep)
        rewards.append(moment.reward.total)
    return moment, math.fsum(rewards)


def keeps(moment):
    return [Action(Op.FOSSILISE, slot.name) for slot in moment.observation.signals.slots if slot.seeds]


def test_a_seed_that_follows_one_that_was_dropped_grows_as_the_table_says(bench, plays):
    actions = [plant(DILATED), drop(DILATED), plant(SEPARABLE), advance(SEPARABLE)]
    assert hold_to_the_engine(bench, plays(0), 0, actions).kept == (Kept(SEPARABLE, 2, 3),)


@pytest.mark.slow
@pytest.mark.parametrize(
    "actions",
    [
        pytest.param([plant(DILATED), advance(DILATED), plant(MLP), advance(MLP)], id="two"),
        pytest.param([plant(MLP), advance(MLP), plant(POINTWISE), advance(POINTWISE)], id="the-late-one-first"),
        pytest.param([plant(DILATED), WAIT, WAIT, advance(DILATED)], id="looked-at-for-long"),
        pytest.param([plant(MLP), advance(MLP), plant(DILATED), drop(DILATED)], id="kept-and-dropped-at-the-end"),
        pytest.param([plant(MLP), drop(MLP), plant(MLP), advance(MLP)], id="once-more-after-it-was-dropped"),
        pytest.param([plant(SEPARABLE), WAIT, advance(SEPARABLE), plant(MLP)], id="planted-too-late"),
        pytest.param([WAIT, plant(POINTWISE), WAIT, advance(POINTWISE)], id="late-and-long"),
        pytest.param([plant(DILATED), WAIT, WAIT, WAIT], id="never-decided"),
        pytest.param([WAIT, WAIT, WAIT, WAIT], id="nothing"),
    ],
)
@pytest.mark.parametrize("part", ["train", "held_out"])
def test_whatever_is_done_comes_to_what_the_table_says(bench, plays, part, actions):
    number = bench.table.of_part(part)[-1]
    hold_to_the_engine(bench, plays(number), number, actions)


@pytest.mark.slow
def test_the_best_plan_is_worth_with_the_engine_what_it_is_on_the_table(bench, plays):
    """Of the puzzle in which there is most to be gained."""
    found = {number: best_of(bench, Match(number, PRICE)) for number in bench.table.of_part("train")}
    number = max(found, key=lambda one: found[one][0])
    best = found[number][1]
    assert best.kept
    assert hold_to_the_engine(bench, plays(number), number, actions_to(best)) == best


@pytest.mark.slow
def test_a_puzzle_that_is_built_again_comes_to_the_same_numbers(bench):
    number = bench.table.of_part("held_out")[0]
    values, _ = build(bench.table.puzzles[number])
    known = bench.table.values[number]
    assert values.shape == known.shape == (len(nodes()), len(COLUMNS))
    np.testing.assert_array_equal(np.isnan(values), np.isnan(known))
    alone = [place_of()[Node(decision)] for decision in range(DECISIONS)]
    if np.array_equal(values[alone, 0], known[alone, 0]):
        np.testing.assert_array_equal(values, known)


@pytest.mark.slow
def test_what_holds_is_kept_before_the_next_decision(bench, plays):
    """``go`` is how the table was made: it leaves no seed open that was blended in."""
    play = plays(0)
    play.begin(bench.table.puzzles[0].seed)
    go(play, plant(SEPARABLE))
    moment = go(play, advance(SEPARABLE))
    assert moment.observation.step == 2 * EVERY
    assert moment.observation.signals.fossils == 1
    assert moment.observation.signals.seeds == ()
