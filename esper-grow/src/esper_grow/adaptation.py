"""Adapters of a trained network: beside which layers they go, their names, and which of them act."""

from __future__ import annotations

import math
from collections import Counter
from contextlib import ExitStack, contextmanager
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Final

from torch import nn

from esper_core.growth import Host, is_pointwise
from esper_core.leyline.errors import GraftError, GrowthError, Problem, nearest, suggestion
from esper_core.leyline.specs import SlotPlace

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from esper_core.growth import Seed

ALL, ATTENTION, MLP = "all-linear", "attention", "mlp"

_OF_ATTENTION: Final = ("attn", "attention")
"""What is in the name of an attention layer, or of a module around it."""

_MAMBA: Final = ("falcon_h1", "falcon_mamba", "mamba", "mamba2", "nemotron_h")
"""Model types of transformers, whose kernels read the weights of some layers without calling them."""


def adapters(
    model: nn.Module,
    where: str | Sequence[str] = ALL,
    *,
    rank: int = 8,
    alpha: float | None = None,
    rslora: bool = False,
    dropout: float = 0.0,
    block: int | None = None,
    blueprint: str | None = None,
    stack: int = 1,
) -> dict[str, Any]:
    """Return the ``slots`` and ``blueprints`` with which a ``Gardener`` grows adapters beside linear layers.

        gardener = Gardener(model, partial(AdamW, lr=3e-4), **adapters(model, "mlp", rank=8), loss=…, validation=…)

    Linear layers are those of torch, quantised ones that derive from them, the Conv1D of transformers, and any of these
    with an adapter of PEFT. If some of them are frozen, those that are trained, such as a new head, are left out.

    Args:
        model: The network, usually frozen: ``model.requires_grad_(False)``.
        where: "all-linear": those in numbered blocks, or all if there are no blocks, without ``out_proj`` of Mamba,
            beside which PEFT refuses LoRA. "attention": those of them with ``attn`` or ``attention`` in their names.
            "mlp": the others. Or names, as PEFT takes them: the ends of the layers' names (``"q_proj"``), or patterns
            of whole names (``"layer.*.mlp.up"``), also of 1×1 convolutions. A name that no other layer has also means
            one with tied weights (``"lm_head"``), or a trained head.
        rank: Of LoRA.
        alpha: Its scale is alpha/rank. None: the rank.
        rslora: Scale by alpha/√rank.
        dropout: Share of an adapter's inputs that is dropped in training.
        block: Rank of the blocks in which LoRA germinates as a set, each judged apart. Then ``together`` is returned,
            too, and slots have room for as many blocks again. None: it has its rank at once.
        blueprint: What grows instead of LoRA, such as ``"bottleneck_adapter(width=8)"``.
        stack: How many sets a layer has room for, one after the other. A policy other than "static" may use it, too.

    Raises:
        GraftError: no linear layer is there, or a name matches none.
        GrowthError: the rank is no multiple of the block, something else than LoRA is to have blocks, or the stack is
            below 1 (E347).

    Examples:
        >>> adapters(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)), rank=2)
        {'slots': ['0', '2'], 'blueprints': ['lora(rank=2)']}
    """
    if stack < 1:
        hint = "It is how many sets a layer has room for."
        raise GrowthError(Problem("E347", f"stack must be at least 1. Received: {stack!r}", hint=hint))
    names = _layers_of(model, where)
    if block is None:
        slots = names if stack == 1 else {name: SlotPlace(name, stack=stack) for name in names}
        return {"slots": slots, "blueprints": [blueprint or _lora(rank, alpha, dropout, rslora=rslora)]}
    copies, alpha = _in_blocks(rank, alpha, block, blueprint, rslora=rslora)
    slots = {name: SlotPlace(name, stack=2 * copies * stack) for name in names}
    return {"slots": slots, "blueprints": [_lora(block, alpha, dropout, rslora=rslora)], "together": copies}


@contextmanager
def disable_adapters(model: nn.Module) -> Iterator[None]:
    """Let nothing that grew act in the ``with`` block: the model returns what its host alone does.

    Everything is disabled, not only adapters. Train or save the model outside of the block.
    """
    with ExitStack() as stack:
        for slot in Host(model).slots:
            for seed in slot.seeds:
                stack.enter_context(slot.disabled(seed))
        yield


def name_adapters(model: nn.Module, name: str) -> None:
    """Give a name to the kept adapters that have none, so that others may share the base with them.

    Adapters without a name are called "default", as in PEFT.

    Raises:
        GrowthError: None is without a name, or others have this one (E347).
    """
    by_name = _kept_by_name(model)
    if name in by_name or "default" not in by_name:
        message = f"these adapters cannot be called {name!r}"
        hint = f"Name adapters that are kept and have no name, once. The model has: {', '.join(by_name) or 'none'}"
        raise GrowthError(Problem("E347", message, hint=hint))
    for seed in by_name["default"]:
        seed.label = name


def use_adapters(model: nn.Module, *names: str) -> None:
    """Let the kept adapters of these names act, and no others. Without a name, none does.

    Adapters that do not act are not trained either, and stay in what is saved. What grows later acts beside them.

    Raises:
        GrowthError: There are no adapters of a name (E347).
    """
    by_name = _kept_by_name(model)
    for name in names:
        if name not in by_name:
            message = f'the model has no adapters called "{name}"'
            raise GrowthError(Problem("E347", message, hint=suggestion(name, list(by_name))))
    for name, seeds in by_name.items():
        for seed in seeds:
            seed.acts = name in names


def _kept_by_name(model: nn.Module) -> dict[str, list[Seed]]:
    by_name: dict[str, list[Seed]] = {}
    for slot in Host(model).slots:
        for seed in slot.fossils:
            by_name.setdefault(seed.label, []).append(seed)
    return by_name


def linear_shape(module: nn.Module) -> tuple[int, int] | None:
    """Return the numbers of features that a linear layer or 1×1 convolution gets and returns; None for another module.

    >>> linear_shape(nn.Linear(4, 2)), linear_shape(nn.Conv2d(3, 8, 1)), linear_shape(nn.ReLU())
    ((4, 2), (3, 8), None)
    """
    layer: Any = getattr(module, "base_layer", module)  # PEFT's adapters wrap a layer
    # The output of MultiheadAttention has a class of its own, since its weight is read and it is never called.
    if isinstance(layer, nn.Linear) and type(layer).__name__ != "NonDynamicallyQuantizableLinear":
        return layer.in_features, layer.out_features
    if is_pointwise(layer):
        return layer.in_channels, layer.out_channels
    weight = getattr(layer, "weight", None)
    if type(layer).__name__ == "Conv1D" and weight is not None and weight.ndim == 2:
        return weight.shape[0], weight.shape[1]
    return None


def refused_by_peft(model: nn.Module, layers: Iterable[str]) -> list[str]:
    """Return those of the layers beside which PEFT refuses LoRA."""
    if getattr(getattr(model, "config", None), "model_type", None) not in _MAMBA:
        return []
    return [name for name in layers if name.removesuffix(".base_layer").rpartition(".")[2] in ("out_proj", "conv1d")]


def with_several_names(model: nn.Module, layers: Iterable[str]) -> list[str]:
    """Return those of the layers that are several attributes, of which PEFT replaces the first alone."""
    modules = dict(model.named_modules(remove_duplicate=False))
    # Names through one parent that itself has several are the same attribute.
    places = {}
    for name, module in modules.items():
        parent, _, attribute = name.rpartition(".")
        places[id(modules[parent]), attribute] = id(module)
    names = Counter(places.values())
    return [name for name in layers if names[id(modules[name])] > 1]


def _layers_of(model: nn.Module, where: str | Sequence[str]) -> list[str]:
    """Return the names of the layers that ``where`` means, as ``adapters`` describes it."""
    layers, all_layers = _linear_layers(model)
    if not isinstance(where, str) or where not in (ALL, ATTENTION, MLP):
        wanted = [where] if isinstance(where, str) else where
        return list(dict.fromkeys(layer for name in wanted for layer in _meant_by(name, layers, all_layers)))
    # As in PEFT, which takes convolutions by name alone.
    refused = refused_by_peft(model, layers)
    linear = [name for name in layers if name not in refused and not is_pointwise(model.get_submodule(name))]
    blocks = [name for name in linear if any(part.isdecimal() for part in name.split("."))] or linear
    of_attention = {name for name in blocks if any(part in name.lower() for part in _OF_ATTENTION)}
    chosen = [name for name in blocks if where == ALL or (where == ATTENTION) == (name in of_attention)]
    if not chosen:
        raise _no_layer(where, layers)
    return chosen


def _linear_layers(model: nn.Module) -> tuple[list[str], list[str]]:
    """Return the names of linear layers and 1×1 convolutions, without those in PEFT's adapters.

    The second are all of them. The first go without those with tied weights, and without a trained head.
    """
    of_host = {name.rpartition(".")[0] for name in Host(model).parameters()}
    modules, _ = Host.split_state(dict(model.named_modules()))
    layers: dict[str, nn.Module] = {}
    wrapped: tuple[str, ...] = ()
    for name, module in modules.items():
        if linear_shape(module) is None or name.startswith(wrapped):
            continue
        if hasattr(module, "base_layer"):
            wrapped += (f"{name}.",)
        layers[name] = module
    untied = [name for name in layers if of_host & {name, f"{name}.base_layer"}]
    frozen = [
        name
        for name in untied
        if not any(
            parameter.requires_grad for parameter in getattr(layers[name], "base_layer", layers[name]).parameters()
        )
    ]
    return frozen or untied, list(layers)


def _lora(rank: int, alpha: float | None, dropout: float, *, rslora: bool) -> str:
    """Return the name of the blueprint with these settings."""
    settings = {"rank": rank, "alpha": alpha, "rslora": rslora or None, "dropout": dropout or None}
    return f"lora({','.join(f'{name}={value}' for name, value in settings.items() if value is not None)})"


def _in_blocks(
    rank: int, alpha: float | None, block: int, blueprint: str | None, *, rslora: bool
) -> tuple[int, float | None]:
    """Return how many blocks a rank has, and the alpha of each, by which all have the scale of the whole rank."""
    if blueprint is not None or not (type(rank) is type(block) is int and 1 <= block <= rank and rank % block == 0):
        received = f"rank={rank!r}, block={block!r}, blueprint={blueprint!r}"
        hint = f"Pass a block that divides the rank, and no blueprint. Received: {received}"
        raise GrowthError(Problem("E347", "LoRA cannot germinate in such blocks", hint=hint))
    copies = rank // block
    if rslora:
        return copies, (rank if alpha is None else alpha) / math.sqrt(copies)
    return copies, None if alpha is None else alpha / copies


def blocks_together(
    rank: int, block: int, *, alpha: float | None = None, rslora: bool = False, dropout: float = 0.0
) -> tuple[str, ...]:
    """Return the blueprints that one block of a rank is, that two are together, and so on, at the scale of the rank.

    >>> blocks_together(4, 2, alpha=8)
    ('lora(rank=2,alpha=4.0)', 'lora(rank=4,alpha=8.0)')
    """
    whole = rank if alpha is None and rslora else alpha
    power = 0.5 if rslora else 1.0
    sizes = range(block, rank + 1, block)
    return tuple(_lora(size, whole and whole * (size / rank) ** power, dropout, rslora=rslora) for size in sizes)


def _meant_by(name: str, layers: Sequence[str], all_layers: Sequence[str]) -> list[str]:
    """Return the layers that a name means; of ``all_layers`` if it means none of the others."""
    for candidates in (layers, all_layers):
        if matching := [layer for layer in candidates if _fits(layer, name)]:
            return matching
    raise _no_layer(name, layers)


def _fits(name: str, pattern: str) -> bool:
    """Return whether a module's name or its end is this one, or it fits a pattern, part by part, as in ``graft``."""
    if name == pattern or name.endswith(f".{pattern}"):
        return True
    parts = list(zip(name.split("."), pattern.split("."), strict=False))
    return name.count(".") == pattern.count(".") and all(fnmatchcase(part, wanted) for part, wanted in parts)


def _no_layer(name: str, layers: Sequence[str]) -> GraftError:
    message = f'no linear layer or 1×1 convolution of the model is meant by "{name}"'
    ends = list(dict.fromkeys(layer.rpartition(".")[2] for layer in layers))
    groups = [group for group in (ALL, ATTENTION, MLP) if group != name]
    close = nearest(name, groups + ends)
    hint = f"They end in: {', '.join(ends) or 'there are none'}"
    return GraftError(Problem("E313", message, hint=f'Did you mean "{close}"? {hint}' if close else hint))
