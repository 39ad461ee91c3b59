"""``esper explain``: what a value of a configuration is, and where it is from."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from esper_core.cli.rendering import print_json, print_line, visible
from esper_core.cli.run import config_file

if TYPE_CHECKING:
    from esper_core.config import Explanation


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.argument("path", required=False)
@click.option(
    "--overlay",
    "overlays",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Merge a partial configuration over FILE; repeatable, applied in order.",
)
@click.option("--set", "overrides", multiple=True, metavar="PATH=VALUE", help="Change one value of the file.")
@click.option("--json", "as_json", is_flag=True, help="Print a list of {path, value, type, default, origin, …}.")
def explain(
    file: Path, path: str | None, overlays: tuple[Path, ...], overrides: tuple[str, ...], *, as_json: bool
) -> None:
    """Explain a value: what it is, of which type, its default, and where it was said.

    \b
    esper explain plugins.yaml episode.steps
    esper explain plugins.yaml slots
    esper explain plugins.yaml                  everything
    """
    from esper_core.app.guiding import settings_models
    from esper_core.config import explain as explain_config
    from esper_core.config import load_config

    read = config_file(file)
    loaded = load_config(read, overrides, overlays)
    found = explain_config(loaded, path, settings_models(loaded, read.parent))
    if as_json:
        print_json([asdict(one) for one in found])
        return
    for one in found:
        _show(one)


def _show(one: Explanation) -> None:
    from esper_core.config.writing import flow

    default = f"default {flow(one.default)}" if one.has_default else "no default"
    print_line(visible(f"{one.path}: {flow(one.value)}"))
    if one.description:
        print_line(f"  {visible(one.description)}")
    print_line(visible(f"  {one.type}; {default}; from {one.origin}"))
