"""Log-probabilities, entropies and draws of decisions over heads and masks."""

import math
import random
from dataclasses import dataclass

import numpy as np
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
        scores = Scores(torch.tensor([self.ops]), torch.tensor([self.candidates]), torch.zeros(1))
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


def mean_in_the_exponent(scores):
    return np.logaddexp.reduce(scores) - math.log(len(scores))


def normal(scores):
    """Logarithms of chances, by key."""
    log_sum = np.logaddexp.reduce(list(scores.values()))
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


def log_chances(problem_):
    """Return the logarithm of the chance of each possible decision: by the number of the op, and the candidate."""
    ops, slots, blueprints = heads_of(problem_)
    chances = {(0, 0): ops[Op.WAIT]}
    for number, op in enumerate(OPS[1:]):
        for place, home in enumerate(problem_.home):
            if problem_.legal[number][place]:
                chances[number + 1, place] = ops[op] + slots[op][home] + blueprints[op][home][place]
    return chances


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6).map(problem), st.integers(0, 10**6))
def test_chances_are_products_over_op_slot_and_blueprint_and_only_possible_decisions_are_drawn(drawn_problem, seed):
    expected, chances = log_chances(drawn_problem), drawn_problem.chances
    for (number, place), log_chance in expected.items():
        chosen = Chosen(torch.tensor([number]), torch.tensor([place]))
        assert chances.log_chance(chosen).item() == pytest.approx(log_chance, abs=CLOSE)
    joint = chances.joint[0].double()
    assert joint.exp().sum().item() == pytest.approx(1.0, abs=1e-5)
    legal = torch.tensor([True, *(yes for row in drawn_problem.legal for yes in row)])
    assert (joint[~legal].exp() < 1e-30).all()
    assert torch.isfinite(joint).all()
    ops = chances.ops[0].double().exp()
    possible = torch.tensor([True, *(any(row) for row in drawn_problem.legal)])
    assert (ops[~possible] < 1e-30).all()
    assert joint.exp()[legal].min() >= 0
    draw = random.Random(seed)
    for luck in [0.0, 1.0 - 2**-24, 1.0, *(draw.random() for _ in range(5))]:
        drawn = chances.drawn(torch.tensor([luck]))
        assert (drawn.op.item(), drawn.candidate.item()) in expected
    best = chances.best()
    best_chance = expected[best.op.item(), best.candidate.item()]
    assert best_chance == pytest.approx(max(expected.values()), abs=CLOSE)


def test_decisions_are_drawn_with_their_chances():
    drawn_problem = problem(12345)
    width, count = len(drawn_problem.home), 4000
    drawn_problem.legal, drawn_problem.ops = [[True] * width for _ in OPS[1:]], [0.0] * len(OPS)
    drawn_problem.candidates = [[0.1 * place for place in range(width)] for _ in OPS[1:]]
    candidates, legal = (
        torch.tensor([rows]).expand(count, -1, -1) for rows in (drawn_problem.candidates, drawn_problem.legal)
    )
    scores = Scores(torch.zeros(count, len(OPS)), candidates, torch.zeros(count))
    chances = Chances(scores, legal, torch.tensor([drawn_problem.home] * count))
    drawn = chances.drawn(torch.rand(count, generator=torch.Generator().manual_seed(3)))
    joint = drawn_problem.chances.joint[0].exp()
    places = torch.where(drawn.op == 0, 0, (drawn.op - 1) * width + drawn.candidate + 1)
    often = torch.bincount(places, minlength=len(joint)) / count
    assert (often - joint).abs().max() < 4 * 0.5 / count**0.5
