"""Commands ``esper watch``, ``esper report`` and ``esper compare``."""

from __future__ import annotations

import json
import math
import shutil
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from esper_run.options import PathOrURL, run_name, runs_dir_option

if TYPE_CHECKING:
    from collections.abc import Callable

    from esper_watch.history import History


@click.command()
@click.argument("run", type=PathOrURL(path_type=Path), required=False, shell_complete=run_name())
@runs_dir_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--web", is_flag=True, help="Serve live pages for a browser; without RUN, of all runs.")
@click.option("--host", metavar="ADDRESS", help="With --web: listen on this address.  [default: 127.0.0.1]")
@click.option("--port", type=click.IntRange(0, 65535), help="With --web: listen on this port.  [default: 6174]")
@click.option("--open", "open_browser", is_flag=True, help="With --web: open a browser.")
def watch(
    run: Path | str | None,
    runs_dir: Path | str,
    host: str | None,
    port: int | None,
    *,
    as_json: bool,
    web: bool,
    open_browser: bool,
) -> None:
    """Show curves and seed lives of a run. The run may still be going, or have been killed.

    On a terminal a run that is still going is followed until it ends, or until Ctrl-C. Of a stored run, which a URL
    names, the last upload is shown.
    """
    if web:
        from esper_watch.web.beside import require_extra

        require_extra()
        from esper_watch.web.command import serve_runs

        serve_runs(run, runs_dir, host=host, port=port, open_browser=open_browser)
        return
    if host or port is not None or open_browser:
        msg = "--host, --port and --open need --web"
        raise click.UsageError(msg)
    if run is None:
        msg = "name a run, or show all of them:  esper watch --web"
        raise click.UsageError(msg)
    from esper_watch import terminal

    folder = _run_folder(run, runs_dir)
    is_stored = isinstance(run, str) or isinstance(runs_dir, str)
    history = _followed(folder) if sys.stdout.isatty() and not as_json and not is_stored else None
    if history is None:
        from esper_watch.history import read_history

        history = read_history(folder)
        _warn_of_changed_events(folder)
    if as_json:
        click.echo(json.dumps(terminal.as_json(history), allow_nan=False))
    else:
        size = shutil.get_terminal_size((80, 24))
        height = size.lines if sys.stdout.isatty() else None
        terminal.echo(terminal.draw(history, width=size.columns, height=height))


def _warn_of_changed_events(folder: Path) -> None:
    from esper_core import EsperError
    from esper_core.leyline.errors import printable
    from esper_run.runs.records import changed_events, read_run
    from esper_watch.terminal import echo

    with suppress(EsperError):  # what is shown needs no manifest
        if (changed := changed_events(read_run(folder))) is not None:
            echo(f"warning: {printable(changed)}", err=True)


def _followed(run: Path) -> History | None:
    """Draw a run live until it has ended.

    None on a terminal that cannot be drawn on, without events, or if the run cannot be followed: reading it tells why.
    """
    from rich.console import Console

    from esper_core import EsperError
    from esper_watch.progress import follow

    console = Console()
    if not console.is_terminal or console.is_dumb_terminal or not (run / "events.jsonl").exists():
        return None
    try:
        return follow(run, console)
    except EsperError:
        return None


def _ending_with(*suffixes: str) -> Callable[[click.Context, click.Parameter, Path | None], Path | None]:
    """Return a check of an option's file name, since an option without a value would take the next argument as one."""

    def check(_context: click.Context, _parameter: click.Parameter, path: Path | None) -> Path | None:
        if path is None or path.suffix.lower() in suffixes:
            return path
        from esper_core.leyline.errors import printable

        raise click.BadParameter(printable(f"expected a file that ends with {suffixes[0]}, received {path}"))

    return check


@click.command()
@click.argument("run", type=PathOrURL(path_type=Path), shell_complete=run_name())
@runs_dir_option
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="File for the page; default: report.html in RUN; of a stored run, ID.html.",
)
@click.option(
    "--picture",
    type=click.Path(path_type=Path),
    callback=_ending_with(".svg"),
    help="Draw a network growing, step by step, as SVG in this file, instead of the page.",
)
def report(run: Path | str, runs_dir: Path | str, *, out: Path | None, picture: Path | None) -> None:
    """Write the report of a run as one HTML page. The run may still be going, or have been killed."""
    from esper_core.leyline.errors import printable
    from esper_watch.report import write_picture, write_report

    if out is not None and picture is not None:
        msg = "--out and --picture exclude each other: give one of them"
        raise click.UsageError(msg)
    folder = _run_folder(run, runs_dir)
    if isinstance(run, str) or isinstance(runs_dir, str):
        out = out or Path(f"{folder.name}.html")
    written = write_report(folder, out) if picture is None else write_picture(folder, picture)
    click.echo(printable(str(written)))


@click.command()
@click.argument("runs", nargs=-1, required=True, metavar="RUN...", shell_complete=run_name(finished=True))
@runs_dir_option
@click.option(
    "--arm", "arms", multiple=True, metavar="NAME", help="Compare only arms of this name; all of their pairs."
)
@click.option(
    "--all",
    "every",
    is_flag=True,
    help="Compare every pair of arms, also controls.",
)
@click.option("--json", "as_json", is_flag=True, help="Print {runs, metric, margin, arms, comparisons, warnings}.")
@click.option(
    "--html",
    "page",
    type=click.Path(path_type=Path, dir_okay=False),
    callback=_ending_with(".html", ".htm"),
    metavar="FILE",
    help="Also write a page.",
)
def compare(
    runs: tuple[str, ...], runs_dir: Path | str, arms: tuple[str, ...], page: Path | None, *, every: bool, as_json: bool
) -> None:
    """Compare the arms of one or several finished runs.

    \b
    esper compare quiet-otter swift-heron
    esper compare quiet-otter swift-heron --arm heuristic
    esper compare quiet-otter --html comparison.html

    RUN is a folder, an id below --runs-dir, or the words of an id. Runs that share their task and seeds are compared
    seed by seed.

    One run: the pairs of its summary. Several runs: each arm with its controls, with the other arms of its run, and
    with the arm of its name in the other runs, or with every arm there if no name is shared.
    """
    from esper_core.leyline.errors import printable
    from esper_run import load_run
    from esper_watch.comparison import compare_runs
    from esper_watch.comparison_view import comparison_page, comparison_text
    from esper_watch.report import write_atomically
    from esper_watch.terminal import echo

    compared = compare_runs([load_run(name, runs_dir=runs_dir) for name in runs], arms, every=every)
    for warning in compared.warnings:
        echo(f"warning: {printable(warning)}", err=True)
    if page is not None:
        hint = "Give --html a file in an existing folder that can be written to."
        write_atomically(page, comparison_page(compared), hint)
        echo(f"Written: {printable(str(page))}", err=True)
    echo(json.dumps(_without_nan(compared.as_json()), allow_nan=False) if as_json else comparison_text(compared))


def _without_nan(value: Any) -> Any:
    """Return JSON data with None in place of numbers that are not finite, which JSON cannot hold."""
    if isinstance(value, dict):
        return {key: _without_nan(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _run_folder(run: Path | str, runs_dir: Path | str) -> Path:
    """Return ``run`` if it exists, else the run in ``runs_dir`` with this id or these words; of stored runs a copy."""
    if isinstance(run, Path) and run.exists():
        return run
    from esper_run import load_run

    return load_run(run, runs_dir=runs_dir).path
