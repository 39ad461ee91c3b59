"""Seeds: a block built from a blueprint, the operator that blends it in, and its alpha.

With h the host's output, s the block's and α the seed's strength, the operators are

    add        (1 − α)·h + α·s                replaces the host's output by degrees
    residual   h + α·g·(s − h)                a learned gain g on what the block changes
    multiply   h·(1 + α·tanh(s − h))          scales the host's features, to nothing or to twice at most
    gate       h + α·γ(h)·(s − h)             a gate γ = 2·sigmoid(w·mean(h) + b) for each example, 1 at birth

At α = 0 neither block nor operator is called. A block that starts as the identity remains it under each operator; one
that does not is put behind a gain that starts at 0 (``Eased``; ``residual`` has one of its own). Only one factor on
each path from the loss to a parameter is zero at birth, so every parameter has a gradient within two steps. Whether a
block starts as the identity is therefore measured, not only declared.

The block b of an adapter, such as LoRA, gets x, what the module before the slot gets: s = h + b(x), with b zero at
birth.

``SeedBuilder`` builds a newborn seed. A block with a method ``inform`` chooses its first weights by the activations at
its slot in one batch, and by their gradients.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor, nn
from torch.fx import Proxy

from esper_core.growth.dry_runs import KeptBuffers, device_of, evaluating
from esper_core.growth.random_streams import RandomStream, derive_seed
from esper_core.leyline.constants import RAMP_STEPS
from esper_core.leyline.errors import PluginError, Problem
from esper_core.leyline.lifecycle import INCUBATING, Blend, SeedEvent, Stage, next_stage
from esper_core.plugins.isolation import attempt, is_interrupt, is_third_party, location_of, target_of
from esper_core.plugins.process_state import Guard, Scope
from esper_core.plugins.returned_values import describe_value

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from contextlib import AbstractContextManager

    from esper_core.leyline.lifecycle import Action
    from esper_core.leyline.specs import BlueprintSpec, Site

    Tap = Callable[[], AbstractContextManager[list[tuple[Tensor, Any]]]]
    """A block in which the outputs of a slot, as leaves for autograd, and its module's inputs are collected."""


@dataclass(slots=True)
class Alpha:
    """A seed's strength, from 0 to 1. One tick is one training batch."""

    value: float = 0.0
    target: float = 0.0
    start: float = 0.0
    ticks: int = 0
    done: int = 0

    def aim(self, target: float, ticks: int) -> None:
        """Start from the present value, and be at ``target`` after ``ticks`` equal steps; 0 ticks is at once."""
        self.start, self.target, self.ticks, self.done = self.value, target, ticks, 0
        if ticks == 0:
            self.value = target

    def tick(self) -> None:
        """Advance by one batch. At its target alpha stays."""
        if not self.moving:
            return
        self.done += 1
        way = self.target - self.start
        # The sum may round, and only an alpha of exactly 1 lets a seed be kept.
        self.value = self.target if self.done == self.ticks else self.start + way * (self.done / self.ticks)

    @property
    def moving(self) -> bool:
        """Whether the target is not reached yet."""
        return self.done < self.ticks


LABEL: Final = "default"
"""What adapters are called until they get a name, as in PEFT."""

NOTICEABLE: Final = 1e-3
"""A newborn block is eased if it changes its input by more than this share."""


class Add(nn.Module):
    """(1 − α)·h + α·s. Exactly s at α = 1."""

    def forward(self, host: Tensor, seed: Tensor, alpha: float) -> Tensor:
        """Return the blended output."""
        if isinstance(alpha, float) and alpha == 1.0:  # under a compiler it is a tensor
            return seed
        # lerp is exact where both are equal, as with a newborn block; (1 − α)·h + α·s would round there.
        return torch.lerp(host, seed, alpha)


class Residual(nn.Module):
    """h + α·g·(s − h), with a learned gain g that starts at ``gain``."""

    def __init__(self, gain: float) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.tensor(gain))

    def forward(self, host: Tensor, seed: Tensor, alpha: float) -> Tensor:
        """Return the blended output."""
        return host + (alpha * self.gain) * (seed - host)


class Multiply(nn.Module):
    """h·(1 + α·tanh(s − h))."""

    def forward(self, host: Tensor, seed: Tensor, alpha: float) -> Tensor:
        """Return the blended output."""
        return host * (1.0 + alpha * torch.tanh(seed - host))


class GatedBlend(nn.Module):
    """h + α·γ·(s − h), where γ = 2·sigmoid(w·mean(h) + b) is one number for each example, between 0 and 2.

    Of the ``dims`` of an example the features are ``axis``; the others are averaged. With w and b at 0 the gate starts
    at 1, as ``add``.
    """

    def __init__(self, channels: int, axis: int, dims: int) -> None:
        super().__init__()
        self.axis, self.dims = axis, dims
        self.weight = nn.Parameter(torch.zeros(channels))
        self.bias = nn.Parameter(torch.zeros(()))

    def forward(self, host: Tensor, seed: Tensor, alpha: float) -> Tensor:
        """Return the blended output."""
        features = host.movedim(self.axis, 1).flatten(2).mean(2) if self.dims > 1 else host
        # An adapter keeps its weights in float32 in a host of half precision.
        gate = 2.0 * torch.sigmoid(features.to(self.weight.dtype) @ self.weight + self.bias)
        return host + alpha * gate.reshape(-1, *[1] * self.dims) * (seed - host)


class Eased(nn.Module):
    """h + g·(b(h) − h): a block behind a learned gain g that starts at 0, so that it starts as the identity."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block
        self.gain = nn.Parameter(torch.zeros(()))

    def forward(self, inputs: Tensor) -> Tensor:
        """Return outputs in the shape of the inputs."""
        outputs: Tensor = inputs + self.gain * (in_shape(self.block(inputs), inputs) - inputs)
        return outputs


def in_shape(outputs: Tensor, inputs: Tensor) -> Tensor:
    """Return ``outputs``; ValueError if they are no floats in the shape of ``inputs``, which casts would hide."""
    # An export traces seeds by proxies, whose shapes cannot be compared.
    if isinstance(outputs, Proxy):
        return outputs
    if not isinstance(outputs, Tensor) or outputs.shape != inputs.shape or not outputs.is_floating_point():
        msg = f"put out {describe_value(outputs)} for {tuple(inputs.shape)}"
        raise ValueError(msg)
    return outputs


def changes_at_birth(block: nn.Module, site: Site) -> bool:
    """Return whether a newborn block noticeably changes random inputs; the block is not changed."""
    tensor = next((tensor for tensor in block.parameters() if tensor.is_floating_point()), torch.zeros(()))
    # In evaluation, since dropout is no change at birth.
    with evaluating(block), torch.no_grad(), RandomStream(derive_seed(0, "trial"), tensor.device):
        inputs = torch.randn(2, *site.example_shape, device=tensor.device, dtype=tensor.dtype)
        outputs = block(inputs.clone())  # a copy, since a block may write to its input
    if not isinstance(outputs, Tensor) or outputs.shape != inputs.shape:
        return True  # it is refused elsewhere
    # Negated, so that NaN counts as a change.
    return not bool((outputs - inputs).norm() <= NOTICEABLE * inputs.norm())


def blended(block: nn.Module, blend: Blend, site: Site, *, identity: bool) -> tuple[nn.Module, nn.Module]:
    """Return the two parts of a seed: the block, eased unless it starts as the identity, and its blend operator."""
    eased = block if identity else Eased(block)
    match blend:
        case Blend.ADD:
            return eased, Add()
        case Blend.MULTIPLY:
            return eased, Multiply()
        case Blend.GATED:
            return eased, GatedBlend(site.channels, -1 if site.kind == "tokens" else 1, len(site.example_shape))
        case Blend.RESIDUAL:  # its gain eases the block in
            return block, Residual(1.0 if identity else 0.0)


def blend_parameters(blend: Blend, site: Site, *, identity: bool) -> int:
    """Return how many parameters a seed has beside those of its block."""
    count = {Blend.ADD: 0, Blend.RESIDUAL: 1, Blend.MULTIPLY: 0, Blend.GATED: site.channels + 1}[blend]
    return count if identity or blend is Blend.RESIDUAL else count + 1


class Presence(StrEnum):
    """How a seed takes part in the host's own pass."""

    ACTING = "acting"
    """At the strength of its alpha, which is 0 while it is in the shadow."""
    BRANCHED = "branched"
    """Not at all: it acts on its branch, and only while that is switched in."""


class Seed(nn.Module):
    """One seed: a ``block``, the ``operator`` that blends it in, and its strength ``alpha``.

    ``number`` counts the seeds of one model from 0, ``identity`` says whether the block starts as the identity, or very
    nearly (None: it is measured), ``born`` is the step of its germination and ``kept`` that of its fossilisation.
    ``speed`` is the number of decision steps in which it is blended in.
    ``title`` names the blueprint and its package in messages.
    """

    is_set = False
    """Gates see seeds, and incubations of whole sets."""

    def __init__(
        self,
        block: nn.Module,
        *,
        blueprint: str,
        spec: BlueprintSpec,
        site: Site,
        number: int,
        blend: Blend = Blend.ADD,
        speed: int = RAMP_STEPS,
        identity: bool | None = None,
        title: str = "",
    ) -> None:
        super().__init__()
        if identity is None:
            identity = spec.starts_as_identity or not changes_at_birth(block, site)
        self.identity = identity
        self.block, self.operator = blended(block, blend, site, identity=identity)
        self.adapts, self.reads_layer = spec.adapts, spec.reads_layer
        self.blueprint = blueprint
        self.title = title or f'blueprint "{blueprint}"'
        self.version = spec.version
        self.blend = blend
        self.site = site
        self.number = number
        self.speed = speed
        self.stage = Stage.GERMINATED
        self.alpha = Alpha()
        self.presence = Presence.ACTING
        self.label, self.acts = LABEL, True
        """The name of the adapters that it belongs to, which share a base with others, and whether these are on."""
        self.in_set = False
        """Whether it shares its branch with other seeds; the garden's own rules then decide, and no action does."""
        self.born: int | None = None
        self.kept: int | None = None
        self.parameter_count = sum(parameter.numel() for parameter in self.parameters())

    def forward(self, host: Tensor, alpha: float, inputs: Any = None, *layer: Any) -> Tensor:
        """Return what leaves the slot when the seed acts at strength ``alpha`` > 0.

        An adapter gets ``inputs``; one that reads its layer gets that, too, and what it returned.
        """
        received = (inputs, *layer) if self.reads_layer else (inputs if self.adapts else host,)
        outputs = in_shape(self.block(*received), host)
        if self.adapts:
            outputs = host + outputs
        blended: Tensor = self.operator(host, outputs.to(host.dtype), alpha)  # under autocast a block may change it
        return blended.to(host.dtype)

    def pass_on(self, event: SeedEvent) -> Stage:
        """Move to the stage after ``event`` and return the one before; LifecycleError if it is not possible."""
        before = self.stage
        self.stage = next_stage(before, event)
        return before

    @property
    def incubating(self) -> bool:
        """Whether the seed does not act on the host yet."""
        return self.stage in INCUBATING


def is_informed(block: nn.Module) -> bool:
    """Return whether a block chooses its first weights by a batch: it has a method ``inform(inputs, gradients)``."""
    return callable(getattr(block, "inform", None))


def inform(
    block: nn.Module,
    model: nn.Module,
    tap: Tap,
    loss: Callable[[nn.Module], Tensor],
    stream: RandomStream,
    *,
    adapts: bool,
) -> None:
    """Let a newborn block choose its weights by what it would get at its slot, which ``tap`` collects.

    ``loss`` runs the model on a batch, in training mode, with random numbers from ``stream``; buffers are put back.
    """
    with KeptBuffers(model), stream, torch.enable_grad(), tap() as tapped:
        mean = loss(model)
        ((hidden, inputs),) = tapped
        # ``backward`` would leave gradients in the host's parameters.
        (gradients,) = torch.autograd.grad(mean, [hidden], allow_unused=True)
    informed: Any = block
    if gradients is not None:  # as in a reentrant checkpoint, of whose first pass the graph has nothing
        with stream, torch.no_grad():
            informed.inform((inputs if adapts else hidden).detach(), gradients)


@dataclass(frozen=True, slots=True)
class Variety:
    """A blueprint that may grow here: its full id, its spec, the factory of its blocks, and its name in messages."""

    id: str
    spec: BlueprintSpec
    factory: Callable[[Site], nn.Module]
    title: str = ""
    _counts: dict[Site, int] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "title", self.title or f'blueprint "{self.id}"')

    def build(self, site: Site) -> nn.Module:
        """Return a new block, built while the process's state is guarded."""
        with self.guard():
            return self.factory(site)

    def build_alone(self, site: Site) -> nn.Module:
        """Return a new block to be called with inputs alone; if it reads its layer, there is one."""
        block = self.build(site)
        if self.spec.reads_layer:
            layer: Any = nn.Linear(site.inputs, site.channels, bias=False)
            # As a buffer of the block the weight goes where that goes, and is neither counted nor saved.
            block.register_buffer("weight_of_trials", torch.ones_like(layer.weight), persistent=False)
            del layer.weight

            def with_layer(block: Any, args: Any) -> Any:
                layer.weight = block.weight_of_trials
                return args if args[1:] else (*args, layer, layer(*args))

            block.register_forward_pre_hook(with_layer)
        return block

    def guard(self) -> Guard:
        """Return a guard of the process's state around calls into its code."""
        return Guard(self.title, Scope.PROCESS)

    def block_parameters(self, site: Site) -> int:
        """Return how many parameters a block has at ``site``; 0 if it cannot be built, since its seed will be lost."""
        if site not in self._counts:
            # First without memory, as a site from a file may be of any size; some factories need the values of tensors.
            for device in ("meta", "cpu"):
                with RandomStream(derive_seed(0, "counting")), torch.device(device):
                    built = attempt(lambda: self.build(site))
                if built.error is None:
                    break
            parameters = built.value.parameters() if isinstance(built.value, nn.Module) else ()
            self._counts[site] = sum(parameter.numel() for parameter in parameters)
        return self._counts[site]

    def most_parameters(self, site: Site) -> int:
        """Return how many parameters a seed of it has at ``site`` at most, over all blend operators."""
        identity = self.spec.starts_as_identity
        return self.block_parameters(site) + max(blend_parameters(blend, site, identity=identity) for blend in Blend)


@dataclass(frozen=True, slots=True)
class SeedBuilder:
    """Builds newborn seeds for one model; ``probe`` computes the mean loss on a batch, for informed births."""

    model: nn.Module
    seed: int
    probe: Callable[[nn.Module], Tensor] | None = None

    def build(
        self,
        variety: Variety,
        action: Action,
        site: Site,
        dtype: torch.dtype,
        tap: Tap,
        *,
        number: int,
        step: int,
        twins: int | None = None,
    ) -> Seed:
        """Return a newborn seed for the slot of ``action``; SeedFault if its block cannot be built.

        Its first weights depend on where and when it is born, and on nothing else that happened. ``twins`` says of one
        in a set how many of its blueprint were born there before it at once; such births are not informed, which would
        take a pass for each, and give all twins the same weights.
        """
        birth: list[int | str] = [action.slot or "", variety.id, step, *([twins] if twins else [])]
        device = device_of(self.model)
        if variety.spec.adapts:  # the small steps of an adapter are lost in half precision
            dtype = torch.promote_types(dtype, torch.float32)
        try:
            with variety.guard():
                with RandomStream(derive_seed(self.seed, "birth", *birth), device):
                    block = variety.factory(site).to(device, dtype)
                if self.probe is not None and twins is None and is_informed(block):
                    stream = RandomStream(derive_seed(self.seed, "informing", *birth), device)
                    inform(block, self.model, tap, self.probe, stream, adapts=variety.spec.adapts)
                seed = Seed(
                    block,
                    blueprint=variety.id,
                    spec=variety.spec,
                    site=site,
                    number=number,
                    blend=action.blend,
                    speed=action.speed,
                    title=variety.title,
                )
        except BaseException as error:
            # ``probe`` runs the task, whose own errors come as PluginErrors that name it. A SeedFault is one, too.
            of_task = isinstance(error, PluginError) and not isinstance(error, SeedFault)
            if is_interrupt(error) or of_task:
                raise
            raise SeedFault(
                [], f"{describe_error(error, variety.factory)} when it was built", blueprint=variety.id
            ) from error
        seed.to(device, dtype).train(self.model.training)
        seed.born = step
        return seed


def describe_error(error: BaseException, maker: object = None) -> str:
    """Return the type and message of an error, and the line of its author's code, in one line.

    ``maker`` built the seed, or is its block: its package is where the author's code is, and is named if the error
    passed through none of its lines. The file has its name alone, since an event holds no path of a machine.
    """
    message = (str(error).strip().splitlines() or [""])[0][:200]
    target = None if maker is None else target_of(maker)
    file, line = location_of(error, target)
    location = f"{Path(file).name}:{line}" if file else target if target and is_third_party(target) else None
    return f"raised {type(error).__name__}: {message}" + (f" ({location})" if location else "")


class SeedFault(PluginError):
    """A seed raised, or returned something invalid.

    Attributes:
        slots: the slots whose living seeds are at fault; none for a fossil, which cannot be removed.
        what: what it did.
        number: which seed of a nursery it was; None: all that live there.
    """

    describe_error = staticmethod(describe_error)

    def __init__(self, slots: Iterable[str], what: str, *, number: int | None = None, blueprint: str = "") -> None:
        self.slots, self.what, self.number = tuple(slots), what, number
        named = f' of blueprint "{blueprint}"' if blueprint else ""
        location = f" in {', '.join(self.slots)}" if self.slots else ""
        super().__init__(Problem("E320", f"the seed{location}{named} {what}"))
