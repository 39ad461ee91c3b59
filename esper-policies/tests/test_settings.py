"""Settings out of bounds are refused with their path."""

import math

import pytest
from pydantic import ValidationError

from esper_core.leyline import ActionSpace
from esper_policies.ppo.policy import Ppo
from esper_policies.random_policy import Random
from esper_policies.settings import HeuristicSettings, ScheduleSettings

SPACE = ActionSpace({"early": ("a/conv",)})
STEP = {"step": 0, "op": "germinate", "slot": "early", "blueprint": "conv"}


def heuristic(space, **settings):
    """Validate settings alone; the policy also compares some of them."""
    return HeuristicSettings.model_validate(settings)


def schedule(space, plan):
    return ScheduleSettings.model_validate({"plan": plan})


@pytest.mark.parametrize(
    ("policy", "settings", "path"),
    [
        (Random, {"seed": -1}, ("seed",)),
        *((heuristic, {name: value}, (name,)) for name, value in [("preview", 2.5), ("last", 1.1), ("speed", 0)]),
        *((heuristic, {name: value}, (name,)) for name, value in [("price", math.nan), ("fee", math.inf)]),
        (heuristic, {"previw": 3}, ("previw",)),
        (schedule, {"plan": "germinate"}, ("plan",)),
        (schedule, {"plan": [{"op": "advance", "slot": "early"}]}, ("plan", 0, "step")),
        *(
            (schedule, {"plan": [{**STEP, name: value}]}, ("plan", 0, name))
            for name, value in [("step", -1), ("op", "wait"), ("step", "0"), ("blend", "mix")]
        ),
        (Ppo, {"width": 3}, ("width",)),
        (Ppo, {"learning_rate": 0.0}, ("learning_rate",)),
        (Ppo, {"speed": -1}, ("speed",)),
        (Ppo, {"discount": 1.01}, ("discount",)),
    ],
)
def test_invalid_settings_of_policies_are_refused_with_their_path(policy, settings, path):
    with pytest.raises(ValidationError) as caught:
        policy(SPACE, **settings)
    first, *others = (error["loc"] for error in caught.value.errors())
    assert first == path
    assert others == [] or policy in (Random, Ppo), "of an invalid item of a list, the list is refused, too"
