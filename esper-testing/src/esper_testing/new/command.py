"""``esper new``: a package to start from, that installs, is listed, passes the kit and builds a wheel. Offline."""

from __future__ import annotations

import json
from pathlib import Path

import click

from esper_testing.new.kinds import KINDS


@click.command()
@click.argument("kind", type=click.Choice(list(KINDS)), metavar="|".join(KINDS))
@click.argument("name")
@click.option("--into", type=click.Path(path_type=Path), default=Path(), help="Folder to write into. [default: here]")
@click.option("--json", "as_json", is_flag=True, help="Print {folder, package, plugin, component, files} as JSON.")
def new(kind: str, name: str, into: Path, *, as_json: bool) -> None:
    """Write a package with a plugin that works: one component, its tests, a README, a file for CI.

    \b
    esper new blueprint my-blocks         writes esper-my-blocks/
    cd esper-my-blocks
    pip install --editable ".[test]"
    pytest
    """
    from importlib import metadata

    from esper_core import __version__
    from esper_testing.new.naming import names_from, taken
    from esper_testing.new.rendering import render
    from esper_testing.new.writing import write_whole

    names = names_from(name, kind)
    folder = into / names.distribution
    files = render(kind, names, __version__)
    write_whole(folder, files)
    points = metadata.entry_points(group="esper.plugins")
    installed = [(point.name, point.dist.name) for point in points if point.dist is not None]
    if (rival := taken(names, installed)) is not None:
        click.echo(f'Mind: {rival} has a plugin "{names.plugin}", too. Only one of the two can be installed.', err=True)
    if as_json:
        told = {
            "folder": str(folder),
            "package": names.distribution,
            "plugin": names.plugin,
            "component": f"{names.plugin}/{KINDS[kind].component}",
            "files": list(files),
        }
        click.echo(json.dumps(told))
        return
    click.echo(f"{folder}: a package with the {kind} {names.plugin}/{KINDS[kind].component}.\n")
    click.echo(f'  cd {folder}\n  pip install --editable ".[test]"\n  pytest\n  esper plugins list')
