"""``esper runs``: list the runs in a folder, and show the results of one."""

from __future__ import annotations

import os
from collections import Counter
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from click.core import ParameterSource

from esper_core.leyline.errors import RunFolderError, printable
from esper_core.leyline.lifecycle import Stage
from esper_core.telemetry import read_events
from esper_run.cli.main import OpenGroup
from esper_run.cli.output import (
    is_wide,
    print_facts,
    print_finding,
    print_json,
    print_line,
    print_results,
    print_table,
    print_warnings,
    print_wrapped,
    timing_text,
)
from esper_run.config.values import cut
from esper_run.formats import (
    NO_BREAK,
    STAGE_WORDS,
    UNKNOWN,
    format_number,
    format_reason,
    format_seconds,
    format_value,
    metric_of,
)
from esper_run.options import runs_dir_option
from esper_run.runs.directory import STATUS_RUNNING
from esper_run.runs.findings import check_command, lost_text
from esper_run.runs.records import Run, UnreadableRun, changed_events, list_runs, load_run, read_growth

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@click.group(cls=OpenGroup)
def runs() -> None:
    """List runs, or show the results of one."""


@runs.command("list")
@runs_dir_option
@click.option("--json", "as_json", is_flag=True, help="Print a list of {id, path, status, started, arms, …} as JSON.")
@click.pass_context
def list_command(context: click.Context, runs_dir: Path | str, *, as_json: bool) -> None:
    """List the runs, the newest first; then folders that are not runs or cannot be read.

    The status "died" means that the process of the run ended without finishing it.
    """
    asked_for = context.get_parameter_source("runs_dir") is not ParameterSource.DEFAULT
    listed_runs = list_runs(runs_dir) if asked_for or Path(runs_dir).exists() else []
    if as_json:
        print_json([_entry(run) for run in listed_runs])
    elif listed_runs:
        print_table(["run", "status", "began", "took", "test"], [_row(run) for run in listed_runs])
    else:
        print_line(f"There is no run in {printable(str(runs_dir))}.")


@runs.command("show")
@click.argument("run")
@runs_dir_option
@click.option("--seeds", "list_seeds", is_flag=True, help="Show every seed: its last stage, gain, price and reason.")
@click.option("--json", "as_json", is_flag=True, help="Print {path, status, manifest, summary, grown} as JSON.")
def show_command(run: str, runs_dir: Path | str, *, list_seeds: bool, as_json: bool) -> None:
    """Show one run: its status, results, what grew, and where its time went. --seeds: why a seed was kept.

    \b
    esper runs show runs/20261121-101512-quiet-otter
    esper runs show quiet-otter --seeds
    """
    record = load_run(run, runs_dir=runs_dir)
    if (changed := changed_events(record)) is not None:
        print_warnings([changed])
    if list_seeds:
        try:
            seeds, unit = _read_seeds(record)
        except OSError as error:
            raise RunFolderError.unreadable(record.events, error) from None
        _show_seeds(seeds, unit, (record.summary or {}).get("warnings") or (), as_json=as_json)
        return
    # How often each blueprint grew in an episode, on average, the most frequent first.
    grown = {
        arm: {name: count / len(episodes) for name, count in Counter(chain(*episodes)).most_common()}
        for arm, episodes in read_growth(record).items()
    }
    if as_json:
        parts = {"path": record.shown_path, "status": record.status, "manifest": record.manifest}
        print_json(parts | {"summary": record.summary, "grown": grown})
        return
    _show_facts(record)
    if record.summary is None:
        is_running = record.status == STATUS_RUNNING
        print_line(f"\nThere are no results{' yet' if is_running else ''}.")
        if not is_running and record.status != "done":
            print_line(printable(record.resume_hint))
    else:
        print_line()
        print_results(record.summary["results"])
        if grown:
            print_line()
        for arm, averages in grown.items():
            counts = ", ".join(f"{format_number(average)} × {name}" for name, average in averages.items()) or "nothing"
            print_wrapped(f"{arm} grew on average: {counts}")
        print_line()
        print_wrapped(f"time: {timing_text(record.summary['timing'])}")
        names, command = ("blueprint", "package", "what", "lost", "tried"), ""
        for losses in record.summary.get("lost_seeds", []):
            print_wrapped(lost_text(*(losses[name] for name in names)))
            command = check_command(losses["blueprint"], losses["package"])
        print_finding(record.summary["results"], record.shown_path, lost=command)


# --- the list


def _entry(run: Run | UnreadableRun) -> dict[str, Any]:
    if isinstance(run, UnreadableRun):
        return {"id": run.path.name, "path": run.shown_path, "status": run.status, "problem": run.problem.as_json()}
    results = run.results or {"metric": None, "arms": {}}
    return {
        "id": run.id,
        "path": run.shown_path,
        "status": run.status,
        "started": run.manifest["started"],
        "seconds": run.seconds,
        "metric": results["metric"],
        "arms": {name: arm["test"] for name, arm in results["arms"].items()},
    }


def _row(run: Run | UnreadableRun) -> list[str]:
    if isinstance(run, UnreadableRun):  # without its path: the name is in the first column
        reason = run.problem.message.replace(f"{run.shown_path}{os.sep}", "").replace(run.shown_path, "this")
        return [run.path.name, run.status, "", "", cut(reason, 100)]
    if run.results is None:
        headline = cut(run.reason.partition("\n")[0], 100)
    else:
        metric = metric_of(run.results)
        means = (f"{name} {format_value(metric, arm['test']['mean'])}" for name, arm in run.results["arms"].items())
        headline = f"{metric.name}: {', '.join(means)}"
    return [run.path.name, run.status, f"{run.started.astimezone():%Y-%m-%d %H:%M}", _took(run), headline]


def _took(run: Run) -> str:
    """Return how long a run took; empty if it has not ended."""
    return "" if run.seconds is None else format_seconds(run.seconds)


# --- one run

FIGURES: Final = ("gain", "gain_error", "price")
"""Figures of a seed, in the order of their columns."""


def _read_seeds(run: Run) -> tuple[list[dict[str, Any]], str]:
    """Return the seeds in order of birth, with latest stage, its reason, gain and price, and the unit of these two."""
    rows: dict[tuple[int, str, int, str, str], dict[str, Any]] = {}
    seeds: list[dict[str, Any]] = []
    unit = "nats"
    for event in read_events(run.events):
        if event.type == "run-started":
            unit = event.gains_in
        elif event.type == "stage-changed":
            key = (event.round, event.arm, event.seed, event.slot, event.blueprint)
            if event.was is None:
                named = dict(zip(("round", "arm", "seed", "slot", "blueprint"), key, strict=True))
                rows[key] = {**named, "gain": None, "gain_error": None, "price": None}
                seeds.append(rows[key])
            rows[key].update(stage=event.now.value, step=event.step, reason=format_reason(event.reason))
        elif event.type == "step-finished":
            for slot in event.signals.slots:
                for seed in slot.seeds:
                    row = rows.get((event.round, event.arm, event.seed, slot.name, seed.blueprint), {})
                    if seed.gain is not None:
                        row.update(gain=seed.gain.mean, gain_error=seed.gain.standard_error)
                    if seed.opinion is not None and seed.opinion.price is not None:
                        row["price"] = seed.opinion.price
    return seeds, unit


def _show_seeds(seeds: Sequence[Mapping[str, Any]], unit: str, warnings: Sequence[str], *, as_json: bool) -> None:
    if as_json:
        print_json(seeds)
    elif not seeds:
        print_line("No seed germinated.")
        for warning in warnings:
            print_wrapped(f"warning: {warning}")
    else:
        head = ["round", "arm", "network", "slot", "blueprint", "stage", f"gain ± s.e. ({unit})", "price", "reason"]
        rows = [_cells(seed) for seed in seeds]
        if is_wide(head, *rows):
            rounds = len({seed["round"] for seed in seeds})
            for row in rows:
                _print_seed(row, unit, of_one_round=rounds == 1)
        else:
            print_table(head, rows)


def _print_seed(cells: Sequence[str], unit: str, *, of_one_round: bool) -> None:
    """Print a seed in the lines of a narrow terminal."""
    round_, arm, seed, slot, blueprint, stage, gain, price, reason = cells
    place = f"network {seed} of {arm}" if of_one_round else f"network {seed} of {arm}, round {round_}"
    parts = [f"{place}: {blueprint} in {slot} {stage}"]
    parts += [f"gain {gain} {unit}"] if gain else []
    parts += [f"price {price}"] if price else []
    print_wrapped(", ".join(parts))
    print_wrapped(f"  {reason}", indent=4)


def _cells(seed: Mapping[str, Any]) -> list[str]:
    gain, error, price = (format_number(seed[key], decimals=4, signed=key == "gain") for key in FIGURES)
    gain = "" if gain == UNKNOWN else f"{gain}{NO_BREAK}±{NO_BREAK}{error}"
    price = "" if price == UNKNOWN else price
    names = [str(seed[key]) for key in ("round", "arm", "seed", "slot", "blueprint")]
    return [
        *names,
        STAGE_WORDS[Stage(seed["stage"])],
        gain,
        price,
        cut(seed["reason"].splitlines()[0] if seed["reason"] else "", 200),
    ]


def _show_facts(run: Run) -> None:
    manifest = run.manifest
    machine, git, seeds = (_mapping(manifest.get(key)) for key in ("machine", "git", "seeds"))
    sha = (
        f"{str(git['sha'])[:12]}{', changed' if git.get('dirty') else ''}"
        if git.get("sha")
        else "not in a git repository"
    )
    first, count, seeds_text = seeds.get("first"), seeds.get("count"), ""
    if isinstance(first, int) and isinstance(count, int):
        seeds_text = f"RNG seed {first}" if count == 1 else f"RNG seeds {first} to {first + count - 1}"
    plugins = [_mapping(plugin) for plugin in manifest.get("plugins") or []]
    facts = [
        ("status", run.status + (f", exit {manifest['exit']}" if manifest.get("exit") is not None else "")),
        ("reason", run.reason),
        ("began", f"{run.started.astimezone():%Y-%m-%d %H:%M:%S}"),
        ("took", _took(run)),
        ("uploaded", run.uploaded),
        ("command", " ".join(str(word) for word in manifest.get("argv") or [])),
        ("seeds", seeds_text),
        ("git", sha),
        ("machine", ", ".join(f"{key} {machine[key]}" for key in ("esper-core", "torch", "python") if key in machine)),
        ("plugins", ", ".join(f"{plugin.get('package')} {plugin.get('version')}" for plugin in plugins)),
    ]
    print_line(printable(run.shown_path))
    print_facts([(name, text.split("\n")[0]) for name, text in facts])


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
