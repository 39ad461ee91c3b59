"""``esper watch``: what a run directory tells, now. ``esper report``: the same as a page."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import click


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print the story as JSON.")
def watch(run: Path, *, as_json: bool) -> None:
    """Show how the arms of a run do and how its seeds live; a run that goes on or was killed as well."""
    from esper_watch.drawing import draw
    from esper_watch.story import read_story

    story = read_story(_found(run))
    if as_json:
        click.echo(json.dumps(story.as_json(), allow_nan=False))
    else:
        click.echo(draw(story, width=shutil.get_terminal_size((80, 24)).columns))


def _svg_file(_context: click.Context, _parameter: click.Parameter, given: Path | None) -> Path | None:
    """A file whose name says what will be in it: whoever asks for a PNG would get one that no program opens."""
    if given is None or given.is_dir() or given.suffix.lower() == ".svg":
        return given
    from esper_core.leyline.markup import printable

    raise click.BadParameter(printable(f"expected a file that ends with .svg, received {given}"))


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), help="Where the page goes; default: report.html in RUN.")
@click.option(
    "--picture",
    type=click.Path(path_type=Path),
    callback=_svg_file,
    help="Write one picture instead, an SVG, to this file.",
)
def report(run: Path, *, out: Path | None, picture: Path | None) -> None:
    """Write the report of a run: one page that needs no network; of a run that goes on or was killed as well."""
    from esper_core.leyline.markup import printable
    from esper_watch.report import write_picture, write_report

    if out is not None and picture is not None:
        msg = "--out is for the page, and --picture is written instead of it: give one of them"
        raise click.UsageError(msg)
    own = _found(run)
    written = write_report(own, out) if picture is None else write_picture(own, picture)
    click.echo(printable(str(written)))


def _found(run: Path) -> Path:
    """The folder: ``run`` itself, or the run below ``runs`` that is called so, or by the words of its name."""
    if run.exists():
        return run
    from esper_core import load_run

    return load_run(run).path
