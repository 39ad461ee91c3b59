"""Arms: which layers each adapts, at which rank, under a budget of parameters, and how it is trained."""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import dataclass
from functools import partial
from statistics import fmean
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor, nn
from torch.optim import AdamW

from benchmarks.placement.worlds import loss
from esper_grow import Gardener, adapters, place_adapters
from esper_grow.adaptation import linear_shape

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from benchmarks.placement.worlds import Batch, World

RATE_OF_ALL_WEIGHTS: Final = 5e-5
"""Of the encoder, where all of it is trained."""
TENDS: Final = 10
"""Calls of ``tend`` in which a Gardener judges what grows."""
LOOKED_AT: Final = 4
"""Batches from which ``plop`` takes its norms."""

Ranks = dict[str, int]
"""The rank of each adapted layer."""


def layers_of(model: nn.Module) -> dict[str, Any]:
    """Return the linear layers and 1×1 convolutions in numbered blocks by name."""
    modules = ((name, module) for name, module in model.named_modules() if linear_shape(module) is not None)
    return {name: module for name, module in modules if any(part.isdecimal() for part in name.split("."))}


def cost_of(layer: nn.Module) -> int:
    """Return the parameters of an adapter of rank 1."""
    return sum(linear_shape(layer) or ())


def evenly(model: nn.Module, places: Sequence[str], budget: int) -> Ranks:
    """Return the largest equal rank for these places within a budget, 1 at least."""
    layers = layers_of(model)
    return dict.fromkeys(places, max(1, round(budget / sum(cost_of(layers[place]) for place in places))))


def adapted(model: nn.Module, ranks: Ranks) -> nn.Module:
    """Return the model with PEFT's LoRA at these places."""
    if not ranks:
        return model
    from peft import LoraConfig, get_peft_model

    first = next(iter(ranks.values()))
    pattern = {place: rank for place, rank in ranks.items() if rank != first}
    alphas = {place: 2 * rank for place, rank in pattern.items()}
    config = LoraConfig(
        r=first, lora_alpha=2 * first, target_modules=list(ranks), rank_pattern=pattern, alpha_pattern=alphas
    )
    wrapped: Any = get_peft_model(model, config)
    model.get_submodule("head").requires_grad_(requires_grad=True)
    network: nn.Module = wrapped.base_model.model
    return network


@dataclass(frozen=True)
class Fitting:
    """A network that is ready to be trained.

    Attributes:
        network: It returns scores.
        mean_loss: Of a batch, with penalties.
        groups: The parameters that are trained, by their learning rate.
        after_step: Called with the number of each step, while its gradients are there.
        count: Returns how many parameters are trained in the end.
        begin: Called with the optimizer, before the first step.
    """

    network: nn.Module
    mean_loss: Callable[[Batch], Tensor]
    groups: Sequence[dict[str, Any]]
    after_step: Callable[[int], object]
    count: Callable[[], int]
    begin: Callable[[AdamW], object] = lambda _: None


def fitted(arm: str, world: World, ranks: Ranks) -> Fitting:
    """Return the model of an arm, ready to be trained."""
    if arm == "adalora":
        return _with_adalora(world, ranks)
    if arm == "grown":
        return _grown(world, ranks)
    if arm == "full":
        world.model.requires_grad_(requires_grad=True)
    return _trained_where_required(adapted(world.model, ranks), world.rate)


def _trained_where_required(network: nn.Module, rate: float) -> Fitting:
    by_rate: dict[float, list[nn.Parameter]] = defaultdict(list)
    for name, parameter in network.named_parameters():
        if parameter.requires_grad:
            of_encoder = name.startswith("base.") and "lora_" not in name
            by_rate[RATE_OF_ALL_WEIGHTS if of_encoder else rate].append(parameter)
    groups = [{"params": parameters, "lr": of_group} for of_group, parameters in by_rate.items()]
    count = sum(parameter.numel() for parameters in by_rate.values() for parameter in parameters)
    return Fitting(network, lambda batch: loss(network, batch).mean(), groups, lambda _: None, lambda: count)


_OF_RANKS: Final = ".lora_E.default"
"""End of the names by which AdaLoRA says which ranks of a layer are left."""


class _WithLoss(nn.Module):
    """The model as AdaLoRA needs it, which adds a penalty to the loss that a model returns."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: Batch) -> SimpleNamespace:
        return SimpleNamespace(loss=loss(self.model, batch).mean())


def _with_adalora(world: World, ranks: Ranks) -> Fitting:
    """Return the model with PEFT's AdaLoRA, which begins with half as many ranks again (Zhang et al., 2023)."""
    from peft import AdaLoraConfig, get_peft_model

    model, steps = world.model, len(world.train)
    costs = {f"model.{name}": cost_of(layer) for name, layer in layers_of(model).items()}
    target = round(fmean(ranks.values()))
    first = round(1.5 * target)
    budget: dict[str, Any] = {
        "init_r": first,
        "target_r": target,
        "tinit": steps // 10,
        "tfinal": steps // 3,
        "deltaT": 5,
    }
    config = AdaLoraConfig(target_modules=list(ranks), lora_alpha=2 * first, total_step=steps, **budget)
    wrapped: Any = get_peft_model(_WithLoss(model), config)
    head = model.get_submodule("head").requires_grad_(requires_grad=True)

    def count() -> int:
        """Return the parameters of the head, and of the ranks that are left."""
        of_ranks = (sum(kept) * (1 + costs[name.removesuffix(_OF_RANKS)]) for name, kept in config.rank_pattern.items())
        return int(sum(of_ranks)) + sum(parameter.numel() for parameter in head.parameters())

    trained = [parameter for parameter in wrapped.parameters() if parameter.requires_grad]
    groups = [{"params": trained, "lr": world.rate}]
    return Fitting(model, lambda batch: wrapped(batch).loss, groups, wrapped.base_model.update_and_allocate, count)


def _grown(world: World, ranks: Ranks) -> Fitting:
    """Return the model in which a Gardener grows LoRA at these places as a set, judged at each tenth of the steps."""
    model, steps = world.model, len(world.train)
    gardeners: list[Gardener] = []

    def begin(optimizer: AdamW) -> None:
        places = adapters(model, list(ranks), rank=2, alpha=4)
        held_out: dict[str, Any] = {"loss": loss, "validation": world.validation, "steps": TENDS}
        gardeners.append(Gardener(model, optimizer, **places, **held_out, together=True))

    def after_step(step: int) -> None:
        (gardener,) = gardeners
        gardener.step(world.train[step])
        if (step + 1) * TENDS // steps > step * TENDS // steps:
            gardener.tend()
        if step + 1 == steps:
            gardener.close()

    def count() -> int:
        return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)

    head = model.get_submodule("head").parameters()
    groups = [{"params": list(head), "lr": world.rate}]
    return Fitting(model, lambda batch: loss(model, batch).mean(), groups, after_step, count, begin)


def train(fitting: Fitting, world: World, steps: int | None = None) -> None:
    """Train at rates that fall linearly, for so many steps of those of a whole training; None: for all of them."""
    optimizer = AdamW(fitting.groups)
    rates = [group["lr"] for group in optimizer.param_groups]
    fitting.begin(optimizer)
    fitting.network.train()
    for step, batch in enumerate(world.train[:steps]):
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate * (1 - step / len(world.train))
        optimizer.zero_grad()
        fitting.mean_loss(batch).backward()
        optimizer.step()
        fitting.after_step(step)


# --- places


PLANS: Final = {"esper": 3, "esper-longer": 2}
"""The arms that take places of ``place_adapters``; one has a third of the steps of a training, one a half."""


def choose(arm: str, world: World, budget: int, seed: int) -> tuple[Ranks, dict[str, Any]]:
    """Return the ranks of an arm, and what else is recorded of the choice."""
    names = list(layers_of(world.model))
    if arm.startswith("alone:"):
        return evenly(world.model, [arm.removeprefix("alone:")], budget), {}
    by_rule: dict[str, Callable[[str], bool]] = {
        "query-value": lambda name: name.endswith(("query", "value")),
        "mlp": lambda name: "attention" not in name and "dense" in name,
        "expand": lambda name: name.endswith("expand"),
        "project": lambda name: name.endswith("project"),
        "all": lambda _: True,
        "adalora": lambda _: True,
        "head": lambda _: False,
        "full": lambda _: False,
    }
    if arm in by_rule:
        places = [name for name in names if by_rule[arm](name)]
        return (evenly(world.model, places, budget) if places else {}), {}
    if arm in (*PLANS, "grown"):
        return measured(world, budget, seed, names, len(world.train) // PLANS.get(arm, PLANS["esper"]))
    if arm == "plop":
        return evenly(world.model, _by_feature_norms(world), budget), {}
    orders: dict[str, Callable[[], list[str]]] = {
        "random": lambda: random.Random(seed).sample(names, len(names)),
        "kappa": lambda: _by_conditions(world.model),
        "lora-drop": lambda: _by_outputs(world),
    }
    return _filled(world.model, orders[arm](), budget), {}


def _filled(model: nn.Module, ordered: Sequence[str], budget: int, rank: int = 2) -> Ranks:
    """Return the places in this order, at one rank, as far as they fit."""
    layers, ranks, used = layers_of(model), {}, 0
    for place in ordered:
        size = rank * cost_of(layers[place])
        if used + size <= budget:
            ranks[place], used = rank, used + size
    return ranks


def measured(world: World, budget: int, seed: int, names: Sequence[str], steps: int) -> tuple[Ranks, dict[str, Any]]:
    """Return the plan of ``place_adapters`` among these places, as ranks, and what else is recorded of it."""
    plan = place_adapters(
        world.model,
        loss,
        world.train,
        world.validation,
        where=names,
        rank=2,
        alpha=4,
        steps=steps,
        parameters=budget,
        optimizer=partial(AdamW, lr=world.rate),
        seed=seed,
    )
    gains = {place.slot: round(place.alone, 6) for place in plan.places}
    return dict.fromkeys(plan.slots, 2), {"gains": gains, "verdict": plan.verdict}


def _by_feature_norms(world: World) -> list[str]:
    """Return the layers of the two kinds with the lowest normalised feature norms (PLoP, Hayou et al., 2025).

    Of a layer it is ‖W·x‖ / ‖W·z‖, where z is Gaussian noise of the norm of the layer's input x: low where a layer
    does not yet answer its inputs more strongly than noise.
    """
    ratios: dict[str, list[float]] = defaultdict(list)

    def look(name: str, layer: nn.Module, inputs: tuple[Tensor, ...], _outputs: Tensor) -> None:
        (features,) = inputs
        noise = torch.randn_like(features)
        noise *= features.norm(dim=-1, keepdim=True) / noise.norm(dim=-1, keepdim=True)
        weight: Any = layer.weight
        ratios[name].append(float((features @ weight.T).norm(dim=-1).mean() / (noise @ weight.T).norm(dim=-1).mean()))

    hooks = [layer.register_forward_hook(partial(look, name)) for name, layer in layers_of(world.model).items()]
    with torch.no_grad():
        for tokens, mask, _ in world.train[:LOOKED_AT]:
            world.model(tokens, mask)
    for hook in hooks:
        hook.remove()
    kinds: dict[str, list[str]] = defaultdict(list)
    for name in ratios:
        kinds[name.split(".layer.")[1].partition(".")[2]].append(name)
    norms = {kind: fmean(fmean(ratios[name]) for name in members) for kind, members in kinds.items()}
    return [name for kind in sorted(norms, key=norms.__getitem__)[:2] for name in kinds[kind]]


def _by_conditions(model: nn.Module) -> list[str]:
    """Return the layers by the condition number of their weights, the lowest first (KappaTune, Ludwig, 2025).

    It is the largest singular value as a multiple of the smallest: low where no direction is preferred yet.
    """
    conditions = {
        name: float(torch.linalg.cond(layer.weight.detach().flatten(1))) for name, layer in layers_of(model).items()
    }
    return sorted(conditions, key=conditions.__getitem__)


def _by_outputs(world: World) -> list[str]:
    """Return the layers by the squared norm of what their adapters put out (LoRA-drop, Zhou et al., 2025).

    They are measured after a third of an epoch with adapters at all layers, over the batches of that.
    """
    from benchmarks.placement.encoder import world_of

    copied = world_of(0)  # of the same base; the seed's own head and data come from ``world``
    copied.model.load_state_dict(world.model.state_dict())
    fitting = fitted("all", copied, dict.fromkeys(layers_of(copied.model), 2))
    looked_at = world.train[: len(world.train) // 3]
    train(fitting, world, len(looked_at))
    network = fitting.network
    squares: dict[str, float] = defaultdict(float)

    def look(name: str, _module: nn.Module, _inputs: Any, outputs: Tensor) -> None:
        squares[name] += float(outputs.detach().square().sum())

    suffix = ".lora_B.default"
    hooks = [
        module.register_forward_hook(partial(look, name.removesuffix(suffix)))
        for name, module in network.named_modules()
        if name.endswith(suffix)
    ]
    with torch.no_grad():
        for tokens, mask, _ in looked_at:
            network(tokens, mask)
    for hook in hooks:
        hook.remove()
    return sorted(squares, key=squares.__getitem__, reverse=True)
