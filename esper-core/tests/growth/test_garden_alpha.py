"""On every curve alpha sets out from where it is, goes one way, and is at its target when it said it would be."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given, strategies as st

from esper_core.growth.seeds import Alpha
from esper_core.leyline import Curve

strengths = st.floats(0, 1, allow_nan=False)
curves = st.sampled_from(Curve)
ULP = 2.3e-16


def share(curve: Curve, x: float) -> float:
    """How much of the way is done, by another road than the code's: half angles and tanh."""
    if curve is Curve.COSINE:
        return math.sin(math.pi * x / 2) ** 2
    if curve is Curve.SIGMOID:
        return 0.5 + 0.5 * math.tanh(6.0 * (x - 0.5)) / math.tanh(3.0)
    return x


@given(start=strengths, target=strengths, ticks=st.integers(1, 300), curve=curves)
def test_alpha_goes_one_way_on_its_curve_and_ends_exactly_on_its_target(start, target, ticks, curve) -> None:
    alpha = Alpha(value=start)
    alpha.aim(target, ticks, curve)
    path = [alpha.value]
    for tick in range(1, ticks + 1):
        assert alpha.moving
        alpha.tick()
        path.append(alpha.value)
        assert alpha.value == pytest.approx(start + (target - start) * share(curve, tick / ticks), abs=1e-12)
    assert not alpha.moving
    assert (path[0], path[-1]) == (start, target)
    way = math.copysign(1.0, target - start)
    assert all((later - earlier) * way >= -ULP for earlier, later in pairwise(path))
    assert all(0.0 <= value <= 1.0 for value in path)


@given(st.lists(st.tuples(strengths, st.integers(0, 9), curves, st.integers(0, 12)), max_size=8))
def test_wherever_it_turns_it_sets_out_from_where_it_is(turns) -> None:
    alpha = Alpha()
    for target, ticks, curve, passed in turns:
        before = alpha.value
        alpha.aim(target, ticks, curve)
        assert alpha.value == (before if ticks else target)
        for _ in range(passed):
            alpha.tick()
        assert 0.0 <= alpha.value <= 1.0
        assert alpha.moving is (passed < ticks)
        assert alpha.moving or alpha.value == target


@given(ticks=st.integers(1, 100_000), curve=curves)
def test_the_first_tick_already_lets_it_act_and_the_last_but_one_does_not_yet_arrive(ticks, curve) -> None:
    alpha = Alpha()
    alpha.aim(1.0, ticks, curve)
    alpha.tick()
    assert 0.0 < alpha.value <= 1.0
    alpha.done = ticks - 1
    alpha.tick()
    assert (alpha.value, alpha.moving) == (1.0, False)
