"""Descriptions of slots and blueprints before a run: parameters and floating-point operations.

``SlotDescriptions`` describes the slots of a host, and what may grow in them, on demand; policies read it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property, partial
from types import MethodType
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from esper_core.growth import Example, Host, RandomStream, Seed
from esper_core.leyline.specs import Candidate, Operations, SlotDescription

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from esper_core.growth import Variety
    from esper_core.leyline.specs import Site


class SlotDescriptions(Mapping[str, SlotDescription]):
    """Descriptions of the slots of a run, by name, each made when it is first looked up.

    The host is grafted and empty; operations are counted on ``example``, of a tensor on its first row.
    """

    def __init__(
        self,
        host: nn.Module,
        sites: Mapping[str, Site],
        varieties: Mapping[str, Sequence[Variety]],
        example: Tensor | Example,
    ) -> None:
        self._host, self._sites, self._varieties = host, dict(sites), varieties
        self._example = example if isinstance(example, Example) else Example.of(example[:1])
        self._descriptions: dict[str, SlotDescription] = {}

    def __getitem__(self, slot: str) -> SlotDescription:
        if slot not in self._descriptions:
            site = self._sites[slot]
            self._descriptions[slot] = SlotDescription(
                kind=site.kind,
                channels=site.channels,
                size=site.size,
                depth=list(self._sites).index(slot) / len(self._sites),
                host_parameters=sum(parameter.numel() for parameter in self._host.parameters()),
                host_flops=self.host_flops,
                candidates=tuple(describe(variety, site) for variety in self._varieties.get(slot, ())),
            )
        return self._descriptions[slot]

    def __iter__(self) -> Iterator[str]:
        return iter(self._sites)

    def __len__(self) -> int:
        return len(self._sites)

    @cached_property
    def host_flops(self) -> int | None:
        """The operations of the host's forward pass for one example; None: unknown."""
        host = Host(self._host)
        with torch.no_grad(), RandomStream(0, host.device), host.evaluating():
            counted = flops(lambda: self._example.run(self._host, self._example.batch))
        return None if counted is None else counted // self._example.size


def count_operations(
    host: nn.Module, sites: Mapping[str, Site], varieties: Mapping[str, Sequence[Variety]], example: Tensor
) -> Operations | None:
    """Return the operations of a grafted, empty host and of each blueprint; None if torch cannot count one of them."""
    of_host = SlotDescriptions(host, sites, {}, example).host_flops
    blocks = {
        (slot, variety.id): _block_flops(_built(variety, site), variety, site)
        for slot, site in sites.items()
        for variety in varieties.get(slot, ())
    }
    counted = {block: count for block, count in blocks.items() if count is not None}
    return Operations(of_host, counted) if of_host and len(counted) == len(blocks) else None


def _block_flops(block: nn.Module | None, variety: Variety, site: Site) -> int | None:
    with variety.guard():
        return None if block is None else flops(lambda: block(torch.zeros(1, *variety.spec.input_shape(site))))


def describe(variety: Variety, site: Site) -> Candidate:
    """Return what is known of a blueprint at ``site``; what cannot be counted is None."""
    block = _built(variety, site)
    with variety.guard():
        return Candidate(
            blueprint=variety.id,
            parameters=variety.most_parameters(site) if block is None else _parameters(block, variety, site),
            flops=_block_flops(block, variety, site),
            identity=variety.spec.starts_as_identity,
        )


def flops(run: Callable[[], object]) -> int | None:
    """Return the floating-point operations of ``run`` as torch counts them, in products and convolutions.

    None if it fails. Attention is computed by plain products: torch does not count every faster backend.
    """
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    counter = FlopCounterMode(display=False)
    try:
        with (
            RandomStream(RandomStream.derive_seed(0, "counting")),
            torch.no_grad(),
            sdpa_kernel(SDPBackend.MATH),
            counter,
        ):
            # Without torch's decorator, which imports the compiler and takes a second.
            mode: Any = counter.mode
            if (count := getattr(mode.__torch_dispatch__, "__wrapped__", None)) is not None:
                mode.__torch_dispatch__ = MethodType(count, mode)
            run()
    except Exception:  # the user's model, or an operation that cannot be counted, raises anything
        return None
    return int(counter.get_total_flops())


def _parameters(block: nn.Module, variety: Variety, site: Site) -> int:
    """Return how many parameters a seed with the operator ``add`` has."""
    new_seed = partial(Seed, block, blueprint=variety.id, spec=variety.spec, site=site, number=0)
    try:
        return new_seed().parameter_count
    except Exception:  # a plugin's block raises anything; it will be refused
        return new_seed(identity=False).parameter_count


def _built(variety: Variety, site: Site) -> nn.Module | None:
    try:
        with RandomStream(RandomStream.derive_seed(0, "description")):
            return variety.build_alone(site).eval()
    except Exception:  # a plugin's factory raises anything; its trial reports it
        return None
