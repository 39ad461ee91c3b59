"""``esper explain``: what a value of a configuration is, and where it is from."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from esper_core.cli.rendering import print_json
from esper_core.cli.run import config_file

if TYPE_CHECKING:
    from esper_core.config import Explanation


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.argument("path", required=False)
@click.option("--set", "overrides", multiple=True, metavar="PATH=VALUE", help="Change one value of the file.")
@click.option("--json", "as_json", is_flag=True, help="Print a list of {path, value, type, default, origin, …}.")
def explain(file: Path, path: str | None, overrides: tuple[str, ...], *, as_json: bool) -> None:
    """Explain a value: what it is, of which type, its default, and where it was said.

    \b
    esper explain plugins.yaml episode.steps
    esper explain plugins.yaml slots
    esper explain plugins.yaml                  everything
    """
    from esper_core.config import explain as explain_config
    from esper_core.config import load_config

    found = explain_config(load_config(config_file(file), overrides), path)
    if as_json:
        print_json([asdict(one) for one in found])
        return
    for one in found:
        _show(one)


def _show(one: Explanation) -> None:
    default = f"default {one.default!r}" if one.has_default else "no default"
    click.echo(f"{one.path}: {one.value!r}")
    if one.description:
        click.echo(f"  {one.description}")
    click.echo(f"  {one.type}; {default}; from {one.origin}")
