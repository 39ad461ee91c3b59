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
    from esper_run.app.compose import Composition


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@set_option
@click.option("--json", "as_json", is_flag=True, help="Print {ok, problems, warnings, arms, groups} as JSON.")
@click.pass_context
def check(context: click.Context, file: Path, overrides: tuple[str, ...], *, as_json: bool) -> None:
    """Check a configuration without running it.

    Values, names of components and their settings are checked, and the networks are built once, which shows how much
    there is to train, and whether networks train together. Problems of plugins that the file does not need are
    warnings. In JSON, problems and warnings are lists of {code, message, file, line, column, path, hint}.
    """
    plugins: Plugins | None = None
    problems: tuple[Problem, ...] = ()
    status, size = 0, ""
    planned: dict[str, Any] = {"arms": [], "groups": ""}
    warnings: list[Problem] = []
    try:
        loaded, plugins = load(config_file(file), overrides)
        composition = build(loaded, plugins)
        warnings, size = list(composition.warnings), _size(composition)
        planned = {"arms": composition.every_arm, "groups": composition.describe_groups()}
    except EsperError as error:
        problems, status = error.problems, error.exit_code
    if as_json:
        warnings += [] if plugins is None else [problem for problem in _warnings(plugins) if problem not in problems]
        print_json({"ok": not status, "problems": _plain(problems), "warnings": _plain(warnings), **planned})
    elif status:
        print_problems(problems)
    else:
        click.echo(f"{file}: in order\n{size}\n{planned['groups']}")
    context.exit(status)


def _size(composition: Composition) -> str:
    """Say how much a run would train."""
    config, arms = composition.config, ", ".join(composition.every_arm)
    steps = f"{config.episode.steps} steps of {config.episode.batches} batches"
    episodes = f"{arms}: {config.rounds * config.environments} episodes each, of {steps}"
    return f"{episodes}, on a host of {composition.host_parameters:,} parameters."


def _plain(problems: Iterable[Problem]) -> list[dict[str, Any]]:
    return [problem.as_json() for problem in problems]


def _warnings(plugins: Plugins) -> list[Problem]:
    """Return the problems of plugins that failed to load, of packages with damaged metadata, and of unmarked hooks."""
    fallen = [record for record in plugins.records if record.status in ("broken", "rejected")]
    problems = [problem for record in fallen for problem in record.problems]
    damaged = (problem for problem in plugins.problems if problem.code == "E223")
    return list(dict.fromkeys([*problems, *damaged, *unmarked_hooks(plugins)]))
