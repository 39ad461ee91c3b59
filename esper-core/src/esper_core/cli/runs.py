"""``esper runs``: which runs are there, how did they end, and what did one of them find?"""

from __future__ import annotations

import os
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from click.core import ParameterSource

from esper_core.cli.courses import BLOCKS, LETTERS, course_of, spark
from esper_core.cli.figures import duration, fits, print_results, value
from esper_core.cli.rendering import aligned, encodes, print_json, print_line, print_table, print_wrapped, visible
from esper_core.leyline.columns import cut

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from esper_core.runs.records import Run, UnreadableRun


REASON: Final = 100
"""Characters of the list that a reason may take."""


@click.group()
def runs() -> None:
    """Show the runs that are there, or what one of them found."""


_where = click.option(
    "--runs-dir", type=click.Path(path_type=Path), default=Path("runs"), show_default=True, help="Where runs are kept."
)


@runs.command("list")
@_where
@click.option("--json", "as_json", is_flag=True, help="Print a list of {id, path, status, started, arms, …} as JSON.")
@click.pass_context
def list_command(context: click.Context, runs_dir: Path, *, as_json: bool) -> None:
    """List the runs, the newest first; then folders that are no runs, or cannot be read.

    A run that says that it is running and whose process is gone has died. The course is that of the validation metric:
    of the best arm that may grow, mean over its environments, drawn between its lowest and its highest figure.
    """
    from esper_core.runs.records import list_runs

    asked_for = context.get_parameter_source("runs_dir") is not ParameterSource.DEFAULT
    found = list_runs(runs_dir) if asked_for or runs_dir.exists() else []
    if as_json:
        print_json([_entry(one) for one in found])
    elif found:
        signs = BLOCKS if encodes(sys.stdout, BLOCKS) else LETTERS
        _print_list([_row(one, signs) for one in found])
    else:
        print_line(f"There is no run in {visible(str(runs_dir))}.")


@runs.command("show")
@click.argument("run")
@_where
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
        _show_absence(record)
    else:
        from esper_core.cli.outcome import print_sections

        print_line()
        print_results(record.summary["results"])
        if grown:
            print_line()
        _show_grown(grown)
        _show_timing(record.summary["timing"])
        print_sections(record.summary.get("sections", []))


def _show_absence(run: Run) -> None:
    """Why a run has no figures, and the way on where it can go on."""
    from esper_core.runs.directory import STATUS_RUNNING
    from esper_core.runs.records import DIED, can_resume

    if run.status == STATUS_RUNNING:
        print_line("\nThere are no figures yet: the run goes on.")
        return
    told = {
        DIED: "the run was killed, or its machine went down",
        "done": "its summary is missing",
        "failed": "the run failed",
        "interrupted": "the run was interrupted",
        "stopped": "the governor stopped the run",
    }
    print_line()
    print_wrapped(f"There are no figures: {told.get(run.status, f'the status of the run is {run.status}')}.")
    if run.status != "done" and can_resume(run.path, run.status):
        print_line(visible(run.resume_hint))


def _print_list(rows: Sequence[Sequence[str]]) -> None:
    """A table; where it would be too wide, two lines for each run. No id is cut off: it is there to be copied."""
    head = ["run", "status", "began", "took", "course", "test"]
    if fits(head, rows):
        print_table(head, rows)
        return
    for name, status, began, took, course, told in rows:
        print_line(visible(f"{name}  {status}  {course}").rstrip())
        when = ", ".join(filter(None, (began, took)))
        print_wrapped("  " + "; ".join(filter(None, (when, told))))


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
        "course": None if (course := course_of(one)) is None else course.as_json(),
    }


def _row(one: Run | UnreadableRun, signs: str) -> list[str]:
    from esper_core.runs.records import UnreadableRun

    if isinstance(one, UnreadableRun):
        return [one.path.name, one.status, "", "", "", _cut(_within(one))]
    began = f"{one.started.astimezone():%Y-%m-%d %H:%M}"
    course = course_of(one)
    drawn = "" if course is None else spark(course.values, signs)
    return [one.path.name, one.status, began, duration(one.seconds), drawn, _headline(one)]


def _headline(run: Run) -> str:
    """The mean of each arm; of a run without an end why it has none."""
    if run.results is None:
        return _cut(next(iter(run.reason.splitlines()), ""))
    metric = run.results["metric"]
    arms = (f"{name} {value(metric, arm['test']['mean'])}" for name, arm in run.results["arms"].items())
    return f"{metric['name']}: {', '.join(arms)}"


def _within(odd: UnreadableRun) -> str:
    """What is wrong with a folder, without its path: its name stands in front."""
    return odd.problem.message.replace(f"{odd.path}{os.sep}", "").replace(str(odd.path), "this")


def _cut(reason: str) -> str:
    """A reason as the list has room for it; ``runs show`` has the whole."""
    return cut(reason, REASON)


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
    print_line(visible(str(run.path)))
    known = [("", name, told.split("\n")[0]) for name, told in facts if told]
    under = max(len(name) for _, name, _ in known) + 4
    for line in aligned(known):
        print_wrapped(line, under=under)


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _average(episodes: Sequence[Sequence[str]]) -> dict[str, float]:
    """How many of each grew in an episode, on average; those that grew most often first."""
    counts = Counter(name for grown in episodes for name in grown)
    return {name: count / len(episodes) for name, count in counts.most_common()}


def _show_grown(grown: Mapping[str, Mapping[str, float]]) -> None:
    for arm, averages in grown.items():
        told = ", ".join(f"{average:.2g} × {name}" for name, average in averages.items()) or "nothing"
        print_wrapped(f"{arm} grew on average: {told}")


def _show_timing(timing: Mapping[str, float]) -> None:
    total = timing.get("total") or 1.0
    regions = sorted(((spent, name) for name, spent in timing.items() if name != "total"), reverse=True)
    told = [f"{name} {100 * spent / total:.0f} %" for spent, name in regions if spent >= 0.005 * total]
    print_line()
    print_wrapped(f"time: {timing.get('total', 0):.1f} s: {', '.join(told)}")
