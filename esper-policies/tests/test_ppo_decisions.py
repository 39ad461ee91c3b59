"""Log-probabilities, entropies and draws of decisions over heads and masks."""

import math
import random
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings, strategies as st

from esper_core.leyline import Op
from esper_policies.ppo.encoding import OPS
from esper_policies.ppo.policy_network import Chances, Chosen, Scores

CLOSE = 1e-4


@dataclass
class Problem:
    """Scores of one environment as plain lists, the mask, and the slot of each candidate."""

    ops: list[float]
    candidates: list[list[float]]
    legal: list[list[bool]]
    home: list[int]

    @property
    def chances(self):
        scores = Scores(
            torch.tensor([self.ops]),
            torch.tensor([self.candidates]),
            torch.zeros(1),
        )
        return Chances(scores, torch.tensor([self.legal]), torch.tensor([self.home]))


def problem(seed):
    draw = random.Random(seed)
    wide, spread = draw.randint(1, 6), draw.choice([0.1, 1.0, 10.0])
    possible = draw.choice([0.0, 0.2, 0.5, 1.0])
    return Problem(
        [draw.gauss(0, spread) for _ in OPS],
        [[draw.gauss(0, spread) for _ in range(wide)] for _ in OPS[1:]],
        [[draw.random() < possible for _ in range(wide)] for _ in OPS[1:]],
        sorted(draw.randint(0, 2) for _ in range(wide)),
    )


problems = st.integers(0, 10**6).map(problem)


def mean_in_the_exponent(scores):
    most = max(scores)
    return most + math.log(math.fsum(math.exp(score - most) for score in scores) / len(scores))


def normal(scores):
    """Logarithms of chances, by key."""
    most = max(scores.values())
    log_sum = most + math.log(math.fsum(math.exp(score - most) for score in scores.values()))
    return {key: score - log_sum for key, score in scores.items()}


def heads_of(problem_):
    """Return probabilities of ops, of slots by op, and of candidates by op and slot; only possible ones."""
    slots, blueprints, ops = {}, {}, {Op.WAIT: problem_.ops[0]}
    for number, op in enumerate(OPS[1:]):
        rows = {}
        for place, home in enumerate(problem_.home):
            if problem_.legal[number][place]:
                rows.setdefault(home, {})[place] = problem_.candidates[number][place]
        if rows:
            worth = {home: mean_in_the_exponent(list(scores.values())) for home, scores in rows.items()}
            ops[op] = problem_.ops[number + 1] + mean_in_the_exponent(list(worth.values()))
            slots[op] = normal(worth)
            blueprints[op] = {home: normal(scores) for home, scores in rows.items()}
    return normal(ops), slots, blueprints


def log_chance(problem_, op, place):
    ops, slots, blueprints = heads_of(problem_)
    total = ops[op]
    if op is not Op.WAIT:
        home = problem_.home[place]
        total += slots[op][home] + blueprints[op][home][place]
    return total


def decisions(problem_):
    """Yield all possible decisions: op, its number, and the candidate."""
    yield Op.WAIT, 0, 0
    for number, op in enumerate(OPS[1:]):
        yield from ((op, number + 1, place) for place, yes in enumerate(problem_.legal[number]) if yes)


@settings(max_examples=40, deadline=None)
@given(problems)
def test_log_chances_are_sums_over_op_slot_and_blueprint(drawn_problem):
    for op, number, place in decisions(drawn_problem):
        chosen = Chosen(torch.tensor([number]), torch.tensor([place]))
        computed = drawn_problem.chances.log_chance(chosen).item()
        assert computed == pytest.approx(log_chance(drawn_problem, op, place), abs=CLOSE)


@settings(max_examples=40, deadline=None)
@given(problems)
def test_chances_add_up_to_1_and_impossible_decisions_have_none(drawn_problem):
    joint = drawn_problem.chances.joint[0].double()
    assert joint.exp().sum().item() == pytest.approx(1.0, abs=1e-5)
    legal = torch.tensor([True, *(yes for row in drawn_problem.legal for yes in row)])
    assert (joint[~legal].exp() < 1e-30).all()
    assert torch.isfinite(joint).all()
    ops = drawn_problem.chances.ops[0].double().exp()
    possible = torch.tensor([True, *(any(row) for row in drawn_problem.legal)])
    assert (ops[~possible] < 1e-30).all()
    assert joint.exp()[legal].min() >= 0


@settings(max_examples=40, deadline=None)
@given(problems, st.integers(0, 10**6))
def test_only_possible_decisions_are_drawn(drawn_problem, seed):
    draw = random.Random(seed)
    extremes = [0.0, 1.0 - 2**-24, 1.0]
    possible = {(number, place) for _, number, place in decisions(drawn_problem)}
    for first in [*extremes, *(draw.random() for _ in range(5))]:
        drawn = drawn_problem.chances.drawn(torch.tensor([first]))
        assert (drawn.op.item(), drawn.candidate.item()) in possible
    best = drawn_problem.chances.best()
    assert (best.op.item(), best.candidate.item()) in possible
    by_chance = {
        (number, place): log_chance(drawn_problem, op, place) for op, number, place in decisions(drawn_problem)
    }
    assert by_chance[best.op.item(), best.candidate.item()] == pytest.approx(max(by_chance.values()), abs=CLOSE)


def test_decisions_are_drawn_with_their_chances():
    drawn_problem = problem(12345)
    drawn_problem.legal = [[True] * len(drawn_problem.home) for _ in OPS[1:]]
    drawn_problem.ops, drawn_problem.candidates = (
        [0.0] * len(OPS),
        [[0.1 * place for place in range(len(drawn_problem.home))] for _ in OPS[1:]],
    )
    count = 4000
    scores = Scores(
        torch.zeros(count, len(OPS)),
        torch.tensor([drawn_problem.candidates]).expand(count, -1, -1),
        torch.zeros(count),
    )
    chances = Chances(
        scores, torch.tensor([drawn_problem.legal]).expand(count, -1, -1), torch.tensor([drawn_problem.home] * count)
    )
    luck = torch.rand(count, generator=torch.Generator().manual_seed(3))
    drawn = chances.drawn(luck)
    joint = drawn_problem.chances.joint[0].exp()
    places = torch.where(drawn.op == 0, 0, (drawn.op - 1) * len(drawn_problem.home) + drawn.candidate + 1)
    often = torch.bincount(places, minlength=len(joint)) / count
    assert (often - joint).abs().max() < 4 * 0.5 / count**0.5
