"""``esper plugins check``: does an installed plugin conform? A table for people, a list for programs."""

from __future__ import annotations

import json
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from esper_testing.checks import CheckResult

NOT_CONFORMING: Final = 3
COUNTED: Final = ("passed", "failed", "skipped")


@click.command()
@click.argument("plugin")
@click.option(
    "--local",
    multiple=True,
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Load a one-file plugin, too, as plugins.local in a file does.",
)
@click.option("--set", "given", multiple=True, metavar="NAME.PATH=VALUE", help="Set one setting of a component.")
@click.option("--json", "as_json", is_flag=True, help="Print a list of {component, check, status, message} as JSON.")
@click.option("--all", "every", is_flag=True, help="Show every check, not only those that failed.")
@click.pass_context
def check(
    context: click.Context,
    plugin: str,
    local: tuple[Path, ...],
    given: tuple[str, ...],
    *,
    as_json: bool,
    every: bool,
) -> None:
    """Run the conformance checks of a plugin: one that is installed, or of one file.

    \b
    esper plugins check blueprints            exit status 0 if nothing failed, 3 otherwise
    esper plugins check blueprints/conv       one component
    esper plugins check blueprints --json
    esper plugins check my-plugin --local my_plugin.py
    esper plugins check policies/schedule \\
      --set 'schedule.plan=[{step: 0, op: germinate, slot: slot-0, blueprint: blueprint-0}]'

    A component whose settings have no defaults is skipped until it is given some. A policy is tried with the slots
    slot-0 to slot-6, or the first of them; in each, blueprint-0 may grow.
    """
    from esper_testing.checks import run_checks
    from esper_testing.installed import component_checks, components_of
    from esper_testing.settings import read_settings

    components = components_of(plugin, local)
    settings = read_settings(given, components)
    results: list[CheckResult] = []
    with _one_thread():
        for component in components:
            click.echo(f"checking {_visible(component.id)} …", err=True)
            results += run_checks(component_checks(component, settings.get(component.id)))
    if as_json:
        click.echo(json.dumps([asdict(result) for result in results]))
    else:
        _show(plugin, results, every=every)
    context.exit(0 if all(result.ok for result in results) else NOT_CONFORMING)


@contextmanager
def _one_thread() -> Iterator[None]:
    """A block in which torch computes on one thread: what is checked is small, and threads would only wait."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _show(plugin: str, results: Sequence[CheckResult], *, every: bool) -> None:
    if not results:
        click.echo(f"{_visible(plugin)} brings nothing that could be checked.")
        return
    rows = [["component", *COUNTED]]
    for component in dict.fromkeys(result.component for result in results):
        own = [result for result in results if result.component == component]
        rows.append([component, *(str(sum(one.status == status for one in own)) for status in COUNTED)])
    _print_rows(rows)
    shown = [result for result in results if every or not result.ok]
    if shown:
        click.echo()
        _print_rows([(one.status, one.component, one.check, one.message) for one in shown])
    failed = sum(not result.ok for result in results)
    click.echo(f"\n{len(results)} checks, {failed} failed." if failed else f"\n{len(results)} checks, none failed.")


def _print_rows(rows: Iterable[Sequence[str]]) -> None:
    """Aligned columns, two spaces apart."""
    cells = [[_visible(cell) for cell in row] for row in rows]
    widths = [max(len(cell) for cell in column) for column in zip(*cells, strict=True)]
    for row in cells:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _visible(text: str) -> str:
    """``text`` with every character that a terminal would obey written out."""
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode("ascii") for one in text)
