"""Probe hosts whose deficits are known: what is found, and how often something is found where nothing is.

    python -m benchmarks.science.probes            # every case with five RNG seeds: about ten minutes of one core
    python -m benchmarks.science.probes --write    # also writes probes.json beside this file

Each probe has the default settings and a budget of 60 seconds, counted as seconds of one core, so that other work on
the machine does not matter. The cases: ``pointwise-mlp`` on MNIST-1D, which cannot see shapes before a convolution
grows in its first slot; the same host on shuffled positions, where a convolution brings its capacity alone; and
``cnn1d`` on MNIST-1D, which sees shapes already. There a block may still be worth the little that it costs: if one
pays, it has to gain more than its price once more, in another trial, on examples that the probe has not seen. A case
holds if it does with every RNG seed.
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
from esper_grow.gardener.validation import Validation
from esper_grow.probes.budget import BudgetClock
from esper_grow.probes.search import ProbeSettings, prepared
from esper_grow.probes.trainings import guarded, new_training

if TYPE_CHECKING:
    from torch import Tensor, nn

    from esper_core.leyline import Evidence
    from esper_grow.probes import ProbeResult, ProbeRow
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
    train, held_out, unseen = (
        (torch.as_tensor(split.inputs), torch.as_tensor(split.targets)) for split in map(data.split, SPLITS)
    )
    loader = DataLoader(TensorDataset(*train), batch_size=100, shuffle=True)
    clock = BudgetClock(BUDGET, process_time)
    training = new_training(model, partial(torch.optim.Adam, lr=1e-3), guarded(per_example), None, seed, process_time)
    settings = ProbeSettings.of({"seed": seed})
    with prepared(training, loader, [held_out], "auto", "auto", settings, clock) as search:
        result = search.run()
        lead = None if task != "mnist1d-shuffled" else convolutions_ahead(search)
        again = None if result.best is None else gain_again(search, result.best, [unseen])
    judged = {"lead": lead, "again": again, "holds": holds(result, lead, again)}
    return {"host": host, "task": task, "seed": seed, **judged, **result.to_dict()}


SPLITS: Final = ("train", "validation", "test")


def gain_again(search: Search, row: ProbeRow, unseen: list[tuple[Tensor, Tensor]]) -> dict[str, float]:
    """Return what a candidate gains in a trial with other random numbers and batches, on unseen examples."""
    (candidate,) = (
        candidate
        for candidate in search.candidates
        if (candidate.slot, candidate.variety.id) == (row.slot, row.blueprint)
    )
    losses, validation = [], Validation(unseen, search.training.loss, seed=0)
    for grows in (False, True):
        training = search.training.copy(AGAIN, search.settings.growth.average)
        if grows:
            training.plant(candidate.slot, candidate.variety, AGAIN, search.batches.first())
        stream = search.batches.stream("again")
        for _ in range(row.steps):
            training.step(next(stream))
        losses.append(training.evaluate(validation, again=grows))
    evidence = compare_losses(losses[0], losses[1], GATE_ALPHA)
    return {"gain": evidence.mean, "error": evidence.standard_error, "at_least": evidence.lower}


AGAIN: Final = 1000
"""RNG seed of the second trial."""


def convolutions_ahead(search: Search) -> dict[str, Any] | None:
    """Return by how much the best convolution gains more than ``pointwise`` in its slot, after the same steps.

    ``at_least`` is what one of these differences, less the difference of the prices, exceeds with a probability of
    95 %, for all convolutions and RNG seeds together. It is above 0 if a convolution is ahead beyond error and by more
    than what it costs more: with several times the parameters it learns faster wherever there is something to learn.
    """
    pairs = _pairs(search)
    alpha = GATE_ALPHA / (SEEDS * max(1, len(pairs)))
    leads = [
        (convolution, lead_over(convolution, pointwise, alpha), max(0.0, convolution.price - pointwise.price))
        for convolution, pointwise in pairs
    ]
    if not leads:
        return None
    best, lead, _ = max(leads, key=lambda ahead: ahead[1].mean)
    at_least = max(evidence.lower - dearer for _, evidence, dearer in leads)
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


def holds(result: ProbeResult, lead: dict[str, Any] | None, again: dict[str, float] | None) -> bool:
    """Return whether the probe found what is known of the host, and what pays, pays again."""
    best = result.best
    if best is not None and (again is None or again["at_least"] <= best.price):
        return False
    if result.model == "PointwiseMlp" and lead is None:
        return best is not None and (best.slot, best.short in CONVOLUTIONS) == ("stem", True)
    return result.verdict != "undecided" and (lead is None or lead["at_least"] <= 0.0)


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
