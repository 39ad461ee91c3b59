"""How seeds are trained beside a user's optimizers, and which of their groups they join."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

from esper_core.growth import slots_of

MakeLoop = Callable[..., Any]


def decayed(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """Matrices decay, vectors do not, as in most recipes; the first layer learns at a rate of its own."""
    first, rest = parameters[:2], parameters[2:]
    return torch.optim.AdamW(
        [
            {"params": [own for own in first if own.ndim > 1], "lr": 1e-3, "weight_decay": 0.2},
            {"params": [own for own in rest if own.ndim > 1], "weight_decay": 0.1},
            {"params": [own for own in (*first, *rest) if own.ndim < 2], "weight_decay": 0.0},
        ],
        lr=1e-2,
    )


def kept(loop: Any, epochs: int = 4) -> Any:
    for _ in range(epochs):
        loop.epoch()
    (seed,) = slots_of(loop.model).each()[0].fossils
    return seed


def test_a_seed_joins_the_groups_of_its_like_in_the_module_before_the_slot(make_loop: MakeLoop) -> None:
    loop = make_loop(decayed).tended()
    seed = kept(loop)
    first, _, vectors = (list(map(id, group["params"])) for group in loop.optimizer.param_groups)
    for parameter in seed.parameters():
        assert id(parameter) in (first if parameter.ndim > 1 else vectors)
        assert parameter in loop.optimizer.state
    assert len(loop.optimizer.param_groups) == 3


def test_a_seed_behind_a_module_without_parameters_joins_the_nearest_before_it(make_loop: MakeLoop) -> None:
    loop = make_loop(decayed).tended(slots={"stem": "stem.2"})
    seed = kept(loop)
    groups = [set(map(id, group["params"])) for group in loop.optimizer.param_groups]
    assert all(id(own) in groups[0 if own.ndim > 1 else 2] for own in seed.parameters())


def test_names_of_parameters_in_groups_stay_complete(make_loop: MakeLoop) -> None:
    loop = make_loop()
    loop.optimizer = torch.optim.Adam(loop.model.named_parameters(), lr=1e-2)
    kept(loop.tended())
    (group,) = loop.optimizer.param_groups
    named = dict(loop.model.named_parameters())
    assert [id(named[name]) for name in group["param_names"]] == [id(own) for own in group["params"]]


def test_seeds_go_to_several_optimizers_by_the_kind_of_their_parameters(make_loop: MakeLoop) -> None:
    loop = make_loop()
    own = list(loop.model.parameters())
    matrices = torch.optim.SGD([one for one in own if one.ndim > 1], lr=0.05, momentum=0.9)
    vectors = torch.optim.Adam([one for one in own if one.ndim < 2], lr=1e-2)
    loop.tended(optimizer=[matrices, vectors])

    def train(batch: Any) -> None:
        vectors.zero_grad()
        loop.train(batch)
        vectors.step()

    loop.optimizer = matrices
    for _ in range(4):
        loop.epoch(train)
    (seed,) = slots_of(loop.model).each()[0].fossils
    for parameter in seed.parameters():
        optimizer = matrices if parameter.ndim > 1 else vectors
        assert any(parameter is one for one in optimizer.param_groups[0]["params"])
        assert parameter in optimizer.state


class Wrapper(torch.optim.Optimizer):
    """A wrapper as accelerate has it: an optimizer without hooks, around another."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer

    @property
    def param_groups(self) -> Any:
        return self.optimizer.param_groups

    @property
    def state(self) -> Any:
        return self.optimizer.state

    def step(self, closure: Any = None) -> None:
        self.optimizer.step(closure)

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.optimizer.zero_grad(set_to_none)


def test_the_optimizer_inside_a_wrapper_is_watched(make_loop: MakeLoop) -> None:
    loop = make_loop()
    inner, loop.optimizer = loop.optimizer, Wrapper(loop.optimizer)
    loop.tended()
    assert loop.gardener.optimizer is inner
    assert kept(loop)


def test_a_step_with_a_closure_counts_once(make_loop: MakeLoop) -> None:
    loop = make_loop().tended()

    def train(batch: Any) -> None:
        def closure() -> torch.Tensor:
            loop.optimizer.zero_grad()
            loss = nn.functional.cross_entropy(loop.model(batch[0]), batch[1])
            loss.backward()
            return loss

        loop.optimizer.step(closure)

    for _ in range(4):
        last = loop.epoch(train)
    assert last.kept


def test_micro_batches_are_one_step_of_the_branch(make_loop: MakeLoop) -> None:
    loop = make_loop().tended()
    steps = []
    for epoch in range(3):
        for number, (inputs, targets) in enumerate(loop.batches * 2):
            loss = nn.functional.cross_entropy(loop.model(inputs), targets) / 2
            loss.backward()
            if number % 2:
                loop.optimizer.step()
                loop.optimizer.zero_grad()
            loop.gardener.step((inputs, targets))
        loop.gardener.tend()
        if epoch:
            (share,) = loop.gardener._keeper.seed_shares(0)
            steps.append({int(memory["step"]) for memory in share.optimizer.state.values()})
    assert steps == [{3}, {6}]


def test_a_factory_gets_the_parameters_of_the_host_and_serves_a_frozen_one(make_loop: MakeLoop) -> None:
    loop = make_loop()
    loop.model.requires_grad_(requires_grad=False)
    loop.tended(optimizer=partial(torch.optim.Adam, lr=1e-2))
    loop.optimizer = loop.gardener.optimizer
    host = [parameter.clone() for parameter in loop.model.parameters()]

    def train(batch: Any) -> None:
        loop.optimizer.zero_grad()
        loss = nn.functional.cross_entropy(loop.model(batch[0]), batch[1])
        if loss.requires_grad:
            loss.backward()
        loop.optimizer.step()

    for _ in range(4):
        loop.epoch(train)
    (seed,) = slots_of(loop.model).each()[0].fossils
    before = [own.clone() for own in seed.parameters()]
    loop.epoch(train)
    assert any(not torch.equal(one, own) for one, own in zip(before, seed.parameters(), strict=True))
    assert all(torch.equal(one, own) for one, own in zip(host, loop.model.parameters(), strict=False))


def test_a_branch_follows_the_rate_that_a_schedule_sets(make_loop: MakeLoop) -> None:
    loop = make_loop().tended()
    loop.epoch()
    seed = slots_of(loop.model).each()[0].living
    for group in loop.optimizer.param_groups:
        group["lr"] = 0.0
    before = [own.detach().clone() for own in seed.parameters()]
    loop.epoch()
    assert all(torch.equal(one, own) for one, own in zip(before, seed.parameters(), strict=True))


def test_a_branch_clips_as_the_loop_does(make_loop: MakeLoop) -> None:
    loops = [make_loop(partial(torch.optim.SGD, lr=0.1)).tended(clip_norm=norm) for norm in (None, 1e-6)]
    moved = []
    for loop in loops:
        loop.epoch()
        seed = slots_of(loop.model).each()[0].living
        before = torch.cat([own.detach().flatten() for own in seed.parameters()])
        loop.epoch()
        moved.append((torch.cat([own.detach().flatten() for own in seed.parameters()]) - before).norm().item())
    assert moved[1] < 1e-5 < moved[0]


@pytest.mark.parametrize("setting", ["accumulated gradients", "half precision", "average"])
def test_the_host_stays_as_in_the_plain_loop(make_loop: MakeLoop, setting: str) -> None:
    plain, grown = make_loop(), make_loop().tended()
    averages = [AveragedModel(loop.model) for loop in (plain, grown)]

    def train(loop: Any, average: AveragedModel, batch: Any) -> None:
        if setting != "accumulated gradients":
            loop.optimizer.zero_grad(set_to_none=False)
        with torch.autocast("cpu", torch.bfloat16, enabled=setting == "half precision"):
            loss = nn.functional.cross_entropy(loop.model(batch[0]), batch[1])
        loss.backward()
        loop.optimizer.step()
        average.update_parameters(loop.model)

    for _ in range(3):
        random = torch.get_rng_state()
        plain.epoch(partial(train, plain, averages[0]))
        expected = plain.state()
        torch.set_rng_state(random)
        grown.epoch(partial(train, grown, averages[1]))
        assert grown.is_as(expected)
    host = zip(averages[0].module.parameters(), averages[1].module.parameters(), strict=False)
    assert all(torch.equal(one, other) for one, other in host)


def test_the_loop_scales_its_loss_and_skips_steps(make_loop: MakeLoop) -> None:
    plain, grown = make_loop(), make_loop().tended()

    def train(loop: Any, scaler: torch.amp.GradScaler, batch: Any) -> None:
        loop.optimizer.zero_grad()
        scaler.scale(nn.functional.cross_entropy(loop.model(batch[0]), batch[1])).backward()
        if scaler.get_scale() > 2.0**20:
            next(loop.model.parameters()).grad.fill_(torch.inf)
        scaler.step(loop.optimizer)
        scaler.update()

    scalers = [torch.amp.GradScaler("cpu", init_scale=2.0**22) for _ in range(2)]
    for epoch in range(5):
        random = torch.get_rng_state()
        plain.epoch(partial(train, plain, scalers[0]))
        expected = plain.state()
        torch.set_rng_state(random)
        grown.epoch(partial(train, grown, scalers[1]))
        if epoch < 3:
            assert grown.is_as(expected)
    assert scalers[1].get_scale() == scalers[0].get_scale()
    assert slots_of(grown.model).each()[0].fossils


def test_a_branch_in_float16_scales_its_own_loss(make_loop: MakeLoop) -> None:
    plain, grown = make_loop(), make_loop().tended()

    def train(loop: Any, scaler: torch.amp.GradScaler, batch: Any) -> None:
        loop.optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = nn.functional.cross_entropy(loop.model(batch[0]), batch[1])
        scaler.scale(loss).backward()
        scaler.step(loop.optimizer)
        scaler.update()

    scalers = [torch.amp.GradScaler("cpu") for _ in range(2)]
    for epoch in range(5):
        random = torch.get_rng_state()
        plain.epoch(partial(train, plain, scalers[0]))
        expected = plain.state()
        torch.set_rng_state(random)
        tended = grown.epoch(partial(train, grown, scalers[1]))
        assert grown.is_as(expected) == (epoch < 3)
        assert tended.signals.loss_scale == (2.0**16 if epoch else None)
        assert not tended.lost
    assert scalers[0].state_dict() == scalers[1].state_dict()


def test_layers_that_the_loop_froze_stay_frozen_on_the_branch(make_loop: MakeLoop) -> None:
    loop = make_loop().tended()
    normalisation = loop.model.stem[1]
    normalisation.eval()
    mean = normalisation.running_mean.clone()
    seed = kept(loop)
    assert not normalisation.training
    assert torch.equal(normalisation.running_mean, mean)
    assert seed.training


def test_a_group_that_the_loop_adds_while_a_seed_lives_disturbs_nothing(make_loop: MakeLoop) -> None:
    def without_head(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.AdamW(parameters[:-2], lr=1e-2)

    plain, grown = make_loop(without_head), make_loop(without_head).tended()
    for epoch in range(5):
        random = torch.get_rng_state()
        plain.epoch()
        expected = plain.state()
        torch.set_rng_state(random)
        grown.epoch()
        assert grown.is_as(expected) == (epoch < 3)
        if epoch == 1:
            for loop in (plain, grown):
                loop.optimizer.add_param_group({"params": list(loop.model.head.parameters()), "lr": 1e-3})
    assert len(grown.optimizer.state) == len(list(grown.model.parameters()))
    grown.gardener.state_dict()
