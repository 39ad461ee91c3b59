"""Settings out of bounds are refused with their path; schedules of rates begin, end and stay where they say."""

import math
from functools import partial

import pytest
from hypothesis import given, strategies as st
from pydantic import ValidationError

from esper_core.leyline import ActionSpace
from esper_policies.learning_rates import Cosine, Warmup
from esper_policies.ppo.policy import Ppo
from esper_policies.random_policy import Random
from esper_policies.settings import HeuristicSettings, ScheduleSettings

SPACE = ActionSpace({"early": ("a/conv",)})
RANDOM, PPO = partial(Random, SPACE), partial(Ppo, SPACE)
HEURISTIC, SCHEDULE = HeuristicSettings, ScheduleSettings  # the policies also compare some of them
STEP = {"step": 0, "op": "germinate", "slot": "early", "blueprint": "conv"}


@pytest.mark.parametrize(
    ("validate", "settings", "path"),
    [
        (RANDOM, {"seed": -1}, ("seed",)),
        *((HEURISTIC, {name: value}, (name,)) for name, value in [("preview", 2.5), ("last", 1.1), ("speed", 0)]),
        *((HEURISTIC, {name: value}, (name,)) for name, value in [("price", math.nan), ("fee", math.inf)]),
        (HEURISTIC, {"previw": 3}, ("previw",)),
        (SCHEDULE, {"plan": "germinate"}, ("plan",)),
        (SCHEDULE, {"plan": [{"op": "advance", "slot": "early"}]}, ("plan", 0, "step")),
        *(
            (SCHEDULE, {"plan": [{**STEP, name: value}]}, ("plan", 0, name))
            for name, value in [("step", -1), ("op", "wait"), ("step", "0"), ("blend", "mix")]
        ),
        (Warmup, {"over": -1}, ("over",)),
        (Cosine, {"floor": 1.5}, ("floor",)),
        (Cosine, {"warmup": -1}, ("warmup",)),
        (PPO, {"width": 3}, ("width",)),
        (PPO, {"learning_rate": 0.0}, ("learning_rate",)),
        (PPO, {"speed": -1}, ("speed",)),
        (PPO, {"discount": 1.01}, ("discount",)),
    ],
)
def test_invalid_settings_of_policies_are_refused_with_their_path(validate, settings, path):
    with pytest.raises(ValidationError) as caught:
        validate(**settings)
    first, *others = (error["loc"] for error in caught.value.errors())
    assert first == path
    assert others == [] or validate in (RANDOM, PPO), "of an invalid item of a list, the list is refused, too"


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
