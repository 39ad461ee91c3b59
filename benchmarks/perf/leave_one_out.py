"""P3: cost of leaving out each of three seeds in turn, against one validation pass.

Host ``cnn2d`` (3→8→16→32 on 32×32) with a blended ``conv_light`` seed in each of its slots, batches of 128, one thread,
with and without a tuned allocator. The sides take turns; medians over the turns. The bound: one pass, and for each seed
the share of its multiplications that lies behind its slot, and 20 % for everything else. The share of a seed that is
left out counts as nothing, since it is not run.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from benchmarks.perf.turns import ALLOCATORS, allocated, medians, timed
from benchmarks.table import Row, Table, answer
from esper_blueprints.conv_light import ConvLight
from esper_core import BlueprintSpec, graft
from esper_core.app.runtime import one_thread
from esper_core.growth.counterfactuals import Counterfactuals
from esper_core.growth.grafting import slots_of
from esper_core.growth.seeds import Seed
from esper_core.leyline import DataShape
from esper_core.leyline.lifecycle import Stage
from esper_tasks.hosts import cnn2d

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

TURNS = 25
BATCHES = 4
SLOTS = ("early", "middle", "late")
MARGIN = 0.2


def grown() -> nn.Module:
    """Build the host, with three active seeds."""
    model = graft(cnn2d(DataShape("image", (3, 32, 32), 10)), SLOTS, example=torch.randn(2, 3, 32, 32))
    for number, slot in enumerate(slots_of(model).each()):
        assert slot.site is not None
        spec = BlueprintSpec(slot.site.kind, "0", starts_as_identity=True)
        seed = Seed(ConvLight(slot.site), blueprint="conv_light", spec=spec, site=slot.site, number=number)
        for parameter in seed.parameters():
            nn.init.normal_(parameter, std=0.02)
        seed.stage = Stage.HOLDING
        seed.alpha.aim(1.0, 0)
        slot.seeds.append(seed)
    return model.eval()


def multiplications(model: nn.Module, inputs: Tensor) -> dict[str, int]:
    """Count the multiplications of each convolution and linear layer, in the order of the forward pass."""
    counts: dict[str, int] = {}

    def count(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, output: Tensor) -> None:
            places = output.numel() // output.shape[1]
            counts[name] = places * sum(parameter.numel() for parameter in module.parameters() if parameter.ndim > 1)

        return hook

    layers = [(name, layer) for name, layer in model.named_modules() if isinstance(layer, nn.Conv2d | nn.Linear)]
    handles = [layer.register_forward_hook(count(name)) for name, layer in layers]
    model(inputs)
    for handle in handles:
        handle.remove()
    return counts


def shares_behind(counts: dict[str, int]) -> dict[str, float]:
    """Return, for each slot, the share of all multiplications that come after it and its seed."""
    names = list(counts)
    shares = {}
    for slot in SLOTS:
        last = max(place for place, name in enumerate(names) if name.startswith((f"{slot}.", f"_esper.{slot}.")))
        shares[slot] = sum(counts[name] for name in names[last + 1 :]) / sum(counts.values())
    return shares


def measure(*, quick: bool = False) -> Sequence[Table]:
    """Measure one pass, replayed passes and separate ones, under each allocator."""
    turns, examples = (1, 8) if quick else (TURNS, 128)
    torch.manual_seed(0)
    model = grown()
    batches = [(torch.randn(examples, 3, 32, 32), torch.randint(10, (examples,))) for _ in range(BATCHES)]
    rows: list[Row] = []
    with one_thread(), torch.inference_mode():
        shares = shares_behind(multiplications(model, batches[0][0]))
        rows += [Row(f"multiplications behind {name}", share, None, "of a pass", 3) for name, share in shares.items()]
        sides = ways(model, batches)
        for how in ALLOCATORS:
            with allocated(how) as there:
                rows += compared(sides, how, turns, 1 + sum(shares.values()) + MARGIN) if there else []
    return [Table("P3", f"leave-one-out of three seeds, conv host, medians of {turns} interleaved turns", rows)]


def ways(model: nn.Module, batches: Sequence[tuple[Tensor, Tensor]]) -> dict[str, Callable[[], float]]:
    """Return the compared methods, each a function that returns its time."""
    counterfactuals = Counterfactuals(model)

    def judge(outputs: Tensor, targets: Tensor) -> Tensor:
        return nn.functional.cross_entropy(outputs, targets, reduction="none")

    def one_pass() -> None:
        torch.cat([judge(model(inputs), targets) for inputs, targets in batches])

    def separate() -> None:
        one_pass()
        for slot in slots_of(model).each():
            with slot.disabled():
                one_pass()

    counterfactuals.measure(batches, judge)
    assert counterfactuals.reason is None, counterfactuals.reason
    replayed = partial(counterfactuals.measure, batches, judge)
    return {"one pass": timed(one_pass), "replayed": timed(replayed), "separate": timed(separate)}


def compared(sides: Mapping[str, Callable[[], float]], allocator: str, turns: int, bound: float) -> list[Row]:
    """Compare the methods under one allocator."""
    took = medians(sides, turns)
    one, where = took["one pass"], f"{allocator} allocator"
    return [
        Row(f"{where}: one pass over {BATCHES} batches", 1e3 * one, None, "ms", 1),
        Row(f"{where}: each left out, in separate passes", took["separate"] / one, None, "×", 2),
        Row(f"{where}: each left out, replayed", took["replayed"] / one, bound, "×", 2),
    ]


if __name__ == "__main__":
    sys.exit(answer(measure))
