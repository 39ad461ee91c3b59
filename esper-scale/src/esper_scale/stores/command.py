"""The command ``esper runs upload``."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import click

from esper_core.leyline.errors import ConfigError, Problem, printable
from esper_run import load_run
from esper_run.options import local_runs_option, run_name
from esper_run.runs.directory import run_lock
from esper_run.runs.uploads import upload_run
from esper_run.stores import open_store, split_url


@click.command()
@click.argument("run", shell_complete=run_name())
@click.argument("store", metavar="[URL]", required=False)
@local_runs_option
def upload(run: str, store: str | None, runs_dir: Path) -> None:
    """Upload a run that no process works on: to its store, or to the URL of another folder.

    \b
    esper runs upload quiet-otter
    esper runs upload quiet-otter s3://bucket/prefix
    """
    record = load_run(run, runs_dir=runs_dir)
    store = store or record.config().get("store")
    if store is None:
        message = f"{record.path} has no store to which it could be uploaded"
        raise ConfigError(Problem("E434", message, hint=f"Name one:  esper runs upload {run} s3://bucket/prefix"))
    path = record.path
    with ExitStack() as closing:
        if record.url:  # what was copied to read it is without its checkpoint
            url, id_ = split_url(record.url)
            path = open_store(url).fetch_whole(id_, Path(closing.enter_context(TemporaryDirectory())))
        closing.enter_context(run_lock(path))
        click.echo(printable(upload_run(path, open_store(str(store)))))
