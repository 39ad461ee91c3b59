"""Training on a GPU against plain PyTorch loops: ``python -m benchmarks.gpu``, at most eight minutes.

Two convolutional hosts on random images, ``narrow`` (8, 16 and 32 channels, batches of 128) and ``wide`` (64, 128 and
256 channels, batches of 512). A step is 15 training batches and 4 validation batches, with the data on the device. All
sides of a comparison step in turn, and medians of their times are compared. Before them the loss after a step is
compared with that on the CPU; after them many small networks are measured, one after another and as one program whose
passes are captured, and the network of airbench94 (``benchmarks.yardsticks``).
"""

from __future__ import annotations

import argparse
import sys
import time
from contextlib import ExitStack, closing
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import torch

from benchmarks.perf.figures import Interleaved
from benchmarks.perf.own_loops import OwnLoop
from benchmarks.perf.workloads import NarrowConvLight, PlainLoop, activate_seeds, conv, one_d
from esper_core.settings import ComputeConfig
from esper_core.trainer.pool import Pool

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from benchmarks.perf.workloads import Workload
    from esper_core.trainer.environment import Recipe

TURNS: Final = 12
WARM_UP: Final = 4
"""Turns that are not counted: they choose algorithms, compile, and fill the allocator."""

TOGETHER: Final = ComputeConfig(fused="gpu")
STEPS: Final = 2
"""Of two batches, by which the third pass of a group is captured."""

TRAININGS: Final = 4
SMALL_NETWORKS: Final = 128

MINUTES: Final = 7.0
"""How long all may take; a turn that has begun is finished."""

TOLERANCE: Final = 1e-2
"""Largest difference of a loss from the CPU's: convolutions on a GPU round to TF32."""

RATE: Final = 1e-6
"""Learning rate beside a Gardener: so low that its governor has no reason to act on random data."""

AGAINST: Final = {
    "4 ": "4 plain loops in turn",
    "bfloat16": "plain loop, bfloat16",
    "three": "plain loop, three blocks",
}
"""With which loop a side is compared, by a part of its name; others with the plain loop."""


def main() -> int:
    """Measure, and print tables; return 1 if the device computes other numbers than the CPU, or a side failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", help="cpu shows that it runs (default: cuda)")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, which only show that it runs")
    parser.add_argument("--minutes", type=float, default=MINUTES, help="about how long it may take (default: 7)")
    parsed = parser.parse_args()
    device, quick = torch.device(parsed.device), parsed.quick
    if device.type == "cuda" and not torch.cuda.is_available():
        parser.error("torch sees no CUDA device; --device cpu --quick shows that the benchmark runs")
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else parsed.device
    print(f"{name}, torch {torch.__version__}", flush=True)
    torch.set_num_threads(1)
    began, parts = time.monotonic(), 4

    def until(part: int) -> float:
        minutes: float = parsed.minutes
        return began + 60 * minutes * part / parts

    passed = [have_equal_numbers(device)]
    for part, (host, channels, size) in enumerate((("narrow", 8, 128), ("wide", 64, 512)), 1):
        work = conv(1, 1, 8) if quick else conv(15, 4, size, channels=channels)
        passed.append(measure(host, work, device, until(part), turns=1 if quick else TURNS))
    passed.append(measure_small(device, until(3), quick=quick))
    from benchmarks.yardsticks import airbench  # which imports this module

    passed.append(airbench(device, until(4), quick=quick))
    return 0 if all(passed) else 1


def have_equal_numbers(device: torch.device) -> bool:
    """Print the loss of small networks after a step on the device beside that on the CPU; return whether they agree."""
    is_equal = True
    for name, work in (("conv", conv(2, 1, 32)), ("pointwise-mlp", one_d(2, 500))):
        losses = []
        for place, compute in ((torch.device("cpu"), None), (device, None), (device, TOGETHER)):
            pool = Pool(work.recipe(device=place, compute=compute), ["grown"], 1)
            pool.reset(0, 0)
            for _ in range(STEPS):
                step(pool)
            losses.append(pool.latest[0].validation_loss)
            pool.close()
        on_cpu, alone, together = losses
        agree = max(abs(alone - on_cpu), abs(together - on_cpu)) <= TOLERANCE * on_cpu
        is_equal &= agree
        verdict = "equal" if agree else "OTHER NUMBERS"
        parts = f"loss {on_cpu:.5f} on the CPU, {alone:.5f} on the device, {together:.5f} in a group there"
        print(f"{name:15}{parts}: {verdict}", flush=True)
    return is_equal


def measure(host: str, work: Workload, device: torch.device, until: float, turns: int) -> bool:
    """Print how long each side takes for a step, and against which other one; return whether all were measured."""
    loop = partial(PlainLoop, work, channels_last=True, device=device)
    recipe = partial(work.recipe, channels_last=True, device=device)
    slow = partial(torch.optim.Adam, lr=RATE, fused=True)
    tended = partial(OwnLoop, work, slow, blueprint="pointwise", device=device, layout=torch.channels_last)
    with ExitStack() as open_sides:

        def of_loop(act: Callable[[PlainLoop], object], count: int = 1, **options: Any) -> Callable[[], object]:
            loops = [loop(**options) for _ in range(count)]
            return lambda: [act(one_loop) for one_loop in loops]

        def of_pool(recipe: Recipe, count: int = 1, lanes: int = 1, seeds: Sequence[str] = ()) -> Callable[[], object]:
            pool = open_sides.enter_context(closing(Pool(recipe, ["grown"], count, lanes=lanes)))
            pool.reset(0, 0)
            activate_seeds(pool, seeds)
            return partial(step, pool)

        def of_gardener(seed_in: str | None = None) -> Callable[[], object]:
            tended_loop = open_sides.enter_context(closing(tended(seed_in=seed_in)))

            def act() -> None:
                tended_loop.step()
                assert tended_loop.living == (seed_in is not None), "a seed was lost while it was measured"

            return act

        sides: dict[str, Callable[[], Callable[[], object]]] = {
            "plain loop": partial(of_loop, train_and_evaluate),
            "plain loop, bfloat16": partial(of_loop, train_and_evaluate, bfloat16=True),
            "plain loop, three blocks": partial(of_loop, train_and_evaluate_all, seeds=True),
            "4 plain loops in turn": partial(of_loop, train_and_evaluate, TRAININGS),
            "one network": lambda: of_pool(recipe()),
            "one network, bfloat16": lambda: of_pool(precise(work, device, precision="bfloat16")),
            "one network, compiled": lambda: of_pool(precise(work, device, compile=True)),
            "one network, three acting seeds": lambda: of_pool(recipe(seed=NarrowConvLight), seeds=list(work.slots)),
            "4 networks, 1 stream": lambda: of_pool(recipe(), TRAININGS),
            "4 networks, 4 streams": lambda: of_pool(recipe(), TRAININGS, TRAININGS),
            "Gardener, empty slots": of_gardener,
            "Gardener, pointwise incubates": partial(of_gardener, "late"),
        }
        took = times_of(sides, device, until, turns)
    for name, seconds in took.items():
        against = took.get(next((other for word, other in AGAINST.items() if word in name), "plain loop"))
        multiple = f"{seconds / against:7.2f} ×" if against else ""
        print(f"{host:8}{name:34}{1e3 * seconds:9.2f} ms {multiple}", flush=True)
    return len(took) == len(sides)


def measure_small(device: torch.device, until: float, *, quick: bool) -> bool:
    """Print how long many small networks take on the device and on the CPU, one after another and as one program.

    Return whether all were measured.
    """
    work, count = (one_d(1, 500), 2) if quick else (one_d(), SMALL_NETWORKS)
    with ExitStack() as pools:

        def of_pool(recipe: Recipe, lanes: int = 1) -> Callable[[], object]:
            pool = pools.enter_context(closing(Pool(recipe, ["grown"], count, lanes=lanes)))
            pool.reset(0, 0)
            return partial(step, pool)

        sides = {
            "as one program, one CPU thread": lambda: of_pool(work.recipe(compute=ComputeConfig())),
            "on the device, 1 stream": lambda: of_pool(work.recipe(device=device)),
            "on the device, 4 streams": lambda: of_pool(work.recipe(device=device), 4),
            "on the device, as one program": lambda: of_pool(work.recipe(device=device, compute=TOGETHER)),
        }
        took = times_of(sides, device, until, 1 if quick else 3, warm_up=1)
    for name, seconds in took.items():
        print(f"{count} small {name:34}{1e3 * seconds / count:9.2f} ms for each", flush=True)
    return len(took) == len(sides)


def times_of(
    sides: Mapping[str, Callable[[], Callable[[], object]]],
    device: torch.device,
    until: float,
    turns: int,
    warm_up: int = WARM_UP,
) -> dict[str, float]:
    """Build the sides, and return the median time of each over so many turns, or those until a time.

    A side that fails is reported and left out, so that the others are measured all the same.
    """
    working: dict[str, Callable[[], object]] = {}
    for name, build in sides.items():
        try:
            act = build()
            timed(act, device)
        except Exception as error:  # such as memory, or a compiler that is missing
            print(f"{name} failed: {type(error).__name__}: {error}", flush=True)
        else:
            working[name] = partial(timed, act, device)
    timing, done = Interleaved(working), 0
    while done < turns + warm_up and (time.monotonic() < until or done == 0):
        timing.turn()
        done += 1
    return timing.medians(max(1, min(turns, done - warm_up)))


def precise(work: Workload, device: torch.device, **compute: object) -> Recipe:
    """Return the recipe with options of ``compute``."""
    return work.recipe(channels_last=True, device=device, compute=ComputeConfig.model_validate(compute))


def train_and_evaluate(loop: PlainLoop) -> None:
    """Train, and evaluate."""
    loop.train()
    loop.evaluate()


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
    """Return the seconds until the device has done everything; on a CPU those of the processor."""
    clock = time.perf_counter if device.type == "cuda" else time.process_time
    began = clock()
    act()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return clock() - began


if __name__ == "__main__":
    sys.exit(main())
