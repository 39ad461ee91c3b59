"""Seeds that germinate together train on one branch, lose members that are not missed, and are kept at once."""

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from esper_core import EsperError
from esper_core.growth import Presence, slots_of
from esper_core.leyline import Stage
from esper_grow import Gardener, adapters
from tests.support.core_worlds import same
from tests.support.loops import train_batch

pytestmark = pytest.mark.members

PLACES = ["0", "2", "4"]
KEPT = [Stage.FOSSILISED]
Batch = tuple[Tensor, Tensor]


def build() -> nn.Module:
    """Return a frozen host of three layers with tanh between them."""
    torch.manual_seed(0)
    layers = [nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3)]
    return nn.Sequential(*layers).requires_grad_(requires_grad=False)


def per_example(model: nn.Module, batch: Batch) -> Tensor:
    return nn.functional.cross_entropy(3 * model(batch[0]), batch[1], reduction="none")


def examples(count: int, seed: int) -> list[Batch]:
    """Return batches of a task that needs another last layer, and nothing before it."""
    target = build()
    with torch.no_grad():
        target[4].weight.add_(torch.randn(3, 8, generator=torch.Generator().manual_seed(1)))
    inputs = torch.randn(count, 8, generator=torch.Generator().manual_seed(seed))
    with torch.no_grad():
        labels = (9 * target(inputs)).argmax(1)
    return list(zip(inputs.split(40), labels.split(40), strict=True))


class World:
    """A loop over a frozen host with a set of LoRAs."""

    def __init__(self, steps: int = 8, model: nn.Module | None = None, **options: Any) -> None:
        self.model = build() if model is None else model
        self.batches, self.held_out, self.reports = examples(200, 2), examples(200, 3), []
        settings = {"growth": {"price": {"per_parameter": 1e-4}}, "together": True, "leave_out": 9.0, "steps": steps}
        arguments = {**adapters(self.model, PLACES, rank=2), "loss": per_example, "validation": self.held_out}
        arguments |= settings | options
        self.gardener = Gardener(self.model, partial(torch.optim.AdamW, lr=4e-2), **arguments)

    def step(self, batch: Batch) -> None:
        train_batch(self.gardener, per_example, batch)

    def epochs(self, count: int) -> list[Any]:
        for _ in range(count):
            for batch in self.batches:
                self.step(batch)
            self.reports.append(self.gardener.tend())
        return self.reports

    def stages(self) -> dict[str, list[Stage]]:
        return {slot.name: [seed.stage for seed in slot.seeds] for slot in slots_of(self.model)}

    def optimizer_state(self) -> list[Any]:
        state = self.gardener.optimizer.state_dict()["state"]
        return [value for number in sorted(state) for value in state[number].values()]


@pytest.mark.install  # CI runs it for every change
def test_a_set_trains_apart_loses_what_is_not_missed_and_is_kept_at_once():
    world, plain = World(), build()
    inputs = world.batches[0][0]
    first, *_, third = world.epochs(3)
    assert world.stages() == {slot: [Stage.TRAINING] for slot in PLACES}
    assert torch.equal(world.model(inputs), plain(inputs))
    assert first.together.members == 3
    assert third.together.gain.mean > 0.1
    assert {name for name, _ in third.together.missed} == {*PLACES}
    assert third.best_loss == third.signals.validation_loss - third.together.gain.mean
    world.epochs(5)
    assert world.stages() == dict.fromkeys(PLACES, KEPT)
    kept = next(report for report in world.reports if report.kept)
    assert "a set of" in str(kept)
    assert "is kept" in str(kept)
    assert not torch.equal(world.model(inputs), plain(inputs))
    assert world.epochs(1)[-1].together is None
    world.gardener.close()
    with pytest.raises(EsperError, match=r"E347 no slot has room .*\n.*Without together a set that is kept trains on"):
        Gardener(world.model, world.gardener.optimizer, loss=per_example, validation=world.held_out, together=True)


def test_members_that_cost_more_than_they_gain_are_pruned_and_the_rest_is_kept():
    world = World(growth={"price": {"per_parameter": 3e-3}}, steps=13)
    world.epochs(13)
    (pruned,) = [change for report in world.reports for change in report.moved if change.now is Stage.PRUNED]
    assert pruned.reason.opinion.evidence.upper < pruned.reason.opinion.price
    assert f"{pruned.slot}: blueprints/lora(rank=2) is pruned, by its set: not missed when left out" in str(
        world.reports[-1]
    )
    assert world.stages() == {"0": [], "2": KEPT, "4": KEPT}
    assert len(world.gardener.optimizer.state) == 4


def test_a_member_that_seems_to_cost_little_more_than_it_gains_does_not_hold_the_set_back():
    look = World(growth={"price": {"per_parameter": 1.5e-3}}, steps=13).epochs(8)[-1].together
    assert look.missed[-1][1] < 32 * 1.5e-3
    assert look.kept


def test_a_host_in_which_nothing_trains_is_measured_by_one_batch_until_that_changes():
    seen: list[int] = []

    def counted(model: nn.Module, batch: Batch) -> Tensor:
        seen.append(id(batch[1]))
        return per_example(model, batch)

    def passes() -> list[int]:
        """Over each validation batch, of host and branch, in one more epoch."""
        seen.clear()
        world.epochs(1)
        return [seen.count(id(labels)) for _, labels in world.held_out]

    world = World(loss=counted, leave_out=0.0)
    assert passes() == passes() == [2, 1, 1, 1, 1]
    with torch.no_grad():
        world.model[0].weight.mul_(1.1)
    assert passes() == [2, 2, 2, 2, 2]
    first, second, third = (report.signals.validation_loss for report in world.reports)
    assert first == second != third


def test_of_two_that_do_the_same_one_stays():
    """Each can be left out, since the other does its work; both together cannot."""
    world = World(growth={"price": {"per_parameter": 3e-3}}, steps=13)
    world.epochs(3)
    seed_set = world.gardener._environment.seed_set
    seed_set._losses = seed_set._leave_out()
    doomed = [(-1.0, 1e-3, seed.number) for _, seed in seed_set._members]
    assert not seed_set._may_go(doomed)
    assert seed_set._may_go([(gain, 10.0, number) for gain, _, number in doomed])


def test_a_set_that_never_pays_is_pruned_with_the_last_planned_step_and_not_lost(caplog):
    world = World(growth={"price": {"per_parameter": 1.0}}, steps=3, leave_out=0.0)
    assert "gain was not shown in the planned steps" in str(world.epochs(3)[-1])
    assert world.stages() == {slot: [] for slot in PLACES}
    world.gardener.close()
    again = World(model=world.model, growth={"gates": "off"}, steps=1, slots=None)
    assert again.epochs(1)[-1].kept, "its slots do not rest any more"
    World(growth={"price": {"per_parameter": 1.0}}, steps=20).epochs(5)
    assert "E342" not in caplog.text, "what is not missed is not lost"


@pytest.mark.parametrize("broken", [False, True])
def test_a_loop_that_ends_early_keeps_a_set_whose_gain_is_shown(broken, caplog):
    world = World(leave_out=0.0, steps=20)
    world.epochs(8)
    inputs, labels = world.batches[0]
    world.step((inputs * (float("nan") if broken else 1.0), labels))
    world.gardener.close()
    assert world.stages() == {slot: [] if broken else KEPT for slot in PLACES}
    assert ("E371" in caplog.text) == broken


def test_a_model_that_is_frozen_with_what_grew_is_named_once(caplog):
    world = World()
    world.epochs(8)
    world.model.requires_grad_(requires_grad=False)
    world.epochs(2)
    assert caplog.text.count("E358 nothing trains: what has grown is frozen like the model") == 1


def test_a_batch_whose_loss_is_not_a_number_loses_the_set_and_that_is_told(caplog):
    world = World()
    inputs, labels = world.batches[0]
    world.step((inputs * float("nan"), labels))
    world.epochs(2)
    assert world.stages() == {slot: [] for slot in PLACES}
    assert caplog.text.count("E342 every seed of the set was lost") == 1


def test_a_set_trains_as_adapters_that_are_there_from_the_start():
    world, twin = World(growth={"gates": "off"}, steps=3), World(steps=3)
    twin.gardener._environment.seed_set.germinate(0)
    seeds = [seed for slot in slots_of(twin.model) for seed in slot.seeds]
    for seed in seeds:
        seed.alpha.aim(1.0, 0)
        seed.presence = Presence.ACTING
    optimizer = torch.optim.AdamW([parameter for seed in seeds for parameter in seed.parameters()], lr=4e-2)
    for batch in world.batches:
        world.step(batch)
        optimizer.zero_grad()
        per_example(twin.model, batch).mean().backward()
        optimizer.step()
    world.gardener.tend()
    assert world.stages() == dict.fromkeys(PLACES, KEPT)
    for kept, trained in zip(slots_of(world.model), slots_of(twin.model), strict=True):
        assert same([*kept.parameters()], [*trained.parameters()])


def test_blocks_of_a_small_rank_have_first_weights_of_their_own_and_are_members_each():
    model = build()
    world = World(model=model, **adapters(model, PLACES, rank=4, block=2), growth={"gates": "off"})
    world.step(world.batches[0])
    downs = [seed.block.down.weight for seed in slots_of(world.model).named("2").seeds]
    assert not torch.equal(*downs)
    (report,) = world.epochs(1)
    assert report.together.members == 6
    assert world.stages() == dict.fromkeys(PLACES, KEPT * 2)
    assert {str(slot.state) for slot in slots_of(world.model)} == {"free"}


def test_price_and_power_are_told_before_training(caplog):
    prospect = World().gardener.together
    power = "3 seeds with 86 parameters germinate together: 200 validation examples show gains from about"
    assert prospect.startswith(power)
    assert prospect.endswith("and the set has to gain more than 0.0086")
    assert not caplog.records
    World(growth={"price": {"per_parameter": 1.0}}, steps=2)
    messages = [record.getMessage().partition("\n")[0] for record in caplog.records]
    assert "E380 2 calls of tend() are too few for a set of seeds to be kept, for which gates need 3" in messages
    assert "E381 the set cannot be kept: it costs 86 nats, and the validation loss is 0.783" in messages


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"growth": {"parameters": 80}}, "E347 the set would have 86 parameters, and growth.parameters allows 80"),
        ({"growth": {"seeds": 2}}, "E347 the set would have 3 seeds, and growth.seeds allows 2"),
        ({"together": 2}, r'E347 slot "0" has room for 1 of 2 seeds(?s:.)*stack=2'),
        ({"together": -1}, "E347 together must be"),
        ({"leave_out": "often"}, "E347 leave_out must be"),
    ],
)
def test_a_set_that_cannot_be_is_refused_and_leaves_no_slots_behind(options, message):
    model = build()
    with pytest.raises(EsperError, match=message):
        World(model=model, **options)
    assert type(model) is nn.Sequential


@pytest.mark.parametrize("epochs", [0, *(pytest.param(epochs, marks=pytest.mark.install) for epochs in (2, 4))])
def test_a_loop_with_a_living_set_resumes_to_the_bit(epochs, tmp_path):
    uninterrupted, first, second = (World(growth={"price": {"per_parameter": 3e-3}}) for _ in range(3))
    for world in (uninterrupted, first):
        world.epochs(epochs)
        for batch in world.batches[:3]:
            world.step(batch)
    for part in (lambda world: world.gardener, lambda world: world.gardener.optimizer):
        torch.save(part(first).state_dict(), tmp_path / "file")
        part(second).load_state_dict(torch.load(tmp_path / "file", weights_only=True))
    reports = []
    for world in (uninterrupted, second):
        for batch in world.batches[3:]:
            world.step(batch)
        world.reports = [world.gardener.tend()]
        reports.append(world.epochs(7 - epochs))
    figures = [[(report.signals, report.together) for report in of_world] for of_world in reports]
    assert figures[0] == figures[1]
    assert same(uninterrupted.model.state_dict(), second.model.state_dict())
    assert same(uninterrupted.optimizer_state(), second.optimizer_state())
