"""The commands on the pages exist, with the options that they are shown with."""

import re
import shlex
from pathlib import Path

import click

from esper_run import cli

ROOT = Path(__file__).parents[2]
PAGES = [
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted(ROOT.glob("*.md")),
    *sorted(ROOT.glob("esper-*/README.md")),
    *sorted(ROOT.glob("examples/**/README.md")),
    *sorted(ROOT.glob("*.yaml")),
    *sorted(ROOT.glob("examples/*.yaml")),
]
FENCED = re.compile(r"^```(?:sh|console|bash)\n(.*?)^```", re.DOTALL | re.MULTILINE)
INLINE = re.compile(r"`((?:[A-Z_]+=\S+ )?(?:\.venv/bin/)?esper [^`\n]+)`")
COMMENTED = re.compile(r"^#\s+(esper .*?)(?:\s{2,}.*)?$", re.MULTILINE)
"""A command in a comment at the head of a configuration, with what it does behind it."""
STARTS = re.compile(r"^(?:\$ )?(?:[A-Z_]+=\S+ )*(?:\.venv/bin/)?esper (?P<rest>.*)$")


def commands(text: str) -> list[tuple[str, bool]]:
    """Yield the arguments of each ``esper`` command on a page, and whether it is complete."""
    typed = [line.strip() for block in FENCED.findall(text) for line in block.splitlines()]
    lines = [*typed, *INLINE.findall(text), *COMMENTED.findall(text)]
    matches = [(STARTS.match(line), line in typed) for line in lines]
    return [(re.sub(r"\s+#.*|…$", "", match["rest"]), is_complete) for match, is_complete in matches if match]


def parse(arguments: list[str], *, is_complete: bool) -> None:
    """Parse as ``esper`` does, without running; ClickException if a command or an option does not exist.

    is_complete: whether required arguments must be present.
    """
    command: click.Command = cli.main
    context = click.Context(command, info_name="esper")
    while isinstance(command, click.Group):
        if not arguments or arguments[0].startswith("-"):
            break
        name, *arguments = arguments
        inner = command.get_command(context, name)
        if inner is None:
            raise click.UsageError(f"there is no command {name}")
        command, context = inner, click.Context(inner, info_name=name, parent=context)
    try:
        command.make_parser(context).parse_args([*arguments])
        if is_complete and "--help" not in arguments:
            command.parse_args(context, [*arguments])
    except (click.MissingParameter, click.BadOptionUsage):
        if is_complete:
            raise


MADE_UP = {"docs/reference/errors/E224.md": "grow"}
"""A command of a fictional package; ``docs/scenes.py`` creates it for the page's example."""


def test_commands_that_pages_show_exist_with_their_options():
    wrong = []
    for page in PAGES:
        place = page.relative_to(ROOT).as_posix()
        for command, is_complete in dict.fromkeys(commands(page.read_text(encoding="utf-8"))):
            try:
                parse(shlex.split(command), is_complete=is_complete)
            except click.ClickException as error:
                if MADE_UP.get(place) != command:
                    wrong.append(f"{place}: {command}: {error.format_message()}")
    assert wrong == []
