"""``esper check``: everything that a run would refuse, found without training."""

from __future__ import annotations

from pathlib import Path

import click

from esper_core.cli.rendering import print_json, print_problems, print_warnings
from esper_core.cli.run import config_file
from esper_core.leyline.errors import EsperError


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--set", "overrides", multiple=True, metavar="PATH=VALUE", help="Change one value of the file.")
@click.option("--json", "as_json", is_flag=True, help="Print {ok, problems} as JSON.")
@click.pass_context
def check(context: click.Context, file: Path, overrides: tuple[str, ...], *, as_json: bool) -> None:
    """Check a configuration: its values, its names, and whether its pieces fit together."""
    error = _found(file, overrides)
    if as_json:
        problems = [] if error is None else [problem.as_json() for problem in error.problems]
        print_json({"ok": error is None, "problems": problems})
    elif error is None:
        click.echo(f"{file}: in order")
    else:
        print_problems(error.problems)
    context.exit(0 if error is None else error.exit_code)


def _found(file: Path, overrides: tuple[str, ...]) -> EsperError | None:
    from esper_core.app.preparing import prepare

    try:
        print_warnings(prepare(config_file(file), overrides).warnings)
    except EsperError as error:
        return error
    return None
