"""Schedules: where they begin and end, that they never leave their range."""

import pytest
from hypothesis import given, strategies as st

from esper_policies.learning_rates import Cosine, Warmup


@given(over=st.integers(0, 50), step=st.integers(0, 200))
def test_a_warmup_rises_to_1_and_stays(over: int, step: int) -> None:
    factor = Warmup(over=over).factor(step, None)
    assert 0.0 < factor <= 1.0
    assert (factor == 1.0) == (step >= over)
    assert Warmup(over=over).factor(step + 1, None) >= factor


@pytest.mark.parametrize(("steps", "warmup"), [(1, 0), (2, 0), (10, 0), (10, 3)])
def test_a_cosine_falls_from_1_after_its_warmup_to_its_floor(steps: int, warmup: int) -> None:
    schedule = Cosine(floor=0.25, warmup=warmup)
    assert schedule.factor(warmup, steps) == 1.0
    if steps > 1:
        assert schedule.factor(steps - 1, steps) == pytest.approx(0.25)
        assert schedule.factor(steps, steps) == pytest.approx(0.25)


def test_a_cosine_without_an_end_does_not_fall() -> None:
    assert [Cosine().factor(step, None) for step in (0, 5, 5000)] == [1.0, 1.0, 1.0]
