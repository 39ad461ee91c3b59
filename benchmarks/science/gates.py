"""Measure paired losses, how often gates pass a worthless seed, and how often they pass a useful one.

``real``: branch trials on ``mnist1d`` under ``pointwise-mlp``: 800 validation examples, a step is 32 batches of 100,
Adam at 3e-3 for both networks, which see the same batches. Printed are the differences of the losses, example by
example, over 4 seeds.

``simulated``: episodes of 20 steps of which the gate looks at some. The differences of one example in successive steps
are correlated at 0.85; they have a standard deviation of 0.5 nats and one of two shapes. Printed are how often a gate
passes a seed whose gain equals its price, and how far the gain must exceed the price for a gate to pass four of five
seeds: for a gain that is immediate, and for one that rises over the first ten steps.
"""

from __future__ import annotations

import copy
import math
import statistics
import sys
from functools import partial
from typing import TYPE_CHECKING, Final

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from esper_blueprints.conv_light import ConvLight
from esper_blueprints.mlp import Mlp
from esper_core import Site
from esper_core.growth.gates import lower_bound, paired, read_gain
from esper_core.leyline.constants import FIRST_LOOK, GATE_ALPHA
from esper_tasks.hosts import PointwiseMlp
from esper_tasks.mnist1d import mnist1d

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from esper_core.leyline import Task
    from esper_core.leyline.signals import Gain

    Bound = Callable[[Gain, float], float]

STEPS: Final = 20
SHOWN: Final = (1, 3, 5, 10, 20)
"""Steps after germination whose differences are printed."""

SEEDS, BATCHES, BATCH = 4, 32, 100
LEARNING_RATE = 3e-3
PLACES: Final = (
    ("conv_light behind stem", ConvLight, Site("sequence", 8, (40,)), 1),
    ("mlp behind hidden", Mlp, Site("vector", 32), 3),
)

EPISODES: Final = 2000
EXAMPLES: Final = (100, 200, 400, 800, 1600)
DEVIATION: Final = 0.5
CORRELATION: Final = 0.85
SHAPES: Final = ("skewed", "rare")
CATASTROPHE: Final = 2.054
"""How many standard deviations out the catastrophes of the shape ``rare`` begin: 2 % of the examples."""

CATASTROPHE_SIZE: Final = 8.0
RIPE: Final = 10
"""Step at which a gain that grows is whole."""


def real() -> None:
    """Train hosts with and without a seed on the same batches, and print how their losses differ."""
    torch.set_num_threads(1)
    task = mnist1d()
    sys.stdout.write("real differences, host less trial, nats: mean over seeds of each figure\n")
    for name, build, site, cut in PLACES:
        for alone in (0, 15):
            trials = [trial(task, seed, alone, partial(build, site), cut) for seed in range(SEEDS)]
            for step in SHOWN:
                gains = [gains[step - 1] for gains, _ in trials]
                line = "  ".join(
                    f"{figure} {statistics.fmean(getattr(gain, figure) for gain in gains):6.3f}"
                    for figure in ("mean", "standard_error", "deviation", "skewness", "worst")
                )
                again = statistics.fmean(correlations[step - 1] for _, correlations in trials)
                head = f"  {name:<23} germinated at {alone:>2}  step {step:>2}"
                sys.stdout.write(f"{head}  {line}  correlation with the step before {again:5.2f}\n")


def trial(
    task: Task, seed: int, alone: int, build: Callable[[], nn.Module], cut: int
) -> tuple[list[Gain], list[float]]:
    """Return the gain in each step after germination, and the correlation of successive steps' differences."""
    torch.manual_seed(seed)
    network = PointwiseMlp(task.shape)
    host = nn.Sequential(network.stem, network.pool, network.hidden, network.head)
    optimizer = torch.optim.Adam(host.parameters(), LEARNING_RATE)
    for step in range(alone):
        learn(task, seed, step, [(host, optimizer)])
    layers = copy.deepcopy(host)
    block = build()
    tried = nn.Sequential(layers[:cut], block, layers[cut:])
    branch = torch.optim.Adam(layers.parameters(), LEARNING_RATE)
    branch.load_state_dict(optimizer.state_dict())
    branch.add_param_group({"params": list(block.parameters())})
    data, gains, correlations, before = task.split("validation"), [], [], None
    for step in range(alone, alone + STEPS):
        learn(task, seed, step, [(host, optimizer), (tried, branch)])
        with torch.no_grad():
            losses = [task.losses(model(data.inputs), data.targets) for model in (host, tried)]
        now = losses[0] - losses[1]
        gains.append(read_gain(paired(*losses).tolist()))
        correlations.append(math.nan if before is None else float(torch.corrcoef(torch.stack([before, now]))[0, 1]))
        before = now
    return gains, correlations


def learn(task: Task, seed: int, step: int, nets: Sequence[tuple[nn.Module, torch.optim.Optimizer]]) -> None:
    """Train each network for one step, on the same batches."""
    data = task.split("train")
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(1000 * seed + step))
    for batch in order.split(BATCH)[:BATCHES]:
        for model, optimizer in nets:
            optimizer.zero_grad()
            functional.cross_entropy(model(data.inputs[batch]), data.targets[batch]).backward()
            optimizer.step()


def simulated() -> None:
    """Print how often gates pass a seed whose gain is its price, by shape, examples and plan of looks."""
    sys.stdout.write(f"simulated: {EPISODES} episodes of {STEPS} steps, differences with deviation {DEVIATION} nats\n")
    for shape in SHAPES:
        for examples in EXAMPLES:
            episodes = [episode(shape, examples, number) for number in range(EPISODES)]
            skewness = statistics.median(gain.skewness for gains in episodes for gain in gains)
            sys.stdout.write(f"  {shape}, {examples} examples, median skewness {skewness:.1f}\n")
            for name, plan, bound in plans():
                at_once = [excess(gains, plan, bound, ripe=1) for gains in episodes]
                growing = [excess(gains, plan, bound, ripe=RIPE) for gains in episodes]
                passed = statistics.fmean(needed < 0 for needed in at_once)
                seen = [float(np.quantile(needed, 0.8)) for needed in (at_once, growing)]
                figures = f"passes at its price {100 * passed:5.1f} %   needs {seen[0]:.3f}, growing {seen[1]:.3f} nats"
                sys.stdout.write(f"    {name:<38} {figures}\n")


def plans() -> list[tuple[str, Mapping[int, float], Bound]]:
    """Return plans of gates: at which steps they look, the alpha spent there, and the bound. Esper's is the first."""
    steps = range(FIRST_LOOK, STEPS + 1)
    even = dict.fromkeys(steps, GATE_ALPHA / len(steps))
    return [
        ("each step, alpha / looks", even, lower_bound),
        ("the same, by the plain normal bound", even, plain_bound),
        ("each step, alpha spent anew", dict.fromkeys(steps, GATE_ALPHA), lower_bound),
    ]


def plain_bound(gain: Gain, alpha: float) -> float:
    """Return the lower bound of a mean whose differences are normal."""
    return gain.mean - statistics.NormalDist().inv_cdf(1 - alpha) * gain.standard_error


def episode(shape: str, examples: int, number: int) -> list[Gain]:
    """Return the measured gains of an episode in which the seed's true gain is exactly 0, the price."""
    rng = np.random.default_rng([examples, number])
    latent = rng.standard_normal(examples)
    gains = []
    for _ in range(STEPS):
        gains.append(read_gain(paired(torch.from_numpy(shaped(shape, latent)), torch.zeros(examples)).tolist()))
        latent = CORRELATION * latent + math.sqrt(1 - CORRELATION**2) * rng.standard_normal(examples)
    return gains


def shaped(shape: str, latent: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return differences with mean 0 and deviation DEVIATION, from standard normal numbers."""
    if shape == "skewed":
        power = 0.8
        mean = math.exp(power**2 / 2)
        return -DEVIATION * (np.exp(power * latent) - mean) / (mean * math.sqrt(math.expm1(power**2)))
    normal = statistics.NormalDist()
    share, density = normal.cdf(-CATASTROPHE), normal.pdf(CATASTROPHE)
    first = CATASTROPHE_SIZE * (density - CATASTROPHE * share)
    second = CATASTROPHE_SIZE**2 * ((1 + CATASTROPHE**2) * share - CATASTROPHE * density)
    slope = 0.2
    covariance = -slope * CATASTROPHE_SIZE * share
    deviation = math.sqrt(slope**2 + second - first**2 - 2 * covariance)
    fall = CATASTROPHE_SIZE * np.maximum(-latent - CATASTROPHE, 0)
    return DEVIATION * (slope * latent - fall + first) / deviation


def excess(gains: Sequence[Gain], plan: Mapping[int, float], bound: Bound, *, ripe: int) -> float:
    """Return how far, in nats, the true gain must exceed the price for the gate to pass at one of its looks."""
    return min(-bound(gains[step - 1], alpha) / min(1.0, step / ripe) for step, alpha in plan.items())


def main() -> int:
    """Print the requested measurements, or all of them."""
    parts = {"real": real, "simulated": simulated}
    requested = sys.argv[1:] or list(parts)
    if unknown := [name for name in requested if name not in parts]:
        sys.stderr.write(f"{unknown[0]} is none of {', '.join(parts)}\n")
        return 2
    for name in requested:
        parts[name]()
    return 0


if __name__ == "__main__":
    sys.exit(main())
