"""``esper check``: check a configuration without running it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from esper_core.leyline.errors import EsperError
from esper_run.app.resolution import unmarked_hooks
from esper_run.cli.output import print_json, print_problems
from esper_run.cli.run import build, config_file, load, set_option

if TYPE_CHECKING:
    from collections.abc import Iterable

    from esper_core.leyline.errors import Problem
    from esper_core.plugins import Plugins


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@set_option
@click.option("--json", "as_json", is_flag=True, help="Print {ok, problems, warnings, groups} as JSON.")
@click.pass_context
def check(context: click.Context, file: Path, overrides: tuple[str, ...], *, as_json: bool) -> None:
    """Check a configuration without running it.

    Values, names of components and their settings are checked, and the networks are built once, which shows whether
    they would train together. Problems of plugins that the file does not need are warnings. In JSON, problems and
    warnings are lists of {code, message, file, line, column, path, hint}.
    """
    plugins: Plugins | None = None
    problems: tuple[Problem, ...] = ()
    status, groups = 0, ""
    warnings: list[Problem] = []
    try:
        loaded, plugins = load(config_file(file), overrides)
        composition = build(loaded, plugins)
        warnings, groups = list(composition.warnings), composition.describe_groups()
    except EsperError as error:
        problems, status = error.problems, error.exit_code
    if as_json:
        warnings += [] if plugins is None else [problem for problem in _warnings(plugins) if problem not in problems]
        answer = {"ok": not status, "problems": _plain(problems), "warnings": _plain(warnings), "groups": groups}
        print_json(answer)
    elif status:
        print_problems(problems)
    else:
        click.echo(f"{file}: in order\n{groups}")
    context.exit(status)


def _plain(problems: Iterable[Problem]) -> list[dict[str, Any]]:
    return [problem.as_json() for problem in problems]


def _warnings(plugins: Plugins) -> list[Problem]:
    """Return the problems of plugins that failed to load, of packages with damaged metadata, and of unmarked hooks."""
    fallen = [record for record in plugins.records if record.status in ("broken", "rejected")]
    problems = [problem for record in fallen for problem in record.problems]
    damaged = (problem for problem in plugins.problems if problem.code == "E223")
    return list(dict.fromkeys([*problems, *damaged, *unmarked_hooks(plugins)]))
