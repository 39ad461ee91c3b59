"""Check and start plugins without the command ``esper``: ``python -m esper_testing check`` and ``… new``.

``esper`` belongs to esper-run, which the author of a plugin need not install. The commands are those that esper-run
shows as ``esper plugins check`` and ``esper new``, with the same output and the same exit statuses.
"""

from __future__ import annotations

from typing import Any, Final

import click

from esper_core.leyline.errors import EsperError, Problem, printable
from esper_testing.commands import check, new

INTERRUPTED: Final = 130


class Commands(click.Group):
    """A group of commands that prints errors of Esper as ``esper`` does, and ends with their exit codes."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command that was typed."""
        try:
            return super().invoke(ctx)
        except EsperError as error:
            _print_problems(error.problems)
            ctx.exit(error.exit_code)
        except KeyboardInterrupt:
            click.echo("\nInterrupted.", err=True)
            ctx.exit(INTERRUPTED)


def _print_problems(problems: tuple[Problem, ...]) -> None:
    """Print problems on stderr with an empty line between them; control characters in them are escaped."""
    for place, problem in enumerate(problems):
        first, *details = map(printable, str(problem).split("\n"))
        code, _, message = first.partition(" ")
        heading = f"{click.style(code, fg='red', bold=True)} {click.style(message, bold=True)}"
        click.echo("\n".join([*([""] if place else []), heading, *details]), err=True)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Check plugins, and write packages for new ones."""


main.add_command(check)
main.add_command(new)

if __name__ == "__main__":
    main(prog_name="python -m esper_testing")
