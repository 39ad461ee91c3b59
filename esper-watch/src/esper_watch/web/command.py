"""The option ``--web`` of ``esper watch``."""

from __future__ import annotations

import threading
import time
import webbrowser
from contextlib import suppress
from pathlib import Path
from typing import Final
from urllib.parse import quote

import click

from esper_core import EsperError
from esper_core.leyline.errors import printable
from esper_run import load_run
from esper_watch.web.server import HOST, Server, lines

SECONDS_BETWEEN_FETCHES: Final = 10.0
"""How often the copy of a stored run is updated."""


def serve_runs(
    target: Path | str | None, runs_dir: Path | str, *, host: str | None, port: int | None, open_browser: bool
) -> None:
    """Serve one run, or all runs of a folder, until Ctrl-C.

    Raises:
        EsperError: E420 if there is no such run; ConfigError: E433 if the address cannot be used.
    """
    root, only = place_of(target, runs_dir)
    server = Server(root, only, host=host or HOST, port=port)
    path = "/" if only is None else f"/run/{quote(only)}"
    for line in lines(server, path):
        click.echo(printable(line), err=True)
    click.echo("Ctrl-C ends it.", err=True)
    if open_browser:
        threading.Timer(0.5, webbrowser.open, [server.url(path)]).start()
    if target is not None and (isinstance(target, str) or isinstance(runs_dir, str)):
        threading.Thread(target=_keep_fetching, args=(target, runs_dir), daemon=True).start()
    server.serve()


def place_of(target: Path | str | None, runs_dir: Path | str) -> tuple[Path, str | None]:
    """Return the folder of runs, and the name of the only run to show; None for all of them."""
    if target is None and isinstance(runs_dir, Path):
        return runs_dir, None
    if target is None:
        msg = f"name one of the runs in the store:  esper watch --web {runs_dir}/RUN"
        raise click.UsageError(msg)
    if (
        isinstance(target, Path)
        and target.is_dir()
        and not (target / "manifest.json").exists()
        and not (target / "events.jsonl").exists()
    ):
        return target, None
    is_folder = isinstance(target, Path) and target.is_dir()
    run = Path(target if is_folder else load_run(target, runs_dir=runs_dir).path).resolve()
    return run.parent, run.name


def _keep_fetching(run: Path | str, runs_dir: Path | str) -> None:
    """Update the copy of a stored run that is served, for ever. A failed attempt is followed by another."""
    while True:
        time.sleep(SECONDS_BETWEEN_FETCHES)
        with suppress(EsperError):
            load_run(run, runs_dir=runs_dir)
