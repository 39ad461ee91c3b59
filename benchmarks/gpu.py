"""Training on a GPU against plain PyTorch loops: ``python -m benchmarks.gpu``, about five minutes.

Two convolutional hosts on random images, ``narrow`` (8, 16 and 32 channels, batches of 128) and ``wide`` (64, 128 and
256 channels, batches of 512). A step is 15 training batches and 4 validation batches, with the data on the device. All
sides of a comparison step in turn, and medians of their times are compared.

Then 1, 8 and 128 small networks of MNIST-1D as one program against one after another, as ``benchmarks.fused`` has them,
and how far the numbers of a first step on the GPU are from those on a CPU.
"""

from __future__ import annotations

import argparse
import time
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Final

import torch

from benchmarks import fused
from benchmarks.perf.figures import Interleaved
from benchmarks.perf.own_loops import OwnLoop
from benchmarks.perf.workloads import NarrowConvLight, PlainLoop, activate_seeds, conv, one_d
from esper_core.settings import ComputeConfig
from esper_core.trainer.pool import Pool

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.perf.workloads import Workload
    from esper_core.trainer.environment import Recipe

TURNS: Final = 12
WARM_UP: Final = 4
"""Turns that are not counted: they choose algorithms, compile, and fill the allocator."""

TRAININGS: Final = 4

RATE: Final = 1e-6
"""Learning rate beside a Gardener: so low that its governor has no reason to act on random data."""

AGAINST: Final = {
    "4 ": "4 plain loops in turn",
    "bfloat16": "plain loop, bfloat16",
    "three": "plain loop, three blocks",
}
"""With which loop a side is compared, by a part of its name; others with the plain loop."""


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", help="cpu shows that it runs (default: cuda)")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, which only show that it runs")
    parsed = parser.parse_args()
    device = torch.device(parsed.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        parser.error("torch sees no CUDA device; --device cpu --quick shows that the benchmark runs")
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else parsed.device
    print(f"{name}, torch {torch.__version__}")
    torch.set_num_threads(1)
    for host, channels, size in (("narrow", 8, 128), ("wide", 64, 512)):
        work = conv(1, 1, 8) if parsed.quick else conv(15, 4, size, channels=channels)
        measure(host, work, device, turns=1 if parsed.quick else TURNS)
    work = one_d(1, 500) if parsed.quick else one_d()
    for networks in (1, 2) if parsed.quick else (1, 8, 128):
        fused.measure("pointwise-mlp", work, networks, 1 if parsed.quick else fused.PAIRS, device)
    compare_numbers(work, device)


def compare_numbers(work: Workload, device: torch.device) -> None:
    """Print how far the validation losses after a step on a device are from those on a CPU, both ways."""
    losses = []
    for place, together in ((torch.device("cpu"), False), (device, False), (device, "gpu")):
        compute = ComputeConfig.model_validate({"fused": together})
        with closing(Pool(work.recipe(device=place, compute=compute), ["grown"], 2)) as pool:
            pool.reset(0, 0)
            step(pool)
            losses.append(torch.tensor([signals.validation_loss for signals in pool.latest]))
    expected, *others = losses
    for way, of_way in zip(("one after another", "as one program"), others, strict=True):
        print(f"largest difference of a loss from that on a CPU, {way}: {(of_way - expected).abs().max():.1e}")


def measure(host: str, work: Workload, device: torch.device, turns: int) -> None:
    """Print how long each side takes for a step, and against which other one."""
    loop = partial(PlainLoop, work, channels_last=True, device=device)
    plain, half, grown, four = loop(), loop(bfloat16=True), loop(seeds=True), [loop() for _ in range(TRAININGS)]
    pools = {
        "one network": Pool(work.recipe(channels_last=True, device=device), ["grown"], 1),
        "one network, bfloat16": Pool(precise(work, device, precision="bfloat16"), ["grown"], 1),
        "one network, compiled": Pool(precise(work, device, compile=True), ["grown"], 1),
        "one network, three acting seeds": Pool(
            work.recipe(channels_last=True, device=device, seed=NarrowConvLight), ["grown"], 1
        ),
        "4 networks, 1 stream": Pool(work.recipe(channels_last=True, device=device), ["grown"], TRAININGS, lanes=1),
        "4 networks, 4 streams": Pool(work.recipe(channels_last=True, device=device), ["grown"], TRAININGS, lanes=4),
    }
    sides: dict[str, Callable[[], object]] = {
        "plain loop": lambda: (plain.train(), plain.evaluate()),
        "plain loop, bfloat16": lambda: (half.train(), half.evaluate()),
        "plain loop, three blocks": partial(train_and_evaluate_all, grown),
        "4 plain loops in turn": lambda: [(other.train(), other.evaluate()) for other in four],
    }
    for name, pool in pools.items():
        pool.reset(0, 0)
        if "seeds" in name:
            activate_seeds(pool, list(work.slots))
        sides[name] = partial(step, pool)
    slow = partial(torch.optim.Adam, lr=RATE, fused=True)
    tended = partial(OwnLoop, work, slow, blueprint="pointwise", device=device, layout=torch.channels_last)
    tended_loops = {"Gardener, empty slots": tended(), "Gardener, pointwise incubates": tended(seed_in="late")}
    sides |= {name: tended_loop.step for name, tended_loop in tended_loops.items()}
    timing = Interleaved({name: partial(timed, act, device) for name, act in sides.items()})
    for _ in range(turns + WARM_UP):
        timing.turn()
    took = timing.medians(turns)
    for name, seconds in took.items():
        against = took[next((loop for word, loop in AGAINST.items() if word in name), "plain loop")]
        print(f"{host:8}{name:34}{1e3 * seconds:9.2f} ms {seconds / against:7.2f} ×")
    assert [tended_loop.living for tended_loop in tended_loops.values()] == [0, 1], (
        "a seed was lost while it was measured"
    )
    for pool in pools.values():
        pool.close()
    for tended_loop in tended_loops.values():
        tended_loop.close()


def precise(work: Workload, device: torch.device, **compute: object) -> Recipe:
    """Return the recipe with options of ``compute``."""
    return work.recipe(channels_last=True, device=device, compute=ComputeConfig.model_validate(compute))


def train_and_evaluate_all(loop: PlainLoop) -> None:
    """Train, and evaluate with all blocks and without each of them."""
    loop.train()
    loop.evaluate_all()


def step(pool: Pool) -> None:
    """Train all environments for a step, and evaluate them."""
    pool.train(0)
    pool.evaluate(0)
    pool.synchronise(0)


def timed(act: Callable[[], object], device: torch.device) -> float:
    """Return the seconds until the device has done everything."""
    began = time.perf_counter()
    act()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
