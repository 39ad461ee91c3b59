"""Transitions: incubation beside an acting seed, and errors at any line that leave everything as before."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from esper_core import growth
from esper_core.growth import Garden, OptimizerSettings, Presence, RandomStream, RunningAverage, graft, slots_of
from esper_core.growth.averages import places_that_train
from esper_core.leyline import Action, Blend, LifecycleError, Op, SlotState, Stage
from tests.support.core_worlds import TAME, WILD, Falling, LinearWorld, add_seed, make_garden, plain_growth

GERMINATE = Action(Op.GERMINATE, "late", "test/tame")


def load_garden(incubation: str, **living: Stage) -> Garden:
    """Return a garden of a network with living seeds in these slots and stages; the one in ``early`` acts."""
    host = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model = graft(host, {"early": "0", "late": "1"}, example=torch.ones(2, 4))
    for number, (slot, stage) in enumerate({"early": Stage.HOLDING, **living}.items()):
        seed = add_seed(model, slot)
        seed.stage, seed.number = stage, number
        slots_of(model).named(slot).state = SlotState.OCCUPIED
    return make_garden(model, TAME, growth={"incubation": incubation})


def test_no_branch_opens_while_another_seed_acts_on_the_host():
    garden = load_garden("branch")
    assert garden.blended_slots == ("early",)
    assert garden.mask().blueprints["late"] == ()
    with pytest.raises(LifecycleError, match=r"E301 germinate .*a seed in slot early is blended in"):
        garden.apply(GERMINATE, 0)
    assert not garden.incubating
    garden.remove("done", ["early"])
    garden.apply(GERMINATE, 0)
    assert [seed.presence for seed in garden.living_seeds()] == [Presence.BRANCHED]
    garden.apply(replace(GERMINATE, slot="early"), 0)
    assert len(garden.incubating) == 2, "several slots may have branches of one host"
    in_shadow = load_garden("shadow")
    in_shadow.apply(GERMINATE, 0)
    assert len(in_shadow.incubating) == 1


def test_loaded_seed_incubates_in_the_shadow_while_another_one_acts():
    garden = load_garden("branch", late=Stage.TRAINING)
    assert [seed.presence for seed in garden.living_seeds()] == [Presence.ACTING, Presence.ACTING]
    assert len(garden.incubating) == 1


def adam(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=torch.tensor(0.01), foreach=False)


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9, foreach=False)


class World(LinearWorld):
    """A host of two slots, and a garden in it."""

    def __init__(
        self,
        limit: int = 1,
        *,
        freeze: bool = False,
        ready: Sequence[str] = (),
        of_seeds: Any = adam,
        incubation: str = "shadow",
    ) -> None:
        super().__init__(
            {"early": limit, "late": limit},
            (TAME, WILD),
            OptimizerSettings(sgd, 1.0, Falling()),
            OptimizerSettings(of_seeds, 1.0, Falling()),
            growth=plain_growth(embargo=2, freeze_fossils=freeze, incubation=incubation),
            batches=2,
            ready=lambda seed: any(self.garden.slots[name].living is seed for name in ready),
        )

    def run_batches(self) -> None:
        for _ in range(self.batches):
            self.train_batch()

    def act(self, op: Op, slot: str = "early", **numbers: Any) -> None:
        blueprint = numbers.pop("blueprint", "test/tame") if op is Op.GERMINATE else None
        self.garden.apply(Action(op, slot, blueprint, **{"speed": 1, **numbers}), 7)

    def picture(self, *, values_only: bool = False) -> list[object]:
        """Return all that a transition can change; ``values_only``, for comparison with another world."""
        identity: Callable[[object], object] = (lambda seed: None) if values_only else id
        mask, slots = self.garden.mask(), self.garden.slots.values()
        seeds = [seed for slot in slots for seed in slot.seeds]
        return [
            [(slot.state, slot.embargo, [identity(seed) for seed in slot.seeds]) for slot in slots],
            [(seed.number, seed.stage, seed.born, seed.kept, replace(seed.alpha)) for seed in seeds],
            {name: parameter.requires_grad for name, parameter in self.model.named_parameters()},
            {name: value.tolist() for name, value in self.model.state_dict().items()},
            list(self.keeper.seeds),
            list(self.keeper.fossils),
            [self._owner(owner, identity) for owner in self.keeper.owners()],
            list(self.garden.incubating),
            self.garden.born,
            (mask.ops, mask.blueprints),
            torch.get_rng_state().numpy().tobytes(),
        ]

    @staticmethod
    def _owner(owner: Any, identity: Callable[[object], object]) -> object:
        state = [
            (key, identity(value), value.tolist())
            for parameter in owner.parameters
            for key, value in owner.optimizer.state[parameter].items()
            if isinstance(value, Tensor)
        ]
        rates = [(identity(group["lr"]), float(group["lr"])) for group in owner.optimizer.param_groups]
        return identity(owner), [identity(parameter) for parameter in owner.parameters], state, rates, owner.begun


# The steps that lead to each transition.
IN_TRAINING = ("train", "germinate", "train", "train")
BLENDING = ("train", "germinate slowly", "train", "train", "advance", "train")
ARRIVING = (*IN_TRAINING, "advance", "open", "batches")
HOLDING = (*ARRIVING, "close")
Do = Callable[["World"], object]


def after(*steps: str) -> Do:
    """Carry out steps in order."""

    def prepare(world: World) -> None:
        for step in steps:
            match step.split():
                case ["open" | "close"]:
                    getattr(world.garden, f"{step}_step")()
                case ["batches"]:
                    world.run_batches()
                case ["train"]:
                    world.train()
                case [op, *where]:
                    slot, speed = ("late" if "late" in where else "early"), (3 if "slowly" in where else 1)
                    world.act(Op(op), slot, speed=speed)

    return prepare


def act(op: Op, **numbers: Any) -> Do:
    return lambda world: world.act(op, **numbers)


def judge_branch(world: World) -> None:
    """Let the network have the average weights of its branch for a moment."""
    (branch,) = world.garden.incubating.values()
    average = RunningAverage(4.0, partial(places_that_train, world.model))
    average.update()
    with branch.trial(), average.applied():
        pass


Case = tuple[Callable[[], World], Do, Do, dict[str, object]]
OPEN, CLOSE, REMOVE = after("open"), after("close"), lambda world: world.garden.remove("torn out")
STACK = partial(World, limit=2)
CASES: dict[str, Case] = {
    **{
        f"germinate {name} by {blend}": (
            World, after("train"), act(Op.GERMINATE, blueprint=f"test/{name}", blend=blend),
            {"early": Stage.GERMINATED},
        )
        for name, blend in (("tame", Blend.ADD), ("wild", Blend.GATED))
    },
    "a second behind a fossil": (
        STACK, after(*HOLDING, "fossilise"), act(Op.GERMINATE), {"early": Stage.GERMINATED},
    ),
    "advance": (World, after(*IN_TRAINING), act(Op.ADVANCE), {"early": Stage.BLENDING}),
    "prune at once": (World, after(*IN_TRAINING), act(Op.PRUNE), {"early": SlotState.EMBARGOED}),
    "prune a newborn": (World, after("train", "germinate"), act(Op.PRUNE), {"early": SlotState.EMBARGOED}),
    "prune with a drain": (World, after(*BLENDING), act(Op.PRUNE, speed=2), {"early": Stage.DRAINING}),
    "fossilise below the limit": (STACK, after(*HOLDING), act(Op.FOSSILISE), {"early": SlotState.FREE}),
    "fossilise at the limit": (World, after(*HOLDING), act(Op.FOSSILISE), {"early": SlotState.CLOSED}),
    "fossilise the second": (
        STACK, after(*HOLDING, "fossilise", *HOLDING), act(Op.FOSSILISE), {"early": SlotState.CLOSED},
    ),
    "fossilise with the host's own optimizer": (
        partial(World, of_seeds=sgd), after(*HOLDING), act(Op.FOSSILISE), {"early": SlotState.CLOSED},
    ),
    "fossilise on a branch": (
        partial(World, incubation="branch"), after(*IN_TRAINING, "advance", "train"),
        act(Op.FOSSILISE), {"early": SlotState.CLOSED},
    ),
    "judge a branch": (
        partial(World, incubation="branch"), after(*IN_TRAINING), judge_branch, {"early": Stage.TRAINING},
    ),
    "fossilise and freeze": (
        partial(World, freeze=True), after(*HOLDING), act(Op.FOSSILISE), {"early": SlotState.CLOSED},
    ),
    "a step opens": (World, after(*IN_TRAINING), OPEN, {"early": Stage.TRAINING}),
    "a step opens for a newborn": (World, after("train", "germinate"), OPEN, {"early": Stage.TRAINING}),
    "a step opens for two": (
        World, after("train", "germinate", "germinate late"), OPEN, {"early": Stage.TRAINING, "late": Stage.TRAINING},
    ),
    "a ramp has arrived": (World, after(*ARRIVING), CLOSE, {"early": Stage.HOLDING}),
    "a drain is over": (World, after(*HOLDING, "prune", "open", "batches"), CLOSE, {"early": SlotState.EMBARGOED}),
    "a rest is over": (World, after(*IN_TRAINING, "prune", "train", "open"), CLOSE, {"early": SlotState.FREE}),
    "a seed is ready": (
        partial(World, ready=("early", "late")), after("train", "germinate", "open"),
        CLOSE, {"early": Stage.BLENDING},
    ),
    "a ramp has arrived and another, that is ready, waits": (
        partial(World, ready=("late",)), after(*ARRIVING[:-2], "germinate late", *ARRIVING[-2:]),
        CLOSE, {"early": Stage.HOLDING, "late": Stage.TRAINING},
    ),
    "several are removed": (
        World, after(*BLENDING, "germinate late", "train"), REMOVE,
        {"early": SlotState.EMBARGOED, "late": SlotState.EMBARGOED},
    ),
}  # fmt: skip


class Interrupted(BaseException):
    """An exception that no handler for ordinary errors catches."""


@contextmanager
def fault_at(line: int, kind: type[BaseException]) -> Iterator[list[str]]:
    """Run a block in which the growth package raises once, before the ``line``-th line that it executes."""
    run: list[str] = []

    def within(frame: FrameType, event: str, argument: object) -> Any:
        if event == "line":
            run.append(f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}")
            if len(run) == line:
                raise kind("out of the blue")
        return within

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        return within if frame.f_code.co_filename.startswith(str(Path(growth.__file__).parent)) else None

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield run
    finally:
        sys.settrace(before)


@pytest.mark.parametrize(
    ("kind", "stride"),
    [
        pytest.param(MemoryError, 13, id="every thirteenth line"),
        pytest.param(MemoryError, 1, id="every line", marks=pytest.mark.slow),
        pytest.param(Interrupted, 1, id="every line, interrupted", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("case", CASES)
def test_b8_drl_02_a_fault_at_any_line_of_a_transition_leaves_everything_as_it_was(case, kind, stride):
    """After a failure at any line, slots, seeds, optimizers, rates and random numbers are as before."""
    make, prepare, change, expected = CASES[case]
    undisturbed = make()
    prepare(undisturbed)
    change(undisturbed)
    undisturbed_picture = undisturbed.picture(values_only=True)
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
    for name, should in expected.items():
        slot = world.garden.slots[name]
        assert (slot.living.stage if isinstance(should, Stage) else slot.state) == should
    assert_same(world.picture(values_only=True), undisturbed_picture, "the transition at last")
    world.train(2)
    undisturbed.train(2)
    assert_same(world.picture(values_only=True), undisturbed.picture(values_only=True), "two steps later")


@pytest.mark.parametrize("line", [*range(6, 12), *range(15, 23)])
def test_an_interrupt_where_a_random_stream_begins_or_ends_leaves_it_and_the_generators_usable(line):
    before, stream = torch.get_rng_state(), RandomStream(1)
    with pytest.raises(Interrupted), fault_at(line, Interrupted), stream:
        torch.rand(1)
    with stream:
        torch.rand(1)
    assert torch.equal(torch.get_rng_state(), before)


def assert_same(now: list[object], then: list[object], occasion: str) -> None:
    different = [place for place, (a, b) in enumerate(zip(now, then, strict=True)) if a != b]
    assert not different, f"after {occasion}: {[(now[place], then[place]) for place in different if place != 10]}"
