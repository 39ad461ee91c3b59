"""Where is a blueprint tried? On a grid of sites of each kind, with every random generator set and put back."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import numpy as np
import torch
from torch import Tensor, nn

from esper_core import Site
from esper_core.growth import Seed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from esper_core import BlueprintSpec
    from esper_core.leyline import Blend, SiteKind

Factory = Callable[[Site], nn.Module]

SHAPES: Final[Mapping[SiteKind, tuple[tuple[int, ...], ...]]] = {
    "image": ((1, 4, 4), (3, 5, 7), (8, 8, 8)),
    "sequence": ((1, 8), (3, 7), (8, 40)),
    "vector": ((1,), (3,), (32,)),
    "tokens": ((4, 1), (7, 3), (5, 16)),
}
"""Shapes of one example: narrow, odd and wide. Tokens carry their width last."""

USUAL: Final[Mapping[SiteKind, Site]] = {
    "image": Site("image", 4, (6, 6)),
    "sequence": Site("sequence", 4, (12,)),
    "vector": Site("vector", 8),
    "tokens": Site("tokens", 8, (5,)),
}
"""A site of each kind, for checks to which the shape is nothing."""

BATCH: Final = 16

STRENGTHS: Final = (0.5, 1.0)
"""Alphas at which a seed is tried: half blended in, and wholly."""


def sites(kind: SiteKind) -> list[Site]:
    """The sites of the grid; AssertionError where there is no such kind."""
    if kind not in SHAPES:
        msg = f"a blueprint accepts {', '.join(SHAPES)}. Received: {kind}"
        raise AssertionError(msg)
    return [Site.of(kind, shape) for shape in SHAPES[kind]]


def newborn(factory: Factory, spec: BlueprintSpec, site: Site, blend: Blend) -> Seed:
    """A seed as the core makes it: the block, and what blends it in."""
    return Seed(factory(site), blueprint="tried/blueprint", spec=spec, site=site, number=0, blend=blend)


def examples(site: Site, count: int = BATCH) -> Tensor:
    """A batch of random inputs."""
    return torch.randn(count, *site.example_shape)


def expect(kept: bool, site: Site, broken: str) -> None:
    """AssertionError, with the site and what is broken there, where a promise is not kept."""
    if not kept:
        msg = f"{site.kind} {tuple(site.example_shape)}: {broken}"
        raise AssertionError(msg)


@contextmanager
def seeded(seed: int, elsewhere: int = 0) -> Iterator[None]:
    """A block with torch's default generator seeded, and with ``elsewhere`` those of numpy and Python.

    Afterwards all three are what they were.
    """
    of_numpy, of_python = np.random.get_state(), random.getstate()
    np.random.seed(elsewhere)
    random.seed(elsewhere)
    try:
        with torch.random.fork_rng(devices=[]):
            # torch.manual_seed would write down a stack for each kind of device that is not there, every time.
            torch.default_generator.manual_seed(seed)
            yield
    finally:
        np.random.set_state(of_numpy)
        random.setstate(of_python)


def built(factory: Factory, site: Site, seed: int = 0) -> nn.Module:
    """A block as the core builds it: with random numbers of its own."""
    with seeded(seed):
        return factory(site)


def evaluated(block: nn.Module, inputs: Tensor) -> Tensor:
    """What the block puts out in evaluation, without gradients."""
    with torch.no_grad():
        outputs: Tensor = block.eval()(inputs)
    return outputs


def train_on(block: nn.Module, site: Site, optimizer: torch.optim.Optimizer) -> None:
    """One step on random inputs towards random targets."""
    optimizer.zero_grad()
    (block(examples(site)) - examples(site)).square().mean().backward()
    optimizer.step()


def largest_difference(outputs: Tensor, others: Tensor) -> str:
    """How far two outputs are apart, in words."""
    if outputs.shape != others.shape:
        return f"{tuple(others.shape)} becomes {tuple(outputs.shape)}"
    return f"off by up to {float((outputs.detach() - others.detach()).abs().max()):g}"
