"""How seeds are trained beside a user's optimizers, and which of their groups they join."""

from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

from esper_core.growth import slots_of
from esper_core.leyline import Action, Op, Stage
from tests.support.core_worlds import per_example, same
from tests.support.loops import adam, by_kind, life, make_loop


def decayed(parameters: list[nn.Parameter], rate: float = 1e-3) -> torch.optim.Optimizer:
    """Matrices decay, vectors do not, as in most recipes; the first layer learns at a rate of its own."""
    (first, *later), vectors = by_kind(parameters)
    groups = [{"params": [first], "lr": rate, "weight_decay": 0.2}, {"params": later, "weight_decay": 0.1}]
    return torch.optim.AdamW([*groups, {"params": vectors, "weight_decay": 0.0}], lr=1e-2)


@pytest.mark.parametrize(("at", "rate"), [("stem", 1e-3), ("stem.2", 1e-3), ("stem", 0.0)])
def test_a_seed_joins_the_groups_of_its_like_in_the_nearest_module_that_trains(at, rate):
    loop = make_loop(partial(decayed, rate=rate)).tended(slots={"stem": at})
    assert loop.epochs(4)[-1].kept
    first, later, vectors = (list(map(id, group["params"])) for group in loop.optimizer.param_groups)
    for parameter in loop.seed.parameters():
        assert id(parameter) in ((first if rate else later) if parameter.ndim > 1 else vectors)
        assert parameter in loop.optimizer.state


def test_undo_takes_a_seed_out_of_the_users_optimizer_with_its_state():
    """A transition that fails half-way must leave nothing behind: the state would be saved with the optimizer's."""
    loop = make_loop().tended()
    loop.epochs(3)
    put_back = loop.gardener._keeper.undo()
    assert loop.epochs(1)[-1].kept
    assert all(parameter in loop.optimizer.state for parameter in loop.seed.parameters())
    put_back()
    held = {id(parameter) for group in loop.optimizer.param_groups for parameter in group["params"]}
    for parameter in loop.seed.parameters():
        assert parameter not in loop.optimizer.state
        assert id(parameter) not in held


def test_names_of_parameters_in_groups_stay_complete():
    loop = make_loop()
    loop.optimizer = torch.optim.Adam(loop.model.named_parameters(), lr=1e-2)
    loop.tended().epochs(4)
    (group,) = loop.optimizer.param_groups
    named = dict(loop.model.named_parameters())
    assert [id(named[name]) for name in group["param_names"]] == [id(parameter) for parameter in group["params"]]


def test_seeds_go_to_several_optimizers_by_the_kind_of_their_parameters():
    loop = make_loop()
    weights, biases = by_kind(loop.model.parameters())
    loop.optimizer = matrices = torch.optim.SGD(weights, lr=0.05, momentum=0.9)
    loop.optimizers = [vectors := adam(biases)]
    loop.tended(optimizer=[matrices, vectors]).epochs(4)
    for parameter in loop.seed.parameters():
        optimizer = matrices if parameter.ndim > 1 else vectors
        assert any(parameter is member for member in optimizer.param_groups[0]["params"])
        assert parameter in optimizer.state


class Wrapper(torch.optim.Optimizer):
    """An optimizer without hooks around another one, as accelerate has."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer, self.step, self.zero_grad = optimizer, optimizer.step, optimizer.zero_grad

    param_groups = property(lambda wrapper: wrapper.optimizer.param_groups)
    state = property(lambda wrapper: wrapper.optimizer.state)


def test_the_optimizer_inside_a_wrapper_is_watched():
    loop = make_loop()
    inner, loop.optimizer = loop.optimizer, Wrapper(loop.optimizer)
    loop.tended()
    assert loop.gardener.optimizer is inner
    assert loop.epochs(4)[-1].kept


def test_a_step_with_a_closure_counts_once():
    loop = make_loop().tended()

    def train(batch: Any) -> None:
        def closure() -> torch.Tensor:
            loop.optimizer.zero_grad()
            loss = per_example(loop.model, batch).mean()
            loss.backward()
            return loss

        loop.optimizer.step(closure)

    assert loop.epochs(4, train)[-1].kept


def test_micro_batches_are_one_step_of_the_branch():
    loop = make_loop().tended()
    steps = []
    for epoch in range(3):
        for number, batch in enumerate(loop.batches * 2):
            (per_example(loop.model, batch).mean() / 2).backward()
            if number % 2:
                loop.optimizer.step()
                loop.optimizer.zero_grad()
            loop.gardener.step(batch)
        loop.gardener.tend()
        if epoch:
            (share,) = loop.gardener._keeper.owned_by_seed(0)
            steps.append({int(memory["step"]) for memory in share.optimizer.state.values()})
    assert steps == [{3}, {6}]


def test_a_factory_gets_the_parameters_of_the_host_and_serves_a_frozen_one():
    loop = make_loop()
    loop.model.requires_grad_(requires_grad=False)
    loop.tended(optimizer=partial(torch.optim.Adam, lr=1e-2))
    loop.optimizer = loop.gardener.optimizer
    host = [parameter.clone() for parameter in loop.model.parameters()]
    loop.epochs(4)
    before = [parameter.clone() for parameter in loop.seed.parameters()]
    loop.epoch()
    assert not same(before, loop.seed.parameters())
    assert same(host, list(loop.model.parameters())[: len(host)])


def test_a_seed_that_fades_out_on_a_frozen_host_is_not_lost():
    """At the end of its ramp no trainable parameter acts any more."""
    loop = make_loop()
    loop.model.requires_grad_(requires_grad=False)
    steps = life("stem", loop.variety.id) | {3: Action(Op.PRUNE, "stem")}
    loop.tended(steps, optimizer=partial(torch.optim.Adam, lr=1e-2))
    loop.optimizer = loop.gardener.optimizer
    tended = loop.epochs(8)
    assert [change.now for report in tended for change in report.changes][-2:] == [Stage.DRAINING, Stage.PRUNED]
    assert not any(report.lost for report in tended)


def test_a_branch_follows_the_rate_that_a_schedule_sets():
    loop = make_loop().tended()
    loop.epoch()
    for group in loop.optimizer.param_groups:
        group["lr"] = 0.0
    before = [parameter.detach().clone() for parameter in loop.seed.parameters()]
    loop.epoch()
    assert same(before, loop.seed.parameters())


def test_seeds_have_a_rate_and_a_decay_of_their_own_which_a_schedule_follows():
    loop = make_loop().tended(seed_lr=3e-4, seed_decay=0.1)
    schedule = torch.optim.lr_scheduler.LambdaLR(loop.optimizer, lambda step: 0.5)
    loop.after.append(schedule.step)
    assert loop.epochs(4)[-1].kept
    host, seeds = loop.optimizer.param_groups
    assert {*map(id, seeds["params"])} == {*map(id, loop.seed.parameters())}
    assert (host["lr"], seeds["lr"], seeds["weight_decay"]) == (5e-3, 1.5e-4, 0.1)
    loop.gardener.close()
    loop.tended({}, slots=None, seed_lr=1.0)  # a second Gardener
    assert loop.optimizer.param_groups == [host, seeds]


def test_a_branch_clips_as_the_loop_does():
    moved = []
    for norm in (None, 1e-6):
        loop = make_loop(partial(torch.optim.SGD, lr=0.1)).tended(clip_norm=norm)
        loop.epoch()
        before = nn.utils.parameters_to_vector(loop.seed.parameters()).detach()
        loop.epoch()
        moved.append((nn.utils.parameters_to_vector(loop.seed.parameters()) - before).norm().item())
    assert moved[1] < 1e-5 < moved[0]


@pytest.mark.parametrize("setting", ["accumulated gradients", "half precision", "average"])
def test_the_host_stays_as_in_the_plain_loop(setting):
    plain, grown = make_loop(), make_loop().tended()
    averages = [AveragedModel(loop.model) for loop in (plain, grown)]
    for loop, average in zip((plain, grown), averages, strict=True):
        loop.after.append(partial(average.update_parameters, loop.model))
        loop.dtype = torch.bfloat16 if setting == "half precision" else None

    def accumulate(loop: Any, batch: Any) -> None:
        per_example(loop.model, batch).mean().backward()
        loop.optimizer.step()

    trains = [partial(accumulate, loop) if setting == "accumulated gradients" else None for loop in (plain, grown)]
    assert [grown.stays_as(plain, trains) for _ in range(3)] == [True] * 3
    host = list(averages[0].module.parameters())
    assert same(host, list(averages[1].module.parameters())[: len(host)])


def test_the_loop_scales_its_loss_and_skips_steps():
    plain, grown = make_loop(), make_loop().tended()

    def overflow(loop: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * torch.inf if loop.scaler.get_scale() > 2.0**20 else gradient

    for loop in (plain, grown):
        loop.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**22)
        next(loop.model.parameters()).register_hook(partial(overflow, loop))
    assert [grown.stays_as(plain) for _ in range(5)][:3] == [True] * 3
    assert grown.scaler.get_scale() == plain.scaler.get_scale() == 2.0**20
    assert next(iter(slots_of(grown.model))).fossils


def test_a_branch_in_float16_scales_its_own_loss():
    plain, grown = make_loop(), make_loop().tended()
    for loop in (plain, grown):
        loop.dtype, loop.scaler = torch.float16, torch.amp.GradScaler("cpu")
    for epoch in range(5):
        assert grown.stays_as(plain) == (epoch < 3)
        assert grown.last.signals.loss_scale == (2.0**16 if epoch else None)
        assert not grown.last.lost
    assert plain.scaler.state_dict() == grown.scaler.state_dict()


def test_layers_that_the_loop_froze_stay_frozen_on_the_branch():
    loop = make_loop().tended()
    normalisation = loop.model.stem[1]
    normalisation.eval()
    mean = normalisation.running_mean.clone()
    loop.epochs(4)
    assert not normalisation.training
    assert torch.equal(normalisation.running_mean, mean)
    assert loop.seed.training


def test_a_group_that_the_loop_adds_while_a_seed_lives_disturbs_nothing():
    def without_head(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.AdamW(parameters[:-2], lr=1e-2)

    plain, grown = make_loop(without_head), make_loop(without_head).tended()
    for epoch in range(5):
        assert grown.stays_as(plain) == (epoch < 3)
        if epoch == 1:
            for loop in (plain, grown):
                loop.optimizer.add_param_group({"params": list(loop.model.head.parameters()), "lr": 1e-3})
    assert len(grown.optimizer.state) == len(list(grown.model.parameters()))
    grown.gardener.state_dict()


def test_a_kept_seed_can_be_frozen():
    loop = make_loop().tended(growth={"gates": "off", "freeze_fossils": True})
    assert loop.epochs(4)[-1].kept
    kept = [parameter.clone() for parameter in loop.seed.parameters()]
    loop.epoch()
    assert same(kept, loop.seed.parameters())
    assert not any(parameter in loop.optimizer.state for parameter in loop.seed.parameters())


def test_an_optimizer_of_the_users_own_class_trains_seeds():
    class Damped(torch.optim.SGD):
        def __init__(self, parameters: Any, *, factor: float) -> None:
            super().__init__(parameters, lr=0.1 * factor, momentum=0.9)

    loop = make_loop(partial(Damped, factor=0.5)).tended()
    loop.epoch()
    before = [parameter.clone() for parameter in loop.seed.parameters()]
    assert loop.epochs(3)[-1].kept
    assert not same(before, loop.seed.parameters())
