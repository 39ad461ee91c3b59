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

from esper_core.growth import compare_losses
from esper_core.leyline.constants import GATE_ALPHA
from esper_core.plugins import load_plugins
from esper_grow.probes.budget import BudgetClock
from esper_grow.probes.search import ProbeSettings, prepared
from esper_grow.probes.trainings import guarded, new_training

if TYPE_CHECKING:
    from torch import Tensor, nn

    from esper_core.leyline import Evidence
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
    train, held_out = (
        (torch.as_tensor(split.inputs), torch.as_tensor(split.targets)) for split in map(data.split, SPLITS)
    )
    loader = DataLoader(TensorDataset(*train), batch_size=100, shuffle=True)
    clock = BudgetClock(BUDGET, process_time)
    training = new_training(model, partial(torch.optim.Adam, lr=1e-3), guarded(per_example), None, seed, process_time)
    settings = ProbeSettings.of({"seed": seed})
    with prepared(training, loader, [held_out], "auto", "auto", settings, clock) as search:
        result = search.run()
        lead = None if task != "mnist1d-shuffled" else convolutions_ahead(search)
    return {"host": host, "task": task, "seed": seed, "lead": lead, "holds": holds(result, lead), **result.to_dict()}


SPLITS: Final = ("train", "validation")


def convolutions_ahead(search: Search) -> dict[str, Any] | None:
    """Return by how much the best convolution gains more than ``pointwise`` in its slot, after the same steps.

    ``at_least`` is what one of these differences exceeds with a probability of 95 %, for all convolutions and RNG seeds
    together. It is above 0 if a convolution is ahead beyond error.
    """
    pairs = _pairs(search)
    alpha = GATE_ALPHA / (SEEDS * max(1, len(pairs)))
    leads = [(convolution, lead_over(convolution, pointwise, alpha)) for convolution, pointwise in pairs]
    if not leads:
        return None
    best, lead = max(leads, key=lambda pair: pair[1].mean)
    at_least = max(evidence.lower for _, evidence in leads)
    return {"blueprint": best.variety.id, "gain": lead.mean, "error": lead.standard_error, "at_least": at_least}


def _pairs(search: Search) -> list[tuple[ProbeCandidate, ProbeCandidate]]:
    named = {
        (candidate.slot, candidate.variety.id.rpartition("/")[2]): candidate
        for candidate in search.candidates
        if candidate.losses
    }
    return [
        (candidate, named[slot, "pointwise"])
        for (slot, name), candidate in named.items()
        if name in CONVOLUTIONS and (slot, "pointwise") in named
    ]


def lead_over(candidate: ProbeCandidate, baseline: ProbeCandidate, alpha: float) -> Evidence:
    """Return by how much ``candidate`` gains more than ``baseline``, after the longest trials that both had."""
    level = min(len(candidate.losses), len(baseline.losses)) - 1
    return compare_losses(baseline.losses[level], candidate.losses[level], alpha)


def holds(result: ProbeResult, lead: dict[str, Any] | None) -> bool:
    """Return whether the probe found what is known of the host."""
    if result.model == "PointwiseMlp" and lead is None:
        first = result.rows[0] if result.rows else None
        return first is not None and bool(first.pays) and (first.slot, first.short in CONVOLUTIONS) == ("stem", True)
    return result.verdict == "nothing pays" and (lead is None or lead["at_least"] <= 0.0)


def line(probe: dict[str, Any]) -> str:
    """Return one probe as a line of a table."""
    first = probe["rows"][0] if probe["rows"] else None
    cells = [probe["host"], probe["task"], str(probe["seed"]), probe["verdict"]]
    if first is not None:
        best = max(probe["rows"], key=lambda row: row["gain"])
        cells.append(f"{best['blueprint'].rpartition('/')[2]} in {best['slot']}")
        cells.append(f"{best['gain']:.3f} ± {best['error']:.3f}, at least {best['at_least']:.3f}")
        cells.append(f"{best['price']:.3f}")
    else:
        cells += ["", "", ""]
    if probe["lead"] is not None:
        cells[-2] += f"; over pointwise {probe['lead']['gain']:.3f} ± {probe['lead']['error']:.3f}"
    cells += [f"{probe['seconds']:.0f} s", "holds" if probe["holds"] else "DOES NOT HOLD"]
    return f"| {' | '.join(cells)} |"


def main(arguments: list[str]) -> int:
    """Probe every case, print a table, and return 1 if a case does not hold."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.science.probes")
    parser.add_argument("--write", action="store_true", help="write probes.json beside this file")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="RNG seeds of each case")
    parser.add_argument("--case", type=int, choices=range(len(CASES)), help="only this case; others stay as written")
    parsed = parser.parse_args(arguments)
    torch.set_num_threads(1)
    print("| host | task | RNG seed | verdict | largest gain | nats | price | core | |\n" + "| --- " * 9 + "|")
    probes = []
    for host, task in CASES if parsed.case is None else [CASES[parsed.case]]:
        for seed in range(parsed.seeds):
            probes.append(probed(host, task, seed))
            print(line(probes[-1]), flush=True)
    if parsed.write:
        file = Path(__file__).with_suffix(".json")
        before = (
            json.loads(file.read_text(encoding="utf-8"))["probes"] if parsed.case is not None and file.exists() else []
        )
        kept = [probe for probe in before if (probe["host"], probe["task"]) != CASES[parsed.case]]
        probes = sorted([*kept, *probes], key=lambda probe: CASES.index((probe["host"], probe["task"])))
        origin = {"date": f"{datetime.date.today()}", "python": platform.python_version(), "torch": version("torch")}
        text = json.dumps({**origin, "probes": probes}, indent=1, allow_nan=False)
        file.write_text(f"{text}\n", encoding="utf-8")
    return 0 if all(probe["holds"] for probe in probes) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
