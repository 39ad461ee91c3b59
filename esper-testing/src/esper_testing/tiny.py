"""Where does a seed live its life in a test? In a host that is hard to leave undisturbed and trains in a moment."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import torch
from torch import Tensor, nn

from esper_core import SlotPlace, graft
from esper_core.growth import Garden, GrowthConfig, OptimizerConfig, OptimizerKeeper, Variety, slots_of
from esper_core.leyline import Action, Blend, Op, Stage
from esper_testing.sites import USUAL, examples, seeded

if TYPE_CHECKING:
    from collections.abc import Callable

    from esper_core import BlueprintSpec, Site
    from esper_core.leyline import SiteKind
    from esper_testing.sites import Factory

CLASSES: Final = 3
EXAMPLES: Final = 24
BATCHES: Final = 2
SLOT: Final = "here"


class TinyHost(nn.Module):
    """A layer whose outputs have the shape of a site, then a classifier of three classes.

    Batch normalisation and dropout: whoever disturbs buffers or random numbers is found out. ``stem`` is where a slot
    goes. Inputs have the shape of the site, too.
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
        """Outputs (N, 3) for inputs (N, *site)."""
        outputs: Tensor = self.head(self.drop(self.stem(inputs)))
        return outputs


def tiny_host(kind: SiteKind = "sequence") -> TinyHost:
    """A host whose slot ``stem`` puts out a site of this kind; the same numbers each time."""
    with seeded(0):
        return TinyHost(USUAL[kind])


def tiny_batch(site: Site) -> tuple[Tensor, Tensor]:
    """Inputs and classes that a tiny host can learn; the same each time."""
    with seeded(1):
        inputs = examples(site, EXAMPLES)
    return inputs, inputs.flatten(1)[:, :1].gt(0).long().sum(1) + inputs.flatten(1)[:, -1].gt(0).long()


@dataclass
class Plot:
    """A tiny host with one slot and what it takes to train it, as a run does.

    ``train`` is one decision step. ``losses`` are those of every batch so far, the host's and the incubating seed's.
    """

    host: TinyHost
    garden: Garden
    keeper: OptimizerKeeper
    blueprint: str
    losses: list[Tensor]
    step: int = 0

    @classmethod
    def of(cls, factory: Factory, spec: BlueprintSpec, kind: SiteKind) -> Plot:
        """A plot in which this blueprint may grow; nothing grows yet."""
        host = tiny_host(kind)
        graft(host, {SLOT: SlotPlace("stem", kind)}, example=tiny_batch(host.site)[0])
        settings = OptimizerConfig(kind="adam", learning_rate=0.003)
        keeper = OptimizerKeeper(host.parameters(), host_settings=settings, seed_settings=settings)
        variety = Variety("tried/blueprint", spec, factory)
        garden = Garden(host, keeper, {SLOT: [variety]}, seed=0, batches=BATCHES, settings=GrowthConfig(embargo=0))
        return cls(host, garden, keeper, variety.id, [])

    def apply(self, op: Op, blend: Blend = Blend.ADD) -> None:
        """Carry out one action in the slot."""
        blueprint = self.blueprint if op is Op.GERMINATE else None
        with seeded(50 + self.step):
            self.garden.apply(Action(op, SLOT, blueprint, speed=2, blend=blend), self.step)

    @property
    def stage(self) -> Stage | None:
        """Where the seed stands; None where there is none alive."""
        living = slots_of(self.host).named(SLOT).living
        return None if living is None else living.stage

    def train(self) -> None:
        """One decision step, with random numbers that depend on nothing but the step."""
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
        """What the host puts out on the batch, with the same random numbers each time; buffers may move in training."""
        inputs, _ = tiny_batch(self.host.site)
        with seeded(7), torch.no_grad():
            outputs: Tensor = self.host.train(training)(inputs)
        return outputs

    def host_state(self) -> dict[str, Tensor]:
        """Copies of the host's own parameters and buffers."""
        state = self.host.state_dict()
        return {name: value.clone() for name, value in state.items() if not name.startswith("_esper")}

    @property
    def _loss(self) -> Callable[[nn.Module], Tensor]:
        inputs, targets = tiny_batch(self.host.site)
        return lambda model: nn.functional.cross_entropy(model(inputs), targets)
