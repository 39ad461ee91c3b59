"""A loop resumes from a checkpoint bit for bit, and the governor restores a model whose training broke."""

import copy
import gc
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

import esper_grow as esper
from esper_core import EsperError
from esper_core.growth import Snapshot, slots_of
from esper_core.growth.incubation import Branch
from esper_core.leyline import Action, Op
from esper_grow.gardener.stale_copies import RENEWED
from tests.support.core_worlds import bad, same
from tests.support.loops import life, make_loop


def write(loop: Any, file: Path) -> None:
    states = {"gardener": loop.gardener.state_dict(), "optimizer": loop.optimizer.state_dict()}
    torch.save({**states, "model": loop.model.state_dict(), "random": torch.get_rng_state()}, file)


def read(loop: Any, file: Path) -> None:
    states = torch.load(file, weights_only=True)
    loop.gardener.load_state_dict(states["gardener"])
    loop.model.load_state_dict(states["model"])
    loop.optimizer.load_state_dict(states["optimizer"])
    torch.set_rng_state(states["random"])


@pytest.mark.parametrize("epochs", [3, 4, *(pytest.param(number, marks=pytest.mark.slow) for number in (1, 2, 5))])
def test_a_resumed_loop_has_the_same_numbers_to_the_bit(tmp_path, epochs):
    uninterrupted, first, second = (make_loop().tended() for _ in range(3))
    random = torch.get_rng_state()
    expected = list(map(str, uninterrupted.epochs(7)))
    torch.set_rng_state(random)
    seen = list(map(str, first.epochs(epochs)))
    write(first, tmp_path / "checkpoint.pt")
    torch.rand(5)
    read(second, tmp_path / "checkpoint.pt")
    seen += map(str, second.epochs(7 - epochs))
    assert seen == expected
    assert second.is_as(uninterrupted.state())
    assert same(*([*slots_of(loop.model).named("stem").parameters()] for loop in (uninterrupted, second)))


@pytest.mark.parametrize("trained", [1, 3])
def test_a_checkpoint_in_the_middle_of_an_epoch_or_before_its_tend_continues_there(tmp_path, caplog, trained):
    loops = [make_loop().tended() for _ in range(3)]
    uninterrupted, first, second = loops
    random = torch.get_rng_state()
    for loop in (uninterrupted, first):
        torch.set_rng_state(random)
        loop.epoch()
        for batch in loop.batches[:trained]:
            loop.train(batch)
            loop.gardener.step(batch)
    write(first, tmp_path / "checkpoint.pt")
    read(second, tmp_path / "checkpoint.pt")
    random = torch.get_rng_state()
    reports = []
    for loop in (uninterrupted, second):
        torch.set_rng_state(random)
        for batch in loop.batches[trained:]:
            loop.train(batch)
            loop.gardener.step(batch)
        reports.append([loop.gardener.tend(), loop.epoch()])  # gradients are not in a checkpoint
    assert reports[0] == reports[1]
    assert "E372" not in caplog.text, "an example is no batch of the loop"
    assert second.is_as(uninterrupted.state())


def test_an_optimizer_has_seeds_in_the_order_of_the_model_in_which_a_new_one_takes_their_state(tmp_path):
    lives = [life(slot, "test/local-conv", begin=at, keep=at + 3) for slot, at in (("second", 0), ("first", 4))]
    plan = lives[0] | lives[1]
    loops = [make_loop().tended(plan, slots={"first": "stem.0", "second": "stem.2"}, steps=20) for _ in range(2)]
    loops[0].epochs(9)
    write(loops[0], tmp_path / "checkpoint.pt")
    read(loops[1], tmp_path / "checkpoint.pt")
    for loop in loops:
        held = loop.optimizer.param_groups[0]["params"]
        assert list(map(id, held)) == list(map(id, loop.model.parameters()))


def test_the_wrong_order_of_loading_is_reported(tmp_path):
    loop = make_loop().tended()
    loop.epochs(5)
    write(loop, tmp_path / "checkpoint.pt")
    states = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    other = make_loop().tended()
    with pytest.raises(EsperError, match=r"E348 .*grown model(?s:.)*gardener.load_state_dict"):
        other.optimizer.load_state_dict(states["optimizer"])
    with pytest.raises(EsperError, match="E334"):
        other.gardener.load_state_dict({"plain": {}})
    other.gardener.load_state_dict(states["gardener"])
    with pytest.raises(EsperError, match="E334"):
        other.gardener.load_state_dict(states["gardener"])


def test_a_state_of_another_gardener_is_refused_before_anything_changes():
    first, second = make_loop().tended(), make_loop()
    first.epochs(5)
    second.model.more = nn.Linear(1, 1)
    second.tended(policy="heuristic", seed_lr=1e-3)
    before = second.state()
    with pytest.raises(
        EsperError, match=r"E334 .*\n  policy is .*\n.*groups is 1, .* 2\n  more.weight is None, .*1, 1"
    ):
        second.gardener.load_state_dict(first.gardener.state_dict())
    assert second.is_as(before)
    assert "_esper" not in "".join(second.model.state_dict())


def fill(loop: Any, value: float) -> None:
    with torch.no_grad():
        next(loop.model.parameters()).fill_(value)


@pytest.mark.parametrize("optimizer", [torch.optim.Adam, torch.optim.Adagrad])
def test_a_model_that_is_not_finite_returns_to_a_healthy_state(optimizer):
    loop = make_loop(partial(optimizer, lr=1e-2)).tended({0: Action(Op.GERMINATE, "stem", "test/local-conv")})
    loop.epochs(2)
    loop.after.append(partial(fill, loop, torch.nan))
    broken = loop.epoch()
    loop.after.clear()
    assert [act.act for act in broken.governor] == ["roll-back"]
    assert "governor: roll-back" in str(broken)
    assert all(parameter.isfinite().all() for parameter in loop.model.parameters())
    assert not slots_of(loop.model).named("stem").seeds
    after = loop.epoch()
    assert not after.governor
    assert after.signals.finite


def test_a_model_that_breaks_again_stops_the_loop_and_is_left_as_it_was():
    loop = make_loop().tended({0: Action(Op.GERMINATE, "stem", "test/local-conv")}, governor={"rollbacks": 0})
    loop.epoch()
    healthy = [tensor.clone() for name, tensor in loop.model.named_parameters() if "_esper" not in name]
    loop.after.append(partial(fill, loop, torch.nan))
    with pytest.raises(EsperError, match="E402"):
        loop.epoch()
    assert same(list(loop.model.parameters()), healthy), "without the seed"


def test_a_seed_that_raises_on_its_branch_is_removed_and_the_host_unchanged():
    fragile = bad(patience=4)
    plain = make_loop()
    grown = make_loop().tended({0: Action(Op.GERMINATE, "stem", fragile.id)}, blueprints=[fragile])
    lost = []
    for _ in range(4):
        assert grown.stays_as(plain)
        lost += grown.last.lost
    (lost_seed,) = lost
    assert "raised ValueError: out of patience" in lost_seed.what
    assert not slots_of(grown.model).named("stem").seeds


def test_the_best_state_from_before_a_seed_was_kept_is_pruned_in_a_copy():
    loop = make_loop().tended(life("stem", "blueprints/conv_light"), blueprints=["conv_light"])
    loop.epochs(3)
    best, outputs = copy.deepcopy(loop.model.state_dict()), loop.model.eval()(loop.batches[0][0])
    with pytest.raises(EsperError, match="E357 "):
        esper.prune(loop.model)
    loop.gardener.close()
    copied = esper.load(make_loop().model, best)
    with pytest.raises(EsperError, match=r"E336 .*\n(?s:.*)esper_grow.prune\(model\)"):
        esper.export(copied)
    assert torch.equal(esper.export(esper.prune(copied)).eval()(loop.batches[0][0]), outputs)


class DecayingAverage(nn.Module):
    """An average of weights that is built as timm's ModelEmaV3."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.module, self.decay = copy.deepcopy(model), 0.999


def test_a_warning_reports_an_average_from_before_growth(caplog):
    loop, other = make_loop().tended(), make_loop()
    before, strange = AveragedModel(loop.model), AveragedModel(nn.Linear(2, 2))
    of_timm = DecayingAverage(loop.model)
    loop.epochs(3)
    assert not caplog.records
    of_a_living_seed, renewed = AveragedModel(loop.model), AveragedModel(loop.model)
    setattr(renewed, RENEWED, True)
    loop.epoch()
    after = AveragedModel(loop.model)
    expected = [f"E349 an average of the weights ({name}" for name in (*["AveragedModel"] * 2, "DecayingAverage")]
    assert sorted(record.getMessage().partition(")")[0] for record in caplog.records) == expected
    assert len(list(before.parameters())) < len(list(after.parameters()))
    del before, strange, other, of_timm, of_a_living_seed


def test_an_error_of_the_loss_in_tend_is_raised_as_it_is():
    calls = []

    def loss(model: nn.Module, batch: Any) -> Tensor:
        calls.append(1)
        if len(calls) > 40:
            raise KeyError("targets")
        return nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="none")

    loop = make_loop().tended({}, loss=loss)
    modes = [module.training for module in loop.model.modules()]
    with pytest.raises(KeyError, match="targets"):
        loop.epochs(40)
    assert [module.training for module in loop.model.modules()] == modes


def test_a_governor_that_is_off_restores_nothing():
    loop = make_loop().tended({}, governor="off")
    loop.epoch()
    loop.after.append(partial(fill, loop, torch.nan))
    assert not loop.epoch().changes
    assert any(parameter.isnan().any() for parameter in loop.model.parameters())


def test_a_branch_shares_frozen_parameters_until_they_are_unfrozen():
    plain, grown = make_loop(), make_loop()
    for loop in (plain, grown):
        loop.model.head.requires_grad_(False)
    grown.tended({0: Action(Op.GERMINATE, "stem", "test/local-conv")})
    weight, garden = grown.model.head.weight, grown.gardener._environment.network.garden
    assert all(grown.stays_as(plain) for _ in range(2))
    places = [weight.data_ptr()]
    for unfrozen in (False, True):
        for loop in (plain, grown):
            loop.model.head.requires_grad_(unfrozen)
        with next(iter(garden.incubating.values())).trial():
            places.append(weight.data_ptr())
    assert (places[0] == places[1], places[1] == places[2]) == (True, False)
    assert [grown.stays_as(plain) for _ in range(3)] == [True] * 3


def test_close_frees_all_copies_of_the_host():
    def copies() -> set[int]:
        gc.collect()
        return {id(living) for living in gc.get_objects() if isinstance(living, Snapshot | Branch)}

    before = copies()
    loop = make_loop().tended({0: Action(Op.GERMINATE, "stem", "test/local-conv")})
    loop.epochs(2)
    assert len(copies() - before) == 3
    loop.gardener.close()
    assert copies() - before == set()
    assert loop.gardener.state_dict()
