"""Forecasts follow their formula, and are unknown where nothing was measured."""

from __future__ import annotations

import math

import pytest

from esper_core.leyline import Finding, Gain, Opinion, SeedSignals, Stage
from esper_core.leyline.constants import NATS_PER_PARAMETER
from esper_policies.heuristic import CAUTION, FEE, UNDERSOLD, Forecast

SURE = Gain(n=400, mean=0.1, deviation=0.2, skewness=0.0, worst=-1.0, best=1.0)
"""A gain with a standard error of 0.01."""


def seed(stage=Stage.TRAINING, gain=SURE, parameters=200, opinion=None):
    return SeedSignals("tried/one", stage, 0.0, parameters, 5, gain=gain, opinion=opinion)


def test_a_preview_is_multiplied_and_reduced_by_caution_and_cost():
    expected = UNDERSOLD * (0.1 - CAUTION * 0.01) - 200 * NATS_PER_PARAMETER - FEE
    assert Forecast().net(seed()) == pytest.approx(expected)


@pytest.mark.parametrize("stage", [Stage.BLENDING, Stage.HOLDING, Stage.DRAINING])
def test_a_gain_measured_in_the_host_counts_once(stage):
    assert Forecast(3.0, 2.0, 0.0, 0.0).net(seed(stage)) == pytest.approx(0.08)


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
    assert Forecast(fee=0.1).cost(seed(opinion=Opinion(Finding.OFF, "gates are off"))) == pytest.approx(0.12)
    assert Forecast(fee=0.1, price=0.0).cost(seed(opinion=asked)) == pytest.approx(0.1)
