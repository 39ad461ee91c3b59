"""P15: what a Gardener adds to a user's own loop over images, one thread, with slots empty and while a seed incubates.

Each side trains an epoch and evaluates the validation data once, as loops do. Beside that ``tend`` computes the loss of
the latest batch, so what it costs depends on how many batches come before it: 32 with slots empty, and 8 with a seed.
Times are those of the processor, which other programs disturb less.
"""

from contextlib import ExitStack
from functools import partial

import pytest
import torch

from benchmarks.perf.figures import Figure, processor_time
from benchmarks.perf.own_loops import OwnLoop
from benchmarks.perf.workloads import conv
from esper_core.growth import Variety, slots_of
from esper_core.plugins import load_plugins
from esper_run.app.descriptions import SlotDescriptions

pytestmark = pytest.mark.usefixtures("in_process")

EMPTY, SEED = 1.02, 1.15


def bound(loop: OwnLoop, slot: str, blueprint: str) -> float:
    """Return the bound on the time with a seed in ``slot``, in times of the plain loop: by operations."""
    component = load_plugins().registry.find("blueprint", blueprint)
    variety = Variety(component.id, component.spec, component.load())
    sites = {slot: slots_of(loop.model).named(slot).site}
    place = SlotDescriptions(loop.model, sites, {slot: [variety]}, loop.batches[0][0])[slot]
    return 1 + SEED * (place.host_flops + place.candidates[0].flops) / place.host_flops


@pytest.mark.parametrize(
    ("slot", "blueprint"),
    [(None, "conv_light"), ("early", "conv_light"), ("late", "conv_light"), ("late", "pointwise")],
)
def test_a_gardener_in_a_loop_of_the_users_own(compare, record, quick, slot, blueprint):
    work = conv(1, 1, 8) if quick else conv(8 if slot else 32, 2 if slot else 4, 128)
    optimizer = partial(torch.optim.Adam, lr=1e-3)
    with ExitStack() as stack:
        grown = OwnLoop(work, optimizer, seed_in=slot, blueprint=blueprint)
        loops = {"plain": OwnLoop(work, optimizer, gardener=False), "gardener": grown}
        for loop in loops.values():
            stack.callback(loop.close)
        took = compare({name: partial(processor_time, loop.step) for name, loop in loops.items()}, 8, warmup=1)
        assert loops["gardener"].living == (slot is not None)
        ratio = took["gardener"] / took["plain"]
        if slot is None:
            record(Figure("P15", "Gardener, empty slots: time against the plain loop", ratio, "×", EMPTY, 3))
        else:
            label = f"Gardener, {blueprint} incubates in slot {slot}: time against the plain loop"
            record(Figure("P15", label, ratio, "×", bound(loops["gardener"], slot, blueprint)))
