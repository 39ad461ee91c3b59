"""``esper check``: everything that a run would refuse, found without training."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from esper_core.cli.rendering import print_json, print_problems, print_warnings
from esper_core.cli.run import config_file
from esper_core.leyline.errors import EsperError

if TYPE_CHECKING:
    from esper_core.leyline.errors import Problem
    from esper_core.plugins import Plugins


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--overlay",
    "overlays",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Merge a partial configuration over FILE; repeatable, applied in order.",
)
@click.option("--set", "overrides", multiple=True, metavar="PATH=VALUE", help="Change one value of the file.")
@click.option("--json", "as_json", is_flag=True, help="Print {ok, problems, warnings} as JSON.")
@click.pass_context
def check(
    context: click.Context, file: Path, overlays: tuple[Path, ...], overrides: tuple[str, ...], *, as_json: bool
) -> None:
    """Check a configuration: its values, its names, and whether its pieces fit together.

    Problems of plugins that the file does not need are warnings and stop nothing. In JSON, problems and warnings are
    lists of {code, message, file, line, column, path, hint}.
    """
    from esper_core.app.participation import in_one_line, unmarked_hooks
    from esper_core.app.preparing import prepare

    seen: list[Plugins] = []
    problems: tuple[Problem, ...] = ()
    warnings: tuple[Problem, ...] = ()
    code = 0
    try:
        prepared = prepare(config_file(file), overrides, overlays, looked=seen.append)
    except EsperError as error:
        problems, code = error.problems, error.exit_code
        unmarked = [one for plugins in seen for one in unmarked_hooks(plugins) if one not in problems]
        found = [*(one for plugins in seen for one in _unneeded_faults(plugins)), *unmarked]
        warnings = tuple(one for one in found if one not in problems)
        print_warnings(map(in_one_line, unmarked))
    else:
        warnings = (*_unneeded_faults(prepared.plugins), *prepared.unmarked)
        print_warnings(prepared.warnings)
    if as_json:
        told = {"problems": problems, "warnings": warnings}
        print_json({"ok": not code, **{name: [one.as_json() for one in own] for name, own in told.items()}})
    elif code:
        print_problems(problems)
    else:
        click.echo(f"{file}: in order")
    context.exit(code)


def _unneeded_faults(plugins: Plugins) -> tuple[Problem, ...]:
    """What the lines on stderr are about: the problems of plugins that fell, and of metadata that cannot be read."""
    fallen = [record for record in plugins.records if record.status in ("broken", "rejected")]
    problems = [problem for record in fallen for problem in record.problems]
    return tuple(dict.fromkeys([*problems, *(one for one in plugins.problems if one.code == "E223")]))
