"""Tables of what benchmarks, studies and examples measured, from the results that are committed.

``generate`` takes ``PARTS``, by the names that the pages mark them with.
"""

from __future__ import annotations

import json
import re
from functools import partial
from operator import itemgetter
from pathlib import Path
from runpy import run_path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from esper_run.runs.statistics import mean_interval

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

DOCS = Path(__file__).parent
BENCHMARKS = DOCS.parent / "benchmarks"
MEASURED = BENCHMARKS / "baseline.json"
STUDY = BENCHMARKS / "headline" / "results" / "report.md"
DEFAULT_RUN = DOCS / "gallery" / "default-run.txt"
SIMULATED = BENCHMARKS / "science" / "verdicts.md"
PROBED = BENCHMARKS / "science" / "probes.json"
GATES = BENCHMARKS / "science" / "gates.txt"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join("| " + " | ".join(cells) + " |\n" for cells in lines)


def measurements() -> str:
    """Return the figures of the baseline with their bounds: the largest of those with the same number and bound."""
    baseline = json.loads(MEASURED.read_text(encoding="utf-8"))
    machine = baseline["machine"]
    system = (
        f"{machine['system']} on {machine['machine']}, {machine['cores']} cores, "
        f"Python {machine['python']}, torch {machine['torch']}"
    )
    largest: dict[Any, dict[str, Any]] = {}
    for figure in sorted(baseline["figures"], key=itemgetter("value")):
        largest[figure["number"], figure["unit"], figure["bound"]] = figure
    rows = []
    for figure in (figure for figure in baseline["figures"] if figure in largest.values()):
        value, bound = (number_with_unit(figure[key], figure["digits"], figure["unit"]) for key in ("value", "bound"))
        missed = bound and figure["value"] > figure["bound"]
        rows.append((figure["number"], figure["label"], value, f"{bound} (missed)" if missed else bound))
    return f"Measured on {baseline['date']}: {system}.\n\n{table(('', 'figure', 'measured', 'at most'), rows)}"


def number_with_unit(value: float | None, digits: int, unit: str) -> str:
    """Return a number with its unit; empty for None."""
    return "" if value is None else f"{value:,.{digits}f} {unit}".strip().replace("-", "−")


def default_run() -> str:
    """Return the results that ``esper run plugins.yaml`` printed."""
    return f"```text\n{DEFAULT_RUN.read_text(encoding='utf-8')}```\n"


def study(*titles: str) -> str:
    """Return some sections of the report of ``benchmarks.headline``; those that it does not have yet are left out."""
    text = STUDY.read_text(encoding="utf-8")
    sections = dict(part.partition("\n\n")[::2] for part in text.split("\n## "))
    return "\n\n".join(sections[title].strip() for title in titles if title in sections) + "\n"


def simulated(table_of: str) -> str:
    """Return a table of the simulations, found by its heading."""
    return SIMULATED.read_text(encoding="utf-8").split(f"## {table_of}\n\n")[1].partition("\n## ")[0]


def probes() -> str:
    """Return what probes of known hosts found: a row for each host and task."""
    if not PROBED.exists():
        return "Not measured yet: `python -m benchmarks.science.probes --write`.\n"
    stored = json.loads(PROBED.read_text(encoding="utf-8"))["probes"]
    cases: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for probe in stored:
        cases.setdefault((probe["host"], probe["task"]), []).append(probe)
    rows = []
    for (host, task), case_probes in cases.items():
        largest = [max(probe["rows"], key=lambda row: row["gain"]) for probe in case_probes]
        paying = [probe["rows"][0] for probe in case_probes if probe["rows"][0]["pays"]]
        first = ", ".join(sorted({f"`{row['blueprint'].rpartition('/')[2]}` in {row['slot']}" for row in paying}))
        pays = f"{len(paying)} of {len(case_probes)}" + (f": {first}" if first else "")
        figures = [
            spread([row[key] for row in rows_of], digits)
            for rows_of, key, digits in ((largest, "gain", 2), (largest, "at_least", 2), (largest, "price", 2))
        ]
        rows.append((f"`{host}`", f"`{task}`", pays, *figures, spread([probe["seconds"] for probe in case_probes], 0)))
    return table(("host", "task", "pays", "largest gain", "at least", "price", "seconds"), rows)


def spread(numbers: list[float], digits: int) -> str:
    """Return the range of some numbers; one number if its ends are written alike."""
    ends = [f"{end:.{digits}f}".replace("-", "−") for end in (min(numbers), max(numbers))]
    return ends[0] if ends[0] == ends[1] else f"{ends[0]} to {ends[1]}"


def gate_cells() -> str:
    """Return how often a worthless seed passes the gate before keeping: the worst of the cells of each correlation."""
    lines = GATES.read_text(encoding="utf-8").split("worthless seeds that pass", 1)[1].splitlines()
    head = [name.strip() for name in re.split(r"  +", lines[1].strip())]
    cells = [re.split(r"  +", line.strip()) for line in lines[2:] if line.strip()[:1].isdigit() and "SE" not in line]
    correlation = head.index("correlation")
    worst: dict[str, list[str]] = {}
    for cell in cells:
        shares = cell[correlation + 1 :]
        worst[cell[correlation]] = [
            max(pair, key=_upper_end) for pair in zip(worst.get(cell[correlation], shares), shares, strict=True)
        ]
    names = [name.replace("tau", "τ") for name in head[correlation:]]
    return table(tuple(names), [(number, *shares) for number, shares in worst.items()])


def _upper_end(share: str) -> float:
    """Return the number in brackets of a share with its upper end, such as ``0.4 % (0.6)``."""
    return float(share.partition("(")[2].rstrip(")"))


def gate_power() -> str:
    """Return how often useful seeds pass, by their place among candidates, and where a gain grows over ten looks."""
    text = GATES.read_text(encoding="utf-8")
    lines = re.findall(r"^correlation ([\d.]+), excess (\d) SE: (.*)$", text, re.MULTILINE)
    rows = [(correlation, f"{excess} SE", *re.findall(r"\d+ %", shares)) for correlation, excess, shares in lines]
    heads = (f"{place}{growing}" for place in ("first", "second", "third") for growing in ("", ", growing"))
    return table(("correlation", "gain above the price", *heads), rows)


PLACED = {
    "all": "all 36 linear layers", "mlp": "the layers of MLPs", "query-value": "query and value",
    "esper": "a plan from a third of the steps", "esper-longer": "a plan from half of the steps",
    "grown": "a plan from a third of the steps, grown",
    "random": "random", "plop": "PLoP's", "lora-drop": "LoRA-drop's", "kappa": "KappaTune's", "adalora": "AdaLoRA's",
    "full": "none: all weights train", "head": "none: the head trains",
}  # fmt: skip
"""Places of adapters in the experiment, by arm."""


def placement() -> str:
    """Return how much higher the loss is with adapters at fewer places than at all, paired over RNG seeds."""
    lines = (BENCHMARKS / "placement" / "records.jsonl").read_text(encoding="utf-8").splitlines()
    by_arm: dict[tuple[str, int], dict[int, dict[str, Any]]] = {}
    for record in map(json.loads, lines):
        by_arm.setdefault((record["arm"], record["budget"]), {})[record["seed"]] = record
    reference = by_arm["all", 70_000]
    rows = []
    for (arm, budget), records in by_arm.items():
        losses = {seed: record["test_loss"] - reference[seed]["test_loss"] for seed, record in records.items()}
        if arm in PLACED and (arm.startswith(("esper", "grown")) or budget != 15_000) and len(losses) > 1:
            size = round(fmean(record["parameters"] for record in records.values()))
            interval = mean_interval(list(losses.values()))
            within = sum(loss <= 0.01 for loss in losses.values())
            shown = f"{interval.mean:+.3f} ({interval.low:+.3f} to {interval.high:+.3f})".replace("-", "−")
            shown = "0" if records is reference else shown
            rows.append((interval.mean, (PLACED[arm], f"{size:,}", shown, f"{within} of {len(losses)}")))
    return table(("adapters", "parameters", "loss above all (95 %)", "within 0.01"), [row for _, row in sorted(rows)])


def gallery() -> str:
    """Return the examples of the gallery with their figures and results."""
    page: Callable[[], str] = run_path(str(DOCS / "gallery.py"))["page"]
    return page()


PARTS: dict[str, Callable[[], str]] = {
    "default-run": default_run,
    "gallery": gallery,
    "gate-cells": gate_cells,
    "gate-power": gate_power,
    "measurements": measurements,
    "placement": placement,
    "needed-seeds": partial(simulated, "RNG seeds needed for a verdict"),
    "probes": probes,
    "study-by-cell": partial(study, "Cell by cell"),
    "study-cells": partial(study, "Cells, on tuning seeds"),
    "study-changed": partial(study, "The data change: accuracy on old and new classes, by budget"),
    "study-criteria": partial(study, "# Growth at equal compute", "Criteria"),
    "study-scratch": partial(study, "From scratch: accuracy and operations"),
    "study-scratch-loss": partial(study, "From scratch: log-loss"),
    "study-trained": partial(study, "A trained network: points of accuracy, by budget"),
    "study-trained-loss": partial(study, "A trained network: nats of log-loss, by budget"),
    "wrong-verdicts": partial(simulated, "Wrong verdicts"),
}
