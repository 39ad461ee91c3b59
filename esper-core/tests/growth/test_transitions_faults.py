"""A fault at every single line of every transition: all is as before, and the next try is as good as the first."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from esper_core import growth
from esper_core.config.model import GrowthConfig
from esper_core.growth import Garden, Seed, Variety, graft
from esper_core.growth.optimizers import OptimizerKeeper, OptimizerSettings
from esper_core.leyline import Action, Blend, BlueprintSpec, Op, Site, SlotPlace, SlotState, Stage

WHERE = str(Path(growth.__file__).parent)
WIDTH, BATCHES = 2, 2


class Tame(nn.Module):
    """x + W·x with W at 0: the identity. Drawn at random first, as most blocks are."""

    def __init__(self, site: Site) -> None:
        super().__init__()
        self.first = nn.Linear(site.channels, site.channels)
        self.last = nn.Linear(site.channels, site.channels)
        nn.init.zeros_(self.last.weight)
        nn.init.zeros_(self.last.bias)

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden + self.last(torch.tanh(self.first(hidden)))


class Wild(Tame):
    """No identity."""

    def forward(self, hidden: Tensor) -> Tensor:
        return super().forward(hidden) - 2 * hidden


class Halving:
    """Each step half as fast as the one before; it may be out of order."""

    broken = False

    def factor(self, step: int, steps: int | None) -> float:
        if self.broken:
            raise ValueError("out of order")
        return 0.5**step


def adam(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=torch.tensor(0.01), foreach=False)


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9, foreach=False)


@dataclass
class World:
    """A host of two slots, and a garden in it."""

    limit: int = 1
    freeze: bool = False
    ready: Callable[[str], bool | None] | None = None
    schedule: Halving = field(default_factory=Halving)
    of_seeds: Callable[[Any], torch.optim.Optimizer] = adam

    def __post_init__(self) -> None:
        torch.manual_seed(4)
        self.model = nn.Sequential()
        for name in ("early", "late"):
            self.model.add_module(name, nn.Linear(WIDTH, WIDTH))
        self.inputs, self.targets = torch.randn(6, WIDTH), torch.randn(6, WIDTH)
        graft(self.model, {n: SlotPlace(n, stack=self.limit) for n in ("early", "late")}, example=self.inputs)
        self.keeper = OptimizerKeeper(
            self.model.parameters(),
            host_settings=OptimizerSettings(sgd, 1.0, self.schedule),
            seed_settings=OptimizerSettings(self.of_seeds, 1.0, self.schedule),
        )
        varieties = (
            Variety("test/tame", BlueprintSpec("vector", "2*c*c + 2*c", starts_as_identity=True), Tame),
            Variety("test/wild", BlueprintSpec("vector", "2*c*c + 2*c"), Wild),
        )
        self.garden = Garden(
            self.model,
            self.keeper,
            {"early": varieties, "late": varieties},
            seed=9,
            batches=BATCHES,
            settings=GrowthConfig(embargo=2, freeze_fossils=self.freeze),
            gates=SimpleNamespace(
                refusal=lambda seed, op: None,
                ready=self.is_ready,
                lead=lambda seed: 0.0,
                explain=lambda reason, seed: reason,
            ),
        )

    def is_ready(self, seed: Seed) -> bool:
        (name,) = [name for name, slot in self.garden.slots.items() if slot.living is seed]
        return self.ready is not None and bool(self.ready(name))

    def loss(self, model: nn.Module) -> Tensor:
        return (model(self.inputs) - self.targets).square().mean()

    def batches(self) -> None:
        for _ in range(BATCHES):
            self.garden.tick()
            self.keeper.zero_grad()
            self.loss(self.model).backward()
            self.keeper.step(self.garden.blended)
            for number in self.garden.incubating:
                self.garden.incubate(number, self.loss)

    def train(self, steps: int = 1) -> None:
        for _ in range(steps):
            self.garden.open_step()
            self.batches()
            self.garden.close_step()

    def act(self, op: Op, slot: str = "early", **numbers: Any) -> None:
        blueprint = numbers.pop("blueprint", "test/tame") if op is Op.GERMINATE else None
        self.garden.apply(Action(op, slot, blueprint, **{"speed": 1, **numbers}), 7)

    def picture(self, *, told: bool = False) -> list[object]:
        """All that a transition can change; ``told``: by value alone, to be compared with another world."""
        known: Callable[[object], object] = (lambda thing: None) if told else id
        mask = self.garden.mask()
        return [
            [(slot.state, slot.embargo, [known(seed) for seed in slot.seeds]) for slot in self.garden.slots.values()],
            [
                (seed.number, seed.stage, seed.born, seed.kept, replace(seed.alpha))
                for slot in self.garden.slots.values()
                for seed in slot.stack
            ],
            {name: parameter.requires_grad for name, parameter in self.model.named_parameters()},
            {name: value.tolist() for name, value in self.model.state_dict().items()},
            list(self.keeper.seeds),
            list(self.keeper.fossils),
            [self._share(share, known) for share in self.keeper.shares()],
            self.garden.incubating,
            self.garden.born,
            (mask.ops, mask.blueprints),
            torch.get_rng_state().numpy().tobytes(),
        ]

    @staticmethod
    def _share(share: Any, known: Callable[[object], object]) -> object:
        state = [
            (key, known(value), value.tolist())
            for parameter in share.parameters
            for key, value in share.optimizer.state[parameter].items()
            if isinstance(value, Tensor)
        ]
        rates = [(known(group["lr"]), float(group["lr"])) for group in share.optimizer.param_groups]
        return known(share), [known(parameter) for parameter in share.parameters], state, rates, share.begun


# Each transition: in which world, what was before, and what is done.

Do = Callable[[World], object]


def germinated(world: World, **numbers: Any) -> None:
    world.train()
    world.act(Op.GERMINATE, **numbers)


def in_training(world: World, **numbers: Any) -> None:
    germinated(world, **numbers)
    world.train(2)


def blending(world: World) -> None:
    in_training(world, speed=3)
    world.act(Op.ADVANCE)
    world.train()


def arriving(world: World) -> None:
    in_training(world)
    world.act(Op.ADVANCE)
    world.garden.open_step()
    world.batches()


def holding(world: World) -> None:
    arriving(world)
    world.garden.close_step()


def holding_behind_a_fossil(world: World) -> None:
    holding(world)
    world.act(Op.FOSSILISE)
    holding(world)


def draining_to_the_end(world: World) -> None:
    holding(world)
    world.act(Op.PRUNE)
    world.garden.open_step()
    world.batches()


def resting(world: World) -> None:
    in_training(world)
    world.act(Op.PRUNE)
    world.train()
    world.garden.open_step()


def two_alive(world: World) -> None:
    blending(world)
    world.act(Op.GERMINATE, "late")
    world.train()


def two_newborn(world: World) -> None:
    germinated(world)
    world.act(Op.GERMINATE, "late")


def all_at_once(world: World) -> None:
    """A ramp that ends, and beside it a seed that may advance."""
    in_training(world)
    world.act(Op.ADVANCE)
    world.act(Op.GERMINATE, "late")
    world.garden.open_step()
    world.batches()


def act(op: Op, **numbers: Any) -> Do:
    return lambda world: world.act(op, **numbers)


def step_opens(world: World) -> object:
    return world.garden.open_step()


def step_closes(world: World) -> object:
    return world.garden.close_step()


def all_are_uprooted(world: World) -> object:
    return world.garden.remove("torn out")


Case = tuple[Callable[[], World], Do, Do, dict[str, object]]
late = partial(World, ready=lambda slot: slot == "late")
EMPTY, EARLY = {"late": None}, {"early": None}
CASES: dict[str, Case] = {
    **{
        f"germinate {name} by {blend}": (
            World,
            lambda world: world.train(),
            act(Op.GERMINATE, blueprint=f"test/{name}", blend=blend),
            {"early": Stage.GERMINATED},
        )
        for blend in Blend
        for name in ("tame", "wild")
    },
    "a second behind a fossil": (
        partial(World, limit=2),
        lambda world: (holding(world), world.act(Op.FOSSILISE)),
        act(Op.GERMINATE),
        {"early": Stage.GERMINATED},
    ),
    "advance": (World, in_training, act(Op.ADVANCE), {"early": Stage.BLENDING}),
    "retarget": (World, holding, act(Op.RETARGET, target=0.5, speed=2), {"early": Stage.BLENDING}),
    "retarget at once": (World, holding, act(Op.RETARGET, target=0.5, speed=0), {"early": Stage.BLENDING}),
    "prune at once": (World, in_training, act(Op.PRUNE), {"early": SlotState.EMBARGOED}),
    "prune a newborn": (World, germinated, act(Op.PRUNE), {"early": SlotState.EMBARGOED}),
    "prune with a drain": (World, blending, act(Op.PRUNE, speed=2), {"early": Stage.DRAINING}),
    "fossilise below the limit": (partial(World, limit=2), holding, act(Op.FOSSILISE), {"early": SlotState.FREE}),
    "fossilise at the limit": (World, holding, act(Op.FOSSILISE), {"early": SlotState.CLOSED}),
    "fossilise the second": (
        partial(World, limit=2), holding_behind_a_fossil, act(Op.FOSSILISE), {"early": SlotState.CLOSED},
    ),
    "fossilise with the host's own optimizer": (
        partial(World, of_seeds=sgd), holding, act(Op.FOSSILISE), {"early": SlotState.CLOSED},
    ),
    "fossilise and freeze": (partial(World, freeze=True), holding, act(Op.FOSSILISE), {"early": SlotState.CLOSED}),
    "a step opens": (World, in_training, step_opens, {"early": Stage.TRAINING}),
    "a step opens for a newborn": (World, germinated, step_opens, {"early": Stage.TRAINING}),
    "a step opens for two": (World, two_newborn, step_opens, {"early": Stage.TRAINING, "late": Stage.TRAINING}),
    "a ramp has arrived": (World, arriving, step_closes, {"early": Stage.HOLDING}),
    "a drain is over": (World, draining_to_the_end, step_closes, {"early": SlotState.EMBARGOED}),
    "a rest is over": (World, resting, step_closes, {"early": SlotState.FREE}),
    "a seed is ready": (
        partial(World, ready=lambda slot: True), lambda world: (germinated(world), world.garden.open_step()),
        step_closes, {"early": Stage.BLENDING},
    ),
    "a ramp has arrived and another, that is ready, waits": (
        late, all_at_once, step_closes, {"early": Stage.HOLDING, "late": Stage.TRAINING},
    ),
    "several are uprooted": (
        World, two_alive, all_are_uprooted, {"early": SlotState.EMBARGOED, "late": SlotState.EMBARGOED},
    ),
}  # fmt: skip


class Interrupted(BaseException):
    """An exception that no handler for ordinary errors catches."""


@contextmanager
def fault_at(line: int, kind: type[BaseException]) -> Iterator[list[str]]:
    """While this lasts, the growth package raises before the ``line``-th line that it runs, and then no more."""
    run: list[str] = []

    def within(frame: FrameType, event: str, argument: object) -> Any:
        if event == "line":
            run.append(f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}")
            if len(run) == line:
                raise kind("out of the blue")
        return within

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        return within if frame.f_code.co_filename.startswith(WHERE) else None

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield run
    finally:
        sys.settrace(before)


def standing(world: World, expected: dict[str, object]) -> dict[str, object]:
    return {
        name: world.garden.slots[name].living.stage
        if isinstance(should, Stage)
        else world.garden.slots[name].state
        for name, should in expected.items()
    }  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "stride"),
    [
        pytest.param(MemoryError, 7, id="every seventh line"),
        pytest.param(MemoryError, 1, id="every line", marks=pytest.mark.slow),
        pytest.param(Interrupted, 1, id="every line, interrupted", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("case", CASES)
def test_b8_drl_02_a_fault_at_any_line_of_a_transition_leaves_everything_as_it_was(
    case: str, kind: type[BaseException], stride: int
) -> None:
    """Wherever a transition breaks off, slots, seeds, optimizers, rates and random numbers are as before."""
    make, prepare, change, expected = CASES[case]
    undisturbed = make()
    prepare(undisturbed)
    change(undisturbed)
    undisturbed_picture = undisturbed.picture(told=True)
    world = make()
    prepare(world)
    before = world.picture()
    lines = len(case) % stride  # other lines in each case
    while True:
        lines += stride
        try:
            with fault_at(lines, kind) as run:
                change(world)
        except BaseException as error:
            if "out of the blue" not in str(error):
                raise
            assert_same(world.picture(), before, f"{run[-1]}, the {lines}th line")
        else:
            break
    assert 10 < len(run) < lines <= len(run) + stride
    assert standing(world, expected) == expected
    assert_same(world.picture(told=True), undisturbed_picture, "the transition at last")
    world.train(2)
    undisturbed.train(2)
    assert_same(world.picture(told=True), undisturbed.picture(told=True), "two steps later")


def assert_same(now: list[object], then: list[object], where: str) -> None:
    different = [place for place, (a, b) in enumerate(zip(now, then, strict=True)) if a != b]
    assert not different, f"after {where}: {[(now[place], then[place]) for place in different if place != 10]}"


def test_a_schedule_that_raises_opens_no_step() -> None:
    world, undisturbed = World(), World()
    for each in (world, undisturbed):
        two_newborn(each)
    before = world.picture()
    world.schedule.broken = True
    for _ in range(3):
        with pytest.raises(ValueError, match="out of order"):
            world.garden.open_step()
        assert_same(world.picture(), before, "a schedule that raised")
    world.schedule.broken = False
    for each in (world, undisturbed):
        each.train()
    assert_same(world.picture(told=True), undisturbed.picture(told=True), "a schedule that is mended")


def test_a_verdict_that_raises_closes_no_step() -> None:
    def no_verdict(slot: str) -> bool:
        if slot == "late":
            raise ValueError("who knows")
        return False

    world = World(ready=no_verdict)
    two_newborn(world)
    world.garden.open_step()
    before = world.picture()
    with pytest.raises(ValueError, match="who knows"):
        world.garden.close_step()
    assert_same(world.picture(), before, "a verdict that raised")
