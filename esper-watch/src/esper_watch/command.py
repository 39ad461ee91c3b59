"""Commands ``esper watch``, ``esper report`` and ``esper compare``."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import webbrowser
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from esper_core.leyline.errors import printable
from esper_run.cli.output import print_json, print_line, print_warnings
from esper_run.options import PathOrURL, runs_dir_option

if TYPE_CHECKING:
    from esper_watch.web.server import Server

SECONDS_BETWEEN_FETCHES: Final = 10.0
"""How often the copy of a stored run that is watched is updated."""


@click.command()
@click.argument("run", type=PathOrURL(path_type=Path), required=False)
@runs_dir_option
@click.option("--host", metavar="ADDRESS", default="127.0.0.1", show_default=True, help="Listen on this address.")
@click.option(
    "--port", type=click.IntRange(0, 65535), help="Listen on this port.  [default: the first free one from 6174 on]"
)
@click.option("--open", "open_browser", is_flag=True, help="Open a browser.")
@click.option("--beside", type=int, hidden=True, help="End with this process, whose run it is, and not by Ctrl-C.")
def watch(
    run: Path | str | None,
    runs_dir: Path | str,
    host: str,
    port: int | None,
    beside: int | None,
    *,
    open_browser: bool,
) -> None:
    """Serve the page of a run, which follows the run live, until Ctrl-C.

    The run may be going on, be finished, or have been killed. Without RUN it is the newest below --runs-dir. Of a
    stored run, which a URL names, the last upload is shown.
    """
    from esper_watch.web.server import Server

    server = Server(_run_folder(_newest(runs_dir) if run is None else run, runs_dir), host=host, port=port)
    for line in ("Watch in a browser:", server.url, *server.remote_access.splitlines(), "Ctrl-C ends it."):
        print_line(printable(line), stream=sys.stderr)
    if open_browser:
        threading.Timer(0.5, webbrowser.open, [server.url]).start()
    if isinstance(run, str) or isinstance(runs_dir, str):
        threading.Thread(target=_keep_fetching, args=(run, runs_dir), daemon=True).start()
    if beside is not None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the run first, which the page still shows
        threading.Thread(target=_end_with, args=(beside, server), daemon=True).start()
    with server, suppress(KeyboardInterrupt):
        server.serve_forever()


def _end_with(parent: int, server: Server) -> None:
    """End a server once the process that started it has ended, however it did."""
    while os.getppid() == parent:
        time.sleep(0.5)
    server.shutdown()


def _newest(runs_dir: Path | str) -> Path:
    """Return the newest run directory below a folder, by its id, which begins with the time of its start."""
    if isinstance(runs_dir, str):
        msg = f"name one of the runs in the store:  esper watch {runs_dir}/RUN"
        raise click.UsageError(msg)
    runs = [events.parent for events in runs_dir.glob("*/events.jsonl")]
    if not runs:
        msg = f"there is no run in {runs_dir}: name one, or another folder with --runs-dir"
        raise click.UsageError(printable(msg))
    return max(runs, key=lambda path: path.name)


def _keep_fetching(run: Path | str, runs_dir: Path | str) -> None:
    """Update the copy of a stored run that is served, for ever. A failed attempt is followed by another."""
    from esper_core import EsperError
    from esper_run import load_run

    while True:
        time.sleep(SECONDS_BETWEEN_FETCHES)
        with suppress(EsperError):
            load_run(run, runs_dir=runs_dir)


@click.command()
@click.argument("run", type=PathOrURL(path_type=Path))
@runs_dir_option
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="File for the page; default: report.html in RUN; of a stored run, ID.html.",
)
def report(run: Path | str, runs_dir: Path | str, *, out: Path | None) -> None:
    """Write the report of a run as one HTML page. The run may still be going, or have been killed."""
    from esper_watch.report import write_report

    folder = _run_folder(run, runs_dir)
    if isinstance(run, str) or isinstance(runs_dir, str):
        out = out or Path(f"{folder.name}.html")
    click.echo(printable(str(write_report(folder, out))))


@click.command()
@click.argument("runs", nargs=-1, required=True, metavar="RUN...")
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
@click.option("--json", "as_json", is_flag=True, help="Print {runs, metric, arms, comparisons, warnings}.")
def compare(runs: tuple[str, ...], runs_dir: Path | str, arms: tuple[str, ...], *, every: bool, as_json: bool) -> None:
    """Compare the arms of one or several finished runs.

    \b
    esper compare quiet-otter swift-heron
    esper compare quiet-otter swift-heron --arm heuristic

    RUN is a folder, an id below --runs-dir, or the words of an id. Runs that share their task and seeds are compared
    seed by seed.

    One run: the pairs of its summary. Several runs: each arm with its controls, with the other arms of its run, and
    with the arm of its name in the other runs, or with every arm there if no name is shared.
    """
    from esper_run import load_run
    from esper_watch.comparison import compare_runs
    from esper_watch.comparison_view import print_comparison

    compared = compare_runs([load_run(name, runs_dir=runs_dir) for name in runs], arms, every=every)
    print_warnings(compared.warnings)
    print_json(compared.as_json()) if as_json else print_comparison(compared)


def _run_folder(run: Path | str, runs_dir: Path | str) -> Path:
    """Return ``run`` if it exists, else the run in ``runs_dir`` with this id or these words; of stored runs a copy."""
    if isinstance(run, Path) and run.is_dir():
        return run
    from esper_run import load_run

    return load_run(run, runs_dir=runs_dir).path
