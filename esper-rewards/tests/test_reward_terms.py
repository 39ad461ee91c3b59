"""Each reward term follows its formula."""

import math
from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from esper_core.leyline import SeedSignals, Signals, SlotSignals, SlotState, Stage
from esper_rewards.terms import MOST, POINTS, fossil_fee, loss_reduction, rent

HOST = 1000
LIVING = [Stage.GERMINATED, Stage.TRAINING, Stage.BLENDING, Stage.HOLDING, Stage.DRAINING]


def seed(stage, *, alpha=None):
    return SeedSignals("norm", stage, float(stage is Stage.HOLDING) if alpha is None else alpha, 10)


def slot(name, *seeds, fossils=0):
    return SlotSignals(name, SlotState.OCCUPIED if seeds else SlotState.FREE, fossils, tuple(seeds))


def signals(*slots, step=9, loss=1.0):
    added = sum(10 * (slot_signals.fossils + len(slot_signals.seeds)) for slot_signals in slots)
    return Signals(step, loss, loss, 0.5, HOST + added, HOST, tuple(slots))


seeds = st.builds(seed, st.sampled_from(LIVING))
gardens = st.builds(
    signals,
    *[st.builds(slot, st.just(name), seeds, fossils=st.integers(0, 3)) for name in ("early", "middle", "late")],
)


@given(gardens, st.permutations([0, 1, 2]))
def test_run_07_no_term_depends_on_the_slot(now, order):
    """All slots count equally: swapping them changes no term."""
    names = [slot_signals.name for slot_signals in now.slots]
    other = replace(
        now, slots=tuple(replace(now.slots[place], name=name) for name, place in zip(names, order, strict=True))
    )
    for term in (lambda now: rent(now, 20.0), lambda now: fossil_fee(now, 20.0)):
        assert term(other) == pytest.approx(term(now))


def test_diverged_losses_are_limited():
    assert loss_reduction(signals(loss=1e30), signals()) == -POINTS * MOST
    assert loss_reduction(signals(loss=math.inf), signals()) == -POINTS * MOST
    assert math.isnan(loss_reduction(signals(loss=math.nan), signals()))
