"""``esper resume``: go on with a run that was interrupted, to the numbers that it would have had."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from esper_core.cli.rendering import print_json, print_line, print_warning, print_warnings
from esper_core.cli.run import prepared_run
from esper_core.leyline.errors import Problem, RunFolderError

if TYPE_CHECKING:
    from esper_core.app.running import Outcome


@click.command()
@click.argument("run", type=click.Path(path_type=Path), metavar="RUN")
@click.option("--quiet", is_flag=True, help="No progress.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, last, on stdout.")
def resume(run: Path, *, quiet: bool, as_json: bool) -> None:
    """Go on with a run that was interrupted or killed, from its newest checkpoint.

    \b
    esper resume runs/20261121-101512-quiet-otter
    """
    from esper_core.runs.directory import RunDirectory
    from esper_core.runs.versions import changed_packages

    if not (run / "manifest.json").is_file():
        hint = "Name the folder of a run:  esper runs list"
        raise RunFolderError(Problem("E414", f"{run} is not a run directory: it has no manifest.json", hint=hint))
    manifest: dict[str, Any] = RunDirectory.at(run).manifest
    if manifest["status"] == "done":
        print_line(f"{run} is done: there is nothing left to do. See:  esper runs show {run}", stream=sys.stderr)
        return
    prepared = prepared_run(run / "config.yaml", ())
    print_warnings((*prepared.warnings, *changed_packages(manifest, run)))

    from esper_core.app.running import resume as go_on
    from esper_core.cli.outcome import show_outcome
    from esper_core.cli.progress import progress

    found: list[Outcome] = []
    try:
        with progress(quiet=quiet) as listeners:
            go_on(prepared, run, argv=sys.argv, listeners=listeners, found=found.append, tell=print_warning)
    finally:
        for outcome in found:  # also where it could not be written
            print_json(outcome.as_json()) if as_json else show_outcome(outcome)
