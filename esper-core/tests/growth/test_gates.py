"""A gate says yes where the gain is shown to pay, no where it is not, and unknown where nobody could know."""

from __future__ import annotations

import dataclasses
import math

import pytest
from hypothesis import example, given, strategies as st
from pydantic import TypeAdapter

from esper_core.growth.gates import Gate, judge, lower_bound
from esper_core.leyline.constants import FIRST_LOOK, GATE_ALPHA, GATE_LOOKS, MIN_EXAMPLES_FOR_EVIDENCE
from esper_core.leyline.signals import Finding, Gain, Opinion

GOOD = Gain(800, 0.15, 0.5, -2.0, -5.0, 2.0)
PRICE = 0.04

prices = st.floats(0, 0.5)
shares = st.floats(1e-6, 0.05)
gains = st.builds(
    Gain,
    n=st.integers(MIN_EXAMPLES_FOR_EVIDENCE, 2000),
    mean=st.floats(-0.5, 0.5),
    deviation=st.floats(1e-3, 1),
    skewness=st.floats(-8, 8),
    worst=st.floats(-9, -1),
    best=st.floats(1, 9),
)


def shown(gain, price, *, strictness="strict", alpha=0.005) -> bool:
    return judge(gain, price, strictness=strictness, alpha=alpha).opens


@given(gains, prices, shares)
def test_strict_asks_that_the_lower_bound_is_above_the_price(gain, price, alpha) -> None:
    opinion = judge(gain, price, strictness="strict", alpha=alpha, look=4)
    assert opinion.evidence.lower == lower_bound(gain, alpha)
    assert opinion.finding is (Finding.SHOWN if lower_bound(gain, alpha) > price else Finding.NOT_SHOWN)
    assert (opinion.price, opinion.evidence.looks, opinion.evidence.alpha) == (price, 4, alpha)
    assert (opinion.evidence.n, opinion.evidence.standard_error) == (gain.n, gain.standard_error)


@example(gain=GOOD, price=0.14, alpha=0.005)
@given(gain=gains, price=prices, alpha=shares)
def test_permissive_asks_for_a_mean_above_the_price_and_a_gain_above_nothing(gain, price, alpha) -> None:
    expected = gain.mean > price and lower_bound(gain, 0.05) > 0
    assert shown(gain, price, strictness="permissive", alpha=alpha) == expected


@given(gains, prices, shares)
def test_what_strict_lets_pass_permissive_does(gain, price, alpha) -> None:
    if shown(gain, price, alpha=alpha):
        assert shown(gain, price, strictness="permissive", alpha=alpha)


@pytest.mark.parametrize("strictness", ["strict", "permissive"])
@given(gain=gains, price=prices, more=st.floats(0, 1))
def test_more_gain_and_a_lower_price_never_close_a_gate(strictness, gain, price, more) -> None:
    if shown(gain, price, strictness=strictness):
        better = dataclasses.replace(gain, mean=gain.mean + more, worst=gain.worst + more, best=gain.best + more)
        assert shown(better, price, strictness=strictness)
        assert shown(gain, price / (1 + more), strictness=strictness)


@pytest.mark.parametrize("strictness", ["strict", "permissive"])
@given(gain=gains, price=prices, power=st.integers(-3, 3))
def test_the_unit_of_the_losses_does_not_matter(strictness, gain, price, power) -> None:
    scale = 2.0**power
    scaled = Gain(
        gain.n, scale * gain.mean, scale * gain.deviation, gain.skewness, scale * gain.worst, scale * gain.best
    )
    assert shown(scaled, scale * price, strictness=strictness) == shown(gain, price, strictness=strictness)


@given(gains, prices, st.integers(1, 200), st.integers(0, 200))
def test_a_gate_that_may_look_more_often_is_no_looser(gain, price, looks, more) -> None:
    if Gate(first=1, looks=looks + more).look(gain, price).opens:
        assert Gate(first=1, looks=looks).look(gain, price).opens


@given(gains, prices, st.integers(1, 20))
def test_having_looked_before_never_helps(gain, price, before) -> None:
    fresh, worn = Gate(first=1), Gate(first=1)
    for _ in range(before):
        worn.look(gain, price)
    assert worn.look(gain, price).opens <= fresh.look(gain, price).opens


@pytest.mark.parametrize("strictness", ["strict", "permissive"])
@pytest.mark.parametrize(
    ("gain", "words"),
    [
        (None, "not measured"),
        (dataclasses.replace(GOOD, n=MIN_EXAMPLES_FOR_EVIDENCE - 1), "too few"),
        *[
            (dataclasses.replace(GOOD, **{number: bad}), "not finite")
            for number in ("mean", "deviation", "skewness", "worst", "best")
            for bad in (math.nan, math.inf, -math.inf)
        ],
    ],
)
def test_without_a_measurement_that_can_be_judged_it_is_unknown_and_says_why(strictness, gain, words) -> None:
    opinion = judge(gain, PRICE, strictness=strictness, alpha=0.05)
    assert opinion.finding is Finding.UNKNOWN
    assert words in opinion.reason
    assert opinion.evidence is None
    assert not opinion.opens


@pytest.mark.parametrize("gain", [None, GOOD, dataclasses.replace(GOOD, mean=-1.0)])
def test_gates_that_are_off_let_everything_pass_and_say_so(gain) -> None:
    assert Gate("off").look(gain, PRICE) == Opinion(Finding.OFF, "gates are off")


def test_a_reason_tells_gain_bound_and_price() -> None:
    assert judge(GOOD, PRICE, strictness="strict", alpha=0.05, look=3).reason == (
        "gain 0.15 nats, at least 0.1131 (look 3, n = 800); price 0.04"
    )


def test_a_gate_waits_for_its_first_look_and_ends_with_its_last() -> None:
    gate = Gate(looks=4)
    opinions = [gate.look(GOOD, PRICE) for _ in range(FIRST_LOOK + 5)]
    early, open_, late = opinions[: FIRST_LOOK - 1], opinions[FIRST_LOOK - 1 :][:4], opinions[FIRST_LOOK + 3 :]
    assert {opinion.finding for opinion in early + late} == {Finding.UNKNOWN}
    assert all("looks from step" in opinion.reason for opinion in early)
    assert all("spent" in opinion.reason for opinion in late)
    assert [opinion.finding for opinion in open_] == [Finding.SHOWN] * 4
    assert [opinion.evidence.looks for opinion in open_] == [1, 2, 3, 4]


def test_all_looks_of_a_gate_together_spend_its_alpha() -> None:
    gate = Gate(first=1)
    assert math.fsum(gate.look(GOOD, PRICE).evidence.alpha for _ in range(GATE_LOOKS)) == pytest.approx(GATE_ALPHA)


def test_a_step_without_a_measurement_is_spent_all_the_same() -> None:
    gate = Gate(first=1, looks=2)
    findings = [gate.look(gain, PRICE).finding for gain in (None, GOOD, GOOD)]
    assert findings == [Finding.UNKNOWN, Finding.SHOWN, Finding.UNKNOWN]


def test_a_permissive_gate_looks_on_without_end() -> None:
    gate = Gate("permissive", looks=1)
    findings = [gate.look(GOOD, PRICE).finding for _ in range(10)]
    assert findings == [Finding.UNKNOWN] * (FIRST_LOOK - 1) + [Finding.SHOWN] * (11 - FIRST_LOOK)


@given(st.lists(st.none() | gains, max_size=12), st.integers(0, 12))
def test_a_gate_goes_on_from_its_state_as_if_nothing_had_been(course, cut) -> None:
    through, before, after = Gate(looks=5), Gate(looks=5), Gate(looks=5)
    expected = [through.look(gain, PRICE) for gain in course]
    found = [before.look(gain, PRICE) for gain in course[:cut]]
    after.steps = before.steps
    assert found + [after.look(gain, PRICE) for gain in course[cut:]] == expected


@pytest.mark.parametrize("record", [GOOD, dataclasses.replace(GOOD, mean=math.nan)])
def test_records_come_back_from_a_file_as_they_were(record) -> None:
    adapter = TypeAdapter(Gain)
    assert repr(adapter.validate_json(adapter.dump_json(record))) == repr(record)


def test_opinions_come_back_from_a_file_as_they_were() -> None:
    adapter = TypeAdapter(Opinion)
    for gain in (GOOD, None):
        opinion = judge(gain, PRICE, strictness="strict", alpha=0.05)
        assert adapter.validate_json(adapter.dump_json(opinion)) == opinion
