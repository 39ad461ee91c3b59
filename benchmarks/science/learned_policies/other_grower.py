"""Run the grower of gromo, where it is installed, on the same hosts, data and steps.

A host starts as in a run of the engine, with one of gromo's growing blocks in each place where our policies grow: a
convolution that sees neighbours after the early features, a layer after the late ones. The blocks have no width at
first and no effect. At the steps at which our policies decide, gromo's own code, set as in TINY, measures the training
data, computes the neurons that lower the loss most, chooses the best block, and scales its neurons by a line search.

Two things differ from gromo's usage. It may add as many parameters in total as the one seed that our plan and our
heuristic keep, so that networks end with equal sizes; each growth gets a share of them. And a host's own layers are not
widened: between hidden and head of ``pointwise-mlp`` one neuron costs more than that, and between any other two layers
is a pooling or a flattening, which gromo does not support. There are two arms: one that grows in any place, and one
that, like our plan, grows after the early features only.

The shares were introduced after a first result. Without them, when one growth could use all parameters, gromo gained
1.8 points over the twin on plain digits under ``pointwise-mlp``. On twelve other seeds it gained 1.7 points without
shares, and 6.4 with them. With shares the reward is lower on both sets of seeds, since two places are charged for.

``python -m benchmarks.science.learned_policies.other_grower FILE [CELL ...]`` writes the results as JSON.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
import warnings
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import nn

from benchmarks.science.learned_policies.players import HEADLINE
from esper_core.app.compose import prepare
from esper_core.growth import RandomStream, derive_seed
from esper_core.growth.optimizers import build_optimizer
from esper_core.growth.trials import flops
from esper_core.trainer.batches import BatchOrder
from esper_core.trainer.measurements import evaluate
from esper_rewards.terms import FEE, POINTS
from esper_study.growbench.puzzles import DECIDE_EVERY, DECISIONS, SLOTS, STEPS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from torch import Tensor

    from benchmarks.science.learned_policies.live import Cell
    from esper_core.app.compose import Composition

ARM: Final = "gromo"
TOLD_WHERE: Final = "gromo, early"
PLACES: Final[Mapping[str, tuple[str, ...]]] = {ARM: (), TOLD_WHERE: ("early",)}
"""By arm where it may grow; none named: everywhere."""

TWIN: Final = "gromo's twin"
"""The same host, trained in the same loop, that never grows."""

COSTS_AS: Final = "blueprints/depthwise_separable"
"""What gromo may add in all is what this blueprint adds: the one that the best plan and the heuristic keep."""

REACH: Final = 3
"""Positions that a neuron of a convolution sees."""

TINY: Final[Mapping[str, Any]] = {"compute_delta": False, "use_covariance": True, "use_projection": True}
"""What gromo's documentation says reproduces "Growing Tiny Networks"; the other settings are its defaults."""

_SEQUENCE: Final = 3
_CHUNK: Final = 500


def is_there() -> bool:
    """Return whether gromo is installed; it is optional. A folder of this name is no library."""
    spec = find_spec("gromo")
    return spec is not None and spec.origin is not None


class Plot(nn.Module):
    """A module of the host with one of gromo's blocks after it; sequences become images of height 1.

    neuron: parameters of one neuron of the block. trying: whether gromo's proposal is active.
    """

    def __init__(self, before: nn.Module, block: Any, neuron: int) -> None:
        super().__init__()
        self.before = before
        self.block = block
        self.neuron = neuron
        self.trying = False

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the module's outputs with the grown block's added."""
        features = self.before(inputs)
        laid = features.unsqueeze(2) if features.dim() == _SEQUENCE else features
        outputs: Tensor = self.block.extended_forward(laid) if self.trying else self.block(laid)
        return outputs.squeeze(2) if features.dim() == _SEQUENCE else outputs


def plotted(host: nn.Module, places: Mapping[str, str], example: Tensor) -> dict[str, Plot]:
    """Insert an empty block after each place of ``host``, in place.

    places: names of modules by names of places.
    """
    found = {}
    for name, at in places.items():
        before = host.get_submodule(at)
        block, neuron = _block(name, _put_out(host, before, example))
        plot = Plot(before, block, neuron)
        host.set_submodule(at, plot)
        found[name] = plot
    return found


def _put_out(host: nn.Module, module: nn.Module, example: Tensor) -> Tensor:
    seen: list[Tensor] = []
    hook = module.register_forward_hook(lambda _module, _inputs, outputs: seen.append(outputs))
    mode = host.training
    with torch.no_grad():
        host.eval()(example)
    host.train(mode)
    hook.remove()
    return seen[0]


def _block(name: str, features: Tensor) -> tuple[Any, int]:
    blocks, width = import_module("gromo.containers.growing_block"), features.shape[1]
    ways: dict[str, Any] = {"pre_activation": nn.Identity(), "mid_activation": nn.ReLU(), "name": name}
    if features.dim() == _SEQUENCE:
        first = {"kernel_size": (1, REACH), "padding": (0, REACH // 2), "use_bias": True}
        second = {"kernel_size": (1, 1), "use_bias": False}
        block = blocks.Conv2dGrowingBlock(width, width, kwargs_first_layer=first, kwargs_second_layer=second, **ways)
        return block, REACH * width + 1 + width
    both = {"kwargs_first_layer": {"use_bias": True}, "kwargs_second_layer": {"use_bias": False}}
    return blocks.LinearGrowingBlock(width, width, **both, **ways), width + 1 + width


@dataclass(frozen=True, slots=True)
class Grown:
    """What one growth was: after which step, where, how many neurons, and by how much gromo scaled them."""

    step: int
    place: str
    neurons: int
    scale: float


class Course:
    """The training of one host, by a composition's recipe and an episode's seed, as in an environment of the engine.

    The host's optimizer keeps its state. That of the blocks is rebuilt when one grows, because gromo replaces their
    parameters.
    """

    def __init__(self, composition: Composition, seed: int, places: Sequence[str] = ()) -> None:
        self.recipe = recipe = composition.recipe
        with RandomStream(derive_seed(seed, "host")):
            self.host = recipe.build_host()
        own = list(self.host.parameters())
        self.host_parameters = sum(parameter.numel() for parameter in own)
        self._example = recipe.data["train"].inputs[:1]
        where = {name: place.at for name, place in recipe.slots.items() if name in places or not places}
        with RandomStream(derive_seed(seed, "gromo")):
            self.plots = plotted(self.host, where, self._example)
        self._optimizers = [build_optimizer(recipe.optimizers.host, own)]
        episode = recipe.episode
        self._order = BatchOrder(len(recipe.data["train"]), episode.batch_size, derive_seed(seed, "order"))

    @property
    def parameters(self) -> int:
        """Of the network as it is now."""
        return sum(parameter.numel() for parameter in self.host.parameters())

    @property
    def flops(self) -> int | None:
        """Operations of one example, forwards."""
        self.host.eval()
        return flops(lambda: self.host(self._example))

    def train(self) -> None:
        """Train for one step."""
        data = self.recipe.data["train"]
        self.host.train()
        for _ in range(self.recipe.episode.batches):
            chosen = self._order.next()
            for optimizer in self._optimizers:
                optimizer.zero_grad()
            self._losses(data.inputs[chosen], data.targets[chosen]).mean().backward()
            for optimizer in self._optimizers:
                optimizer.step()

    def score(self, split: Any) -> float:
        """Return the metric on a split."""
        return float(evaluate(self.host, self.recipe.task, self.recipe.data[split]).metric)

    def grow(self, step: int, room: int, times: int = 1) -> Grown | None:
        """Grow after ``step`` what gromo proposes; return None if nothing lowers the loss or no neuron fits.

        room: parameters that may still be added. times: growths that share them, including this one; each gets its
        share, and one neuron at least.
        """
        candidates = {name: plot for name, plot in self.plots.items() if plot.neuron <= room}
        if not candidates:
            return None
        self._propose(candidates, room // times)
        best = max(candidates, key=lambda name: float(candidates[name].block.first_order_improvement))
        block, neurons = candidates[best].block, 0
        scale = self._line_search(candidates[best])
        if scale > 0.0:
            neurons = int(block.eigenvalues_extension.shape[0])
            block.apply_change(extension_size=neurons, apply_delta=False)
        for plot in candidates.values():
            plot.block.delete_update()
        self.host.zero_grad()
        if not neurons:
            return None
        new = [parameter for plot in self.plots.values() for parameter in plot.block.parameters()]
        self._optimizers = [self._optimizers[0], build_optimizer(self.recipe.optimizers.seed, new)]
        return Grown(step, best, neurons, scale)

    def _propose(self, candidates: Mapping[str, Plot], share: int) -> None:
        """Collect gromo's statistics on the training data, and compute the extension of each block."""
        for plot in candidates.values():
            plot.block.init_computation()
        self.host.eval()
        for inputs, targets in self._chunks():
            self.host.zero_grad()
            self._losses(inputs, targets).sum().backward()
            for plot in candidates.values():
                plot.block.update_computation()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Using the pseudo-inverse")  # as it is to where neurons never fire
            for plot in candidates.values():
                plot.block.compute_optimal_updates(maximum_added_neurons=max(1, share // plot.neuron), **TINY)
                plot.block.reset_computation()

    def _line_search(self, plot: Plot) -> float:
        """Return the scale of a proposal with the least training loss; 0: every scale makes it worse."""

        def loss(scale: float) -> float:
            plot.block.set_scaling_factor(float(scale))
            with torch.no_grad():
                return float(torch.cat([self._losses(*chunk) for chunk in self._chunks()]).mean())

        plot.trying = True
        scale, _ = import_module("gromo.utils.utils").line_search(loss)
        plot.trying = False
        plot.block.set_scaling_factor(float(scale))
        return float(scale)

    def _losses(self, inputs: Tensor, targets: Tensor) -> Tensor:
        return self.recipe.task.losses(self.host(inputs), targets)

    def _chunks(self) -> Iterator[tuple[Tensor, Tensor]]:
        data = self.recipe.data["train"]
        yield from zip(data.inputs.split(_CHUNK), data.targets.split(_CHUNK), strict=True)


def played(composition: Composition, seed: int, room: int, places: Sequence[str] = ()) -> dict[str, Any]:
    """Train one episode and return it as ``live`` does, without a reward. room: 0 for a twin."""
    course, grown, parameter_steps = Course(composition, seed, places), [], 0
    for step in range(STEPS):
        course.train()
        parameter_steps += course.parameters
        left, times = room - (course.parameters - course.host_parameters), DECISIONS - step // DECIDE_EVERY
        if step % DECIDE_EVERY == 0 and times > 0 and (one := course.grow(step, left, times)) is not None:
            grown.append(one)
    return {
        "seed": seed,
        "round": 0,
        "test": course.score("test"),
        "validation": course.score("validation"),
        "parameters": course.parameters,
        "host": course.host_parameters,
        "parameter_steps": parameter_steps,
        "grown": sorted({(one.place, ARM) for one in grown}),
        "growths": [(one.step, one.place, one.neurons, one.scale) for one in grown],
        "flops": course.flops,
    }


def with_reward(episode: Mapping[str, Any], twin: Mapping[str, Any]) -> dict[str, Any]:
    """Return the episode with the team's reward against its own twin; a block is charged as a seed is.

    >>> grown = {"validation": 0.60, "parameters": 1100, "host": 1000, "grown": [("early", "gromo")]}
    >>> with_reward(grown, {"validation": 0.50})["reward"]
    2.0
    """
    added = (episode["parameters"] - episode["host"]) / episode["host"]
    gain = POINTS * (episode["validation"] - twin["validation"])
    return {**episode, "reward": round(gain - HEADLINE * (added + FEE * len(episode["grown"])), 6)}


def played_cell(cell: Cell, first_seed: int) -> dict[str, list[dict[str, Any]]]:
    """Return the episodes of a cell on its seeds, by arm: gromo's and their twin."""
    return _played_all(_composed(cell, first_seed), PLACES, range(first_seed, first_seed + cell.seeds))


def seconds_of_two(cell: Cell, first_seed: int) -> dict[str, float]:
    """Return by arm how long two episodes take, with their twins."""
    composition, found = _composed(cell, first_seed), {}
    for arm, places in PLACES.items():
        begin = time.monotonic()
        _played_all(composition, {arm: places}, range(first_seed, first_seed + 2))
        found[arm] = time.monotonic() - begin
    return found


def _played_all(
    composition: Composition, arms: Mapping[str, Sequence[str]], seeds: range
) -> dict[str, list[dict[str, Any]]]:
    price = composition.space.places["early"].candidate(COSTS_AS)
    room = 0 if price is None else price.parameters
    twins = {seed: played(composition, seed, 0) for seed in seeds}
    found = {
        arm: [with_reward(played(composition, seed, room, places), twin) for seed, twin in twins.items()]
        for arm, places in arms.items()
    }
    return {**found, TWIN: [{**twin, "reward": None} for twin in twins.values()]}


def _composed(cell: Cell, seed: int) -> Composition:
    """Compose the engine's run, whose data, host and settings are reused."""
    with tempfile.TemporaryDirectory() as home:
        file = Path(home) / "cell.yaml"
        told = cell.config({"never": "policies/static"}, seed, SLOTS["early"])
        file.write_text(json.dumps(told), encoding="utf-8")
        return prepare(file)


def main() -> int:
    """Train the named cells, or all of them, and write the results."""
    from benchmarks.science.learned_policies.live import FIRST_SEED, cells

    every = {cell.name: cell for cell in cells(quick=False)}
    parser = argparse.ArgumentParser(prog="python -m benchmarks.science.learned_policies.other_grower")
    parser.add_argument("file", type=Path, metavar="FILE", help="Where to write, as JSON.")
    parser.add_argument("cells", nargs="*", metavar="CELL", help=f"Of: {'; '.join(every)}. Default: all.")
    asked = parser.parse_args()
    if not is_there():
        parser.error("gromo is not installed; Esper needs it for nothing else. Mend: python -m pip install gromo")
    if unknown := sorted(set(asked.cells) - set(every)):
        parser.error(f"no cell has this name. Received: {', '.join(map(repr, unknown))}")
    torch.set_num_threads(1)
    found = []
    for name in asked.cells or every:
        begin = time.monotonic()
        arms = played_cell(every[name], FIRST_SEED)
        found.append({"cell": name, "seconds": time.monotonic() - begin, "arms": arms})
        found[-1]["seconds_of_two"] = seconds_of_two(every[name], FIRST_SEED)
    asked.file.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
