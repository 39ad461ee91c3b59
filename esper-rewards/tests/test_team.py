"""The default reward pays for gain over the twin, and for nothing twice."""

import importlib
import math
from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from esper_core.leyline import Metric, Signals, SlotSignals, SlotState
from esper_rewards import plugin
from esper_rewards.potentials import Team

ACCURACY = Metric("accuracy", "up", "%")
PERPLEXITY = Metric("perplexity", "down")
HOST = 5000


def signals(metric, *, added=0, fossils=0, step=0):
    slot = SlotSignals("early", SlotState.FREE, fossils=fossils)
    return Signals(step, 1.0, 1.0, metric, parameters=HOST + added, host_parameters=HOST, slots=(slot,))


metrics = st.floats(0, 1)
steps = st.builds(signals, metrics, added=st.integers(0, 50_000), fossils=st.integers(0, 8))
episodes = st.lists(st.tuples(steps, st.builds(signals, metrics)), min_size=1, max_size=12)
rewards = st.builds(Team, metric=st.sampled_from([ACCURACY, PERPLEXITY]), price=st.floats(0, 1000))


def played(reward, episode):
    previous = [(None, None), *episode[:-1]]
    return [
        reward.score(now, before, twin, twin_before)
        for (now, twin), (before, twin_before) in zip(episode, previous, strict=True)
    ]


def test_a_step_is_scored_by_the_formula():
    reward = Team(metric=ACCURACY, price=30.0)
    terms = reward.score(
        signals(0.70, added=1000, fossils=1), signals(0.61, added=500), signals(0.60), signals(0.58)
    ).terms
    assert terms == {
        "improvement": pytest.approx(100 * (0.10 - 0.03)),
        "rent": pytest.approx(-30 * 500 / HOST),
        "fossil_fee": pytest.approx(-30 * 0.10),
    }


def test_the_first_step_is_compared_with_nothing():
    terms = Team(metric=ACCURACY).score(signals(0.5, added=HOST), None, signals(0.4), None).terms
    assert terms["improvement"] == pytest.approx(10.0)
    assert terms["rent"] == pytest.approx(-20.0)
    assert terms["fossil_fee"] == 0.0


@given(rewards, episodes)
def test_an_episode_adds_up_to_the_potential_at_its_end(reward, episode):
    now, twin = episode[-1]
    gain = 100 * reward.metric.gain(now.validation_metric, twin.validation_metric)
    price = reward.price * ((now.parameters - HOST) / HOST + 0.10 * now.fossils)
    total = math.fsum(breakdown.total for breakdown in played(reward, episode))
    assert total == pytest.approx(gain - price, rel=1e-9, abs=1e-6)


def test_a_twin_of_the_step_before_without_that_step_is_refused():
    reward = Team(metric=ACCURACY)
    with pytest.raises(ValueError, match="Received: twin_before without before"):
        reward.score(signals(0.5), None, signals(0.5), signals(0.4))


@pytest.mark.parametrize("named", ["team", "escrow", "sparse", "minimal", "simplified", "loss"])
def test_price_of_flops_is_charged_for_added_operations(named):
    place = plugin.REWARDS[named][0]
    made = getattr(importlib.import_module(f"esper_rewards.{place.partition(':')[0]}"), place.partition(":")[2])
    plain, priced = made(metric=ACCURACY), made(metric=ACCURACY, price_of_flops=30.0)
    small, large = (replace(signals(0.7, step=9), flops=flops, host_flops=1000) for flops in (1000, 1500))
    twin = signals(0.6, step=9)

    def worth(reward, now):  # the end of an episode: the last step again
        return math.fsum((reward.score(now, None, twin, None).total, reward.score(now, now, twin, twin).total))

    assert worth(priced, small) == worth(plain, small)
    assert worth(priced, large) == pytest.approx(worth(plain, large) - 30.0 * 0.5)
    with pytest.raises(ValueError, match="flops=None"):
        worth(priced, signals(0.7, step=9))
