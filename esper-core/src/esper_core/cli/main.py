"""What does ``esper`` make of what was typed, and how does it end? Commands load when typed; every end has a status.

0 done · 1 crash · 2 usage or configuration · 3 plugin · 4 stopped by the governor · 130 and 143 interrupted · 141 the
reader of our output went away.
"""

from __future__ import annotations

import os
import platform
import sys
from typing import TYPE_CHECKING, Any, Final

import click

from esper_core._version import __version__
from esper_core.cli.commands import (
    BUILT_IN,
    OpenGroup,
    external_commands,
    load_built_in,
    load_external,
    no_such_command,
)
from esper_core.cli.rendering import print_line, print_problems, visible
from esper_core.leyline.errors import EsperError, Interrupted, PluginError, Problem

if TYPE_CHECKING:
    from collections.abc import Sequence

    from esper_core.cli.commands import External

CRASHED: Final = 1
INTERRUPTED: Final = 130
READER_GONE: Final = 141


class LazyCommands(click.Group):
    """The command ``esper``: knows the names and the help of its commands without importing them.

    A command's status is what it raises, or gives to ``context.exit``; what it returns counts for nothing.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The core's commands in the order of the table, then those of other packages."""
        others = external_commands().items()
        return [*BUILT_IN, *(name for name, one in others if not one.is_shadowed and not one.group)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command, imported; None where there is none. PluginError where its package is broken."""
        if cmd_name in BUILT_IN:
            return load_built_in(cmd_name)
        external = external_commands().get(cmd_name)
        return None if external is None or external.group else load_external(external)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does it, with a suggestion for a name that is not there."""
        name = args[0]
        if (command := self.get_command(ctx, name)) is not None:
            return name, command, args[1:]
        raise no_such_command(name, name, self.list_commands(ctx), ctx)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the lists of ``esper --help`` from the tables."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, command.help) for name, command in BUILT_IN.items()])
        if others := {name: one for name, one in external_commands().items() if not one.group or one.is_stranded}:
            with formatter.section("Commands of other packages"):
                formatter.write_dl([(visible(name), visible(command.help)) for name, command in others.items()])

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Runs what was typed, and leaves the interpreter with its status."""
        if not kwargs.get("standalone_mode", True):
            return super().main(*args, **kwargs)
        if "_ESPER_COMPLETE" in os.environ:
            return super().main(prog_name="esper")
        typed = kwargs.get("args", args[0] if args else None)
        sys.exit(status_of(self, sys.argv[1:] if typed is None else typed))


def status_of(command: click.Group, arguments: Sequence[str]) -> int:
    """Runs the command, tells what went wrong, and returns the status that the shell is to see."""
    try:
        return _told(command, arguments)
    except BrokenPipeError:
        _silence()
        return READER_GONE


def _told(command: click.Group, arguments: Sequence[str]) -> int:
    context: click.Context | None = None
    try:
        with command.make_context("esper", list(arguments)) as context:
            command.invoke(context)
        sys.stdout.flush()
    except click.exceptions.Exit as end:
        return end.exit_code
    except (click.Abort, KeyboardInterrupt):
        print_line("\nInterrupted.", stream=sys.stderr)
        return INTERRUPTED
    except Interrupted as error:
        try:
            print_problems(error.problems)
        except OSError:  # the terminal was closed, which is why SIGHUP came
            _silence()
        return error.status
    except EsperError as error:
        print_problems(error.problems)
        return error.exit_code
    except click.ClickException as error:
        error.show()
        if isinstance(error, click.MissingParameter) and error.param in _runs(error.ctx):
            print_line("The runs that are there:  esper runs list", stream=sys.stderr)
        return error.exit_code
    except BrokenPipeError:
        raise
    except SystemExit as end:
        if context is None or not _is_closed(command, context):
            raise  # a command of another package ends as it likes
        problem = _foreign_exit(end)
        print_problems([problem])
        return PluginError.exit_code
    except BaseException as error:  # a GeneratorExit, a CancelledError: nobody waits for them here
        if problems := _damaged_packages(error):
            print_problems(problems)
            return PluginError.exit_code
        _tell_crash(None if context is None else context.invoked_subcommand)
        return CRASHED
    return 0


def _runs(context: click.Context | None) -> list[click.Parameter]:
    """The arguments of the command that was typed which are runs."""
    parameters = [] if context is None else context.command.params
    return [one for one in parameters if one.human_readable_name.rstrip(".") == "RUN"]


def _is_closed(command: click.Group, context: click.Context) -> bool:
    """Whether what was typed is a command of the core, below which no other package has one."""
    name = context.invoked_subcommand
    return name is not None and name in BUILT_IN and not isinstance(command.get_command(context, name), OpenGroup)


def _foreign_exit(end: SystemExit) -> Problem:
    """What is said where code that we called ended the program: without a word that would look like success."""
    from esper_core.plugins.isolation import location_of

    file, line = location_of(end)
    message = f"a component ended the program in the middle of its work: SystemExit: {end.code}"
    hint = "This is a fault of its package: what goes wrong there is to be raised as an error."
    return Problem("E231", message, file=file, line=line, hint=hint)


def _damaged_packages(error: BaseException) -> list[Problem]:
    """The packages whose metadata cannot be read (E223), where that is what was raised; none where it is another error.

    Pydantic and torch ask every installed package for plugins of their own, when they are first used.
    """
    from traceback import walk_tb

    modules = (str(frame.f_globals.get("__name__")) for frame, _ in walk_tb(error.__traceback__))
    if not any(module.startswith("importlib.metadata") for module in modules):
        return []
    from esper_core.plugins import load_plugins

    return list(dict.fromkeys(problem for problem in load_plugins().problems if problem.code == "E223"))


def _tell_crash(name: str | None) -> None:
    import traceback

    traceback.print_exc()
    external = None if name is None or name in BUILT_IN else external_commands().get(name)
    print_line(_request(external), stream=sys.stderr)


def _request(external: External | None) -> str:
    versions = f"esper {__version__}, Python {platform.python_version()}, {platform.system()}"
    if external is not None:
        return visible(f'"{external.name}" is from {external.package}: please report this there ({versions}).')
    return f"This is a fault of Esper itself: please report it, with the lines above ({versions})."


def _silence() -> None:
    """Points stdout and stderr nowhere, so that the interpreter's last flush has nothing to complain about."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        try:
            os.dup2(nowhere, stream.fileno())
        except (OSError, ValueError):  # a stream without a file behind it has no last flush that could fail
            continue
    os.close(nowhere)


@click.group(cls=LazyCommands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="esper", message="%(prog)s %(version)s")
def main() -> None:
    """Grow neural networks while they train.

    \b
    esper run plugins.yaml          train, and see what grew
    esper check plugins.yaml        find mistakes before
    esper plugins list              what is installed
    """
