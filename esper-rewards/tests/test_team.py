"""The default reward pays for gain over the twin, and for nothing twice."""

from __future__ import annotations

import copy
import importlib
import inspect
import math
import subprocess
import sys
from dataclasses import replace

import pytest
from hypothesis import given, strategies as st
from pydantic import ValidationError

from esper_core.leyline import Metric, Reward, RewardSpec, Signals, SlotSignals, SlotState
from esper_rewards import plugin
from esper_rewards.potentials import Team
from esper_rewards.settings import TeamSettings

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


def test_it_keeps_the_contract():
    assert isinstance(Team(metric=ACCURACY), Reward)


def test_a_step_is_worth_what_the_formula_says():
    reward = Team(metric=ACCURACY, price=30.0)
    terms = reward.score(
        signals(0.70, added=1000, fossils=1), signals(0.61, added=500), signals(0.60), signals(0.58)
    ).terms
    assert terms == {
        "improvement": pytest.approx(100 * (0.10 - 0.03)),
        "rent": pytest.approx(-30 * 500 / HOST),
        "fossil_fee": pytest.approx(-30 * 0.10),
    }


def test_before_the_first_step_there_was_nothing():
    terms = Team(metric=ACCURACY).score(signals(0.5, added=HOST), None, signals(0.4), None).terms
    assert terms["improvement"] == pytest.approx(10.0)
    assert terms["rent"] == pytest.approx(-20.0)
    assert terms["fossil_fee"] == 0.0


def test_less_is_better_where_the_metric_says_so():
    better = Team(metric=PERPLEXITY).score(signals(3.0), None, signals(3.5), None)
    assert better.terms["improvement"] == pytest.approx(50.0)


def test_a_network_that_is_its_twin_earns_nothing():
    same = [(signals(0.1 * i), signals(0.1 * i)) for i in range(5)]
    assert [breakdown.total for breakdown in played(Team(metric=ACCURACY), same)] == [0.0] * 5


def test_planting_and_pulling_out_earns_nothing():
    churn = [(signals(0.5, added=added), signals(0.5)) for added in (0, 800, 0, 800, 0)]
    assert math.fsum(breakdown.total for breakdown in played(Team(metric=ACCURACY), churn)) == pytest.approx(0)


@given(rewards, episodes)
def test_the_terms_add_up_and_are_finite(reward, episode):
    for breakdown in played(reward, episode):
        assert list(breakdown.terms) == ["improvement", "rent", "fossil_fee"]
        assert all(math.isfinite(value) for value in breakdown.terms.values())
        assert breakdown.total == math.fsum(breakdown.terms.values())


@given(rewards, episodes)
def test_an_episode_adds_up_to_the_potential_at_its_end(reward, episode):
    now, twin = episode[-1]
    gain = 100 * reward.metric.gain(now.validation_metric, twin.validation_metric)
    price = reward.price * ((now.parameters - HOST) / HOST + 0.10 * now.fossils)
    total = math.fsum(breakdown.total for breakdown in played(reward, episode))
    assert total == pytest.approx(gain - price, rel=1e-9, abs=1e-6)


@given(rewards, episodes)
def test_it_carries_nothing_from_call_to_call(reward, episode):
    before = copy.deepcopy(vars(reward))
    forwards = played(reward, episode)
    assert played(reward, episode) == forwards
    fresh = Team(metric=reward.metric, price=reward.price)
    pairs = list(zip(episode, [(None, None), *episode[:-1]], strict=True))
    backwards = [fresh.score(now, b, twin, tb) for (now, twin), (b, tb) in reversed(pairs)]
    assert backwards[::-1] == forwards
    assert vars(reward) == before


@given(rewards, steps, metrics, st.integers(1, 1000))
def test_declared_directions_hold(reward, now, twin_metric, more):
    def worth(**changed):
        given_ = {"added": now.parameters - HOST, "fossils": now.fossils} | changed
        return reward.score(signals(now.validation_metric, **given_), None, signals(twin_metric), None).total

    assert worth(added=now.parameters - HOST + more) <= worth()
    assert worth(fossils=now.fossils + more) <= worth()


def test_a_step_before_without_its_twin_is_refused():
    reward = Team(metric=ACCURACY)
    with pytest.raises(ValueError, match="Received: before without twin_before"):
        reward.score(signals(0.5), signals(0.4), signals(0.5), None)
    with pytest.raises(ValueError, match="Received: twin_before without before"):
        reward.score(signals(0.5), None, signals(0.5), signals(0.4))


@pytest.mark.parametrize("price", [-1.0, math.nan, math.inf, "20"])
def test_a_price_out_of_bounds_is_refused(price):
    with pytest.raises(ValidationError, match="price"):
        Team(metric=ACCURACY, price=price)


def test_the_plugin_registers_it_with_its_settings():
    entries = {}

    class Book:
        def add(self, name, target, spec):
            entries[name] = (target, spec)

    plugin.esper_register_rewards(registry=Book())
    target, spec = entries["team"]
    assert (target, spec.settings) == ("esper_rewards.potentials:Team", "esper_rewards.settings:TeamSettings")
    assert isinstance(spec, RewardSpec)
    assert inspect.signature(Team).parameters["price"].default == TeamSettings().price


def test_importing_all_of_it_imports_no_torch():
    code = "import esper_rewards.plugin, esper_rewards.potentials, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("named", ["team", "escrow", "sparse", "minimal", "simplified", "loss"])
def test_operations_cost_what_was_asked_for_them(named):
    place = plugin.REWARDS[named][0]
    made = getattr(importlib.import_module(f"esper_rewards.{place.partition(':')[0]}"), place.partition(":")[2])
    plain, priced = made(metric=ACCURACY), made(metric=ACCURACY, price_of_flops=30.0)
    small, large = (replace(signals(0.7, step=9), flops=flops, host_flops=1000) for flops in (1000, 1500))
    twin = signals(0.6, step=9)

    def worth(reward, now):  # the last moment of an episode: the same step once more
        return math.fsum((reward.score(now, None, twin, None).total, reward.score(now, now, twin, twin).total))

    assert worth(priced, small) == worth(plain, small)
    assert worth(priced, large) == pytest.approx(worth(plain, large) - 30.0 * 0.5)
    with pytest.raises(ValueError, match="flops=None"):
        worth(priced, signals(0.7, step=9))
