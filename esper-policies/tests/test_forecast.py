"""Forecasts follow their formula, and are unknown where nothing was measured."""

import math

import pytest

from esper_core.leyline import Finding, Gain, Opinion, SeedSignals, Stage
from esper_core.leyline.constants import NATS_PER_PARAMETER
from esper_policies.heuristic import CAUTION, FEE, RISE, Forecast

SURE = Gain(n=400, mean=0.1, deviation=0.2, skewness=0.0, worst=-1.0, best=1.0)
"""A gain with a standard error of 0.01."""


def seed(stage=Stage.TRAINING, gain=SURE, parameters=200, opinion=None):
    return SeedSignals("tried/one", stage, 0.0, parameters, 5, gain=gain, opinion=opinion)


def test_a_preview_is_forecast_to_rise_within_an_interval_less_its_cost():
    """The seed's age is 5."""
    rise, cost, error = 1 + RISE / 5, 200 * NATS_PER_PARAMETER + FEE, CAUTION * 0.01
    assert Forecast().net(seed()) == pytest.approx(rise * (0.1 - error) - cost)
    assert Forecast().hope(seed()) == pytest.approx(rise * (0.1 + error) - cost)
    harm = Gain(n=400, mean=-0.1, deviation=0.2, skewness=0.0, worst=-1.0, best=1.0)
    assert Forecast(rise=5.0, caution=0.0, price=0.0, fee=0.0).net(seed(gain=harm)) == pytest.approx(-0.1), "no rise"


@pytest.mark.parametrize("stage", [Stage.BLENDING, Stage.HOLDING, Stage.DRAINING])
def test_a_gain_measured_in_the_host_counts_once(stage):
    assert Forecast(10.0, 2.0, 0.0, 0.0).net(seed(stage)) == pytest.approx(0.08)


@pytest.mark.parametrize(
    "gain",
    [
        Gain(400, math.nan, math.nan, math.nan, math.nan, math.nan),
        Gain(400, math.inf, math.inf, 0.0, -1.0, math.inf),
        Gain(1, 0.5, math.nan, 0.0, 0.5, 0.5),
    ],
)
def test_a_non_finite_gain_never_pays(gain):
    assert Forecast().net(seed(gain=gain)) == -math.inf


def test_an_uncertain_gain_does_not_pay():
    noise = Gain(100, 0.01, 0.1, 0.0, -1.0, 1.0)
    assert Forecast(price=0.0, fee=0.0).net(seed(gain=noise)) < 0
    assert Forecast(caution=0.0, price=0.0, fee=0.0).net(seed(gain=noise)) > 0


def test_the_cost_is_the_price_of_the_gate_unless_a_price_is_set():
    asked = Opinion(Finding.NOT_SHOWN, "too dear", price=0.5)
    assert Forecast(fee=0.1).cost(seed(opinion=asked)) == pytest.approx(0.6)
    assert Forecast(fee=0.1, price=0.001).cost(seed(opinion=asked)) == pytest.approx(0.3)
    assert Forecast(fee=0.1).cost(seed(opinion=Opinion(Finding.OFF, "gates are off"))) == pytest.approx(0.14)
    assert Forecast(fee=0.1, price=0.0).cost(seed(opinion=asked)) == pytest.approx(0.1)
