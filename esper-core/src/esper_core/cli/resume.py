"""``esper resume``: go on with a run that was interrupted, to the numbers that it would have had."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from esper_core.cli.rendering import print_json, print_line, print_warning, print_warnings
from esper_core.cli.run import prepared_run

if TYPE_CHECKING:
    from collections.abc import Iterator

    from esper_core.app.preparing import Prepared
    from esper_core.app.running import Outcome
    from esper_core.runs.records import Run


@click.command()
@click.argument("run")
@click.option(
    "--runs-dir", type=click.Path(path_type=Path), default=Path("runs"), show_default=True, help="Where runs are kept."
)
@click.option("--quiet", is_flag=True, help="No progress.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, last, on stdout.")
def resume(run: str, runs_dir: Path, *, quiet: bool, as_json: bool) -> None:
    """Go on with a run that was interrupted, or killed, from its newest checkpoint.

    It comes to the numbers that it would have had. RUN is the path of a run, its id, or the words of its id.

    \b
    esper resume runs/20261121-101512-quiet-otter
    esper resume quiet-otter
    """
    from esper_core.runs.directory import changed_packages
    from esper_core.runs.records import load_run

    record = load_run(run, runs_dir=runs_dir)
    if record.status == "done":
        print_line(f"{record.path} is done: nothing is left to do. See:  esper runs show {run}", stream=sys.stderr)
        return
    prepared = prepared_run(record.path / "config.yaml", ())
    changed = (*changed_packages(record.manifest, record.path), *_changed_files(prepared, record))
    print_warnings((*prepared.warnings, *changed))

    from esper_core.app.running import resume as go_on
    from esper_core.cli.outcome import show_outcome
    from esper_core.cli.progress import progress

    found: list[Outcome] = []
    try:
        with progress(quiet=quiet) as listeners:
            go_on(prepared, record, argv=sys.argv, listeners=listeners, found=found.append, tell=print_warning)
    finally:
        for outcome in found:  # also where it could not be written
            print_json(outcome.as_json()) if as_json else show_outcome(outcome)


def _changed_files(prepared: Prepared, record: Run) -> Iterator[str]:
    """A warning for each one-file plugin that is not, to the letter, the one that the run began with."""
    from esper_core.plugins.isolation import LOCAL_FILE

    began = {plugin["id"]: plugin.get("sha256") for plugin in record.manifest.get("plugins", [])}
    for plugin in prepared.plugins.records:
        before = began.get(plugin.id)
        if plugin.package == LOCAL_FILE and before is not None and plugin.sha256 != before:
            name = Path(plugin.origin).name
            yield f"{record.path.name} began with another {name}, and goes on with this one: its numbers may be others"
