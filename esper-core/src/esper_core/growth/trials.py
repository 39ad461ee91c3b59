"""Trials of blueprints before a run: shape, gradients, random numbers, FLOPs, receptive field.

``audition`` builds a blueprint at a site and refuses one that does not do what its spec says. ``draws_of`` finds out
whether a network draws random numbers: passes that draw none need no turn on torch's default generators.
``PlaceDescriptions`` and ``describe`` count parameters and FLOPs on demand.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from enum import IntEnum
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import nn

from esper_core.growth.dry_runs import KeptBuffers, device_of, in_mode, untouched
from esper_core.growth.random_streams import RandomStream, derive_seed
from esper_core.growth.seeds import TRAIT, blend_parameters, changes_at_birth, describe_error
from esper_core.leyline.actions import Blend
from esper_core.leyline.errors import Problem
from esper_core.leyline.specs import Candidate, Place
from esper_core.plugins import FormulaError, evaluate_formula
from esper_core.plugins.isolation import attempt

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from esper_core.growth.seeds import Variety
    from esper_core.leyline.specs import Site


BATCH = 4
LEARNING_RATE = 0.05


def audition(variety: Variety, site: Site, device: torch.device) -> Problem | None:
    """The first thing that is wrong with ``variety`` at ``site``; None where it keeps its word."""
    with RandomStream(derive_seed(0, "audition", variety.id), device), torch.enable_grad():
        built = attempt(lambda: variety.factory(site))
        if built.error is not None:
            said = describe_error(built.error, variety.factory)
            return Problem("E321", f"{said} when it was built for {_place(site)}")
        block = built.value
        if not isinstance(block, nn.Module):
            return Problem("E321", f"builds a {type(block).__name__}, not a torch.nn.Module, for {_place(site)}")
        tried = attempt(lambda: _first_lie(block, variety, site, device))
        if tried.error is not None:
            said = describe_error(tried.error, variety.factory)
            return Problem("E322", f"{said} when it was tried on {_place(site)}")
        return tried.value


def _first_lie(block: nn.Module, variety: Variety, site: Site, device: torch.device) -> Problem | None:
    inputs = torch.randn(BATCH, *site.example_shape, device=device)
    return next(_lies(block.to(device), variety, site, inputs), None)


def _lies(block: nn.Module, variety: Variety, site: Site, inputs: Tensor) -> Iterator[Problem]:
    yield from _miscount(block, variety, site)
    if TRAIT in variety.spec.traits:
        choosing: Any = block
        with torch.no_grad():
            choosing.inform(inputs.clone(), torch.randn_like(inputs))
    for training in (True, False):
        block.train(training)
        given = inputs.clone()
        with torch.no_grad():
            outputs = block(given)
        if not torch.equal(given, inputs):
            yield Problem(
                "E323", "writes to its input", hint="The host goes on with it: no inplace=True on what comes in."
            )
        yield from _unfit(outputs, inputs)
        if variety.spec.starts_as_identity and not torch.equal(outputs, inputs):
            distance = (outputs - inputs).abs().max().item()
            hint = "Zero the last layer at birth, or do not claim starts_as_identity."
            yield Problem("E326", f"says it starts as the identity, and is off by up to {distance:.3g}", hint=hint)
    yield from _dead(block.train(), inputs)


def _miscount(block: nn.Module, variety: Variety, site: Site) -> Iterator[Problem]:
    counted = sum(parameter.numel() for parameter in block.parameters())
    try:
        told = evaluate_formula(variety.spec.params, site.formula_variables())
    except FormulaError as error:
        yield Problem("E325", f"has a formula that gives nothing for {_place(site)}: {error}")
        return
    if told != counted:
        message = f'says it has {told:,} parameters at {_place(site)}, by "{variety.spec.params}", and has {counted:,}'
        yield Problem("E325", message, hint="Mend params in its BlueprintSpec; biases count.")


def _unfit(outputs: object, inputs: Tensor) -> Iterator[Problem]:
    if not isinstance(outputs, torch.Tensor):
        yield Problem("E323", f"puts out a {type(outputs).__name__}, not a tensor")
    elif outputs.shape != inputs.shape:
        yield Problem("E323", f"puts out the shape {tuple(outputs.shape)} for {tuple(inputs.shape)}")
    elif outputs.dtype != inputs.dtype or outputs.device != inputs.device:
        received = f"{outputs.dtype} on {outputs.device} for {inputs.dtype} on {inputs.device}"
        yield Problem("E323", f"puts out {received}", hint="Make tensors like the input: new_zeros, zeros_like.")
    elif not outputs.isfinite().all():
        yield Problem("E324", "puts out numbers that are not finite for ordinary inputs")


def _dead(block: nn.Module, inputs: Tensor) -> Iterator[Problem]:
    """Two steps towards something else than it puts out must reach every parameter that can be trained."""
    trainable = {name: parameter for name, parameter in block.named_parameters() if parameter.requires_grad}
    if not trainable:
        yield Problem("E327", "has no parameter that could be trained", hint="A seed that cannot learn is no seed.")
        return
    target = torch.randn_like(inputs)
    alive: set[str] = set()
    for _ in range(2):
        loss = (block(inputs) - target).square().mean()
        gradients = torch.autograd.grad(loss, list(trainable.values()), allow_unused=True)
        with torch.no_grad():
            for (name, parameter), gradient in zip(trainable.items(), gradients, strict=True):
                if gradient is None:
                    continue
                if not gradient.isfinite().all():
                    yield Problem("E324", f"has a gradient that is not finite: {name}")
                    return
                if gradient.any():
                    alive.add(name)
                parameter.sub_(LEARNING_RATE * gradient)
    if dead := [name for name in trainable if name not in alive]:
        hint = "Zero only the last layer at birth, with no normalisation or ReLU behind it."
        yield Problem("E327", f"has parameters that no gradient reaches in two steps: {', '.join(dead[:5])}", hint=hint)


def _place(site: Site) -> str:
    return f"a {site.kind} of shape {site.example_shape}"


class Draws(IntEnum):
    """When random numbers are drawn. Of several networks the one that draws most decides."""

    NEVER = 0
    FORWARD = 1
    """In the forward pass alone."""
    ANYWHERE = 2
    """In the backward pass, too, or the forward pass is computed again there."""


EXAMPLES: Final = 4
"""On which a block is tried."""

DRAWING: Final = (
    nn.Dropout,
    nn.Dropout1d,
    nn.Dropout2d,
    nn.Dropout3d,
    nn.AlphaDropout,
    nn.FeatureAlphaDropout,
    nn.RReLU,
    nn.FractionalMaxPool2d,
    nn.FractionalMaxPool3d,
)
"""Modules that are taken to draw, though they may have been told not to: somebody may turn them up later."""


def draws_of(model: nn.Module, loss: Callable[[nn.Module], Tensor]) -> Draws:
    """When ``model`` draws. ``loss`` runs it on a few examples; afterwards the model is what it was."""
    was, kept = model.training, KeptBuffers(model)
    gradients = [(parameter, parameter.grad) for parameter in model.parameters()]
    try:
        with RandomStream(0, device_of(model)), torch.enable_grad():
            training = _tried(model.train(), loss)
            evaluation = _tried(model.eval(), loss)
    finally:
        model.train(was)
        kept.put_back()
        for parameter, gradient in gradients:
            parameter.grad = gradient
    looks_so = any(isinstance(module, DRAWING) or _drops_out(module) for module in model.modules())
    return max(training, evaluation, Draws.FORWARD if looks_so else Draws.NEVER)


def draws_of_variety(
    variety: Variety, site: Site, device: torch.device, *, memory_format: torch.memory_format = torch.contiguous_format
) -> Draws:
    """When a block of the blueprint draws that stands at ``site``. memory_format: of images it is tried on."""
    with RandomStream(derive_seed(0, "drawing", variety.id), device):
        block = variety.factory(site).to(device)
        inputs = torch.randn(EXAMPLES, *site.example_shape, device=device)
        if site.kind == "image":
            inputs = inputs.contiguous(memory_format=memory_format)
    return draws_of(block, lambda module: module(inputs).square().mean())


def _tried(model: nn.Module, loss: Callable[[nn.Module], Tensor]) -> Draws:
    before, again = _generators(model), 0

    def computed_again(*_: Any) -> None:
        nonlocal again
        again += 1

    whole = loss(model)
    between = _generators(model)
    with ExitStack() as hooks:
        for module in model.modules():
            hooks.callback(module.register_forward_pre_hook(computed_again).remove)
        if whole.requires_grad:
            whole.backward()
    in_forward, in_backward = _differ(before, between), _differ(between, _generators(model))
    if in_backward or (again and in_forward):
        return Draws.ANYWHERE
    return Draws.FORWARD if in_forward else Draws.NEVER


def _drops_out(module: nn.Module) -> bool:
    """Whether it says of itself that it does, as recurrent layers and attention do."""
    share = getattr(module, "dropout", None)
    return isinstance(share, float) and share > 0.0


def _generators(model: nn.Module) -> list[Tensor]:
    device = device_of(model)
    own = [torch.cuda.get_rng_state(device)] if device.type == "cuda" else []
    return [torch.get_rng_state(), *own]


def _differ(before: list[Tensor], after: list[Tensor]) -> bool:
    return any(not torch.equal(then, now) for then, now in zip(before, after, strict=True))


STIR = 0.2
"""Deviation of the weights under which it is looked how far a block sees: one that begins as nothing sees nothing."""

STIRS = 8
"""How often: a rectifier that blocks everything under some weights lets something pass under others."""


class PlaceDescriptions(Mapping[str, Place]):
    """The places of a run, each counted when it is first looked up, and then known.

    host: a host whose slots were observed, empty. sites: of each slot. example: what goes into the host; of its first
    row the operations are counted.
    """

    def __init__(
        self,
        host: nn.Module,
        sites: Mapping[str, Site],
        varieties: Mapping[str, Sequence[Variety]],
        example: Tensor,
    ) -> None:
        self._host, self._sites, self._varieties, self._example = host, dict(sites), varieties, example[:1]
        self._known: dict[str, Place] = {}

    def __getitem__(self, slot: str) -> Place:
        if slot not in self._known:
            self._known[slot] = self._place(slot, self._sites[slot])
        return self._known[slot]

    def __iter__(self) -> Iterator[str]:
        return iter(self._sites)

    def __len__(self) -> int:
        return len(self._sites)

    def _place(self, slot: str, site: Site) -> Place:
        return Place(
            kind=site.kind,
            channels=site.channels,
            size=site.size,
            depth=list(self._sites).index(slot) / len(self._sites),
            host_parameters=sum(parameter.numel() for parameter in self._host.parameters()),
            host_flops=self._host_flops,
            candidates=tuple(describe(variety, site) for variety in self._varieties.get(slot, ())),
        )

    @cached_property
    def _host_flops(self) -> int | None:
        with untouched(self._host), in_mode(self._host, training=False):
            return flops(lambda: self._host(self._example))


def describe(variety: Variety, site: Site) -> Candidate:
    """What is known of a blueprint at ``site``. What cannot be counted is unknown; nothing is refused here."""
    block = _built(variety, site)
    some = torch.zeros(1, *site.example_shape)
    return Candidate(
        blueprint=variety.id,
        parameters=variety.most_parameters(site) if block is None else _parameters(block, variety, site),
        flops=None if block is None else flops(lambda: block(some)),
        reach=None if block is None else reach(block, site),
        identity=variety.spec.starts_as_identity,
        traits=variety.spec.traits,
    )


def flops(run: Callable[[], object]) -> int | None:
    """Floating-point operations of ``run``, as torch counts them: of products and convolutions. None: it fails.

    Attention is computed as the products that it is made of: torch does not count every one of its shortcuts.
    """
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    counter = FlopCounterMode(display=False)
    try:
        with RandomStream(derive_seed(0, "counting")), torch.no_grad(), sdpa_kernel(SDPBackend.MATH), counter:
            run()
    except Exception:
        return None
    return int(counter.get_total_flops())


def reach(block: nn.Module, site: Site) -> int | None:
    """Positions of the input, along the longest side, that the middle of the output can depend on; 0 without any.

    The block's parameters are other ones afterwards. None where the block cannot be asked.
    """
    if not site.size:
        return 0
    seen = torch.zeros(site.size, dtype=torch.bool)
    try:
        with RandomStream(derive_seed(0, "reach")), torch.enable_grad(), in_mode(block, training=False):
            for _ in range(STIRS):
                seen |= _seen_by_the_middle(block, site)
    except Exception:
        return None
    longest = max(range(len(site.size)), key=lambda axis: site.size[axis])
    others = [axis for axis in range(len(site.size)) if axis != longest]
    along = (seen.amax(others) if others else seen).nonzero().flatten()
    return int(along.max() - along.min()) + 1 if len(along) else 0


def _seen_by_the_middle(block: nn.Module, site: Site) -> Tensor:
    """Which positions of its input the middle of the output depends on, under weights that were just drawn."""
    with torch.no_grad():
        for parameter in block.parameters():
            parameter.normal_(0.0, STIR)
    example = torch.randn(2, *site.example_shape, requires_grad=True)
    middle = _positions_last(block(example), site)
    for length in site.size:
        middle = middle[:, :, length // 2]
    (gradient,) = torch.autograd.grad(middle.sum(), example)
    return _positions_last(gradient, site).abs().sum((0, 1)) > 0.0


def _parameters(block: nn.Module, variety: Variety, site: Site) -> int:
    """Of a seed that is added: the block's own, and the gain it is eased with unless it begins as the identity."""
    try:
        identity = variety.spec.starts_as_identity or not changes_at_birth(block, site)
    except Exception:  # it cannot be tried, and nothing will grow of it
        identity = False
    own = sum(parameter.numel() for parameter in block.parameters())
    return own + blend_parameters(Blend.ADD, site, identity=identity)


def _built(variety: Variety, site: Site) -> nn.Module | None:
    try:
        with RandomStream(derive_seed(0, "description")):
            return variety.factory(site).eval()
    except Exception:
        return None


def _positions_last(tensor: Tensor, site: Site) -> Tensor:
    """(N, C, *positions), whatever the kind."""
    return tensor.movedim(-1, 1) if site.kind == "tokens" else tensor
