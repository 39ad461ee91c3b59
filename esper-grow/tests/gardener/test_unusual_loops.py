"""Unusual loops, and the host of any loop: bit for bit that of the plain loop until a seed is kept."""

from collections import deque
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import lr_scheduler as schedules
from torch.optim.swa_utils import SWALR
from torch.utils.checkpoint import checkpoint

from esper_core import EsperError, SlotPlace
from tests.support.core_worlds import Net, NoisyHost, SmoothHost, per_example
from tests.support.loops import adam, by_kind, life, make_loop


class Nested(torch.optim.Optimizer):
    """An optimizer with state in lists and mappings, as those with preconditioners have, and in its group."""

    def __init__(self, params: Any, lr: float = 1e-2) -> None:
        super().__init__(params, {"lr": lr, "steps": torch.zeros(()), "cache": [0.0]})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            group["steps"].add_(1)
            group["cache"][0] = float(group["steps"])
            for parameter in (member for member in group["params"] if member.grad is not None):
                state = self.state[parameter]
                if not state:
                    state["moments"] = [torch.zeros_like(parameter), {"second": torch.zeros_like(parameter)}]
                first, second = state["moments"][0], state["moments"][1]["second"]
                first.mul_(0.9).add_(parameter.grad)
                second.mul_(0.99).addcmul_(parameter.grad, parameter.grad)
                parameter.sub_(group["lr"] / group["steps"].sqrt() * first / (second.sqrt() + 1e-3))


class Elsewhere(torch.optim.SGD):
    """Counts its steps where ``place`` says, as optimizers of others do."""

    def __init__(self, params: Any, place: str) -> None:
        super().__init__(params, 0.01)
        self.place, self.count = place, torch.zeros(())

    def step(self, closure: Any = None) -> None:
        super().step()
        if self.place == "attribute":
            self.count += 1
        elif self.place == "key":
            self.state["k"] = self.state.get("k", 0) + 1
        else:
            for parameter in self.param_groups[0]["params"]:
                self.state[parameter].setdefault("past", deque(maxlen=2)).append(parameter.grad)


@pytest.mark.parametrize("place", ["attribute", "key", "deque"])
def test_an_optimizer_that_branches_would_change_is_refused(place):
    loop = make_loop(partial(Elsewhere, place=place)).tended(life("stem", "test/local-conv"))
    loop.epoch()
    with pytest.raises(EsperError, match=f"E340 Elsewhere .*in its {'count' if place == 'attribute' else 'state'}"):
        loop.epoch()


def test_an_optimizer_of_two_models_keeps_its_state_of_the_other():
    other = nn.Linear(2, 1)
    loop = make_loop(lambda parameters: adam([*parameters, *other.parameters()])).tended()

    def train(batch: Any) -> None:
        loop.optimizer.zero_grad()
        (per_example(loop.model, batch).mean() + other(torch.ones(1, 2)).square().sum()).backward()
        loop.optimizer.step()

    loop.epochs(5, train)
    steps = {float(loop.optimizer.state[parameter]["step"]) for parameter in other.parameters()}
    assert steps == {5.0 * len(loop.batches)}


def test_branches_leave_no_gradients_in_what_the_loss_trains_outside_of_the_model():
    """The loop drops gradients after its step, so that those of a branch would wait for the next one."""

    def train_scale(*, grown: bool) -> Tensor:
        loop, scale = make_loop(), nn.Parameter(torch.ones(60))
        loop.optimizer.add_param_group({"params": [scale]})

        def losses(model: nn.Module, batch: Any) -> Tensor:
            return per_example(model, batch) * scale[: len(batch[1])]

        def train(batch: Any) -> None:
            losses(loop.model, batch).mean().backward()
            loop.optimizer.step()
            loop.optimizer.zero_grad()

        (loop.tended(loss=losses) if grown else loop).epochs(3, train)
        return scale.detach()

    assert torch.equal(train_scale(grown=True), train_scale(grown=False))


def test_branches_step_the_optimizers_that_the_loop_steps_and_no_others():
    """The loop does not train the head yet, or in each fourth batch alone."""
    loop = make_loop(lambda parameters: adam(parameters[:2]))
    head = loop.model.head.weight.detach().clone()
    loop.tended(optimizer=[loop.optimizer, adam(loop.model.head.parameters())])
    assert loop.epochs(4)[-1].kept
    assert torch.equal(loop.model.head.weight, head)


def test_a_set_begins_at_the_rate_of_the_step_after_which_it_germinates():
    """In a warm-up that is 0, and the schedule has set the next one by then."""
    loop = make_loop(lambda parameters: torch.optim.SGD(parameters, lr=0.0))
    loop.tended(blueprints=["conv_light"], together=True)
    loop.train(loop.batches[0])
    loop.optimizer.param_groups[0]["lr"] = 0.1
    loop.gardener.step(loop.batches[0])
    assert not loop.seed.block.conv_b.weight.any(), "it is zero at birth"


@pytest.mark.parametrize(
    "around",
    [torch.inference_mode, torch.no_grad, partial(torch.autocast, "cpu", dtype=torch.bfloat16)],
    ids=["inference mode", "no gradients", "autocast"],
)
def test_tend_may_be_called_inside_of_a_mode(around):
    plain, grown = make_loop().tended(), make_loop().tended()
    for _ in range(5):
        random = torch.get_rng_state()
        expected = plain.epoch().signals.validation_loss
        torch.set_rng_state(random)
        tend = grown.gardener.tend
        grown.gardener.tend = lambda: None
        grown.epoch()
        with around():
            assert tend().signals.validation_loss == expected
        grown.gardener.tend = tend


def test_an_optimizer_that_steps_in_backward_steps_on_no_branch():
    """One optimizer for each parameter, stepped by a hook as soon as the gradient is there."""
    losses = []
    for grown in (False, True):
        loop = make_loop()
        optimizers = {parameter: adam([parameter]) for parameter in loop.model.parameters()}

        def step(parameter: nn.Parameter, optimizers: Any = optimizers) -> None:
            optimizers[parameter].step()
            optimizers[parameter].zero_grad()

        for parameter in optimizers:
            parameter.register_post_accumulate_grad_hook(step)
        if grown:
            loop.tended(optimizer=list(optimizers.values()))

        def train(batch: Any, loop: Any = loop) -> None:
            loss = per_example(loop.model, batch).mean()
            loss.backward()
            losses[-1].append(loss.item())

        losses.append([])
        torch.manual_seed(0)
        for _ in range(3):
            loop.epoch(train)
    assert losses[0] == losses[1]


def test_a_seed_behind_an_embedding_with_sparse_gradients_joins_a_dense_optimizer():
    def words() -> nn.Module:
        """Return an embedding with sparse gradients, a slot behind it, and a head."""

        def compute(net: Any, inputs: Tensor) -> Tensor:
            return net.head(net.stem((10 * inputs[:, 0]).long() % 50).flatten(1))

        return Net(compute, stem=nn.Embedding(50, 4, sparse=True), head=nn.Linear(48, 3))

    loop = make_loop(lambda parameters: torch.optim.SparseAdam(parameters[:1], lr=1e-2), host=words)
    loop.optimizers = [dense := adam(loop.model.head.parameters())]
    loop.tended(optimizer=[loop.optimizer, dense], slots={"stem": SlotPlace("stem", "sequence")})
    assert not [lost for report in loop.epochs(6) for lost in report.lost]
    assert len(loop.optimizer.param_groups[0]["params"]) == 1
    assert len(dense.param_groups[0]["params"]) > 2


def test_a_parameter_joins_no_optimizer_that_refuses_it():
    """Muon accepts matrices only. The seed's convolution is not one, although the nearest parameter of its kind is."""
    loop = make_loop()
    (conv, *matrices), biases = by_kind(loop.model.parameters())
    loop.optimizer = muon = torch.optim.Muon(matrices, lr=1e-3)
    loop.optimizers = [vectors := adam(biases)]
    loop.tended(optimizer=[muon, vectors])
    assert conv.ndim == 3
    assert not [lost for report in loop.epochs(6) for lost in report.lost]
    assert all(parameter.ndim == 2 for group in muon.param_groups for parameter in group["params"])


def unusual(body: nn.Module, norm: Callable[[nn.Module], nn.Module] = lambda layer: layer) -> nn.Module:
    """Return a convolution, another module, and a head."""

    def compute(net: Any, inputs: Tensor) -> Tensor:
        hidden = net.body(net.stem(inputs))
        return net.head((hidden[0] if isinstance(hidden, tuple) else hidden).flatten(1))

    return Net(compute, stem=norm(nn.Conv1d(1, 4, 1)), body=body, head=norm(nn.Linear(48, 3)))


def tied() -> nn.Module:
    """Return two layers with the same weights."""
    first, second = nn.Linear(12, 12), nn.Linear(12, 12)
    second.weight = first.weight
    return nn.Sequential(first, second)


def checkpointed() -> nn.Module:
    """Return a host whose part with the slot is computed again in the backward pass."""
    host = NoisyHost()
    rest = nn.Sequential(host.drop, host.hidden, host.head)
    return Net(lambda net, x: net.rest(checkpoint(net.first, x, use_reentrant=False)), first=host.stem, rest=rest)


def test_a_seed_is_born_within_a_reentrant_checkpoint_though_no_gradient_passes_its_slot_at_birth():
    def host() -> nn.Module:
        stem, head = SmoothHost().children()
        return Net(
            lambda net, x: net.head(checkpoint(net.stem, x.requires_grad_(), use_reentrant=True)), stem=stem, head=head
        )

    grown = make_loop(host=host).tended(life("stem", "blueprints/conv_light"), blueprints=["conv_light"])
    assert [report.lost for report in grown.epochs(3)] == [()] * 3


class MergedInEvaluation(nn.Linear):
    """A layer that changes its weight in evaluation, as LoRA can be merged into it."""

    def train(self, mode: bool = True) -> "MergedInEvaluation":
        if mode != self.training:
            self.weight.data *= 0.5 if mode else 2.0
        return super().train(mode)


def mixing(table: Tensor) -> nn.Module:
    """Return a layer with a table among its buffers."""
    return Net(lambda net, x: x @ net.table.to_dense(), table=table)


UNUSUAL: dict[str, Callable[[], nn.Module]] = {
    "tied weights": lambda: unusual(tied()),
    "weight norm": lambda: unusual(nn.Tanh(), nn.utils.parametrizations.weight_norm),
    "spectral norm": lambda: unusual(nn.Tanh(), nn.utils.parametrizations.spectral_norm),
    "older spectral norm": lambda: unusual(nn.Tanh(), nn.utils.spectral_norm),
    "recurrent": lambda: unusual(nn.GRU(12, 12, batch_first=True)),
    "batch norm without statistics": lambda: unusual(nn.BatchNorm1d(4, track_running_stats=False)),
    "channels last": lambda: unusual(nn.Sequential(nn.Unflatten(2, (3, 4)), nn.Conv2d(4, 4, 1), nn.Flatten(2))).to(
        memory_format=torch.channels_last
    ),
    "data parallel": lambda: nn.DataParallel(unusual(nn.Tanh())),
    "activation checkpointing": checkpointed,
    "merged in evaluation": lambda: unusual(MergedInEvaluation(12, 12)),
    "sparse buffer": lambda: unusual(mixing(torch.eye(12).to_sparse())),
}
STEMS = {"data parallel": "module.stem", "activation checkpointing": "first"}
"""The module with the slot, where it is not called stem."""


def test_two_gardeners_in_one_process_do_not_disturb_each_other() -> None:
    """Tested with one optimizer each, and with one optimizer for both models."""
    apart = [make_loop().tended(), make_loop().tended(seed=1)]
    together = [make_loop(), make_loop()]
    shared = adam([parameter for loop in together for parameter in loop.model.parameters()])
    for seed, loop in enumerate(together):
        loop.optimizer = shared
        loop.tended(seed=seed)
    losses: list[list[float]] = [[], []]
    for _ in range(6):
        random = torch.get_rng_state()
        for loop in apart:
            torch.set_rng_state(random)
            losses[0].append(loop.epoch().signals.validation_loss)
        for loop in together:
            torch.set_rng_state(random)
            losses[1].append(loop.epoch().signals.validation_loss)
    assert losses[0] == losses[1]
    owned = sum(len(group["params"]) for group in shared.param_groups)
    assert owned == sum(len(list(loop.model.parameters())) for loop in together)


SCHEDULES: dict[str, Callable[[torch.optim.Optimizer], Any]] = {
    "CosineAnnealingWarmRestarts": partial(schedules.CosineAnnealingWarmRestarts, T_0=4),
    "CyclicLR": partial(schedules.CyclicLR, base_lr=1e-3, max_lr=1e-2, step_size_up=3, cycle_momentum=False),
    "OneCycleLR": partial(schedules.OneCycleLR, max_lr=1e-2, total_steps=40),
    "LambdaLR": partial(schedules.LambdaLR, lr_lambda=lambda step: 0.95**step),
    "SequentialLR": lambda optimizer: schedules.SequentialLR(
        optimizer, [schedules.LinearLR(optimizer), schedules.ExponentialLR(optimizer, 0.9)], milestones=[3]
    ),
    "SWALR": partial(SWALR, swa_lr=1e-3),
    "ReduceLROnPlateau": lambda optimizer: SimpleNamespace(
        step=partial(schedules.ReduceLROnPlateau(optimizer, patience=2).step, 1.0)
    ),
}
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": partial(torch.optim.SGD, lr=0.05, momentum=0.9, nesterov=True, weight_decay=1e-3),
    "adamw": partial(torch.optim.AdamW, lr=1e-2, amsgrad=True),
    "fused": partial(torch.optim.Adam, lr=1e-2, fused=True),
    "adagrad": partial(torch.optim.Adagrad, lr=1e-2),
    "asgd": torch.optim.ASGD,
    "adafactor": torch.optim.Adafactor,
    "state in containers": Nested,
}


@pytest.mark.parametrize("name", [*UNUSUAL, *SCHEDULES, *OPTIMIZERS])
def test_an_unusual_host_schedule_or_optimizer_is_undisturbed_until_a_seed_is_kept(name):
    plain, grown = (make_loop(OPTIMIZERS.get(name, adam), host=UNUSUAL.get(name, NoisyHost)) for _ in range(2))
    for loop in (plain, grown) if name in SCHEDULES else ():
        schedule = SCHEDULES[name](loop.optimizer)
        loop.after.append(schedule.step)
    grown.tended(slots={"stem": STEMS.get(name, "stem")})
    for epoch in range(6):
        assert grown.stays_as(plain) == (epoch < 3)
        assert not grown.last.lost
    rates, expected = ([group["lr"] for group in loop.optimizer.param_groups] for loop in (grown, plain))
    assert rates == expected
    owned = [id(parameter) for group in grown.optimizer.param_groups for parameter in group["params"]]
    assert sorted(owned) == sorted(id(parameter) for parameter in grown.model.parameters())


def test_a_loop_in_float64_keeps_its_default():
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        plain, grown = make_loop(), make_loop().tended()
        assert [grown.stays_as(plain) for _ in range(6)] == [True] * 3 + [False] * 3
        assert torch.get_default_dtype() is torch.float64
        assert {parameter.dtype for parameter in grown.model.parameters()} == {torch.float64}
    finally:
        torch.set_default_dtype(before)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit")
def test_a_compiled_host_is_compiled_again_once_a_seed_is_kept():
    plain, grown = make_loop(), make_loop().tended()
    compiled = [torch.compile(loop.model, options={"fallback_random": True}) for loop in (plain, grown)]

    def train(loop: Any, model: Any, batch: Any) -> None:
        loop.optimizer.zero_grad()
        nn.functional.cross_entropy(model(batch[0]), batch[1]).backward()
        loop.optimizer.step()

    trains = [partial(train, *pair) for pair in zip((plain, grown), compiled, strict=True)]
    assert [grown.stays_as(plain, trains) for _ in range(5)] == [True] * 3 + [False] * 2
