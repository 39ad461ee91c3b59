"""P15: what a Gardener adds to a user's own loop over images, one thread, with slots empty and while a seed incubates.

Each side trains an epoch and evaluates the validation data once, as loops do. Beside that ``tend`` computes the loss of
the latest batch, so what it costs depends on how many batches come before it: 32 with slots empty, and 8 with a seed.
Times are those of the processor, which other programs disturb less.
"""

import time
from contextlib import ExitStack

import pytest
import torch
from torch import nn

from benchmarks.perf.figures import Figure
from benchmarks.perf.workloads import conv
from esper_core import Gardener
from esper_core.growth import PlaceDescriptions, Variety, slots_of
from esper_core.leyline import Action, Op
from esper_core.plugins import load_plugins

pytestmark = pytest.mark.usefixtures("in_process")

EMPTY, SEED = 1.03, 1.15


class Once:
    """Germinates a seed in the first step, or nothing."""

    def __init__(self, slot: str | None, blueprint: str) -> None:
        self.slot, self.blueprint = slot, blueprint

    def act(self, observations, masks):
        begins = self.slot is not None and observations[0].step == 0
        return [Action(Op.GERMINATE, self.slot, f"blueprints/{self.blueprint}") if begins else Action()]


def per_example(model, batch):
    inputs, targets = batch
    return nn.functional.cross_entropy(model(inputs), targets, reduction="none")


class Loop:
    """A user's loop over random images, with a Gardener or without."""

    def __init__(
        self, *, quick: bool, seed_in: str | None, blueprint: str = "conv_light", gardener: bool = True
    ) -> None:
        work = conv(1, 1, 8) if quick else conv(8 if seed_in else 32, 2 if seed_in else 4, 128)
        torch.manual_seed(0)
        self.model = work.build_host()
        self.optimizer = torch.optim.Adam(self.model.parameters(), 1e-3)
        data = {name: list(zip(own.inputs.split(work.batch_size), own.targets.split(work.batch_size), strict=True))
                for name, own in work.data.items()}  # fmt: skip
        self.batches, self.validation = data["train"], data["validation"]
        self.gardener = None
        if gardener:
            self.gardener = Gardener(
                self.model, self.optimizer, loss=per_example, slots=[*work.slots], blueprints=[blueprint],
                example=self.batches[0], validation=self.validation, steps=1000, policy=Once(seed_in, blueprint),
                growth={"gates": "off", "auto_advance": False},
            )  # fmt: skip

    def epoch(self) -> float:
        begin = time.process_time()
        self._train()
        return time.process_time() - begin

    def _train(self) -> None:
        self.model.train()
        for batch in self.batches:
            self.optimizer.zero_grad()
            per_example(self.model, batch).mean().backward()
            self.optimizer.step()
            if self.gardener is not None:
                self.gardener.step(batch)
        if self.gardener is not None:
            self.gardener.tend()
            return
        self.model.eval()
        with torch.no_grad():
            torch.cat([per_example(self.model, batch) for batch in self.validation]).mean().item()

    def close(self) -> None:
        if self.gardener is not None:
            self.gardener.close()


def bound(loop: Loop, slot: str, blueprint: str) -> float:
    """Return the bound on the time with a seed in ``slot``, in times of the plain loop: by operations."""
    component = load_plugins().registry.find("blueprint", blueprint)
    variety = Variety(component.id, component.spec, component.load())
    sites = {slot: slots_of(loop.model).named(slot).site}
    place = PlaceDescriptions(loop.model, sites, {slot: [variety]}, loop.batches[0][0])[slot]
    return 1 + SEED * (place.host_flops + place.candidates[0].flops) / place.host_flops


@pytest.mark.parametrize(
    ("slot", "blueprint"),
    [(None, "conv_light"), ("early", "conv_light"), ("late", "conv_light"), ("late", "pointwise")],
)
def test_a_gardener_in_a_loop_of_the_users_own(compare, record, quick, slot, blueprint):
    with ExitStack() as stack:
        loops = {
            "plain": Loop(quick=quick, seed_in=slot, gardener=False),
            "gardener": Loop(quick=quick, seed_in=slot, blueprint=blueprint),
        }
        for loop in loops.values():
            stack.callback(loop.close)
        took = compare({name: loop.epoch for name, loop in loops.items()}, 8, warmup=1)
        ratio = took["gardener"] / took["plain"]
        if slot is None:
            record(Figure("P15", "Gardener, empty slots: time against the plain loop", ratio, "×", EMPTY, 3))
        else:
            label = f"Gardener, {blueprint} incubates in slot {slot}: time against the plain loop"
            record(Figure("P15", label, ratio, "×", bound(loops["gardener"], slot, blueprint)))
