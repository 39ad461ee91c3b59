"""Commands ``esper watch`` and ``esper report``."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import click


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def watch(run: Path, *, as_json: bool) -> None:
    """Show curves and seed lives of a run. The run may still be going, or have been killed."""
    from esper_watch import terminal
    from esper_watch.history import read_history

    history = read_history(_run_folder(run))
    if as_json:
        click.echo(json.dumps(terminal.as_json(history), allow_nan=False))
    else:
        click.echo(terminal.draw(history, width=shutil.get_terminal_size((80, 24)).columns))


def _svg_file(_context: click.Context, _parameter: click.Parameter, given: Path | None) -> Path | None:
    """Refuse a file with another extension than ``.svg``: no program would open it."""
    if given is None or given.is_dir() or given.suffix.lower() == ".svg":
        return given
    from esper_core.leyline.text import printable

    raise click.BadParameter(printable(f"expected a file that ends with .svg, received {given}"))


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), help="File for the page; default: report.html in RUN.")
@click.option(
    "--picture",
    type=click.Path(path_type=Path),
    callback=_svg_file,
    help="Write one SVG picture to this file instead of the page.",
)
def report(run: Path, *, out: Path | None, picture: Path | None) -> None:
    """Write the report of a run as one HTML page. The run may still be going, or have been killed."""
    from esper_core.leyline.text import printable
    from esper_watch.report import write_picture, write_report

    if out is not None and picture is not None:
        msg = "--out names the page and --picture replaces it: give one of them"
        raise click.UsageError(msg)
    folder = _run_folder(run)
    written = write_report(folder, out) if picture is None else write_picture(folder, picture)
    click.echo(printable(str(written)))


def _run_folder(run: Path) -> Path:
    """Return ``run`` if it exists, else the folder below ``runs`` with this id, or with these words of an id."""
    if run.exists():
        return run
    from esper_core import load_run

    return load_run(run).path
