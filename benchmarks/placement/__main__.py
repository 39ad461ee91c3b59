"""Train what is missing, or summarise the records: ``python -m benchmarks.placement --help``."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections import defaultdict
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from statistics import fmean
from time import process_time
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import nn
from torch.optim import AdamW
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.placement import encoder, images
from benchmarks.placement.arms import PLANS, choose, fitted, layers_of, measured, train
from benchmarks.placement.worlds import loss
from esper_grow import Gardener, adapters
from esper_run.runs.statistics import mean_interval

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from benchmarks.placement.arms import Ranks
    from benchmarks.placement.worlds import Batch, World

SEEDS: Final = range(10)
ALONE_SEEDS: Final = range(5)
GROWN_SEEDS: Final = range(3)
ALONE: Final = 5_760
COUNTED_SEED: Final = 100
IMAGE_ARMS: Final = ("all", "expand", "project", "random", "esper")
Z: Final = 1.96
"""Half-width of a 95 % interval in standard errors, for means over many examples."""
RATES: Final = (1e-3, 3e-3, 1e-2)
RATES_OF_LONG: Final = dict.fromkeys(("all", "mlp", "random", "esper"), 3e-3)
"""The rate of each arm that ``--tune`` found to be best."""
SMALL: Final = ("query-value", "mlp", "random", "plop", "lora-drop", "kappa", "esper")
KINDS: Final = ("attention.self.query", "attention.self.value", "intermediate.dense", "output.dense")
ALONE_PLACES: Final = [f"base.encoder.layer.{layer}.{kind}" for kind in KINDS for layer in (0, 2, 3, 5)]

Record = dict[str, Any]
Job = tuple[int, str, int]
"""RNG seed, arm, and budget."""


def jobs_of_encoder() -> Iterator[Job]:
    """Yield all trainings: those that decide most claims first, those of a seed together."""
    for seed in SEEDS:
        yield seed, "head", 0
        yield seed, "all", 70_000
        yield from ((seed, "esper", budget) for budget in (15_000, 6_000))
        yield from ((seed, "esper-longer", budget) for budget in (15_000, 6_000))
        yield from ((seed, arm, 6_000) for arm in SMALL if arm != "esper")
    for seed in ALONE_SEEDS:
        yield from ((seed, f"alone:{place}", ALONE) for place in ALONE_PLACES)
    for seed in SEEDS:
        yield seed, "full", 0
    yield from ((seed, "grown", 15_000) for seed in GROWN_SEEDS)
    for seed in SEEDS:
        yield from ((seed, arm, 70_000) for arm in (*SMALL, "adalora"))
    for seed in SEEDS:
        yield from ((seed, arm, 15_000) for arm in SMALL if arm != "esper")


def jobs_of_images() -> Iterator[Job]:
    """Yield all trainings: those of the claims about the smaller budget first, those of a seed together."""
    for seed in range(5):
        yield from ((seed, arm, 10_000) for arm in IMAGE_ARMS[1:])
        yield seed, "all", 40_000
    for seed in range(5):
        yield seed, "head", 0
        yield seed, "all", 10_000
        yield from ((seed, arm, 40_000) for arm in IMAGE_ARMS[1:])


def jobs_of_long() -> Iterator[Job]:
    """Yield all trainings of the long form: those of a seed together, the largest plans last."""
    for seed in range(3):
        yield from ((seed, arm, 70_000) for arm in ("all", "mlp", "random"))
        yield from ((seed, arm, 15_000) for arm in ("esper", "random"))
    for seed in range(3):
        yield seed, "esper", 70_000


def jobs_of_twice() -> Iterator[Job]:
    """Yield the trainings of twice the steps: those of a seed together."""
    for seed in range(5):
        yield from ((seed, arm, 15_000) for arm in ("random", "lora-drop", "query-value", "plop", "mlp"))


@dataclass(frozen=True)
class Experiment:
    """One network of the experiment.

    Attributes:
        world_of: Returns the network and the data of an RNG seed.
        jobs: Yields all trainings.
        records: Name of the file of records.
        budgets: The largest, that of the claim about it, and the smallest.
        libraries: Whose versions are recorded.
        rates: Learning rates of arms; those that are not here have the world's.
        keeps_examples: Whether records have the loss of each test example.
        plans: Name of the file of records of the plans with which its arms are compared, if it trains none.
    """

    world_of: Callable[[int], World]
    jobs: Callable[[], Iterator[Job]]
    records: str
    budgets: tuple[int, int, int]
    libraries: tuple[str, ...]
    rates: Mapping[str, float] = field(default_factory=dict)
    keeps_examples: bool = False
    plans: str = ""

    @property
    def file(self) -> Path:
        """The file of records."""
        return Path(__file__).parent / self.records

    def read(self) -> list[Record]:
        """Return all records, without those of plans that another experiment has trained."""
        if not self.file.exists():
            return []
        return [json.loads(line) for line in self.file.read_text(encoding="utf-8").splitlines()]

    def read_compared(self) -> list[Record]:
        """Return all records, and those of the plans with which they are compared."""
        elsewhere = replace(self, records=self.plans).read() if self.plans else []
        return self.read() + [record for record in elsewhere if (record["arm"], record["budget"]) == ("esper", 15_000)]


NETWORKS: Final = {
    "encoder": Experiment(
        encoder.world_of,
        jobs_of_encoder,
        "records.jsonl",
        (70_000, 15_000, 6_000),
        ("torch", "transformers", "peft"),
    ),
    "encoder-long": Experiment(
        partial(encoder.world_of, tokens=64, epochs=2),
        jobs_of_long,
        "records-long.jsonl",
        (70_000, 15_000, 15_000),
        ("torch", "transformers", "peft"),
        RATES_OF_LONG,
        keeps_examples=True,
    ),
    "encoder-twice": Experiment(
        partial(encoder.world_of, epochs=2),
        jobs_of_twice,
        "records-twice.jsonl",
        (70_000, 15_000, 15_000),
        ("torch", "transformers", "peft"),
        plans="records.jsonl",
    ),
    "images": Experiment(
        images.world_of, jobs_of_images, "records-images.jsonl", (40_000, 10_000, 10_000), ("torch", "peft")
    ),
}


def train_job(job: Job, experiment: Experiment) -> Record:
    """Return the record of one training."""
    seed, arm, budget = job
    world = experiment.world_of(seed)
    world = replace(world, rate=experiment.rates.get(arm, world.rate))
    began = process_time()
    ranks, more = choose(arm, world, budget, seed)
    chosen = process_time()
    torch.manual_seed(seed)
    fitting = fitted(arm, world, ranks)
    train(fitting, world)
    seconds = {"choosing": round(chosen - began, 1), "training": round(process_time() - chosen, 1)}
    test, right = _evaluated(fitting.network, world.test)
    validation, _ = _evaluated(fitting.network, world.validation)
    by_example = {"losses": [round(value, 3) for value in test.tolist()]} if experiment.keeps_examples else {}
    record = {"seed": seed, "arm": arm, "budget": budget, "ranks": ranks, "parameters": fitting.count()}
    more = {"rate": world.rate, **more} if experiment.rates else more
    versions = {name: version(name) for name in experiment.libraries}
    figures = {
        "test_loss": round(float(test.mean()), 5),
        "test_accuracy": round(float(right.mean()), 4),
        "validation_loss": round(float(validation.mean()), 5),
    }
    return {**record, **figures, "seconds": seconds, **more, "device": "cpu", "versions": versions, **by_example}


def _evaluated(network: nn.Module, batches: Sequence[Batch]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the loss of each example, and whether its class was found."""
    network.eval()
    with torch.no_grad():
        losses = torch.cat([loss(network, batch) for batch in batches])
        right = torch.cat([(network(*inputs).argmax(1) == classes).float() for *inputs, classes in batches])
    return losses, right


def operations(experiment: Experiment) -> Iterator[str]:
    """Yield what plans cost in operations, as multiples of a training of ``all``, on a seed that is not reported."""
    largest, *budgets = experiment.budgets
    world = experiment.world_of(COUNTED_SEED)
    places = list(layers_of(world.model))
    training = _operations_of_training(world, choose("all", world, largest, COUNTED_SEED)[0])
    for arm, budget in [*(("esper", budget) for budget in dict.fromkeys(budgets)), ("esper-longer", budgets[0])]:
        cost = _operations(partial(choose, arm, experiment.world_of(COUNTED_SEED), budget, COUNTED_SEED))
        yield f"operations of {arm} with {budget:,}, in trainings of all: {cost / training:.2f}"
    world, eight = experiment.world_of(COUNTED_SEED), places[:: len(places) // 8][:8]
    together = _operations(partial(measured, world, largest, COUNTED_SEED, eight, len(world.train) // 3))
    evaluated = _operations(partial(_evaluated, world.model, world.validation[:6])) / 2  # it takes two passes
    separate = 0.0
    for place in eight:
        world = experiment.world_of(COUNTED_SEED)
        separate += _operations_of_training(world, {place: 2}) / 3 + evaluated
    yield f"operations of a plan of 8 places, in trials of each alone for as many steps: {together / separate:.2f}"
    left_out = _leaving_out(experiment.world_of(COUNTED_SEED)) / training
    yield f"operations of leaving each of {len(places)} out once, in trainings of all: {left_out:.2f}"


def _operations(what: Callable[[], object]) -> float:
    with FlopCounterMode(display=False) as counter:
        what()
    return float(counter.get_total_flops())


def _operations_of_training(world: World, ranks: Ranks) -> float:
    """Return those of a whole training, of which three steps are counted."""
    fitting, counted = fitted("all", world, ranks), 3
    return _operations(partial(train, fitting, world, counted)) * len(world.train) / counted


def _leaving_out(world: World) -> float:
    """Return the operations of a ``tend`` that leaves out each member of a set, by 300 validation examples."""
    model = world.model
    places = adapters(model, list(layers_of(model)), rank=2)
    held_out: dict[str, Any] = {"loss": loss, "validation": world.validation[:6], "steps": 4, "leave_out": 1e6}
    with Gardener(model, partial(AdamW, lr=1e-3), **places, **held_out, together=True) as gardener:
        gardener.optimizer.step()
        gardener.step(world.train[0])
        return _operations(gardener.tend)


def tune() -> Iterator[str]:
    """Yield the loss on validation data of each arm of the long form by rate, on a seed that is not reported.

    They are trained in the short form.
    """
    short = NETWORKS["encoder"]
    for arm, budget in sorted({(arm, budget) for _, arm, budget in jobs_of_long()}):
        for rate in RATES:
            record = train_job((COUNTED_SEED, arm, budget), replace(short, rates={arm: rate}))
            yield f"{arm:8} {budget:7,} {rate:g}: {record['validation_loss']:.4f}"


def summarise(records: Sequence[Record], budgets: tuple[int, int, int]) -> Iterator[str]:
    """Yield the lines of the summary."""
    by_arm: dict[tuple[str, int], dict[int, Record]] = defaultdict(dict)
    for record in records:
        by_arm[record["arm"], record["budget"]][record["seed"]] = record
    reference = by_arm["all", budgets[0]]
    yield "arm           budget parameters test loss accuracy   less than all (95 %)           n"
    for arm, budget in sorted(by_arm, key=lambda place: place[::-1]):
        by_seed = by_arm[arm, budget]
        if arm.startswith("alone:") or not by_seed:
            continue
        losses = [record["test_loss"] for record in by_seed.values()]
        size = fmean(record["parameters"] for record in by_seed.values())
        accuracy = 100 * fmean(record["test_accuracy"] for record in by_seed.values())
        shown = _difference(reference, by_seed)
        yield f"{arm:12} {budget:7,} {size:10,.0f} {fmean(losses):9.4f} {accuracy:7.1f} %  {shown:30} {len(losses)}"
    for arm in PLANS:
        yield from _claims(by_arm, arm, budgets)


def _claims(by_arm: dict[tuple[str, int], dict[int, Record]], arm: str, budgets: tuple[int, int, int]) -> Iterator[str]:
    """Yield how an arm of plans compares with others, what its plans took, and how they rank places."""
    largest, middle, smallest = budgets
    reference, plans = by_arm["all", largest], by_arm[arm, smallest]
    if not plans:
        return
    for budget in [size for size in dict.fromkeys((smallest, largest)) if by_arm[arm, size]]:
        for other in sorted(other for other, size in by_arm if size == budget and other not in PLANS):
            pair = by_arm[other, budget], by_arm[arm, budget]
            shown = f"{_difference(*pair)} nats, {_difference(*pair, 'test_accuracy', -100)} points"
            yield f"{arm} against {other}, {budget:,} parameters: {shown}"
    for budget in sorted({middle, smallest}):
        plans = {seed: record for seed, record in by_arm[arm, budget].items() if seed in reference}
        within = sum(plans[seed]["test_loss"] - reference[seed]["test_loss"] <= 0.01 for seed in plans)
        yield f"{arm} with {budget:,} within 0.01 nats of all with {largest:,}: {within} of {len(plans)}"
        costs = [plans[seed]["seconds"]["choosing"] / reference[seed]["seconds"]["training"] for seed in plans]
        yield f"time of a plan of {budget:,}, in trainings of all: {_shown(costs)}"
    yield from _ranking(by_arm, arm, middle)


def _difference(
    reference: dict[int, Record], other: dict[int, Record], figure: str = "test_loss", unit: int = 1
) -> str:
    """Return by how much a figure of an arm is lower than that of the reference, paired over seeds.

    The interval is over seeds, and over test examples, too, where records have their losses.
    """
    pairs = [(reference[seed], record) for seed, record in other.items() if seed in reference]
    values = [unit * (before[figure] - record[figure]) for before, record in pairs]
    if figure == "test_loss" and pairs and all("losses" in record for pair in pairs for record in pair):
        losses = [torch.tensor(before["losses"]) - torch.tensor(record["losses"]) for before, record in pairs]
        difference = torch.stack(losses).double().mean(0)
        return _shown(values, float(difference.std()) / math.sqrt(len(difference)))
    return _shown(values)


def _shown(values: Sequence[float], error: float = 0.0) -> str:
    """Return the mean with its interval over seeds; ``error``: standard error of the mean over examples."""
    if len(values) < 2:
        return "too few seeds"
    interval = mean_interval(values)
    assert interval.low is not None
    margin = math.hypot(interval.mean - interval.low, Z * error)
    return f"{interval.mean:+.4f} ({interval.mean - margin:+.4f} to {interval.mean + margin:+.4f})"


def _ranking(by_arm: dict[tuple[str, int], dict[int, Record]], arm: str, budget: int) -> Iterator[str]:
    """Yield how what plans say of places agrees with their losses when trained alone."""
    alone = {arm.removeprefix("alone:"): of_place for (arm, _), of_place in by_arm.items() if arm.startswith("alone:")}
    common = sorted(set.intersection(*(set(of_place) for of_place in alone.values()))) if alone else []
    plans = [record["gains"] for record in by_arm[arm, budget].values() if "gains" in record]
    if not common or not plans:
        return
    truth = {place: -fmean(of_place[seed]["test_loss"] for seed in common) for place, of_place in alone.items()}
    ranked = [_spearman([plan[place] for place in truth], list(truth.values())) for plan in plans]
    yield f"places alone: {len(truth)}, on {len(common)} seeds"
    extent = f"{min(ranked):.2f} to {max(ranked):.2f}, n {len(ranked)}"
    yield f"Spearman of {arm} with them: mean {fmean(ranked):.2f}, {extent}"
    if len(common) > 1:
        halves = [
            [-fmean(of_place[seed]["test_loss"] for seed in common[half::2]) for of_place in alone.values()]
            for half in (0, 1)
        ]
        between = _spearman(*halves)
        yield f"reliability by halves, corrected for length: {2 * between / (1 + between):.2f}"


def _spearman(left: Sequence[float], right: Sequence[float]) -> float:
    ranks = [torch.tensor(values).argsort().argsort().double() for values in (left, right)]
    return float(torch.corrcoef(torch.stack(ranks))[0, 1]) if len(left) > 1 else math.nan


def main(arguments: Sequence[str] | None = None) -> int:
    """Train, or summarise."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.placement", description=__doc__)
    parser.add_argument("--network", choices=NETWORKS, default="encoder", help="Images: half a core-hour.")
    parser.add_argument("--operations", action="store_true", help="Count those of plans: ten minutes.")
    parser.add_argument("--tune", action="store_true", help="Compare rates for the long form: half an hour.")
    parser.add_argument("--train", action="store_true", help="Train what has no record: about ten core-hours.")
    chosen = parser.parse_args(arguments)
    experiment = NETWORKS[chosen.network]
    if chosen.operations:
        print("\n".join(operations(experiment)))
        return 0
    if chosen.tune:
        torch.set_num_threads(1)
        for line in tune():
            print(line, flush=True)
        return 0
    if chosen.train:
        torch.set_num_threads(1)
        done = {(record["seed"], record["arm"], record["budget"]) for record in experiment.read()}
        for job in experiment.jobs():
            if job not in done:
                record = train_job(job, experiment)
                with experiment.file.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(record) + "\n")
                sys.stderr.write(f"{job}: {record['test_loss']:.4f}, {record['parameters']:,} parameters\n")
    print("\n".join(summarise(experiment.read_compared(), experiment.budgets)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
