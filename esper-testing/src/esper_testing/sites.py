"""Sites and tiny hosts that checks try blueprints with, and helpers that fix the random numbers."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import torch
from torch import Tensor, nn

from esper_core import Site, SlotPlace, graft
from esper_core.growth import Garden, GrowthConfig, OptimizerConfig, OptimizerKeeper, Seed, Variety, slots_of
from esper_core.leyline import Action, Blend, Op, Stage

if TYPE_CHECKING:
    from collections.abc import Mapping

    from esper_core import BlueprintSpec
    from esper_core.leyline import SiteKind


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
"""A site of each kind, for checks that do not depend on the shape."""

BATCH: Final = 16

STRENGTHS: Final = (0.5, 1.0)
"""Values of alpha at which a seed is tried."""


def sites(kind: SiteKind) -> list[Site]:
    """Return the sites of the grid. Raises AssertionError if there is no such kind."""
    if kind not in SHAPES:
        msg = f"a blueprint accepts {', '.join(SHAPES)}. Received: {kind}"
        raise AssertionError(msg)
    return [Site.of(kind, shape) for shape in SHAPES[kind]]


def newborn(factory: Factory, spec: BlueprintSpec, site: Site, blend: Blend) -> Seed:
    """Return a new seed as the core builds it."""
    return Seed(factory(site), blueprint="tried/blueprint", spec=spec, site=site, number=0, blend=blend)


def examples(site: Site, count: int = BATCH) -> Tensor:
    """Return a batch of random inputs."""
    return torch.randn(count, *site.example_shape)


def expect(kept: bool, site: Site, broken: str) -> None:
    """Fail the check with the site and ``broken`` unless ``kept``."""
    if not kept:
        msg = f"{site.kind} {tuple(site.example_shape)}: {broken}"
        raise AssertionError(msg)


@contextmanager
def seeded(seed: int, elsewhere: int = 0) -> Iterator[None]:
    """Seed torch's default generator with ``seed``, and those of numpy and Python with ``elsewhere``.

    The states of all three are restored at the end of the block.
    """
    of_numpy, of_python = np.random.get_state(), random.getstate()
    np.random.seed(elsewhere)
    random.seed(elsewhere)
    try:
        with torch.random.fork_rng(devices=[]):
            # torch.manual_seed would also record a stack trace for each kind of device that is missing.
            torch.default_generator.manual_seed(seed)
            yield
    finally:
        np.random.set_state(of_numpy)
        random.setstate(of_python)


def built(factory: Factory, site: Site, seed: int = 0) -> nn.Module:
    """Return a block that is built with a random seed, as the core does."""
    with seeded(seed):
        return factory(site)


def evaluated(block: nn.Module, inputs: Tensor) -> Tensor:
    """Return the outputs of the block in evaluation mode, without gradients."""
    with torch.no_grad():
        outputs: Tensor = block.eval()(inputs)
    return outputs


def train_on(block: nn.Module, site: Site, optimizer: torch.optim.Optimizer) -> None:
    """Train one step on random inputs and targets."""
    optimizer.zero_grad()
    (block(examples(site)) - examples(site)).square().mean().backward()
    optimizer.step()


def largest_difference(outputs: Tensor, others: Tensor) -> str:
    """Describe how far two outputs are apart."""
    if outputs.shape != others.shape:
        return f"{tuple(others.shape)} becomes {tuple(outputs.shape)}"
    return f"off by up to {float((outputs.detach() - others.detach()).abs().max()):g}"


CLASSES: Final = 3
EXAMPLES: Final = 24
BATCHES: Final = 2
SLOT: Final = "here"


class TinyHost(nn.Module):
    """A layer whose outputs have the shape of a site, followed by a classifier of three classes.

    It has batch normalisation and dropout, so that a change of buffers or of random numbers shows. A slot is grafted at
    ``stem``. Inputs have the shape of the site, too.
    """

    def __init__(self, site: Site) -> None:
        super().__init__()
        self.site = site
        width = math.prod(site.example_shape)
        self.stem = nn.Sequential(
            nn.Flatten(), nn.Linear(width, width), nn.BatchNorm1d(width), nn.Unflatten(1, site.example_shape)
        )
        self.drop = nn.Dropout(0.2)
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(width, CLASSES))

    def forward(self, inputs: Tensor) -> Tensor:
        """Return outputs (N, 3) for inputs (N, *site)."""
        outputs: Tensor = self.head(self.drop(self.stem(inputs)))
        return outputs


def tiny_host(kind: SiteKind = "sequence") -> TinyHost:
    """Return a host whose ``stem`` is a site of this kind; its weights are the same each time."""
    with seeded(0):
        return TinyHost(USUAL[kind])


def tiny_batch(site: Site) -> tuple[Tensor, Tensor]:
    """Return inputs and classes that a tiny host can learn; the same each time."""
    with seeded(1):
        inputs = examples(site, EXAMPLES)
    return inputs, inputs.flatten(1)[:, :1].gt(0).long().sum(1) + inputs.flatten(1)[:, -1].gt(0).long()


@dataclass
class HostWithSlot:
    """A tiny host with one slot, and what it takes to train it as a run does.

    ``losses`` holds the loss of every batch so far, of the host and of the incubating seed.
    """

    host: TinyHost
    garden: Garden
    keeper: OptimizerKeeper
    blueprint: str
    losses: list[Tensor]
    step: int = 0

    @classmethod
    def of(cls, factory: Factory, spec: BlueprintSpec, kind: SiteKind) -> HostWithSlot:
        """Return a host in whose empty slot this blueprint can germinate."""
        host = tiny_host(kind)
        graft(host, {SLOT: SlotPlace("stem", kind)}, example=tiny_batch(host.site)[0])
        settings = OptimizerConfig(kind="adam", learning_rate=0.003)
        keeper = OptimizerKeeper(host.parameters(), host_settings=settings, seed_settings=settings)
        variety = Variety("tried/blueprint", spec, factory)
        garden = Garden(host, keeper, {SLOT: [variety]}, seed=0, batches=BATCHES, settings=GrowthConfig(embargo=0))
        return cls(host, garden, keeper, variety.id, [])

    def apply(self, op: Op, blend: Blend = Blend.ADD) -> None:
        """Apply one action to the slot."""
        blueprint = self.blueprint if op is Op.GERMINATE else None
        with seeded(50 + self.step):
            self.garden.apply(Action(op, SLOT, blueprint, speed=2, blend=blend), self.step)

    @property
    def stage(self) -> Stage | None:
        """The stage of the living seed; None if there is none."""
        living = slots_of(self.host).named(SLOT).living
        return None if living is None else living.stage

    def train(self) -> None:
        """Train for one decision step, with random numbers that depend on the step only."""
        self.garden.open_step()
        self.host.train()
        with seeded(100 + self.step):
            for _ in range(BATCHES):
                self.garden.tick()
                self.keeper.zero_grad()
                loss = self._loss(self.host)
                loss.backward()
                self.keeper.step(self.garden.blended)
                self.losses.append(loss.detach())
                for number in self.garden.incubating:
                    self.garden.incubate(number, self._loss)
        self.losses.extend(self.garden.take_incubation_losses().values())
        self.garden.close_step()
        self.step += 1

    def outputs(self, *, training: bool = False) -> Tensor:
        """Return the outputs for the batch, with the same random numbers each time."""
        inputs, _ = tiny_batch(self.host.site)
        with seeded(7), torch.no_grad():
            outputs: Tensor = self.host.train(training)(inputs)
        return outputs

    def host_state(self) -> dict[str, Tensor]:
        """Return copies of the host's own parameters and buffers."""
        state = self.host.state_dict()
        return {name: value.clone() for name, value in state.items() if not name.startswith("_esper")}

    @property
    def _loss(self) -> Callable[[nn.Module], Tensor]:
        inputs, targets = tiny_batch(self.host.site)
        return lambda model: nn.functional.cross_entropy(model(inputs), targets)
