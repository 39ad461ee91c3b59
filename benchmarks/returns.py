"""Returns between modules on five ways through the code: ``python -m benchmarks.returns [--pairs]``, a few seconds.

For each way the table has the modules that take part and the returns from a function of one to a caller in another,
which is how often a reader who follows it changes the file. Only modules of the members count: of a call that goes
through torch, the caller is the next function of a member. ``--pairs`` lists which modules return to which. The numbers
do not depend on the machine.
"""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import torch

from benchmarks.perf.own_loops import per_example
from benchmarks.perf.workloads import SEED, conv
from esper_core.leyline import Action, Op
from esper_core.settings import GrowthConfig
from esper_core.trainer import Pool
from esper_grow import Gardener

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from esper_core.trainer.environment import Environment

SIZES: Final = {"batches": 1, "validation": 13, "batch_size": 8}
"""One batch of training data, and as many validation examples as gates need to judge."""

BOUNDS: Final = {
    "a batch without seeds": 17,
    "a batch with one incubating seed": 44,
    "the evidence of its gate": 75,
    "Gardener.step with an incubating seed": 49,
    "Gardener.tend with it": 302,
}
"""Most returns of each way, which a test holds."""


def returns_of(call: Callable[[], Any]) -> Counter[tuple[str, str]]:
    """Return how often a function of one module returned to a caller in another, by the names of both."""
    returns: Counter[tuple[str, str]] = Counter()

    def count(frame: FrameType, event: str, argument: object) -> None:
        if event == "return" and (module := module_of(frame)):
            caller = frame.f_back
            while caller is not None and not module_of(caller):
                caller = caller.f_back
            if caller is not None and module_of(caller) != module:
                returns[module, module_of(caller)] += 1

    sys.setprofile(count)
    try:
        call()
    finally:
        sys.setprofile(None)
    return returns


def module_of(frame: FrameType) -> str:
    """Return the name of the frame's module; "" if no member has it."""
    name = str(frame.f_globals.get("__name__", ""))
    return name if name.startswith("esper_") else ""


def environment_of(batches: int, *, seed: bool) -> Environment:
    """Return an environment of this many batches a step, after one step, with or without an incubating seed."""
    recipe = conv(**SIZES).recipe()
    growth = GrowthConfig(incubation="branch", gates="strict", auto_advance=False)
    pool = Pool(replace(recipe, network=replace(recipe.network, batches=batches, growth=growth)), ["a"], 1)
    pool.reset(0, 0)
    if seed:
        pool.apply([Action(Op.GERMINATE, "early", SEED)], 0)
    for step in range(2):
        pool.train(step)
        pool.evaluate(step)
        pool.synchronise(step)
    return pool.environments[0]


def returns_of_batch(*, seed: bool) -> Counter[tuple[str, str]]:
    """Return those of one batch: what a step of two batches has more than one of a single batch."""
    long, short = (returns_of(environment_of(batches, seed=seed).train) for batches in (2, 1))
    return long - short


def gather_evidence(environment: Environment) -> None:
    """Measure a network with an incubating seed, and let the gates judge it."""
    environment.evaluate("validation")
    environment.measure_seeds(None)
    environment.network.conclude_step(2, environment.network.numbers().tolist())


def returns_of_loop() -> dict[str, Counter[tuple[str, str]]]:
    """Return those of an own loop in which one seed incubates, with the default policy."""
    torch.manual_seed(0)
    work = conv(**SIZES)
    model = work.build_host()
    optimizer = torch.optim.Adam(model.parameters())
    batch, held_out = ((split.inputs, split.targets) for split in (work.data["train"], work.data["validation"]))

    def train() -> None:
        optimizer.zero_grad()
        per_example(model, batch).mean().backward()
        optimizer.step()

    with Gardener(
        model,
        optimizer,
        loss=per_example,
        slots=["early"],
        blueprints=["conv_light"],
        example=batch,
        validation=[held_out],
    ) as gardener:
        for _ in range(2):  # the seed germinates in the first tend(), and trains in the second
            for _ in range(2):
                train()
                gardener.step(batch)
            gardener.tend()
        train()
        step = returns_of(lambda: gardener.step(batch))
        return {"Gardener.step with an incubating seed": step, "Gardener.tend with it": returns_of(gardener.tend)}


def returns_of_ways() -> dict[str, Counter[tuple[str, str]]]:
    """Return those of each way, by the names of ``BOUNDS``."""
    environment = environment_of(1, seed=True)
    return {
        "a batch without seeds": returns_of_batch(seed=False),
        "a batch with one incubating seed": returns_of_batch(seed=True),
        "the evidence of its gate": returns_of(lambda: gather_evidence(environment)),
        **returns_of_loop(),
    }


def main() -> None:
    """Print the table."""
    measured = returns_of_ways()
    print(f"{'way':<40} {'modules':>8} {'returns':>8} {'bound':>8}")
    for way, returns in measured.items():
        modules = {module for pair in returns for module in pair}
        print(f"{way:<40} {len(modules):>8} {sum(returns.values()):>8} {BOUNDS[way]:>8}")
    if "--pairs" in sys.argv:
        for way, returns in measured.items():
            print(f"\n{way}")
            for (module, caller), count in returns.most_common():
                print(f"  {count:>5}  {module} → {caller}")


if __name__ == "__main__":
    main()
