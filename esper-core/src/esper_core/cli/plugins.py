"""``esper plugins``: which are installed, what became of them, and what is wrong. Answers whatever is broken."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from esper_core.cli.commands import OpenGroup
from esper_core.cli.rendering import aligned, print_json, print_line, print_problems, print_table, visible

if TYPE_CHECKING:
    from collections.abc import Sequence

    from esper_core.plugins import PluginRecord, Plugins


@click.group(cls=OpenGroup)
def plugins() -> None:
    """Show the installed plugins, and what is wrong with them."""


_local = click.option(
    "--local",
    multiple=True,
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Load a one-file plugin, too, as plugins.local in a file does.",
)


@plugins.command("list")
@_local
@click.option("--json", "as_json", is_flag=True, help="Print a list of {id, package, version, status, …} as JSON.")
def list_plugins(local: tuple[Path, ...], *, as_json: bool) -> None:
    """List the installed plugins, and everything that is wrong with them."""
    found = _load(local)
    if as_json:
        print_json([record.as_json() for record in found.records])
        return
    if found.records:
        head = ["id", "package", "version", "status", "components", "import"]
        print_table(head, [_row(record) for record in found.records])
    else:
        print_line(
            "No plugin is installed. The project's own:  pip install esper-blueprints esper-policies esper-tasks"
        )
    if found.problems:
        print_line()
        print_problems(found.problems, stream=sys.stdout)


@plugins.command("show")
@click.argument("id")
@_local
@click.option("--json", "as_json", is_flag=True, help="Print a list of {id, package, version, status, …} as JSON.")
def show_plugin(id: str, local: tuple[Path, ...], *, as_json: bool) -> None:
    """Show one plugin: its package, its hooks, its components, its problems.

    \b
    esper plugins show blueprints
    esper plugins show my-plugin --local my_plugin.py
    """
    found = _load(local)
    records = [record for record in found.records if record.id == id]
    if not records:
        from esper_core.leyline.errors import ConfigError
        from esper_core.plugins.lookup_errors import unknown_plugin

        raise ConfigError(unknown_plugin(id, found.records))
    if as_json:
        print_json([record.as_json() for record in records])
        return
    for record in records:
        _show(record)
    if problems := list(dict.fromkeys(problem for record in records for problem in record.problems)):
        print_line()
        print_problems(problems, stream=sys.stdout)


def _load(local: Sequence[Path]) -> Plugins:
    """The plugins; ConfigError where one of the files cannot be a plugin."""
    from esper_core.leyline.errors import ConfigError
    from esper_core.plugins import load_plugins
    from esper_core.plugins.discovery import RELATIVE_PATH_HINT

    found = load_plugins(local=local)
    if unfit := [problem for problem in found.problems if problem.code == "E227"]:
        raise ConfigError(
            [replace(one, path=None, hint=None if one.hint == RELATIVE_PATH_HINT else one.hint) for one in unfit]
        )
    return found


def _row(record: PluginRecord) -> list[str]:
    return [
        record.id,
        record.package,
        record.version,
        record.status,
        str(len(record.components)),
        _milliseconds(record),
    ]


def _milliseconds(record: PluginRecord) -> str:
    return "not imported" if record.load_ms is None else f"{record.load_ms:.1f} ms"


def _show(record: PluginRecord) -> None:
    facts = [
        ("status", record.status),
        ("package", record.source),
        ("entry point", record.origin),
        ("API level", "unknown" if record.api is None else str(record.api)),
        ("import", _milliseconds(record)),
        ("hooks", ", ".join(record.hooks) or "none"),
        ("components", ", ".join(record.components) or "none"),
    ]
    print_line(visible(record.id))
    for line in aligned([("", name, value) for name, value in facts]):
        print_line(visible(line))
