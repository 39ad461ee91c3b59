"""Probe hosts whose deficits are known: what is found, and how often something is found where nothing is.

    python -m benchmarks.science.probes            # every case with five RNG seeds: about six minutes of one core
    python -m benchmarks.science.probes --write    # also writes probes.json beside this file

Each probe has the default settings and a budget of 60 seconds, counted as seconds of one core, so that other work on
the machine does not matter. The cases: ``pointwise-mlp`` on MNIST-1D, which cannot see shapes before a convolution
grows in its first slot; the same host on shuffled positions, where no convolution can help; and ``cnn1d`` on MNIST-1D,
which sees shapes already. A case holds if it does with every RNG seed.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import sys
from functools import partial
from importlib.metadata import version
from pathlib import Path
from time import process_time
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from esper_core.growth import lower_bound, paired, read_gain
from esper_core.leyline.constants import GATE_ALPHA, NATS_PER_PARAMETER
from esper_core.plugins import load_plugins
from esper_grow.probes.budget import BudgetClock
from esper_grow.probes.search import STEPS, prepared
from esper_grow.probes.trainings import guarded, new_training

if TYPE_CHECKING:
    from torch import Tensor, nn

    from esper_grow.probes import ProbeResult
    from esper_grow.probes.candidates import ProbeCandidate
    from esper_grow.probes.search import Search

CASES: Final = (("pointwise-mlp", "mnist1d"), ("pointwise-mlp", "mnist1d-shuffled"), ("cnn1d", "mnist1d"))
SEEDS: Final = 5
BUDGET: Final = 60.0
CONVOLUTIONS: Final = ("conv_light", "conv_heavy", "depthwise_separable", "dilated", "bottleneck")
"""Blueprints that see neighbours."""


def per_example(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Return the loss of each example."""
    return cross_entropy(model(batch[0]), batch[1], reduction="none")


def probed(host: str, task: str, seed: int) -> dict[str, Any]:
    """Probe one host with one RNG seed, and return what was found."""
    registry = load_plugins().registry
    data = registry.find("task", task).load()()
    torch.manual_seed(seed)
    model = registry.find("host", host).load()(data.shape)
    train, held_out = ((torch.as_tensor(own.inputs), torch.as_tensor(own.targets)) for own in map(data.split, SPLITS))
    loader = DataLoader(TensorDataset(*train), batch_size=100, shuffle=True)
    clock = BudgetClock(BUDGET, process_time)
    training = new_training(model, partial(torch.optim.Adam, lr=1e-3), guarded(per_example), None, seed, process_time)
    with prepared(training, loader, [held_out], "auto", "auto", clock, STEPS, NATS_PER_PARAMETER, seed) as search:
        result = search.run()
        lead = None if task != "mnist1d-shuffled" else convolutions_ahead(search)
    return {"host": host, "task": task, "seed": seed, "lead": lead, "holds": holds(result, lead), **result.to_dict()}


SPLITS: Final = ("train", "validation")


def convolutions_ahead(search: Search) -> dict[str, Any] | None:
    """Return by how much the best convolution gains more than ``pointwise`` in its slot, after the same steps.

    ``at_least`` is what one of these differences exceeds with a probability of 95 %, for all convolutions and RNG seeds
    together. It is above 0 if a convolution is ahead beyond error.
    """
    found = [(one, lead_over(one, other)) for one, other in _pairs(search)]
    if not found:
        return None
    best, lead = max(found, key=lambda own: own[1].mean)
    at_least = max(lower_bound(own, GATE_ALPHA / (SEEDS * len(found))) for _, own in found)
    return {"blueprint": best.variety.id, "gain": lead.mean, "error": lead.standard_error, "at_least": at_least}


def _pairs(search: Search) -> list[tuple[ProbeCandidate, ProbeCandidate]]:
    named = {(one.slot, one.variety.id.rpartition("/")[2]): one for one in search.candidates if one.losses}
    return [
        (one, named[slot, "pointwise"])
        for (slot, name), one in named.items()
        if name in CONVOLUTIONS and (slot, "pointwise") in named
    ]


def lead_over(one: ProbeCandidate, other: ProbeCandidate) -> Any:
    """Return by how much ``one`` gains more than ``other``, after the longest trials that both had."""
    level = min(len(one.losses), len(other.losses)) - 1
    return read_gain(paired(other.losses[level], one.losses[level]).tolist())


def holds(result: ProbeResult, lead: dict[str, Any] | None) -> bool:
    """Return whether the probe found what is known of the host."""
    if result.model == "PointwiseMlp" and lead is None:
        first = result.rows[0] if result.rows else None
        return first is not None and bool(first.pays) and (first.slot, first.short in CONVOLUTIONS) == ("stem", True)
    return result.verdict == "nothing pays" and (lead is None or lead["at_least"] <= 0.0)


def line(found: dict[str, Any]) -> str:
    """Return one probe as a line of a table."""
    first = found["rows"][0] if found["rows"] else None
    cells = [found["host"], found["task"], str(found["seed"]), found["verdict"]]
    if first is not None:
        best = max(found["rows"], key=lambda row: row["gain"])
        cells.append(f"{best['blueprint'].rpartition('/')[2]} in {best['slot']}")
        cells.append(f"{best['gain']:.3f} ± {best['error']:.3f}, at least {best['at_least']:.3f}")
        cells.append(f"{best['price']:.3f}")
    else:
        cells += ["", "", ""]
    if found["lead"] is not None:
        cells[-2] += f"; over pointwise {found['lead']['gain']:.3f} ± {found['lead']['error']:.3f}"
    cells += [f"{found['seconds']:.0f} s", "holds" if found["holds"] else "DOES NOT HOLD"]
    return f"| {' | '.join(cells)} |"


def main(arguments: list[str]) -> int:
    """Probe every case, print a table, and return 1 if a case does not hold."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.science.probes")
    parser.add_argument("--write", action="store_true", help="write probes.json beside this file")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="RNG seeds of each case")
    parser.add_argument("--case", type=int, choices=range(len(CASES)), help="only this case; others stay as written")
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    print("| host | task | RNG seed | verdict | largest gain | nats | price | core | |\n" + "| --- " * 9 + "|")
    found = []
    for host, task in CASES if given.case is None else [CASES[given.case]]:
        for seed in range(given.seeds):
            found.append(probed(host, task, seed))
            print(line(found[-1]), flush=True)
    if given.write:
        file = Path(__file__).with_suffix(".json")
        before = (
            json.loads(file.read_text(encoding="utf-8"))["probes"] if given.case is not None and file.exists() else []
        )
        kept = [one for one in before if (one["host"], one["task"]) != CASES[given.case]]
        found = sorted([*kept, *found], key=lambda one: CASES.index((one["host"], one["task"])))
        where = {"date": f"{datetime.date.today()}", "python": platform.python_version(), "torch": version("torch")}
        text = json.dumps({**where, "probes": found}, indent=1, allow_nan=False)
        file.write_text(f"{text}\n", encoding="utf-8")
    return 0 if all(one["holds"] for one in found) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
