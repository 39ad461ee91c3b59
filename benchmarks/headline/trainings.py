"""Trainings: train one network by a plain loop or by Esper's engine, and return its record.

Operations are counted as ``esper_core.trainer.measurements`` counts them, for every arm: three times the forward pass
for each example that is trained on, once for each that is evaluated on validation; previews, twins and discarded seeds
included. The final evaluations that a record reports are left out for all.
"""

from __future__ import annotations

import math
import os
from dataclasses import asdict, dataclass, replace
from time import process_time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, cast

import torch

from benchmarks.headline.cells import CELLS, HOST, Setting, compose
from esper_core.growth import RandomStream, derive_seed, graft, implant
from esper_core.leyline import GovernorStop, Split
from esper_core.leyline.constants import PROBE_EXAMPLES
from esper_core.leyline.lifecycle import Blend
from esper_core.leyline.signals import CALM
from esper_core.telemetry import Bus, Clock
from esper_core.trainer.batches import BatchOrder
from esper_core.trainer.loop import run_study
from esper_core.trainer.measurements import evaluate
from esper_core.trainer.study_position import StudyPosition
from esper_policies.learning_rates import Cosine
from esper_run.app.compose import StudyContext

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path

    from torch import Tensor, nn

    from benchmarks.headline.cells import Cell, Part
    from esper_core.growth import Growth
    from esper_core.trainer.environment import Recipe
    from esper_run.app.compose import Composition

RUNGS: Final = (1 / 8, 1 / 4, 1 / 2, 1.0)
"""Shares of a horizon after which a static network is evaluated, for successive halving."""

TRAINED: Final = 3
"""Operations of training on an example, as multiples of its forward pass."""

GROWING: Final = ("esper", "grow")
"""Arms in which something may grow."""

FIRST_CLASSES: Final = 8
"""Classes that are known before the data change."""

FLOOR: Final = 0.02
"""Last factor of the cosine schedule."""


@dataclass(frozen=True, slots=True)
class Job:
    """What defines one training; its record is found by it.

    Attributes:
        arm: ``static``, ``esper``, or what happens to a trained host: ``grow``, ``continue`` (with its optimizer),
            ``fresh`` (with a new one), ``early`` (from the early-stopped checkpoint), ``filler``.
        architecture: Of a static network, or the block that ``filler`` puts in.
        share: Horizon as a share of the full one; for a trained host the budget.
        start: Setting with which the host was trained; None: from scratch.
        reference: Static network whose training from scratch is the budget 1; "" from scratch.
        changed: Whether the host was trained on the first classes only.
        scale: Factor on the batches of a step.
        version: Of the study, and of the policy where it decides.
    """

    cell: str
    part: str
    arm: str
    architecture: str
    setting: Setting
    seed: int
    share: float = 1.0
    start: Setting | None = None
    reference: str = ""
    changed: bool = False
    scale: float = 1.0
    version: str = "1"


@dataclass(frozen=True, slots=True)
class EsperSettings:
    """How Esper grows.

    Attributes:
        config: Part of the configuration: policy and growth, and a twin if there is to be one.
        least_steps: Decision steps of a short episode, as far as there are batches.
        step_batches: Batches of a decision step in an episode that is not full.
    """

    config: Mapping[str, Any]
    least_steps: int = 16
    step_batches: int = 8

    def steps(self, batches: int, most: int) -> int:
        """Return the decision steps of an episode of so many batches."""
        return max(1, min(most, batches, max(self.least_steps, batches // self.step_batches)))


def train(job: Job, esper: EsperSettings, states: Path) -> dict[str, Any]:
    """Return the record of a training. esper: how it grows. states: folder of trained hosts."""
    torch.set_num_threads(1)
    cell = CELLS[job.cell]
    part = next(part for part in cell.parts if part.name == job.part)
    begin = process_time()
    start = None if job.start is None else _trained_host(job, cell, part, states)
    begin = begin if start is None else process_time()
    result = (_grow if job.arm in GROWING else _train_static)(job, cell, part, start, esper)
    if not cell.data_changes:
        del result["classes"]
    return {**asdict(job), **result, "seconds": round(process_time() - begin, 2)}


def operations_of(recipe: Recipe, architecture: str) -> int:
    """Return the operations of a forward pass of a static network for one example."""
    assert recipe.network.operations is not None
    blocks = {
        (slot, name.rpartition("/")[2]): operations
        for (slot, name), operations in recipe.network.operations.blocks.items()
    }
    return recipe.network.operations.host + sum(blocks[slot, name] for slot, name in _blocks(architecture))


def cost_of(job: Job, cell: Cell, part: Part) -> int:
    """Return the operations of training the network of a job on a batch; growing counts as its costliest network."""
    recipe = compose(cell, part, 0, {}).recipe
    names = part.architectures() if job.arm in GROWING else [job.architecture or HOST]
    return TRAINED * cell.batch_size * max(operations_of(recipe, name) for name in names)


def batches_of(job: Job, cell: Cell, part: Part) -> int:
    """Return the batches of a job: those of its horizon, or those that its budget pays for."""
    full = cell.steps * max(1, round(cell.batches * job.scale))
    if not job.reference:
        return max(1, round(full * job.share))
    unit = full * cost_of(replace(job, arm="static", architecture=job.reference), cell, part)
    return int(job.share * unit / cost_of(job, cell, part))


def _blocks(architecture: str) -> list[tuple[str, str]]:
    """Return slot and blueprint of each block."""
    if architecture == HOST:
        return []
    return [(block.partition("=")[0], block.partition("=")[2]) for block in architecture.split("+")]


# --- the plain loop


class Loop:
    """A plain training loop of torch over a network of a recipe.

    Args:
        operations: Operations of a forward pass for one example.
        keep_best: Keep the weights with the lowest loss on validation.
    """

    def __init__(
        self, recipe: Recipe, model: nn.Module, setting: Setting, seed: int, operations: int, *, keep_best: bool = False
    ) -> None:
        self.recipe, self.model, self.setting, self.seed, self.operations = recipe, model, setting, seed, operations
        self.optimizer = torch.optim.Adam(model.parameters(), setting.rate, fused=True)
        self.flops = 0
        self.looks: list[tuple[int, int, float]] = []
        """Step, operations, and accuracy on validation, after each evaluation."""
        self._keep_best, self._lowest = keep_best, math.inf
        self.best: dict[str, Tensor] = {}

    def train(self, steps: int, batches: int, looks_after: Collection[int]) -> None:
        """Train for so many batches, with the learning rate constant in each of so many steps."""
        data, size = self.recipe.data["train"], self.recipe.batch_size
        order = BatchOrder(len(data), size, derive_seed(self.seed, "order"))
        schedule = Cosine(floor=FLOOR, warmup=warm_up(steps)) if self.setting.schedule == "cosine" else None
        for step in range(steps):
            factor = 1.0 if schedule is None else schedule.factor(step, steps)
            for group in self.optimizer.param_groups:
                group["lr"] = self.setting.rate * factor
            for _ in range((step + 1) * batches // steps - step * batches // steps):
                rows = order.next()
                self.optimizer.zero_grad()
                outputs = self.model(data.inputs[rows])
                self.recipe.task.losses(outputs, data.targets[rows]).mean().backward()
                self.optimizer.step()
                self.flops += TRAINED * size * self.operations
            if step + 1 in looks_after:
                self._look(step + 1)

    def _look(self, step: int) -> None:
        loss, accuracy, _ = measure(self.recipe, self.model, "validation")
        self.flops += len(self.recipe.data["validation"]) * self.operations
        self.looks.append((step, self.flops, round(accuracy, 5)))
        if self._keep_best and (not self.best or loss < self._lowest):
            self._lowest, self.best = loss, {key: value.clone() for key, value in self.model.state_dict().items()}


def warm_up(steps: int) -> int:
    """Return the steps of warm-up of the cosine schedule, a tenth."""
    return max(1, round(steps / 10))


def measure(recipe: Recipe, model: nn.Module, name: str) -> tuple[float, float, list[float]]:
    """Return loss, accuracy, and the accuracy of each class where there are at most ten."""
    split = recipe.data[name]  # type: ignore[index]
    evaluation = evaluate(model, recipe.task, split)
    loss, metric = (float(mean) for mean in evaluation.means)
    classes: list[float] = []
    if split.targets.dim() == 1 and recipe.task.shape.outputs <= 10:
        model.eval()
        with torch.inference_mode():
            scores = recipe.task.scores(model(split.inputs), split.targets)
        model.train()
        labels = range(recipe.task.shape.outputs)
        classes = [
            round(float(scores[split.targets == label].mean()), 4) for label in labels if (split.targets == label).any()
        ]
    return loss, metric, classes


def build(recipe: Recipe, architecture: str, seed: int, state: Mapping[str, Tensor] | None = None) -> nn.Module:
    """Return a static network: the host of an RNG seed, or with ``state``, and newborn blocks.

    They are born as in Esper's static control: some choose their first weights by the training data.
    """
    with RandomStream(derive_seed(seed, "host")):
        model = recipe.build_host()
    train = recipe.data["train"]
    graft(model, recipe.slots, example=train.inputs[:2])
    if state is not None:
        model.load_state_dict(state)

    def probe(network: nn.Module) -> Tensor:
        generator = torch.Generator().manual_seed(derive_seed(seed, "probe"))
        rows = torch.randperm(len(train), generator=generator)[:PROBE_EXAMPLES]
        return recipe.task.losses(network(train.inputs[rows]), train.targets[rows]).mean()

    for number, (slot, name) in enumerate(_blocks(architecture)):
        blueprint = next(
            variety.id for variety in recipe.network.varieties[slot] if variety.id.rpartition("/")[2] == name
        )
        block = SimpleNamespace(slot=slot, blueprint=blueprint, blend=Blend.ADD, number=number)
        implant(model, [cast("Growth", block)], recipe.network.varieties, seed=seed, probe=probe)
    model.train()
    return model


def _train_static(
    job: Job, cell: Cell, part: Part, start: Mapping[str, Any] | None, esper: EsperSettings
) -> dict[str, Any]:
    recipe = compose(cell, part, job.seed, {}).recipe
    architecture = job.architecture or HOST
    state = None if start is None else start["best" if job.arm == "early" else "final"]
    model, operations = build(recipe, architecture, job.seed, state), operations_of(recipe, architecture)
    loop = Loop(recipe, model, job.setting, job.seed, operations)
    if start is not None and job.arm == "continue":
        loop.optimizer.load_state_dict(start["optimizer"])
    batches = batches_of(job, cell, part)
    steps = min(cell.steps, batches)
    rungs = {max(1, round(share * steps)) for share in RUNGS} if start is None else {steps}
    loop.train(steps, batches, rungs)
    return {"looks": loop.looks, "flops": loop.flops, "kept": [], **_figures(recipe, model)}


def _figures(recipe: Recipe, model: nn.Module) -> dict[str, Any]:
    """Return what a record reports of the network in the end."""
    figures: dict[str, Any] = {"parameters": sum(parameter.numel() for parameter in model.parameters())}
    for name in ("validation", "test"):
        loss, metric, classes = measure(recipe, model, name)
        figures[f"{name}_loss"] = round(loss, 5) if math.isfinite(loss) else None
        figures[f"{name}_accuracy"] = round(metric, 5)
    return {**figures, "classes": classes}


def _trained_host(job: Job, cell: Cell, part: Part, states: Path) -> Mapping[str, Any]:
    """Return a trained host: its last weights with the optimizer's state, and the weights of the best look."""
    assert job.start is not None
    of = "first-classes" if job.changed else "all"
    version = job.version.partition("-")[0]
    name = f"{part.name}-{job.seed}-{job.start.rate:g}-{job.start.schedule}-{job.scale:g}-{of}-{version}.pt"
    file = states / name
    if not file.exists():
        recipe = compose(cell, part, job.seed, {}).recipe
        if job.changed:
            restricted = {name: _first_classes(split) for name, split in recipe.data.items()}
            recipe = replace(recipe, data=restricted)
        host, operations = build(recipe, HOST, job.seed), operations_of(recipe, HOST)
        loop = Loop(recipe, host, job.start, job.seed, operations, keep_best=True)
        full = batches_of(replace(job, share=1.0, reference=""), cell, part)
        loop.train(min(cell.steps, full), full, range(1, cell.steps + 1))
        states.mkdir(parents=True, exist_ok=True)
        partial = file.with_suffix(f".{os.getpid()}")  # another process may write the same host
        final = {"final": host.state_dict(), "optimizer": loop.optimizer.state_dict()}
        torch.save({**final, "best": loop.best}, partial)
        partial.replace(file)
    state: Mapping[str, Any] = torch.load(file, weights_only=True)
    return state


def _first_classes(split: Split) -> Split:
    rows = split.targets < FIRST_CLASSES
    return Split(split.inputs[rows], split.targets[rows])


# --- Esper's engine


def esper_config(cell: Cell, part: Part, job: Job, esper: EsperSettings) -> dict[str, Any]:
    """Return the configuration of an episode: that of the study with the horizon and the learning rate of a job.

    Seeds warm up at a constant rate, too.
    """
    total = batches_of(job, cell, part)
    steps = esper.steps(total, cell.steps)
    host: dict[str, Any] = {"learning_rate": job.setting.rate}
    seed = {**host, "schedule": {"use": "warmup", "settings": {"over": warm_up(steps)}}}
    if job.setting.schedule == "cosine":
        host["schedule"] = {"use": "cosine", "settings": {"warmup": warm_up(steps), "floor": FLOOR}}
        seed = host
    episode = {"steps": steps, "batches": max(1, total // steps), "batch_size": cell.batch_size}
    return {**esper.config, "optimizer": {"host": host, "seed": seed}, "episode": episode}


def _grow(job: Job, cell: Cell, part: Part, start: Mapping[str, Any] | None, esper: EsperSettings) -> dict[str, Any]:
    plain = compose(cell, part, job.seed, {}).recipe
    composition = compose(cell, part, job.seed, esper_config(cell, part, job, esper))
    if start is not None:
        composition = _starting_from(composition, start["final"])
    study = composition.study(StudyContext(Bus(), Clock(), lambda snapshot: CALM))
    failed = None
    try:
        run_study(StudyPosition(study))
    except GovernorStop as stop:
        failed = str(stop.problems[0].message)
    environment = study.pool.environments[0]
    model = environment.model
    kept = _kept(environment)
    flops = sum(int(environment.flops or 0) for environment in study.pool.environments)
    if failed is None:  # the test at the end is not charged
        networks = ["+".join(_kept(environment)) or HOST for environment in study.pool.environments]
        flops -= sum(len(plain.data["test"]) * operations_of(plain, architecture) for architecture in networks)
    return {"looks": [], "flops": flops, "kept": kept, "failed": failed, **_figures(plain, model)}


def _kept(member: Any) -> list[str]:
    """Return the blocks that a network has kept."""
    slots = member.garden.slots.values()
    return [f"{slot.name}={fossil.blueprint.rpartition('/')[2]}" for slot in slots for fossil in slot.fossils]


def _starting_from(composition: Composition, state: Mapping[str, Tensor]) -> Composition:
    """Return a composition whose hosts begin with these weights."""
    fresh = composition.recipe.build_host

    def build_host() -> nn.Module:
        host = fresh()
        host.load_state_dict(state)
        return host

    return replace(composition, recipe=replace(composition.recipe, build_host=build_host))
