"""Each named reward is the sum of its documented terms, per step and per episode, and passes the conformance checks."""

import inspect
import math
import re
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest
from hypothesis import given, strategies as st
from pydantic import ValidationError

from esper_core.leyline import Metric, Signals, SlotSignals, SlotState
from esper_rewards import potentials, terms
from esper_rewards.plugin import REWARDS
from esper_rewards.potentials import Loss, Team
from esper_testing import parametrize_with_checks
from esper_testing.reward_episodes import earned, random_episode

ACCURACY, ERROR = Metric("accuracy", "up", "%"), Metric("error", "down", "%")
PAGE = Path(__file__).parents[2] / "docs" / "reference" / "rewards.md"
CLASSES = {name: getattr(potentials, class_name) for name, (class_name, _) in REWARDS.items()}


@pytest.mark.parametrize("name", REWARDS)
def test_a_setting_out_of_bounds_is_refused(name):
    for setting in set(inspect.signature(CLASSES[name]).parameters) - {"metric"}:
        for value in (-1.0, math.nan, math.inf, "1"):
            with pytest.raises(ValidationError, match=setting):
                CLASSES[name](metric=ACCURACY, **{setting: value})


def test_loss_does_not_depend_on_the_metric():
    course = random_episode(ACCURACY, 0)
    end = course[-1]
    gain = 1 - end.now.validation_loss / end.twin.validation_loss
    price = end.now.doublings + 0.10 * end.now.fossils
    for metric in (ACCURACY, ERROR):
        assert earned(Loss(metric=metric), course) == pytest.approx(100.0 * gain - price)


@pytest.mark.parametrize("name", REWARDS)
def test_a_loss_and_a_metric_a_thousand_times_as_large_are_rewarded_alike(name):
    reward = CLASSES[name](metric=Metric("squared error", "down"))

    def total(unit):
        now, twin = (
            Signals(9, 1.0, unit * value, unit * value, parameters, HOST, slots=())
            for value, parameters in ((0.3, 2 * HOST), (0.4, HOST))
        )
        return reward.score(now, None, twin, None).total

    assert total(1000.0) == pytest.approx(total(1.0)) == pytest.approx(100 * 0.25 - 1.0)


def test_the_reference_page_has_every_reward_and_term():
    shown = re.findall(r"^::: (esper_rewards\.\w+)\.(\w+)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    documented = [
        (module.__name__, name)
        for module in (potentials, terms)
        for name, member in vars(module).items()
        if getattr(member, "__module__", "") == module.__name__ and "Formula: " in (member.__doc__ or "")
    ]
    assert {name for _, name in documented} > {class_name for class_name, _ in REWARDS.values()}
    assert sorted(shown) == sorted(documented)
    for module, name in shown:
        text = inspect.getdoc(getattr(import_module(module), name))
        assert re.findall(r"^(\w+): ", text, re.MULTILINE) == ["Formula", "Range", "Direction", "Incentive"], name


HOST = 5000


def signals(metric, *, added=0, fossils=0, step=0):
    slot = SlotSignals("early", SlotState.FREE, fossils=fossils)
    return Signals(step, 1.0, 1.0, metric, parameters=HOST + added, host_parameters=HOST, slots=(slot,))


metrics = st.floats(0, 1)
steps = st.builds(signals, metrics, added=st.integers(0, 50_000), fossils=st.integers(0, 8))
episodes = st.lists(st.tuples(steps, st.builds(signals, metrics)), min_size=1, max_size=12)
rewards = st.builds(Team, metric=st.sampled_from([ACCURACY, ERROR]), price=st.floats(0, 1000))


def played(reward, episode):
    previous = [(None, None), *episode[:-1]]
    return [
        reward.score(now, before, twin, twin_before)
        for (now, twin), (before, twin_before) in zip(episode, previous, strict=True)
    ]


@given(rewards, episodes)
def test_each_term_of_an_episode_adds_up_to_its_part_of_the_potential_at_the_end(reward, episode):
    """Episodes of any length do, so that the reward of each step is the change of the potential in it."""
    now, twin = episode[-1]
    scored = [breakdown.terms for breakdown in played(reward, episode)]
    sums = {name: math.fsum(step[name] for step in scored) for name in scored[0]}
    expected = {
        "improvement": 100 * reward.metric.gain(now.validation_metric, twin.validation_metric),
        "rent": -reward.price * math.log2(now.parameters / HOST),
        "fossil_fee": -reward.price * 0.10 * now.fossils,
    }
    assert sums == pytest.approx(expected, rel=1e-9, abs=1e-6)


@pytest.mark.parametrize("name", REWARDS)
def test_run_07_no_reward_depends_on_the_slot(name):
    """All slots count equally: swapping them changes no term."""
    reward = CLASSES[name](metric=ACCURACY)
    for moment in random_episode(ACCURACY, 0):
        slots = moment.now.slots
        names = [slot.name for slot in slots]
        swapped = (replace(slot, name=name) for slot, name in zip(slots[1:] + slots[:1], names, strict=True))
        other = moment._replace(now=replace(moment.now, slots=tuple(swapped)))
        assert reward.score(*other).terms == pytest.approx(reward.score(*moment).terms)


def test_diverged_losses_are_limited():
    twin = signals(0.5)
    reduced = [terms.loss_reduction(replace(twin, validation_loss=loss), twin) for loss in (1e30, math.inf, math.nan)]
    assert reduced == pytest.approx([-terms.POINTS * terms.MOST] * 2 + [math.nan], nan_ok=True)


@pytest.mark.parametrize("named", REWARDS)
def test_operations_are_charged_where_they_are_known_and_parameters_otherwise(named):
    reward = CLASSES[named](metric=ACCURACY, price=30.0)
    grown = signals(0.7, added=HOST, step=9)
    counted, twin = replace(grown, flops=4000, host_flops=1000), signals(0.6, step=9)

    def worth(now):  # the end of an episode: the last step again
        return math.fsum((reward.score(now, None, twin, None).total, reward.score(now, now, twin, twin).total))

    assert worth(grown) - worth(counted) == pytest.approx(30.0)


def test_five_times_the_operations_for_36_points_pay_by_default():
    grown, twin = replace(signals(0.94, fossils=1), flops=5000, host_flops=1000), signals(0.58)
    assert Team(metric=ACCURACY).score(grown, None, twin, None).total > 33.0


@parametrize_with_checks("rewards")
def test_it_conforms(check):
    check.run()
