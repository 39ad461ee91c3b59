"""Measure paired losses, how often the gate before keeping passes a worthless seed, and how often a useful one.

``real``: branch trials on ``mnist1d`` under ``pointwise-mlp``: 800 validation examples, a step is 32 batches of 100,
Adam at 3e-3 for both networks, which see the same batches. Printed are the differences of the losses, example by
example, over 4 seeds.

``simulated``: episodes of 20 looks, in which the gain moves with the weights of each step around the one that lasts.
Printed are how often a gate passes a seed whose lasting gain equals its price, how often one whose gain exceeds it, and
how often the interval of the gain contains it. Takes ten minutes.

``sets``: how often the gate before a set, which decides at the last look, too, passes a worthless one. Takes as long.

``wandering``: how often worthless seeds pass where the gain by the raw weights is not new in each batch, as the gate
takes it to be, but correlates from batch to batch. Takes two minutes.
"""

from __future__ import annotations

import copy
import itertools
import math
import statistics
import sys
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from esper_blueprints.conv_light import ConvLight
from esper_blueprints.mlp import Mlp
from esper_core import Site
from esper_core.growth.averages import LEAST_CORRELATION
from esper_core.growth.gates import Gate, lasting_evidence, paired, read_gain
from esper_core.leyline.constants import GATE_ALPHA
from esper_core.leyline.signals import Gain
from esper_tasks.hosts import PointwiseMlp
from esper_tasks.mnist1d import mnist1d

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from esper_core.leyline import Task

STEPS: Final = 20
SHOWN: Final = (1, 3, 5, 10, 20)
"""Steps after germination whose differences are printed."""

SEEDS, BATCHES, BATCH = 4, 32, 100
LEARNING_RATE = 3e-3
PLACES: Final = (
    ("conv_light behind stem", ConvLight, Site("sequence", 8, (40,)), 1),
    ("mlp behind hidden", Mlp, Site("vector", 32), 3),
)

EPISODES: Final = 5000
EXAMPLES: Final = (200, 800)
SHAPES: Final = ("harmful", "normal", "helpful")
CORRELATIONS: Final = (0.2, 0.7, 0.9)
TAUS: Final = (0.0, 0.5, 1.3, 3.0, 6.0)
POWER: Final = ((0.2, 4.0), (0.7, 5.0))
"""Correlation, and by how many standard errors of one look the gain exceeds the price."""

FRESH: Final = 0.15
"""Share of the examples' variance that is new at each look: their correlation from step to step was 0.85."""

SKEW: Final = 0.8
"""Spread of the logarithm of skewed differences."""

HALF_LIFE: Final = 16
"""Of the averages of weights, in batches."""

WANDERING_EPISODES: Final = 2000
WANDERING_TAUS: Final = (1.3, 3.0, 6.0)

RIPE: Final = 10
"""Look at which a gain that grows is whole."""


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


def worthless(what: str, *, of_set: bool) -> None:
    """Print how often worthless seeds, or sets of them, pass the gate before keeping, in each cell."""
    write = sys.stdout.write
    write(f"worthless {what} that pass, of {EPISODES:,} in {STEPS} looks; in brackets the upper end of 95 %\n")
    write("examples  skewness  correlation  " + "  ".join(f"tau/SE {tau:<9g}" for tau in TAUS) + "\n")
    worst = 0.0
    for examples, shape, correlation in itertools.product(EXAMPLES, SHAPES, CORRELATIONS):
        cells = []
        for tau in TAUS:
            cell = Cell(examples, shape, correlation, tau)
            passed = sum(cell.passes(0.0, number, GATE_ALPHA, of_set=of_set) for number in range(EPISODES))
            upper = upper_end(passed, EPISODES)
            worst = max(worst, upper)
            cells.append(f"{100 * passed / EPISODES:4.1f} % ({100 * upper:.1f})   ")
        write(f"{examples:>8}  {shape:<8}  {correlation:<11g}  {'  '.join(cells)}\n")
    write(f"largest upper end: {100 * worst:.1f} %\n\n")


def wandering() -> None:
    """Print how often worthless seeds pass whose gain by the raw weights correlates from batch to batch."""
    write = sys.stdout.write
    write(f"worthless seeds that pass, of {WANDERING_EPISODES:,} in {STEPS} looks; in brackets the upper end of 95 %\n")
    write("batches  correlation of batches  of looks, assumed and true  ")
    write("  ".join(f"tau/SE {tau:<9g}" for tau in WANDERING_TAUS) + "\n")
    for batches, raw in itertools.product((8, 32), (0.0, 0.9, 0.98)):
        assumed = max(0.5 ** (batches / HALF_LIFE), LEAST_CORRELATION)
        courses, cells = averaged_courses(batches, raw), []
        true = float(np.mean(courses[:, 1:] * courses[:, :-1]))
        for tau in WANDERING_TAUS:
            passed = 0
            for number, course in enumerate(courses):
                gate, still = (
                    Gate(STEPS, GATE_ALPHA, learns=False),
                    Cell(800, "normal", assumed, 0.0).gains(0.0, number),
                )
                moved = zip(still, tau / math.sqrt(800) * course, strict=True)
                passed += any(gate.look(shifted(gain, float(shift)), 0.0, assumed).opens for gain, shift in moved)
            share, upper = passed / WANDERING_EPISODES, upper_end(passed, WANDERING_EPISODES)
            cells.append(f"{100 * share:4.1f} % ({100 * upper:.1f})   ")
        write(f"{batches:>7}  {raw:<22g}  {assumed:<11.2f} {true:<15.2f} {'  '.join(cells)}\n")


def averaged_courses(batches: int, raw: float) -> NDArray[np.float64]:
    """Return the averages, of deviation 1, of a process of first order in each batch: (episodes, looks)."""
    rng, left, warm_up = np.random.default_rng([batches, round(100 * raw)]), 0.5 ** (1 / HALF_LIFE), 1000
    now, average, looks = rng.standard_normal(WANDERING_EPISODES), np.zeros(WANDERING_EPISODES), []
    for batch in range(1, warm_up + STEPS * batches + 1):
        now = raw * now + math.sqrt(1 - raw**2) * rng.standard_normal(WANDERING_EPISODES)
        average = left * average + (1 - left) * now
        if batch > warm_up and (batch - warm_up) % batches == 0:
            looks.append(average)
    variance = (1 - left) / (1 + left) * (1 + raw * left) / (1 - raw * left)
    return np.stack(looks, 1) / math.sqrt(variance)


def shifted(gain: Gain, shift: float) -> Gain:
    """Return a gain whose examples all gain so much more."""
    return replace(gain, mean=gain.mean + shift, worst=gain.worst + shift, best=gain.best + shift)


def simulated() -> None:
    """Print how often worthless seeds pass the gate before keeping, and how often useful ones do."""
    worthless("seeds", of_set=False)
    write = sys.stdout.write
    write("useful seeds that pass within 20 looks, tau/SE 1.3, 800 examples, by the seed's place among candidates\n")
    for correlation, excess in POWER:
        shares = []
        for candidate in (1, 2, 3):
            alpha = GATE_ALPHA / (candidate * (candidate + 1))
            for ripe in (1, RIPE):
                cell = Cell(800, "normal", correlation, 1.3, ripe)
                passed = sum(cell.passes(excess, number, alpha) for number in range(EPISODES))
                label = "growing" if ripe > 1 else f"candidate {candidate}"
                shares.append(f"{label} {100 * passed / EPISODES:.0f} %")
        write(f"correlation {correlation}, excess {excess:g} SE: {', '.join(shares)}\n")
    covered = [
        Cell(examples, shape, correlation, 1.3).covers(number)
        for examples, shape, correlation in itertools.product(EXAMPLES, SHAPES, CORRELATIONS)
        for number in range(EPISODES // 10)
    ]
    write(
        f"\n95 % intervals after {STEPS} looks, tau/SE 1.3, cover the gain in {100 * statistics.fmean(covered):.1f} %\n"
    )


@dataclass(frozen=True, slots=True)
class Cell:
    """Episodes of a kind.

    The examples' noise is the same at each look but for ``FRESH`` of its variance. The weights of a step add a common
    fluctuation of deviation ``tau``, in standard errors of one look, correlated from look to look.

    Attributes:
        shape: Of the differences: "normal", or with a skewness of about −3 ("harmful") or +3 ("helpful").
        ripe: Look from which on the gain is whole; before it rises evenly.
    """

    examples: int
    shape: str
    correlation: float
    tau: float
    ripe: int = 1

    def gains(self, excess: float, number: int) -> list[Gain]:
        """Return what is measured in an episode whose true gain is ``excess`` standard errors."""
        rng = np.random.default_rng([self.examples, len(self.shape), round(100 * self.correlation), number])
        differences = shaped(self.shape, rng.standard_normal(self.examples)) * math.sqrt(1 - FRESH)
        mean, spread = float(differences.mean()), float(differences.std())
        skewness = float(((differences - mean) ** 3).mean()) / spread**3
        deviation = math.sqrt(spread**2 + FRESH)
        error = 1 / math.sqrt(self.examples)
        fluctuation, gains = float(rng.standard_normal()), []
        for look in range(1, STEPS + 1):
            fresh = math.sqrt(FRESH) * float(rng.standard_normal())
            share = min(1.0, look / self.ripe)
            now = mean + error * (excess * share + self.tau * fluctuation + fresh)
            tails = float(differences.min()) - mean, float(differences.max()) - mean
            repeats = 1 - FRESH + (1 - (1 - FRESH) ** 2) * error * float(rng.standard_normal())
            gains.append(Gain(self.examples, now, deviation, skewness, now + tails[0], now + tails[1], repeats))
            new = math.sqrt(1 - self.correlation**2) * float(rng.standard_normal())
            fluctuation = self.correlation * fluctuation + new
        return gains

    def passes(self, excess: float, number: int, alpha: float, *, of_set: bool = False) -> bool:
        """Return whether the gate opens at one of its looks, at a price of 0."""
        gate = Gate(STEPS, alpha, decides_last=of_set, learns=of_set)
        return any(gate.look(gain, 0.0, self.correlation).opens for gain in self.gains(excess, number))

    def covers(self, number: int) -> bool:
        """Return whether the interval after all looks contains the true gain, which is 0."""
        gains = self.gains(0.0, number)
        means, correlations = [gain.mean for gain in gains], [self.correlation] * len(gains)
        evidence = lasting_evidence(gains[-1], means, correlations, 0.025, STEPS)
        return evidence.lower <= 0.0 <= evidence.upper


def shaped(shape: str, latent: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return differences with mean 0 and deviation 1, from standard normal numbers."""
    if shape == "normal":
        return latent
    mean = math.exp(SKEW**2 / 2)
    skewed = (mean - np.exp(SKEW * latent)) / (mean * math.sqrt(math.expm1(SKEW**2)))
    return skewed if shape == "harmful" else -skewed


def upper_end(passed: int, episodes: int) -> float:
    """Return the upper end of Wilson's 95 % interval of a share."""
    z = statistics.NormalDist().inv_cdf(0.975)
    share = passed / episodes
    centre = share + z * z / (2 * episodes)
    return (centre + z * math.sqrt(share * (1 - share) / episodes + (z / (2 * episodes)) ** 2)) / (1 + z * z / episodes)


def main() -> int:
    """Print the requested measurements; without arguments the first two."""
    parts: dict[str, Callable[[], None]] = {
        "real": real,
        "simulated": simulated,
        "sets": partial(worthless, "sets", of_set=True),
        "wandering": wandering,
    }
    requested = sys.argv[1:] or ["real", "simulated"]  # as gates.txt; sets.txt and wandering.txt have the others
    if unknown := [name for name in requested if name not in parts]:
        sys.stderr.write(f"{unknown[0]} is none of {', '.join(parts)}\n")
        return 2
    for name in requested:
        parts[name]()
    return 0


if __name__ == "__main__":
    sys.exit(main())
