"""What is there to know of a slot, and of what could grow in it, before it does? It is counted, not believed.

Parameters are counted on a block that was built; floating-point operations by torch, in one pass of one example; how
far a block sees by where the gradient of one position of its output goes. What torch counts with takes a second to
load: so nothing is counted before somebody asks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import nn

from esper_core.growth.blend import blend_parameters, changes_at_birth
from esper_core.growth.probe import in_mode, untouched
from esper_core.growth.randomness import RandomStream, derive_seed
from esper_core.leyline.actions import Blend
from esper_core.leyline.specs import Candidate, Place

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from esper_core.growth.planting import Variety
    from esper_core.leyline.specs import Site

STIR = 0.2
"""Deviation of the weights under which it is looked how far a block sees: one that begins as nothing sees nothing."""

STIRS = 8
"""How often: a rectifier that blocks everything under some weights lets something pass under others."""


class Terrain(Mapping[str, Place]):
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
