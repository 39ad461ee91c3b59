"""Observations as rows of numbers: fixed columns, bounded values, and flags for unknown ones."""

import math
import random
from collections.abc import Iterable
from dataclasses import replace
from typing import TypeVar

import pytest
from hypothesis import given, strategies as st

from esper_core import leyline
from esper_core.leyline import ActionMask, ActionSpace, Observation, Op, SeedSignals, Signals, SlotSignals, Stage
from esper_core.leyline.signals import Finding
from esper_core.leyline.specs import SITE_KINDS, Candidate, SlotDescription
from esper_policies.observations import CANDIDATE_COLUMNS, GLOBAL_COLUMNS, LIMIT, SCHEMA, SLOT_COLUMNS, rows_of

T = TypeVar("T")

NAMES = ("a/one", "a/two", "b/one", "b/three")
STRANGER = "c/not-told-of"
LIVING = (Stage.GERMINATED, Stage.TRAINING, Stage.BLENDING, Stage.HOLDING, Stage.DRAINING)
EVERY_OP = tuple(op for op in Op if op is not Op.WAIT)
SEED_OPS = (Op.ADVANCE, Op.PRUNE, Op.FOSSILISE)

ODD = (0.0, -0.0, math.nan, math.inf, -math.inf, 1e9, -1e9, 1e308, 5e-324)


class Chance(random.Random):
    """Draws random observations, possible or not; a hundred times as fast as hypothesis strategies."""

    def number(self) -> float:
        return self.choice([*ODD, self.gauss(0.0, 1.0), self.gauss(0.0, 1.0), self.gauss(0.0, 1e3)])

    def count(self) -> int:
        return self.choice([0, self.randrange(1, 10), self.randrange(1, 10**9)])

    def perhaps(self, value: T) -> T | None:
        return self.choice([None, value])

    def some(self, several: Iterable[T]) -> list[T]:
        every = list(several)
        return self.sample(every, self.randint(0, len(every)))

    def gain(self) -> leyline.Gain:
        return leyline.Gain(self.randint(1, 1000), *(self.number() for _ in range(5)))

    def seed_of(self, blueprint: str) -> SeedSignals:
        shares = [self.choice([math.nan, self.random()]) for _ in range(3)]
        return SeedSignals(
            blueprint,
            self.choice(LIVING),
            self.random(),
            self.count(),
            age=self.perhaps(self.count()),
            incubation_loss=self.perhaps(self.number()),
            gradients=self.perhaps(leyline.GradientHealth(1.0, *shares)),
            gain=self.perhaps(self.gain()),
            opinion=self.perhaps(leyline.Opinion(self.choice([*Finding]), price=self.perhaps(self.number()))),
        )

    def slot(self, name: str) -> SlotSignals:
        """Draw a slot with none, one or several seeds, perhaps of unknown blueprints."""
        grown = [self.seed_of(blueprint) for blueprint in self.some((*NAMES, STRANGER))]
        return SlotSignals(name, self.choice([*leyline.SlotState]), self.randrange(100), tuple(grown))

    def place(self, blueprints: Iterable[str]) -> SlotDescription:
        described = [
            Candidate(name, self.count(), self.perhaps(self.count()), self.random() < 0.5)
            for name in self.some(blueprints)
        ]
        size = tuple(self.randrange(1, 10**4) for _ in range(self.randrange(3)))
        host = self.count(), self.perhaps(self.count())
        return SlotDescription(self.choice(SITE_KINDS), 1 + self.count(), size, self.random(), *host, tuple(described))

    def signals(self, slots: Iterable[SlotSignals] = ()) -> Signals:
        losses = [self.number() for _ in range(3)]
        return Signals(0, *losses, self.count(), self.count(), tuple(slots))

    def mask(self, space: ActionSpace, slots: Iterable[SlotSignals]) -> ActionMask:
        def ops() -> frozenset[Op]:
            return frozenset(self.some(EVERY_OP))

        return ActionMask(
            {name: ops() for name in space.slots},
            {name: tuple(self.some(space.blueprints[name])) for name in space.slots},
            {slot.name: {seed.blueprint: ops() for seed in slot.seeds} for slot in slots if slot.seeds},
        )


Scene = tuple[ActionSpace, Observation, ActionMask]


def scene_of(seed: int) -> Scene:
    """Draw a run with up to three slots at some step, and its mask."""
    chance = Chance(seed)
    blueprints = {name: tuple(chance.some(NAMES)) for name in chance.some(("early", "middle", "late"))}
    space = ActionSpace(blueprints, {name: chance.place(blueprints[name]) for name in chance.some(blueprints)})
    slots = tuple(chance.slot(name) for name in space.slots)
    steps = 1 + chance.count()
    twin, price = chance.perhaps(chance.signals()), chance.perhaps(chance.number())
    seen = Observation(chance.randrange(steps), steps, chance.signals(slots), twin, price)
    return space, seen, chance.mask(space, slots)


scenes = st.integers(0, 2**32).map(scene_of)
Row = dict[str, float]


def named_rows(scene: Scene) -> tuple[Row, dict[str, Row], dict[tuple[str, str], Row]]:
    """Return the values by the names of their columns: of the whole, of each slot, and of each candidate."""
    rows = rows_of(*scene)
    slots, candidates = (
        {name: dict(zip(columns, row, strict=True)) for name, row in zip(names, of_part, strict=True)}
        for columns, names, of_part in (
            (SLOT_COLUMNS, rows.slot_names, rows.slots),
            (CANDIDATE_COLUMNS, rows.candidate_names, rows.candidates),
        )
    )
    return dict(zip(GLOBAL_COLUMNS, rows.whole, strict=True)), slots, candidates


@pytest.mark.parametrize("columns", [GLOBAL_COLUMNS, SLOT_COLUMNS, CANDIDATE_COLUMNS])
def test_columns_are_unique_and_each_flag_follows_its_column(columns: tuple[str, ...]) -> None:
    assert len(set(columns)) == len(columns)
    for place, name in enumerate(columns):
        if name.endswith("?"):
            assert columns[place - 1] == name.removesuffix("?")


@given(scenes)
def test_any_observation_has_the_same_columns_bounded_values_and_zeros_where_unknown(scene: Scene) -> None:
    rows = rows_of(*scene)
    assert rows.schema == SCHEMA
    assert rows.slot_names == scene[0].slots
    whole, slots, candidates = named_rows(scene)
    for row in [whole, *slots.values(), *candidates.values()]:
        assert all(isinstance(value, float) and abs(value) <= LIMIT for value in row.values())
        for name, flag in row.items():
            assert not name.endswith("?") or flag == 0.0 or (flag, row[name.removesuffix("?")]) == (1.0, 0.0), name


@given(scenes)
def test_flag_is_set_exactly_where_the_value_is_unknown(scene: Scene) -> None:
    """Values in the signals that are None or NaN are unknown."""
    space, seen, _ = scene
    global_values, slots, candidates = named_rows(scene)
    now = seen.signals

    def unknown(value: float | None) -> float:
        return float(value is None or math.isnan(value))

    assert global_values["train_loss?"] == unknown(now.train_loss)
    assert global_values["validation_loss?"] == unknown(now.validation_loss)
    assert global_values["overfit?"] == unknown(now.validation_loss - now.train_loss)
    assert global_values["metric?"] == unknown(now.validation_metric)
    assert global_values["price?"] == unknown(seen.price)
    if seen.twin is None:
        assert global_values["metric_over_twin?"] == global_values["loss_under_twin?"] == 1.0
    for name, values in slots.items():
        assert {values["depth?"], values["channels?"], values["positions?"]} == {float(name not in space.descriptions)}
    for (slot, blueprint), values in candidates.items():
        place = space.descriptions.get(slot)
        candidate = None if place is None else place.candidate(blueprint)
        assert values["parameters?"] == float(candidate is None)
        has_flops = candidate is not None and place is not None and None not in (candidate.flops, place.host_flops)
        assert values["flops?"] == float(not has_flops)
        seed = living(seen, slot, blueprint)
        assert values["age?"] == unknown(None if seed is None else seed.age)
        assert values["health?"] == unknown(None if seed is None or seed.gradients is None else seed.gradients.health)
        gain = None if seed is None else seed.gain
        assert values["gain?"] == unknown(None if gain is None else gain.mean)
        assert values["gain_error?"] == unknown(None if gain is None else gain.standard_error)


def living(seen: Observation, slot: str, blueprint: str) -> SeedSignals | None:
    (of_slot,) = (signals for signals in seen.signals.slots if signals.name == slot)
    return next((seed for seed in of_slot.seeds if seed.blueprint == blueprint), None)


@given(scenes)
def test_candidates_are_ordered_by_slot_and_blueprint_with_unknown_ones_last(scene: Scene) -> None:
    """A seed whose blueprint is not in the action space has a row of its own, with ``is_new`` 1."""
    space, seen, _ = scene
    expected = []
    for slot in seen.signals.slots:
        blueprints = space.blueprints[slot.name]
        strangers = [seed.blueprint for seed in slot.seeds if seed.blueprint not in blueprints]
        expected += [(slot.name, blueprint) for blueprint in (*blueprints, *strangers)]
    _, _, candidates = named_rows(scene)
    assert list(candidates) == expected
    for (slot, blueprint), values in candidates.items():
        assert values["is_new"] == float(blueprint not in space.blueprints[slot])
        seed = living(seen, slot, blueprint)
        assert [values[f"stage_{stage.value}"] for stage in LIVING] == [
            float(seed is not None and seed.stage is stage) for stage in LIVING
        ]


@given(scenes)
def test_possible_ops_are_those_that_the_mask_allows(scene: Scene) -> None:
    """An op is possible for a slot if it is for anything in it, and for a seed if the mask allows it by blueprint."""
    _, seen, mask = scene
    _, slots, candidates = named_rows(scene)
    for (slot, blueprint), values in candidates.items():
        assert values["may_germinate"] == mask.allows(leyline.Action(Op.GERMINATE, slot, blueprint))
        if living(seen, slot, blueprint) is None:
            assert not any(values[f"may_{op.value}"] for op in SEED_OPS)
            continue
        for op in (Op.ADVANCE, Op.PRUNE):
            assert values[f"may_{op.value}"] == mask.allows(leyline.Action(op, slot, blueprint))
        # It names no blueprint: only ``mask.seeds`` says which seed it applies to.
        allowed = mask.allows(leyline.Action(Op.FOSSILISE, slot)) and Op.FOSSILISE in mask.seeds[slot][blueprint]
        assert values["may_fossilise"] == allowed
    for slot, values in slots.items():
        assert {op: values[f"may_{op.value}"] for op in mask.ops[slot]} == dict.fromkeys(mask.ops[slot], 1.0)
        assert sum(values[f"may_{op.value}"] for op in EVERY_OP) == len(mask.ops[slot])


PLACE = SlotDescription("sequence", 100, (9,), 0.5, 1000, 2000, (Candidate("a/one", 100, 200, True),))
GAIN = leyline.Gain(n=4, mean=0.25, deviation=0.5, skewness=0.0, worst=-1.0, best=1.0)
HEALTH, SHOWN = (
    leyline.GradientHealth(1.0, 0.25, 0.25, 0.0),
    leyline.Opinion(Finding.SHOWN, price=0.05),
)
MEASURED = {"age": 0, "incubation_loss": math.e - 1, "gradients": HEALTH, "gain": GAIN, "opinion": SHOWN}
SEED = SeedSignals("a/one", Stage.HOLDING, 0.5, 100, **MEASURED)


def small(**changes: object) -> Scene:
    slot = SlotSignals("early", leyline.SlotState.OCCUPIED, 2, (SEED,))
    now = Signals(0, 0.0, math.e - 1, 0.75, 1100, 1000, (slot,))
    twin = Signals(0, 0.0, math.e**2 - 1, 0.5, 1000, 1000, ())
    space = ActionSpace({"early": ("a/one",)}, {"early": PLACE})
    return space, replace(Observation(4, 10, now, twin, 20.0), **changes), ActionMask()


SHARE = math.log(2) / math.log(11)
MEANINGS: tuple[Row, ...] = (
    {
        "progress": 0.5, "steps": math.log10(11) / 2, "validation_loss": 1.0, "overfit": math.e - 1,
        "metric": 0.75, "metric_over_twin": 2.5, "loss_under_twin": 1.0, "added": 0.1, "fossils": 0.5,
        "living": 0.25, "price": 0.2,
    },
    {
        "state_occupied": 1.0, "fossils": 0.5, "acting": 0.25, "depth": 0.5, "channels": 1.0, "positions": 0.5,
        "kind_sequence": 1.0,
    },
    {
        "parameters": SHARE, "flops": SHARE, "identity": 1.0,
        "stage_holding": 1.0, "alpha": 0.5, "promised_loss": -1.0, "gain": 2.5, "gain_error": 2.5,
        "health": 0.5, "surplus": 2.0, "gate_opens": 1.0, "rent": 0.02,
    },
)  # fmt: skip


def test_columns_have_their_documented_values() -> None:
    """A known zero has no flag: an age of 0 steps."""
    whole, slots, candidates = named_rows(small())
    for row, meanings in zip((whole, *slots.values(), *candidates.values()), MEANINGS, strict=True):
        assert {name: value for name, value in row.items() if value} == pytest.approx(meanings)


def test_slot_without_signals_is_in_no_state_and_rent_is_unknown_without_a_price() -> None:
    """No value is assumed for a slot that the observation lacks."""
    space, seen, mask = small(price=None)
    _, _, candidates = named_rows((space, seen, mask))
    row = candidates["early", "a/one"]
    assert (row["rent"], row["rent?"]) == (0.0, 1.0)
    _, slots, candidates = named_rows((space, replace(seen, signals=replace(seen.signals, slots=())), mask))
    assert not any(slots["early"][f"state_{state.value}"] for state in leyline.SlotState)
    assert list(candidates) == [("early", "a/one")]
