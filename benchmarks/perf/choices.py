"""P14: what each choice of ``compute`` brings to a train step, against the plain step in float32.

The convolutional host on one thread, with images in channels-last format as in a run. The choices take turns, a few
batches at a time; medians over the turns. The effect of the allocator is measured on the plain loop, in two processes.
None of it has a bound: other machines and hosts give other figures.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from benchmarks.perf.sides import Side
from benchmarks.perf.turns import medians, timed
from benchmarks.perf.work import conv
from benchmarks.table import Row, Table, answer
from esper_core.app.runtime import one_thread, tune_allocator
from esper_core.config import ComputeConfig
from esper_core.trainer.environment import Environment

if TYPE_CHECKING:
    from collections.abc import Sequence

TURNS: Final = 15
LOOPS: Final = 7
CHOICES: Final[dict[str, dict[str, Any]]] = {
    "as it is written": {},
    "precision: bfloat16": {"precision": "bfloat16"},
    "compile: true": {"compile": True},
    "layout: plain": {"layout": "plain"},
}


def measure(*, quick: bool = False) -> Sequence[Table]:
    """Measure each of them."""
    work = conv(1, 1, 8) if quick else conv(4)
    tune_allocator()
    with one_thread():
        environments = {}
        for choice, told in CHOICES.items():
            compute = ComputeConfig(**told)
            recipe = work.recipe() if compute.layout == "plain" else work.as_run()  # which lays out what it is made of
            environments[choice] = Environment(replace(recipe, compute=compute), arm="plain", index=0)
            environments[choice].reset(0, 0)
        took = medians({name: timed(one.train) for name, one in environments.items()}, 1 if quick else TURNS)
        for one in environments.values():
            one.close()
    plain = took.pop("as it is written")
    with Side("single", "conv", quick=quick) as default, Side("tuned", "conv", quick=quick) as tuned:
        loops = medians({"default": default.seconds, "tuned": tuned.seconds}, 1 if quick else LOOPS, warm=1)
    rows = [Row("one batch as it is written", 1e3 * plain / work.batches, None, "ms")]
    rows += [Row(f"{choice}, against it", seconds / plain, None, "×") for choice, seconds in took.items()]
    rows.append(Row("allocator: default, the plain loop, against tuned", loops["default"] / loops["tuned"], None, "×"))
    return [Table("P14", "what the choices of `compute` bring to a train step, conv host", rows)]


if __name__ == "__main__":
    sys.exit(answer(measure))
