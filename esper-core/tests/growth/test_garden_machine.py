"""Gardens over random lives agree with a second, plain implementation of the lifecycle tables."""

from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings, strategies as st
from torch import Tensor, nn

from esper_core.growth import Seed, SeedFault, Variety
from esper_core.leyline import Action, Blend, BlueprintSpec, GrowthError, Op, Site
from esper_core.settings import GrowthConfig, OptimizerConfig
from tests.support.core_worlds import TAME, WILD, LinearWorld, Tame, slow

BATCHES = 2

# The lifecycle tables, written down independently.
SLOT = {
    ("free", "germinate"): "occupied",
    ("occupied", "germinate"): "occupied",
    ("occupied", "fossilise"): "free",
    ("occupied", "fossilise the last"): "closed",
    ("occupied", "prune"): "embargoed",
    ("embargoed", "rest over"): "free",
}
SEED = {
    ("germinated", "next step"): "training",
    ("training", "advance"): "blending",
    ("blending", "arrived"): "holding",
    ("holding", "fossilise"): "fossilised",
    **{(stage, "prune"): "pruned" for stage in ("germinated", "training")},
    **{(stage, "prune"): "draining" for stage in ("blending", "holding")},
    ("draining", "arrived"): "pruned",
}
OWN = dict.fromkeys(["test/tame", "test/wild", "test/faulty"], 21)  # parameters of each block at three features
WITH_BLEND = {
    "test/tame": {"add": 0, "residual": 1, "multiply": 0, "gate": 4},
    "test/wild": {"add": 1, "residual": 1, "multiply": 1, "gate": 5},  # behind a gain, since it is not the identity
}
WITH_BLEND["test/faulty"] = WITH_BLEND["test/tame"]


def faulty(site: Site, built: list[bool]) -> nn.Module:
    """Raises in every second call."""
    built.append(True)
    if len(built) % 2:
        torch.rand(1)
        raise ValueError("not this time")
    return Tame(site)


@dataclass
class SeedBook:
    number: int
    blueprint: str
    blend: str
    speed: int
    parameters: int
    stage: str = "germinated"
    target: float = 0.0
    ticks: int = 0  # until alpha is there; its values on the way are tested in test_seeds.py

    def go(self, event: str) -> None:
        self.stage = SEED[self.stage, event]

    def aim(self, target: float, speed: int) -> None:
        self.target, self.ticks = target, speed * BATCHES


@dataclass
class SlotBook:
    limit: int
    state: str = "free"
    embargo: int = 0
    kept: list[SeedBook] = field(default_factory=list)
    open: list[SeedBook] = field(default_factory=list)

    @property
    def seed(self) -> SeedBook | None:
        return self.open[0] if len(self.open) == 1 else None

    def meant(self, action: Action) -> list[SeedBook]:
        if action.op in (Op.ADVANCE, Op.PRUNE) and action.blueprint is not None:
            return [seed for seed in self.open if seed.blueprint == action.blueprint]
        if action.op is Op.ADVANCE:  # all gains are equal: the eldest seed that may advance
            return sorted(self.open, key=lambda seed: seed.stage != "training")[:1]
        return self.open if action.op is Op.PRUNE or len(self.open) == 1 else []

    def go(self, event: str) -> None:
        self.state = SLOT[self.state, event]


class Book:
    """The expected state of a garden."""

    def __init__(self, limits: dict[str, int], growth: GrowthConfig) -> None:
        self.slots = {name: SlotBook(limit) for name, limit in limits.items()}
        self.growth = growth
        self.born = 0
        self.built: list[bool] = []  # of the blueprint that raises
        self.verdicts: dict[str, bool | None] = {}

    def seeds(self) -> list[SeedBook]:
        return [seed for slot in self.slots.values() for seed in (*slot.kept, *slot.open)]

    def living(self) -> list[SeedBook]:
        return [seed for slot in self.slots.values() for seed in slot.open]

    def grows(self, name: str, blueprint: str) -> bool:
        most, budget = self.growth.seeds, self.growth.parameters
        slot = self.slots[name]
        if slot.state not in ("free", "occupied") or blueprint not in OWN:
            return False
        if slot.open and (self.growth.nursery <= len(slot.open) or blueprint in [seed.blueprint for seed in slot.open]):
            return False
        if not all(seed.stage in ("germinated", "training") for seed in slot.open):
            return False
        if most is not None and len(self.seeds()) >= most:
            return False
        needed = OWN[blueprint] + max(WITH_BLEND[blueprint].values())
        return budget is None or sum(seed.parameters for seed in self.seeds()) + needed <= budget

    def legal(self, action: Action) -> bool:
        op, slot = action.op, self.slots.get(action.slot or "")
        if op is Op.WAIT:
            return True
        if slot is None:
            return False
        if op is Op.GERMINATE:
            return self.grows(action.slot or "", action.blueprint or "")
        meant = slot.meant(action)
        if not meant or any((seed.stage, op.value) not in SEED for seed in meant):
            return False
        return op is not Op.FOSSILISE or (meant[0].target == 1.0 and not meant[0].ticks)

    def act(self, action: Action) -> None:
        """Record an action that is legal and does not fail."""
        slot = self.slots[action.slot or ""]
        if action.op is Op.GERMINATE:
            blueprint = action.blueprint or ""
            count = OWN[blueprint] + WITH_BLEND[blueprint][action.blend.value]
            slot.open.append(SeedBook(self.born, blueprint, action.blend.value, action.speed, count))
            slot.go("germinate")
            self.born += 1
            return
        for seed in list(slot.meant(action)):
            seed.go(action.op.value)
            if action.op is Op.ADVANCE:
                self.chosen(slot, seed)
            elif action.op is Op.FOSSILISE:
                slot.kept.append(seed)
                slot.open = []
                slot.go("fossilise the last" if len(slot.kept) == slot.limit else "fossilise")
            elif seed.stage == "draining":
                seed.aim(0.0, action.speed)
            else:
                self.out(slot, seed)

    def chosen(self, slot: SlotBook, seed: SeedBook) -> None:
        seed.aim(1.0, seed.speed)
        slot.open = [seed]

    def out(self, slot: SlotBook, seed: SeedBook) -> None:
        slot.open.remove(seed)
        if slot.open:
            return
        slot.go("prune")
        slot.embargo = self.growth.embargo
        if slot.embargo == 0:
            slot.go("rest over")

    def opened(self) -> None:
        for seed in self.living():
            if seed.stage == "germinated":
                seed.go("next step")

    def ticked(self) -> None:
        for seed in self.living():
            seed.ticks = max(seed.ticks - 1, 0)

    def closed(self) -> None:
        for name, slot in self.slots.items():
            if slot.state == "embargoed":
                slot.embargo -= 1
                if slot.embargo == 0:
                    slot.go("rest over")
                continue
            training = [seed for seed in slot.open if seed.stage == "training"]
            acting = any(seed.stage in ("blending", "holding", "draining") for seed in self.living())
            if training and len(slot.open) == 1 and self.verdicts.get(name) and not acting:
                training[0].go("advance")
                self.chosen(slot, training[0])
                continue
            for seed in [seed for seed in slot.open if not seed.ticks]:
                if seed.stage in ("blending", "draining"):
                    seed.go("arrived")
                if seed.stage == "pruned":
                    self.out(slot, seed)


class World(LinearWorld):
    """A garden, and the book of its expected state."""

    def __init__(self, limits: dict[str, int], growth: GrowthConfig) -> None:
        self.book = Book(limits, growth)
        raising = replace(TAME, id="test/faulty", factory=partial(faulty, built=self.book.built))
        varieties = TAME, WILD, raising, Variety("test/elsewhere", BlueprintSpec("image"), Tame)
        optimizer = OptimizerConfig(learning_rate=1e-2, clip_norm=1.0, implementation="plain")
        super().__init__(limits, varieties, optimizer, growth=growth, batches=BATCHES, ready=self.is_ready)
        self.hooks, self.modules = self.count()
        self.moments: dict[nn.Parameter, Tensor] = {}

    def is_ready(self, seed: Seed) -> bool:
        return any(self.book.verdicts.get(name) for name, slot in self.garden.slots.items() if seed in slot.nursery)

    def count(self) -> tuple[int, int]:
        modules = list(self.model.modules())
        return sum(len(module._forward_hooks) for module in modules), len(modules)

    # Rules: the events of a life.

    def act(self, action: Action) -> None:
        legal = self.book.legal(action)
        assert self.garden.mask().allows(action) is legal
        if legal and action.op is Op.GERMINATE and action.blueprint == "test/faulty" and not len(self.book.built) % 2:
            self.refused(action, SeedFault)
        elif legal:
            self.garden._born_here.clear()  # the tables know nothing of training
            self.garden.apply(action, 0)
            if action.op is not Op.WAIT:
                self.book.act(action)
        else:
            self.refused(action, GrowthError)  # a LifecycleError is one

    def refused(self, action: Action, kind: type[Exception]) -> None:
        before, random = self.picture(), torch.get_rng_state()
        with pytest.raises(kind):
            self.garden.apply(action, 0)
        assert self.picture() == before
        assert torch.equal(torch.get_rng_state(), random)

    def act_legally(self, choice: int, action: Action) -> None:
        """Carry out one of the legal actions, with the arguments of ``action``."""
        every = [
            replace(action, op=op, slot=slot, blueprint=blueprint)
            for slot in self.book.slots
            for op in Op
            for blueprint in ([*OWN, None] if op in (Op.GERMINATE, Op.ADVANCE, Op.PRUNE) else [None])
            if op is not Op.WAIT
        ]
        if legal := [candidate for candidate in every if self.book.legal(candidate)]:
            self.act(legal[choice % len(legal)])

    def grow(self, choice: int, action: Action) -> None:
        """Carry out what brings a slot nearer to its next fossil, which random actions seldom do."""
        name = list(self.book.slots)[choice % len(self.book.slots)]
        seed = self.book.slots[name].seed
        if self.book.slots[name].open and seed is None:
            self.act(replace(action, op=Op.ADVANCE, slot=name, blueprint=self.book.slots[name].open[-1].blueprint))
        elif seed is None:
            self.act(replace(action, op=Op.GERMINATE, slot=name, blueprint=list(OWN)[choice % 2]))
        elif seed.stage == "training":
            self.act(Action(Op.ADVANCE, name))
        elif seed.stage == "holding":
            self.act(Action(Op.FOSSILISE, name))
        else:
            self.whole_step()

    def open(self) -> None:
        self.garden.open_step()
        self.book.opened()

    def tick(self) -> None:
        self.garden.tick()
        self.book.ticked()

    def close(self) -> None:
        self.garden.close_step()
        self.book.closed()

    def whole_step(self) -> None:
        self.open()
        for _ in range(BATCHES):
            self.tick()
        self.close()

    def train(self, steps: int = 1) -> None:
        self.train_batch()
        self.book.ticked()

    def remove(self, choice: int) -> None:
        chosen_slots = {name: slot for place, (name, slot) in enumerate(self.book.slots.items()) if choice >> place & 1}
        self.garden.remove("removed", chosen_slots)
        for torn in chosen_slots.values():
            for seed in list(torn.open):
                self.book.out(torn, seed)

    def judge(self, choice: int, verdict: bool | None) -> None:
        self.book.verdicts[list(self.book.slots)[choice % len(self.book.slots)]] = verdict

    # Invariants.

    def picture(self) -> object:
        """Return the present state, for comparison with a later one."""
        return (
            [(slot.state, slot.embargo, list(slot.seeds)) for slot in self.garden.slots.values()],
            [(seed.stage, replace(seed.alpha)) for slot in self.garden.slots.values() for seed in slot.seeds],
            [(number, id(owner)) for number, owner in self.keeper.seeds.items()],
            [(number, id(owner)) for number, owner in self.keeper.fossils.items()],
            list(self.garden.incubating),
            list(self.model.state_dict()),
        )

    def check(self) -> None:
        for name, written in self.book.slots.items():
            self._check_slot(name, written)
        self._check_owners()
        mask = self.garden.mask()
        for name in self.book.slots:
            for op in Op:
                named = (*OWN, "test/elsewhere", "test/nowhere")
                for blueprint in named if op is Op.GERMINATE else (None, *named[:2]):
                    action = Action(op, name, blueprint)
                    assert mask.allows(action) is self.book.legal(action), action
        seeds = self.book.seeds()
        eased = [seed for seed in seeds if seed.blueprint == "test/wild" and seed.blend != "residual"]
        modules_per_seed = 5  # itself, its operator, its block and the two layers in it
        assert self.count() == (self.hooks, self.modules + modules_per_seed * len(seeds) + len(eased))
        assert [key for key in self.model.state_dict() if "_esper" not in key] == self.host_keys

    def _check_slot(self, name: str, written: SlotBook) -> None:
        slot = self.garden.slots[name]
        assert (slot.state.value, slot.embargo) == (written.state, written.embargo)
        assert [seed.number for seed in slot.fossils] == [seed.number for seed in written.kept]
        expected = [*written.kept, *written.open]
        assert len(slot.seeds) == len(expected)
        for seed, should in zip(slot.seeds, expected, strict=True):
            assert (seed.number, seed.blueprint, seed.blend) == (should.number, should.blueprint, should.blend)
            assert (seed.stage.value, seed.parameter_count) == (should.stage, should.parameters)
            assert seed.alpha.moving is (should.ticks > 0)
            assert seed.alpha.moving or seed.alpha.value == should.target

    def _check_owners(self) -> None:
        living = self.book.living()
        kept = [seed for slot in self.book.slots.values() for seed in slot.kept]
        frozen = self.book.growth.freeze_fossils
        assert self.keeper.misowned(self.model) == []
        assert set(self.keeper.seeds) == {seed.number for seed in living}
        assert set(self.keeper.fossils) == (set() if frozen else {seed.number for seed in kept})
        incubating = {seed.number for seed in living if seed.stage in ("germinated", "training")}
        assert set(self.garden.incubating) == incubating
        acting = {seed.number for seed in living if seed.stage in ("blending", "holding", "draining")}
        assert set(self.garden.blended) == acting
        groups = [group for owner in self.keeper.owners() if owner.optimizer for group in owner.optimizer.param_groups]
        assert len(groups) == 1 + len(living) + (0 if frozen else len(kept))
        now = {
            parameter: owner.optimizer.state[parameter]["exp_avg"]
            for owner in self.keeper.owners()
            if owner.optimizer is not None
            for parameter in owner.parameters
            if owner.optimizer.state.get(parameter)
        }
        owned = {id(parameter) for owner in self.keeper.owners() for parameter in owner.parameters}
        assert all(now[parameter] is moment for parameter, moment in self.moments.items() if id(parameter) in owned)
        self.moments = now


@st.composite
def worlds(draw: st.DrawFn) -> tuple[dict[str, int], GrowthConfig]:
    limits = draw(st.lists(st.integers(1, 3), min_size=2, max_size=3))
    growth = GrowthConfig(
        gates="off",
        incubation="shadow",  # seeds of several slots may live at once
        embargo=draw(st.integers(0, 3)),
        seeds=draw(st.sampled_from([None, None, 1, 2, 3])),
        parameters=draw(st.sampled_from([None, None, 30, 60])),
        freeze_fossils=draw(st.booleans()),
        nursery=draw(st.sampled_from([1, 1, 2, 3])),
    )
    return {f"slot{place}": limit for place, limit in enumerate(limits)}, growth


SPEEDS = st.sampled_from([0, 1, 1, 2, 3])
CHOICES = st.integers(0, 11)
ACTIONS = st.builds(
    Action,
    st.sampled_from(Op),
    st.sampled_from(["slot0", "slot1", "slot2"]),
    st.sampled_from([*OWN, "test/elsewhere"]),
    blend=st.sampled_from(Blend),
    speed=st.sampled_from([0, 1, 2]),
)
PLANS = st.builds(Action, blend=st.sampled_from(Blend), speed=SPEEDS)


def happening(name: str, *arguments: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[str, tuple[Any, ...]]]:
    return st.tuples(st.just(name), st.tuples(*arguments))


HAPPENINGS = st.one_of(
    *[happening("grow", CHOICES, PLANS)] * 2,
    *[happening("grow", st.just(0), PLANS)] * 3,
    *[happening("act_legally", CHOICES, PLANS)] * 2,
    happening("act", ACTIONS),
    happening("whole_step"),
    *[happening(name) for name in ("open", "tick", "close")],
    happening("train"),
    st.one_of(
        happening("remove", st.integers(1, 7)), happening("judge", CHOICES, st.sampled_from([True, False, None]))
    ),
)
LIVES = st.lists(HAPPENINGS, min_size=14, max_size=26)
QUICK = settings(deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])


def live(world: tuple[dict[str, int], GrowthConfig], life: list[tuple[str, tuple[Any, ...]]]) -> None:
    running = World(*world)
    for name, arguments in [("check", ()), *life]:
        getattr(running, name)(*arguments)
        running.check()


@pytest.mark.parametrize("lives", [40, slow(10_000)])
def test_b8_drl_02_random_lives_agree_with_the_tables(lives):
    """Over random lives stages, strengths, masks, owners and their state are what the tables say, event for event."""
    settings(QUICK, max_examples=lives)(given(worlds(), LIVES)(live))()
