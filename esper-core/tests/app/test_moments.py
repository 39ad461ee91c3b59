"""Does a moment that was written come back as it was, to the last bit?"""

from __future__ import annotations

import dataclasses
import math
import struct
import tempfile
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from esper_core.app.episode import Moment, Undisturbed
from esper_core.app.moments import moment_of, told_of_moment, told_of_twin, twin_of
from esper_core.app.prefix_folder import PrefixFolder
from esper_core.growth import Growth
from esper_core.leyline import ActionMask, GrowthError, Observation, Op, RewardBreakdown, Signals, State
from esper_core.leyline.specs import Place
from esper_core.trainer.pool import Ending

ODD = (math.nan, math.inf, -math.inf, -0.0, 5e-324, 0.1 + 0.2, 1e308)
NUMBERS = st.floats() | st.sampled_from(ODD)
st.register_type_strategy(float, NUMBERS)

ENDINGS = st.builds(
    Ending,
    signals=st.from_type(Signals),
    test_loss=NUMBERS,
    test_metric=NUMBERS,
    growth=st.lists(st.from_type(Growth), max_size=2).map(tuple),
)
SETS = st.frozensets(st.sampled_from(Op))
MASKS = st.builds(
    ActionMask,
    ops=st.dictionaries(st.text(), SETS, max_size=3),
    blueprints=st.dictionaries(st.text(), st.lists(st.text(), max_size=3).map(tuple), max_size=3),
    seeds=st.dictionaries(st.text(), st.dictionaries(st.text(), SETS, max_size=2), max_size=2),
)
MOMENTS = st.builds(
    Moment,
    observation=st.builds(Observation, places=st.none() | st.dictionaries(st.text(), st.from_type(Place), max_size=1)),
    mask=MASKS,
    reward=st.none() | st.builds(RewardBreakdown, terms=st.dictionaries(st.text(), NUMBERS, max_size=4)),
    rolled_back=st.booleans(),
    ending=st.none() | ENDINGS,
)
LOSSES = st.lists(NUMBERS, max_size=4).map(lambda own: tuple(torch.tensor(one, dtype=torch.float32) for one in own))
TWINS = st.builds(
    Undisturbed,
    signals=st.lists(st.from_type(Signals), max_size=2).map(tuple),
    losses=LOSSES,
    ending=ENDINGS,
    rolled_back=st.frozensets(st.integers(0, 50), max_size=3),
)
MANY = settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))


def bits(value):
    """The value with each number by its bytes; all that are no number are one."""
    if isinstance(value, float):
        return struct.pack("<d", math.nan if math.isnan(value) else value)
    if isinstance(value, torch.Tensor):
        return value.dtype, bits(value.tolist())
    if dataclasses.is_dataclass(value):
        return type(value), [bits(getattr(value, one.name)) for one in dataclasses.fields(value)]
    if isinstance(value, Mapping):
        return [(key, bits(one)) for key, one in value.items()]
    if isinstance(value, tuple | list):
        return type(value), [bits(one) for one in value]
    return type(value), value


def by_disk(state: State) -> State:
    with tempfile.TemporaryDirectory() as home:
        PrefixFolder(Path(home), "ab" * 32, 1 << 30).write("moment", "x", state)
        found = PrefixFolder(Path(home), "ab" * 32, 1 << 30).read("moment", "x")
    assert found is not None
    return found


@MANY
@given(MOMENTS)
def test_a_moment_comes_back_to_the_last_bit(moment):
    told = told_of_moment(moment)
    found = by_disk(told)
    assert bits(moment_of(found)) == bits(moment)
    assert told_of_moment(moment_of(found)).plain == told.plain == found.plain


@MANY
@given(TWINS)
def test_a_twin_comes_back_to_the_last_bit(twin):
    assert bits(twin_of(by_disk(told_of_twin(twin)), "cpu")) == bits(twin)


def test_a_set_is_written_in_one_order():
    names = list(Op)
    several = [frozenset(names[n:] + names[:n]) for n in range(len(names))]
    told = [ActionMask({"early": own}, {}, {"early": {"x": own}}) for own in several]
    first, *others = (told_of_moment(Moment(observation(), mask)).plain for mask in told)
    assert all(str(one) == str(first) for one in others)
    assert "['advance', 'fossilise', 'germinate', 'prune', 'retarget', 'wait']" in str(first)


def observation() -> Observation:
    return Observation(0, 1, Signals(0, 1.0, 1.0, 0.5, 1, 1, ()))


@pytest.mark.parametrize("plain", [{}, {"told": 3}, {"told": {"map": [["observation", 3]]}}, {"told": {"map": 3}}])
def test_what_is_no_moment_is_refused(plain):
    for read in (moment_of, lambda state: twin_of(state, "cpu")):
        with pytest.raises((GrowthError, LookupError, TypeError, ValueError)):
            read(State(plain))
