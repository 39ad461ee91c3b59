"""``esper run``: parse, build, run, show."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from esper_core.cli.rendering import print_json, print_warning, print_warnings
from esper_core.leyline.errors import EsperError

if TYPE_CHECKING:
    from esper_core.app.preparing import Prepared
    from esper_core.app.running import Outcome
    from esper_core.plugins import Plugins


def _name(_context: click.Context, _parameter: click.Parameter, given: str | None) -> str | None:
    """The name, which becomes part of a folder's: it is what ``name`` in a file can be."""
    if given is None:
        return None
    from esper_core.config.names import wrong_name

    if (message := wrong_name(given)) is not None:
        raise click.BadParameter(message)
    return given


@click.command()
@click.argument("file", type=click.Path(path_type=Path), metavar="FILE|RUN")
@click.option(
    "--overlay",
    "overlays",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Merge a partial configuration over FILE; repeatable, applied in order.",
)
@click.option("--set", "overrides", multiple=True, metavar="PATH=VALUE", help="Change one value of the file.")
@click.option(
    "--runs-dir", type=click.Path(path_type=Path), default=Path("runs"), show_default=True, help="Where runs are kept."
)
@click.option("--name", callback=_name, help="What the run is called; default: two words.")
@click.option("--quiet", is_flag=True, help="No progress.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, last, on stdout.")
@click.option("--dry-run", is_flag=True, help="Build and check everything, and train nothing.")
def run(
    file: Path,
    overlays: tuple[Path, ...],
    overrides: tuple[str, ...],
    runs_dir: Path,
    name: str | None,
    *,
    quiet: bool,
    as_json: bool,
    dry_run: bool,
) -> None:
    """Run a configuration, or once more what a run directory holds.

    \b
    esper run plugins.yaml
    esper run plugins.yaml --overlay examples/exact.yaml
    esper run plugins.yaml --set environments=2 --set episode.steps=10
    esper run runs/20261121-101512-quiet-otter
    """
    prepared = prepared_run(file, overrides, overlays)
    print_warnings(prepared.warnings)

    from esper_core.app.running import run as run_prepared
    from esper_core.cli.outcome import describe_plan, show_outcome
    from esper_core.cli.progress import progress

    if dry_run:
        plan = describe_plan(prepared.composition)
        print_json(plan.as_json()) if as_json else click.echo(plan.text())
        return
    found: list[Outcome] = []
    try:
        with progress(quiet=quiet) as listeners:
            run_prepared(
                prepared,
                runs_dir=runs_dir,
                name=name,
                argv=sys.argv,
                listeners=listeners,
                found=found.append,
                tell=print_warning,
            )
    finally:
        for outcome in found:  # also where it could not be written
            print_json(outcome.as_json()) if as_json else show_outcome(outcome)


def prepared_run(file: Path, overrides: tuple[str, ...], overlays: tuple[Path, ...] = ()) -> Prepared:
    """The run made ready. Where it cannot be, hooks without their mark are told first: they may be why."""
    from esper_core.app.participation import in_one_line, unmarked_hooks
    from esper_core.app.preparing import prepare

    seen: list[Plugins] = []
    try:
        return prepare(config_file(file), overrides, overlays, looked=seen.append)
    except EsperError as error:
        unmarked = [one for plugins in seen for one in unmarked_hooks(plugins) if one not in error.problems]
        print_warnings(map(in_one_line, unmarked))
        raise


def config_file(given: Path) -> Path:
    """The file to read: a run directory stands for the configuration that it holds."""
    inside = given / "config.yaml"
    return inside if given.is_dir() and inside.is_file() else given
