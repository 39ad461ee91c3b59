"""P4: cost of a step with one incubating seed, against a live step of host and seed.

Host ``cnn2d`` (3→8→16→32 on 32×32) with a ``conv_light`` seed in one of its slots, batches of 128, Adam, one thread,
with and without a tuned allocator. The sides take turns; medians over the turns. A live step trains host and seed
together, once: the seed is blended in. In the shadow the host takes its own step, and a second pass trains the seed
alone; on a branch host and seed take a second step of their own.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

import torch
from torch import nn

from benchmarks.perf.turns import ALLOCATORS, allocated, medians, timed
from benchmarks.table import Row, Table, answer
from esper_blueprints.conv_light import ConvLight
from esper_core import BlueprintSpec, graft
from esper_core.app.runtime import one_thread
from esper_core.config import GrowthConfig, OptimizerConfig
from esper_core.growth import Garden, OptimizerKeeper, Variety
from esper_core.leyline import Action, DataShape, Op
from esper_tasks.hosts import cnn2d

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

TURNS: Final = 25
SLOTS: Final = ("early", "middle", "late")
BOUNDS: Final = {"live": None, "shadow": 1.7, "branch": 2.1}


def growing(way: str, slot: str, examples: int) -> Callable[[], None]:
    """Build a host with a seed that incubates in this way; return a function that trains one batch."""
    torch.manual_seed(0)
    model = graft(cnn2d(DataShape("image", (3, 32, 32), 10)), [slot], example=torch.randn(2, 3, 32, 32))
    settings = OptimizerConfig(learning_rate=1e-3)
    keeper = OptimizerKeeper(model.parameters(), host_settings=settings, seed_settings=settings)
    variety = Variety("blueprints/conv_light", BlueprintSpec("image", "9*c*c + c", starts_as_identity=True), ConvLight)
    growth = GrowthConfig(incubation="branch" if way == "branch" else "shadow")
    garden = Garden(model, keeper, {slot: [variety]}, seed=0, batches=1, settings=growth)
    garden.apply(Action(Op.GERMINATE, slot, variety.id, speed=0), 0)
    garden.open_step()
    if way == "live":
        garden.apply(Action(Op.ADVANCE, slot), 0)
    inputs, targets = torch.randn(examples, 3, 32, 32), torch.randint(10, (examples,))

    def loss(model: nn.Module) -> torch.Tensor:
        return nn.functional.cross_entropy(model(inputs), targets)

    def batch() -> None:
        garden.tick()
        keeper.zero_grad()
        keeper.backward(loss(model))
        keeper.step(garden.blended)
        for number in garden.incubating:
            garden.incubate(number, loss)
        garden.take_incubation_losses()

    return batch


def measure(*, quick: bool = False) -> Sequence[Table]:
    """Measure each slot of the host, under each allocator."""
    turns = 1 if quick else TURNS
    rows: list[Row] = []
    with one_thread():
        for how in ALLOCATORS:
            with allocated(how) as there:
                for slot in SLOTS if there else ():
                    sides = {way: timed(growing(way, slot, 8 if quick else 128)) for way in BOUNDS}
                    took = medians(sides, turns)
                    rows.append(Row(f"{how} allocator, {slot}: live, one batch", 1e3 * took["live"], None, "ms", 1))
                    rows += [
                        Row(f"{how} allocator, {slot}: {way}", took[way] / took["live"], bound, "×", 2)
                        for way, bound in BOUNDS.items()
                        if bound is not None
                    ]
    return [Table("P4", f"a step with one incubating seed, conv host, medians of {turns} interleaved batches", rows)]


if __name__ == "__main__":
    sys.exit(answer(measure))
