"""Snapshots of host and fossils: taken into reused memory, and restored only if they are undamaged."""

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from esper_core.growth import Snapshot
from esper_core.leyline import GrowthError
from esper_core.trainer.environment import Environment
from tests.support.core_worlds import ADVANCE, FOSSILISE, GERMINATE, begin, make_recipe, same


def numbers(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in (*model.named_parameters(), *model.named_buffers())}


def places(snapshot: Snapshot) -> dict[str, int]:
    """Return where the memory of each copy is."""
    return {name: tensor.data_ptr() for name, tensor in snapshot.tensors().items()}


@pytest.fixture
def environment() -> Environment:
    begun = begin(make_recipe())
    begun.train()
    return begun


def test_a_snapshot_is_restored_in_place(environment):
    before, parameters = numbers(environment.model), list(environment.model.parameters())
    snapshot = Snapshot(environment.garden)
    environment.train()
    norm = environment.model.stem[1]
    mean, variance = norm.running_mean, norm.running_var
    norm.running_mean = torch.full_like(norm.running_mean, torch.nan)  # replaced, not filled
    assert not same(numbers(environment.model), before)
    snapshot.restore(environment.garden)
    assert same(numbers(environment.model), before)
    assert list(map(id, environment.model.parameters())) == list(map(id, parameters))
    assert norm.running_mean is mean
    assert norm.running_var is variance
    assert all(parameter.grad is None for parameter in environment.model.parameters())
    assert environment.keeper.misowned(environment.model) == []


def test_its_memory_is_allocated_once_though_the_host_is_another(environment):
    snapshot = Snapshot(environment.garden)
    before = places(snapshot)
    environment.train()
    snapshot.take(environment.garden)
    environment.reset(1, 4)
    snapshot.take(environment.garden)
    assert places(snapshot) == before
    now = numbers(environment.model)
    environment.train()
    snapshot.restore(environment.garden)
    assert same(numbers(environment.model), now)


def test_a_snapshot_excludes_living_seeds_and_is_refused_after_a_fossilisation(environment):
    names = set(Snapshot(environment.garden).tensors())
    assert names == set(numbers(environment.model))
    environment.network.apply(replace(GERMINATE, speed=0), 0)
    environment.train()
    environment.garden.living_seeds()[0].register_buffer("own", torch.zeros(1))
    snapshot = Snapshot(environment.garden)
    assert set(snapshot.tensors()) == names
    environment.network.apply(ADVANCE, 1)
    environment.train()
    assert snapshot.flaw(environment.garden) is None
    environment.network.apply(FOSSILISE, 2)
    assert snapshot.flaw(environment.garden) == "a seed was fossilised since it was taken"
    snapshot.take(environment.garden)
    assert snapshot.flaw(environment.garden) is None
    assert set(snapshot.tensors()) == set(numbers(environment.model)) > names


@pytest.mark.parametrize("bit", [0, 17, 31])
def test_a_copy_with_a_flipped_bit_is_not_restored(environment, bit):
    snapshot = Snapshot(environment.garden)
    environment.train()
    before = numbers(environment.model)
    copy = snapshot.tensors()["head.weight"]
    copy.view(torch.int32)[1, 2] ^= torch.tensor(1, dtype=torch.int32) << bit
    message = r'E308 the snapshot cannot be restored: its copy of "head.weight" is damaged'
    with pytest.raises(GrowthError, match=message):
        snapshot.restore(environment.garden)
    assert same(numbers(environment.model), before)


@pytest.mark.parametrize("value", [-torch.inf, torch.nan])
def test_a_buffer_may_hold_infinities_as_masks_do_and_a_parameter_may_not(environment, value):
    environment.model.register_buffer("mask", torch.tensor([0.0, value]))
    sick = '"mask" was not finite when it was taken'
    assert Snapshot(environment.garden).flaw(environment.garden) == (None if math.isinf(value) else sick)
    environment.model.mask.zero_()
    with torch.no_grad():
        environment.model.head.weight[0, 0] = value
    assert Snapshot(environment.garden).flaw(environment.garden) == sick.replace("mask", "head.weight")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.complex64, torch.bool])
def test_numbers_of_every_kind_come_back(environment, dtype):
    value = (torch.arange(6).reshape(2, 3) % 2).to(dtype).t()
    environment.model.register_buffer("other", value.clone())
    environment.model.register_buffer("nothing", torch.zeros(0, dtype=dtype))
    snapshot = Snapshot(environment.garden)
    environment.model.other.logical_not_()
    snapshot.restore(environment.garden)
    assert torch.equal(environment.model.other, value)


@pytest.mark.parametrize("part", ["head.bias", "hidden.1.weight"])
def test_a_snapshot_of_another_network_is_not_read(environment, part):
    written = Snapshot(environment.garden)
    module = environment.model.get_submodule(part.rpartition(".")[0])
    setattr(module, part.rpartition(".")[2], nn.Parameter(torch.ones(2)) if part == "hidden.1.weight" else None)
    snapshot = Snapshot(environment.garden)
    before = {name: tensor.clone() for name, tensor in snapshot.tensors().items()}
    for reader, state in ((snapshot, written.state_dict()), (written, snapshot.state_dict())):
        with pytest.raises(GrowthError, match=rf"E308 .*another network\n.*Received tensors that differ .*: {part}"):
            reader.load_state_dict(state)
    assert same(dict(snapshot.tensors()), before)


def test_a_buffer_that_came_later_is_not_in_a_snapshot_that_is_read(environment):
    environment.model.register_buffer("window", torch.zeros(2))
    written = Snapshot(environment.garden).state_dict()
    environment.model.register_buffer("late", torch.ones(1))
    environment.model.window = torch.ones(3)
    snapshot = Snapshot(environment.garden)
    snapshot.load_state_dict(written)
    assert snapshot.flaw(environment.garden) is None
    snapshot.restore(environment.garden)
    assert (environment.model.window.tolist(), environment.model.late.tolist()) == ([0.0, 0.0], [1.0])


def test_b1_pt_05_a_restore_waits_for_its_own_lane_and_for_no_other(environment, monkeypatch):
    device, waited = torch.device("cuda", 1), []

    def current_stream(device: torch.device) -> SimpleNamespace:
        return SimpleNamespace(synchronize=lambda: waited.append(device))

    monkeypatch.setattr(torch.cuda, "current_stream", current_stream)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *_: pytest.fail("it waited for every lane"))
    snapshot = Snapshot(environment.garden)
    snapshot._device = device
    environment.train()
    assert waited == []
    snapshot.restore(environment.garden)
    assert waited == [device] * 2


class Quantised(Tensor):
    """A class of tensors, such as quantised weights, that can be neither copied nor read as bits."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if getattr(func, "__name__", "") in ("clone", "copy_", "contiguous", "view", "sum"):
            msg = f"no {func.__name__} of quantised weights"
            raise AttributeError(msg)
        return super().__torch_function__(func, types, args, kwargs or {})


def test_frozen_and_quantised_tensors_are_shared(environment):
    model = environment.model
    frozen = model.head.weight.requires_grad_(False)
    model.stem.register_buffer("packed", torch.ones(2).as_subclass(Quantised))
    snapshot = Snapshot(environment.garden)
    assert {"head.weight", "stem.packed"} & snapshot.tensors().keys() == set()
    assert "head.bias" in snapshot.tensors()
    before, bias = frozen.clone(), model.head.bias.clone()
    with torch.no_grad():
        model.head.bias.add_(1.0)
    snapshot.restore(environment.garden)
    assert torch.equal(frozen, before)
    assert torch.equal(model.head.bias, bias)
    assert model.stem.packed.tolist() == [1.0, 1.0]


def test_a_snapshot_from_before_a_parameter_was_unfrozen_and_trained_is_refused(environment):
    frozen = environment.model.head.weight.requires_grad_(False)
    snapshot = Snapshot(environment.garden)
    frozen.requires_grad_(True)
    assert snapshot.is_outdated
    assert snapshot.flaw(environment.garden) is None, "nothing has changed yet"
    with torch.no_grad():
        frozen.add_(1.0)
    assert snapshot.flaw(environment.garden) == '"head.weight" was not trained when it was taken, and has changed since'
    snapshot.take(environment.garden)
    assert "head.weight" in snapshot.tensors()


def test_a_frozen_parameter_that_changes_as_in_a_target_network_is_copied_from_then_on(environment):
    target = environment.model.head.weight.requires_grad_(False)
    snapshot = Snapshot(environment.garden)
    for _ in range(3):
        target.data = target.data * 1.01  # which torch's own count of writes does not see
        snapshot.take(environment.garden)
    target.data = target.data * 1.01
    snapshot.take(environment.garden)
    before = target.clone()
    target.data = target.data * 1.01
    snapshot.restore(environment.garden)
    assert torch.equal(target, before)


def test_snapshots_share_copies_of_buffers_that_did_not_change(environment):
    environment.model.register_buffer("table", torch.arange(6.0))
    first = Snapshot(environment.garden)
    second = Snapshot(environment.garden, [first])
    environment.train()
    environment.model.table[0] = 9.0
    third = Snapshot(environment.garden, [second, first])
    assert places(first)["table"] == places(second)["table"] != places(third)["table"]
    environment.model.table[0] = 8.0
    first.take(environment.garden, [third, second])
    assert second.flaw(environment.garden) is None, "its copy was not overwritten"
    second.restore(environment.garden)
    assert environment.model.table[0] == 0.0
