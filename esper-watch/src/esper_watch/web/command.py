"""The option ``--web`` of ``esper watch``."""

from __future__ import annotations

import threading
import webbrowser
from typing import TYPE_CHECKING
from urllib.parse import quote

import click

from esper_core import load_run
from esper_core.leyline.errors import printable
from esper_watch.web.server import HOST, Server, lines

if TYPE_CHECKING:
    from pathlib import Path


def serve_runs(given: Path | None, runs_dir: Path, *, host: str | None, port: int | None, open_browser: bool) -> None:
    """Serve one run, or all runs of a folder, until Ctrl-C.

    Raises:
        EsperError: E420 if there is no such run; ConfigError: E433 if the address cannot be used.
    """
    root, only = place_of(given, runs_dir)
    server = Server(root, only, host=host or HOST, port=port)
    path = "/" if only is None else f"/run/{quote(only)}"
    for line in lines(server, path):
        click.echo(printable(line), err=True)
    click.echo("Ctrl-C ends it.", err=True)
    if open_browser:
        threading.Timer(0.5, webbrowser.open, [server.url(path)]).start()
    server.serve()


def place_of(given: Path | None, runs_dir: Path) -> tuple[Path, str | None]:
    """Return the folder of runs, and the name of the only run to show; None for all of them."""
    if given is None:
        return runs_dir, None
    if given.is_dir() and not (given / "manifest.json").exists() and not (given / "events.jsonl").exists():
        return given, None
    run = given if given.is_dir() else load_run(given, runs_dir=runs_dir).path
    run = run.resolve()
    return run.parent, run.name
