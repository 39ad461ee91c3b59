"""``esper runs``: list the runs in a folder, and show what one of them found."""

from __future__ import annotations

import os
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import click
from click.core import ParameterSource

from esper_core.cli.output import (
    aligned,
    duration,
    fits,
    print_json,
    print_line,
    print_results,
    print_table,
    print_wrapped,
    value,
)
from esper_core.cli.run import runs_dir_option
from esper_core.leyline.errors import printable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from esper_core.runs.records import Run, UnreadableRun

MAX_REASON: Final = 100
"""Characters that a reason may take in the list; ``runs show`` has the whole."""


@click.group()
def runs() -> None:
    """List the runs, or show what one of them found."""


@runs.command("list")
@runs_dir_option
@click.option("--json", "as_json", is_flag=True, help="Print a list of {id, path, status, started, arms, …} as JSON.")
@click.pass_context
def list_command(context: click.Context, runs_dir: Path, *, as_json: bool) -> None:
    """List the runs, the newest first; then folders that are not runs or cannot be read.

    A run whose process is gone before its end has died.
    """
    from esper_core.runs.records import list_runs

    asked_for = context.get_parameter_source("runs_dir") is not ParameterSource.DEFAULT
    found = list_runs(runs_dir) if asked_for or runs_dir.exists() else []
    if as_json:
        print_json([_entry(one) for one in found])
    elif found:
        _print_list([_row(one) for one in found])
    else:
        print_line(f"There is no run in {printable(str(runs_dir))}.")


@runs.command("show")
@click.argument("run")
@runs_dir_option
@click.option("--json", "as_json", is_flag=True, help="Print {path, status, manifest, summary, grown} as JSON.")
def show_command(run: str, runs_dir: Path, *, as_json: bool) -> None:
    """Show one run: how it ended, what it found, where its time went, what grew.

    \b
    esper runs show runs/20261121-101512-quiet-otter
    esper runs show quiet-otter                          below --runs-dir
    """
    from esper_core.runs.records import load_run, read_growth

    record = load_run(run, runs_dir=runs_dir)
    grown = {arm: _average(episodes) for arm, episodes in read_growth(record.path).items()}
    if as_json:
        parts = {"path": str(record.path), "status": record.status, "manifest": record.manifest}
        print_json(parts | {"summary": record.summary, "grown": grown})
        return
    _show_facts(record)
    if record.summary is None:
        _show_why_no_results(record)
    else:
        from esper_core.cli.output import print_sections

        print_line()
        print_results(record.summary["results"])
        if grown:
            print_line()
        for arm, averages in grown.items():
            counts = ", ".join(f"{average:.2g} × {name}" for name, average in averages.items()) or "nothing"
            print_wrapped(f"{arm} grew on average: {counts}")
        _show_timing(record.summary["timing"])
        print_sections(record.summary.get("sections", []))


# --- the list


def _print_list(rows: Sequence[Sequence[str]]) -> None:
    """Print a table; on a narrow terminal two lines for each run. Ids are not cut: they are there to be copied."""
    head = ["run", "status", "began", "took", "test"]
    if fits(head, rows):
        print_table(head, rows)
        return
    for name, status, began, took, headline in rows:
        print_line(printable(f"{name}  {status}"))
        when = ", ".join(filter(None, (began, took)))
        print_wrapped("  " + "; ".join(filter(None, (when, headline))))


def _entry(one: Run | UnreadableRun) -> dict[str, Any]:
    from esper_core.runs.records import UnreadableRun

    if isinstance(one, UnreadableRun):
        return {"id": one.path.name, "path": str(one.path), "status": one.status, "problem": one.problem.as_json()}
    results = one.results
    arms = {} if results is None else {name: arm["test"] for name, arm in results["arms"].items()}
    return {
        "id": one.id,
        "path": str(one.path),
        "status": one.status,
        "started": one.manifest["started"],
        "seconds": one.seconds,
        "metric": None if results is None else results["metric"],
        "arms": arms,
    }


def _row(one: Run | UnreadableRun) -> list[str]:
    from esper_core.runs.records import UnreadableRun

    if isinstance(one, UnreadableRun):  # without its path: its name stands in front
        reason = one.problem.message.replace(f"{one.path}{os.sep}", "").replace(str(one.path), "this")
        return [one.path.name, one.status, "", "", _cut(reason)]
    began = f"{one.started.astimezone():%Y-%m-%d %H:%M}"
    return [one.path.name, one.status, began, duration(one.seconds), _headline(one)]


def _headline(run: Run) -> str:
    """Return the mean of each arm; without results, why there are none."""
    if run.results is None:
        return _cut(next(iter(run.reason.splitlines()), ""))
    metric = run.results["metric"]
    arms = (f"{name} {value(metric, arm['test']['mean'])}" for name, arm in run.results["arms"].items())
    return f"{metric['name']}: {', '.join(arms)}"


def _cut(reason: str) -> str:
    return reason if len(reason) <= MAX_REASON else reason[: MAX_REASON - 1] + "…"


# --- one run


def _show_facts(run: Run) -> None:
    manifest = run.manifest
    machine, git, seeds = (_mapping(manifest.get(key)) for key in ("machine", "git", "seeds"))
    sha = f"{str(git['sha'])[:12]}{', changed' if git.get('dirty') else ''}" if git.get("sha") else "none"
    first, count = seeds.get("first"), seeds.get("count")
    plugins = [_mapping(one) for one in manifest.get("plugins") or []]
    facts = [
        ("status", run.status + (f", exit {manifest['exit']}" if manifest.get("exit") is not None else "")),
        ("reason", run.reason),
        ("began", f"{run.started.astimezone():%Y-%m-%d %H:%M:%S}"),
        ("took", duration(run.seconds)),
        ("command", " ".join(str(word) for word in manifest.get("argv") or [])),
        ("seeds", f"{count} from {first}" if isinstance(count, int) else ""),
        ("git", sha),
        ("machine", ", ".join(f"{key} {machine[key]}" for key in ("esper-core", "torch", "python") if key in machine)),
        ("plugins", ", ".join(f"{one.get('package')} {one.get('version')}" for one in plugins)),
    ]
    print_line(printable(str(run.path)))
    known = [("", name, text.split("\n")[0]) for name, text in facts if text]
    under = max(len(name) for _, name, _ in known) + 4
    for line in aligned(known):
        print_wrapped(line, under=under)


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _show_why_no_results(run: Run) -> None:
    """Print why a run has no results, and how to resume it if that is possible."""
    from esper_core.runs.directory import STATUS_RUNNING
    from esper_core.runs.records import DIED

    if run.status == STATUS_RUNNING:
        print_line("\nThere are no results yet: the run is still running.")
        return
    reasons = {
        DIED: "the run was killed, or its machine went down",
        "done": "its summary is missing",
        "failed": "the run failed",
        "interrupted": "the run was interrupted",
        "stopped": "the governor stopped the run",
    }
    print_line()
    print_wrapped(f"There are no results: {reasons.get(run.status, f'the status of the run is {run.status}')}.")
    if run.status != "done":
        print_line(printable(run.resume_hint))


def _average(episodes: Sequence[Sequence[str]]) -> dict[str, float]:
    """Return how often each blueprint grew in an episode, on average, the most frequent first."""
    counts = Counter(name for grown in episodes for name in grown)
    return {name: count / len(episodes) for name, count in counts.most_common()}


def _show_timing(timing: Mapping[str, float]) -> None:
    total = timing.get("total") or 1.0
    regions = sorted(((spent, name) for name, spent in timing.items() if name != "total"), reverse=True)
    shares = [f"{name} {100 * spent / total:.0f} %" for spent, name in regions if spent >= 0.005 * total]
    print_line()
    print_wrapped(f"time: {timing.get('total', 0):.1f} s: {', '.join(shares)}")
