"""``esper schema``: what an editor needs to help with a configuration."""

from __future__ import annotations

import json

import click


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print it as one line; without, it is indented.")
def schema(*, as_json: bool) -> None:
    """Print the JSON schema of a configuration, with what is installed, for editors.

    \b
    esper schema > esper.schema.json
    # yaml-language-server: $schema=esper.schema.json      at the top of plugins.yaml
    """
    from esper_core.app.schema import config_schema
    from esper_core.cli.rendering import print_json, print_line
    from esper_core.plugins import load_plugins

    found = config_schema(load_plugins())
    print_json(found) if as_json else print_line(json.dumps(found, indent=2))
