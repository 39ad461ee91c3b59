"""Sites and tiny hosts with which blueprints are checked, and helpers for random numbers and outputs."""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from safetensors import torch as safetensors_torch
from torch import Tensor, nn

from esper_core import Site, SlotPlace, graft
from esper_core.growth import Garden, Host, OptimizerKeeper, Seed, Variety
from esper_core.leyline import Action, Blend, DataShape, Op, Stage
from esper_core.settings import GrowthConfig, OptimizersConfig
from esper_testing.checks import demand

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
"""Shapes of one example: narrow, odd and wide. The width of tokens is their last dimension."""

USUAL: Final[Mapping[SiteKind, Site]] = {
    "image": Site("image", 4, (6, 6), inputs=4),
    "sequence": Site("sequence", 4, (12,), inputs=4),
    "vector": Site("vector", 8, inputs=8),
    "tokens": Site("tokens", 8, (5,), inputs=8),
}
"""A site of each kind, for checks that do not depend on the shape. Adapters get what has the shape of the outputs."""

BATCH: Final = 16

CONVOLUTIONS: Final[Mapping[SiteKind, type[nn.Conv1d | nn.Conv2d]]] = {"sequence": nn.Conv1d, "image": nn.Conv2d}

STRENGTHS: Final = (0.5, 1.0)
"""Values of alpha at which a seed is tried."""


def sites(kind: SiteKind) -> list[Site]:
    """Return the sites of the grid."""
    features = -1 if kind == "tokens" else 0
    return [Site.of(kind, shape, shape[features]) for shape in SHAPES[kind]]


def newborn(factory: Factory, spec: BlueprintSpec, site: Site, blend: Blend) -> Seed:
    """Return a new seed as the core builds it."""
    return Seed(factory(site), blueprint="tried/blueprint", spec=spec, site=site, number=0, blend=blend)


def example_shape(place: Site | DataShape) -> tuple[int, ...]:
    """Return the shape of one example at a site, or of a task's data."""
    return tuple(place.example if isinstance(place, DataShape) else place.example_shape)


def examples(place: Site | DataShape, count: int = BATCH) -> Tensor:
    """Return a batch of random inputs."""
    return torch.randn(count, *example_shape(place))


def words(place: Site | DataShape) -> str:
    """Return the kind and shape of a site, or of a task's data."""
    return f"{place.kind} {example_shape(place)}"


def expect(kept: bool, place: Site | DataShape, broken: str) -> None:
    """Fail the check with the place and ``broken`` unless ``kept``."""
    demand(kept, f"{words(place)}: {broken}")


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


def built(factory: Callable[[Any], Any], place: Site | DataShape, seed: int = 0) -> Any:
    """Return a block or host that is built with an RNG seed, as the core does."""
    with seeded(seed):
        return factory(place)


def evaluated(block: nn.Module, inputs: Tensor) -> Tensor:
    """Return the outputs of the block in evaluation mode, without gradients."""
    with torch.no_grad():
        outputs: Tensor = block.eval()(inputs)
    return outputs


def differing(state: Mapping[str, Any], reference: Mapping[str, Any]) -> list[str]:
    """Return the names of the tensors that are not exactly equal, or that ``reference`` lacks."""
    return [
        name
        for name, value in state.items()
        if isinstance(value, Tensor) and not (name in reference and torch.equal(value, reference[name]))
    ]


def expect_equal(outputs: Tensor, expected: Tensor, place: Site | DataShape, broken: str) -> None:
    """Fail the check with ``broken`` and the largest difference unless the outputs are exactly equal."""
    if torch.equal(outputs, expected):
        return
    difference = f"{tuple(expected.shape)} becomes {tuple(outputs.shape)}"
    if outputs.shape == expected.shape:
        difference = f"off by up to {float((outputs.detach() - expected.detach()).abs().max()):g}"
    expect(False, place, f"{broken}: {difference}")


def expect_same_weights(factory: Callable[[Any], nn.Module], place: Site | DataShape) -> None:
    """Expect that the same RNG seed builds the same module."""
    first, second = built(factory, place).state_dict(), built(factory, place).state_dict()
    expect(list(first) == list(second), place, f"has the state {list(first)}, then {list(second)}")
    changed = differing(first, second)
    expect(not changed, place, f"is built differently with the same RNG seed: {', '.join(changed)}")


def expect_torch_generator(place: Site | DataShape, run: Callable[[], Any]) -> None:
    """Expect that ``run`` uses no global generator but torch's, which it does not seed."""
    ends = []
    for seed in (1, 2):
        with seeded(seed):
            before = _generator_states()
            run()
            moved = [name for name, state in _generator_states().items() if state != before[name]]
            expect(not moved, place, f"uses {' and '.join(moved)}; use torch's default generator")
            ends.append(torch.get_rng_state())
    expect(not torch.equal(*ends), place, "seeds torch's default generator itself")


def expect_round_trip(trained: nn.Module, other: nn.Module, inputs: Tensor, place: Site | DataShape) -> None:
    """Expect that ``other`` computes the same outputs when it has loaded the state of ``trained``."""
    state = trained.state_dict()
    strange = [name for name, value in state.items() if not isinstance(value, Tensor)]
    expect(not strange, place, f"has values in its state dict that are not tensors: {', '.join(strange)}")
    other.load_state_dict(through_safetensors(state))
    expected, outputs = evaluated(trained, inputs), evaluated(other, inputs)
    expect_equal(outputs, expected, place, "differs after save and load")


def expect_independent_copy(
    module: nn.Module, inputs: Tensor, place: Site | DataShape, train: Callable[[nn.Module], None]
) -> None:
    """Expect that a deep copy computes the same outputs, and that training it does not change the original."""
    before = evaluated(module, inputs)
    twin = copy.deepcopy(module)
    expect(torch.equal(evaluated(twin, inputs), before), place, "differs once it is copied")
    train(twin)
    expect(torch.equal(evaluated(module, inputs), before), place, "changes when its deep copy is trained")


def _generator_states() -> dict[str, str]:
    """Return the states of the global generators of Python and numpy, as text, by name."""
    of_numpy = [part.tolist() if isinstance(part, np.ndarray) else part for part in np.random.get_state()]
    return {"Python's global generator": repr(random.getstate()), "numpy's": repr(of_numpy)}


def through_safetensors(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors as a safetensors file gives them back. Tied weights are written twice."""
    copies = {name: value.detach().cpu().clone().contiguous() for name, value in tensors.items()}
    read: dict[str, Tensor] = safetensors_torch.load(safetensors_torch.save(copies))
    return {name: read[name] for name in copies}


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
        self.stem: nn.Module = nn.Sequential(
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
        if spec.reads_layer:
            with seeded(0):
                host.stem = nn.Linear(host.site.inputs, host.site.channels)
        elif spec.adapts and kind in CONVOLUTIONS:  # an adapter is beside the layer itself there
            with seeded(0):
                host.stem = CONVOLUTIONS[kind](host.site.inputs, host.site.channels, 1)
        graft(host, {SLOT: SlotPlace("stem", kind)}, example=tiny_batch(host.site)[0])
        settings = OptimizersConfig.model_validate({"seed": {"kind": "adam", "learning_rate": 0.003}}).seed
        keeper = OptimizerKeeper(host.parameters(), host_settings=settings, seed_settings=settings)
        variety = Variety("tried/blueprint", spec, factory)
        garden = Garden(
            host,
            keeper,
            {SLOT: [variety]},
            seed=0,
            batches=BATCHES,
            settings=GrowthConfig(gates="off", incubation="shadow", embargo=0),
        )
        return cls(host, garden, keeper, variety.id, [])

    def apply(self, op: Op, blend: Blend = Blend.ADD) -> None:
        """Apply one action to the slot."""
        blueprint = self.blueprint if op is Op.GERMINATE else None
        with seeded(50 + self.step):
            self.garden.apply(Action(op, SLOT, blueprint, speed=2, blend=blend), self.step)

    @property
    def stage(self) -> Stage | None:
        """The stage of the living seed; None if there is none."""
        living = Host(self.host).slots.named(SLOT).living
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

    def host_state(self) -> dict[str, Tensor]:
        """Return copies of the host's own parameters and buffers."""
        state = self.host.state_dict()
        return {name: value.clone() for name, value in state.items() if "_esper" not in name}

    @property
    def _loss(self) -> Callable[[nn.Module], Tensor]:
        inputs, targets = tiny_batch(self.host.site)
        return lambda model: nn.functional.cross_entropy(model(inputs), targets)
