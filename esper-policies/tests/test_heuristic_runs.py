"""The heuristic over whole episodes with known worths of blueprints.

The world keeps the tables of the lifecycle and the rules of slots, nurseries, gates and gains, and trains nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given, settings, strategies as st

from esper_core.leyline import (
    ActionMask,
    ActionSpace,
    Gain,
    Observation,
    Op,
    SeedEvent,
    SeedSignals,
    Signals,
    SlotSignals,
    SlotState,
    Stage,
)
from esper_core.leyline.lifecycle import BLENDED, INCUBATING, may, next_stage
from esper_policies.heuristic import Heuristic

EVENTS = {Op.ADVANCE: SeedEvent.ADVANCE, Op.PRUNE: SeedEvent.PRUNE, Op.FOSSILISE: SeedEvent.FOSSILISE}
EMBARGO = 2


@dataclass
class Kind:
    """A blueprint: its gain in the preview and in the host, its parameters, and its faults."""

    preview: float
    real: float
    parameters: int = 100
    builds: bool = True
    gated: bool = False


@dataclass
class Grown:
    """A living seed."""

    name: str
    kind: Kind
    born: int
    stage: Stage = Stage.GERMINATED
    ramp: int = 0


@dataclass
class Plot:
    """A slot."""

    stack: int
    seeds: list[Grown] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    embargo: int = 0
    planted: list[tuple[int, int, str]] = field(default_factory=list)

    @property
    def state(self):
        if self.seeds:
            return SlotState.OCCUPIED
        if len(self.kept) >= self.stack:
            return SlotState.CLOSED
        return SlotState.EMBARGOED if self.embargo else SlotState.FREE


class World:
    """One environment. twin: whether gains of acting seeds are measured."""

    def __init__(self, kinds, *, slots=1, stack=1, nursery=1, twin=True, steps=40):
        self.kinds, self.nursery, self.twin, self.steps = kinds, nursery, twin, steps
        self.plots = {f"slot-{number}": Plot(stack) for number in range(slots)}
        self.space = ActionSpace(dict.fromkeys(self.plots, tuple(kinds)))
        self.step = 0
        self.most_acting = 0

    def observation(self):
        slots = tuple(
            SlotSignals(name, plot.state, len(plot.kept), tuple(map(self.signals, plot.seeds)))
            for name, plot in self.plots.items()
        )
        return Observation(self.step, self.steps, Signals(self.step, 1.0, 1.0, 0.5, 10, 10, slots))

    def acting(self):
        return [seed for plot in self.plots.values() for seed in plot.seeds if seed.stage in BLENDED]

    def signals(self, seed):
        incubating = seed.stage in INCUBATING
        known = incubating or (self.twin and len(self.acting()) == 1)
        mean = seed.kind.preview if incubating else seed.kind.real
        gain = Gain(800, mean, 0.2, 0.0, -1.0, 1.0) if known else None
        alpha = 1.0 if seed.stage is Stage.HOLDING else 0.0
        return SeedSignals(seed.name, seed.stage, alpha, seed.kind.parameters, self.step - seed.born, gain=gain)

    def mask(self):
        room, seeds = {}, {}
        for name, plot in self.plots.items():
            living = [seed.name for seed in plot.seeds]
            incubating = all(seed.stage in INCUBATING for seed in plot.seeds)
            free = plot.state is SlotState.FREE or (living and incubating and len(living) < self.nursery)
            room[name] = tuple(kind for kind in self.kinds if free and kind not in living)
            if living:
                seeds[name] = {seed.name: self.possible(seed) for seed in plot.seeds}
        ops = {
            name: frozenset({Op.GERMINATE} if room[name] else ()).union(*seeds.get(name, {}).values())
            for name in self.plots
        }
        return ActionMask(ops, room, seeds)

    def possible(self, seed):
        refused = {Op.ADVANCE, Op.FOSSILISE} if seed.kind.gated else set()
        return frozenset(op for op, event in EVENTS.items() if may(seed.stage, event) and op not in refused)

    def apply(self, action):
        assert self.mask().allows(action), action
        if action.op is Op.WAIT:
            return
        plot = self.plots[action.slot]
        if action.op is Op.GERMINATE:
            plot.planted.append((self.step, len(plot.kept), action.blueprint))
            if self.kinds[action.blueprint].builds:
                plot.seeds.append(Grown(action.blueprint, self.kinds[action.blueprint], self.step))
            return
        for seed in [one for one in plot.seeds if action.blueprint in (None, one.name)]:
            self.carry_out(plot, seed, action)

    def carry_out(self, plot, seed, action):
        seed.stage = next_stage(seed.stage, EVENTS[action.op])
        seed.ramp = action.speed
        if seed.stage is Stage.BLENDING:
            plot.seeds = [seed]
        elif seed.stage is Stage.FOSSILISED:
            plot.seeds, plot.kept = [], [*plot.kept, seed.name]
        elif seed.stage is Stage.PRUNED:
            self.remove(plot, seed)

    def remove(self, plot, seed):
        plot.seeds.remove(seed)
        plot.embargo = 0 if plot.seeds else EMBARGO

    def pass_time(self):
        self.step += 1
        for plot in self.plots.values():
            plot.embargo = max(0, plot.embargo - 1)
            for seed in list(plot.seeds):
                seed.ramp -= 1
                if seed.stage is Stage.GERMINATED:
                    seed.stage = Stage.TRAINING
                elif seed.stage is Stage.BLENDING and seed.ramp <= 0:
                    seed.stage = Stage.HOLDING
                elif seed.stage is Stage.DRAINING and seed.ramp <= 0:
                    self.remove(plot, seed)
        self.most_acting = max(self.most_acting, len(self.acting()))

    def play(self, **settings):
        policy = Heuristic(self.space, **settings)
        for _ in range(self.steps):
            self.apply(policy.act([self.observation()], [self.mask()])[0])
            self.pass_time()
        return self

    @property
    def kept(self):
        return [plot.kept for plot in self.plots.values()]


GOOD = Kind(0.12, 0.25)
FAIR = Kind(0.05, 0.11)
USELESS = Kind(0.0, 0.0)
FLASH = Kind(0.2, -0.05)
"""A large gain in its preview, and none in the host."""


def test_it_fossilises_useful_seeds_only():
    assert World({"mlp": USELESS, "conv": GOOD}).play().kept == [["conv"]]
    assert World({"mlp": USELESS}).play().kept == [[]]


def test_a_nursery_lets_it_choose_the_best_blueprint():
    kinds = {"pointwise": FAIR, "conv": GOOD, "mlp": USELESS}
    assert World(kinds).play().kept == [["pointwise"]]
    assert World(kinds, nursery=3).play().kept == [["conv"]]


def test_a_disappointing_seed_is_replaced_by_the_next_best():
    world = World({"conv": GOOD, "flash": FLASH}, nursery=2).play(first=0.0)
    assert world.kept == [["conv"]]
    assert [name for _, _, name in world.plots["slot-0"].planted] == ["conv", "flash", "conv"]


def test_a_stack_grows_while_seeds_pay():
    assert World({"conv": GOOD}, stack=2).play().kept == [["conv", "conv"]]
    assert World({"mlp": USELESS}, stack=2).play().kept == [[]]


def test_slots_are_grown_one_at_a_time():
    world = World({"conv": GOOD}, slots=3).play()
    assert world.kept == [["conv"]] * 3
    assert world.most_acting == 1


def test_without_a_twin_the_preview_decides():
    assert World({"conv": GOOD}, twin=False).play().kept == [["conv"]]
    assert World({"flash": FLASH}, twin=False).play().kept == [["flash"]]


def test_no_unfinished_seed_acts_on_the_host_at_the_end():
    for last in (0.1, 0.3, 0.5, 0.6, 0.8, 1.0):
        world = World({"flash": FLASH}, stack=2).play(last=last, first=last / 2)
        assert [seed.stage for seed in world.acting() if seed.stage is not Stage.DRAINING] == []


kinds = st.dictionaries(
    st.sampled_from(["a/one", "a/two", "a/three", "a/four"]),
    st.builds(
        Kind,
        st.floats(-0.2, 0.3),
        st.floats(-0.2, 0.5),
        st.integers(0, 5000),
        builds=st.sampled_from([True, True, True, False]),
        gated=st.sampled_from([False, False, False, True]),
    ),
    min_size=1,
)
worlds = st.builds(
    World,
    kinds,
    slots=st.integers(1, 4),
    stack=st.integers(1, 3),
    nursery=st.integers(1, 5),
    twin=st.booleans(),
    steps=st.integers(1, 60),
)
habits = st.fixed_dictionaries(
    {
        "preview": st.integers(1, 8),
        "patience": st.integers(0, 8),
        "speed": st.integers(1, 6),
        "first": st.floats(0, 0.5),
        "last": st.floats(0.5, 1),
    }
)


def previewed(kind):
    gain = Gain(800, kind.preview, 0.2, 0.0, -1.0, 1.0)
    return SeedSignals("a/one", Stage.TRAINING, 0.0, kind.parameters, 5, gain=gain)


@settings(max_examples=60)
@given(worlds, habits)
def test_with_any_observations_it_fossilises_only_seeds_that_pay(world, habits):
    world.play(**habits)
    forecast = Heuristic(world.space).forecast
    assert world.most_acting <= 1
    for plot in world.plots.values():
        for name in plot.kept:
            kind = world.kinds[name]
            gain = Gain(800, kind.real if world.twin else kind.preview, 0.2, 0.0, -1.0, 1.0)
            stage = Stage.HOLDING if world.twin else Stage.TRAINING
            assert forecast.net(SeedSignals(name, stage, 1.0, kind.parameters, 9, gain=gain)) > 0
        for step, height, name in plot.planted:
            assert habits["first"] * world.steps <= step <= habits["last"] * world.steps
            again = [one for one in plot.planted if one[1:] == (height, name)]
            assert len(again) == 1 or forecast.net(previewed(world.kinds[name])) > 0
