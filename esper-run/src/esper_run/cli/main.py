"""The command ``esper``: find the command that was typed, run it, and exit with a status.

Commands are imported when they are typed, so that ``esper --help`` answers at once: the core's are listed in
``BUILT_IN``, those of other packages come by the entry points ``esper.commands``.

Statuses: 0 done, 1 crash, 2 usage or configuration, 3 plugin, 4 stopped by the governor, 130 and 143 interrupted,
141 the reader of the output closed the pipe.
"""

from __future__ import annotations

import errno
import os
import platform
import sys
import traceback
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

import click

from esper_core import __version__
from esper_core.leyline.errors import EsperError, Interrupted, PluginError, Problem, RunFolderError, nearest, printable
from esper_core.plugins import Extension
from esper_run.cli.exits import end_process
from esper_run.cli.output import keep_stdout, print_line, print_problems

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


CRASHED: Final = 1
INTERRUPTED: Final = 130
READER_GONE: Final = 141


BUILT_IN: Final[Mapping[str, tuple[str, str]]] = {
    "run": ("esper_run.cli.run:run", "Run a configuration, or repeat the run of a run directory."),
    "resume": ("esper_run.cli.run:resume", "Resume an interrupted or killed run from its newest checkpoint."),
    "check": ("esper_run.cli.configuration:check", "Check a configuration without running it."),
    "runs": ("esper_run.cli.runs:runs", "List runs, or show the results of one."),
    "plugins": ("esper_run.cli.plugins:plugins", "Show the installed plugins and their problems."),
    "components": (
        "esper_run.cli.plugins:components",
        "Show what a run can use: blueprints, hosts, policies, rewards, sinks, tasks.",
    ),
}
"""The core's commands in the order of ``esper --help``: where each is, as ``module:attribute``, and its help."""

KNOWN_ELSEWHERE: Final[Mapping[str, tuple[str, str]]] = {
    "compare": ("esper-watch", "Compare the arms of one or several finished runs."),
    "new": ("esper-testing", "Write a package with a working plugin, as a start for your own."),
    "probe": ("esper-grow", "Try which blueprints would help a model, where, by how much, and at what price."),
    "plugins.check": ("esper-testing", "Run the conformance checks of a plugin."),
    "report": ("esper-watch", "Write the report of a run as one HTML page."),
    "watch": ("esper-watch", "Serve the page of a run, which follows the run live, until Ctrl-C."),
}
"""Commands of the project's other packages, which are not imported for ``--help``: the package and the help."""


# --- commands of other packages


def external_commands() -> Mapping[str, Extension]:
    """Return the commands that other packages announce, by name, without importing them."""
    return Extension.find("esper.commands", "command")


def external_help(command: Extension) -> str:
    """Return its line in ``esper --help``, which names its package; the command's own text would need an import."""
    if command.is_left_out:
        return f"From {command.source}; left out in safe mode."
    package, text = KNOWN_ELSEWHERE.get(command.name, ("", ""))
    is_known = {claim.package for claim in command.claims} == {package}
    return f"{text} From {command.source}." if is_known else f"From {command.source}."


def load_built_in(name: str) -> click.Command:
    """Import a command of the core."""
    module, _, attribute = BUILT_IN[name][0].partition(":")
    command: click.Command = getattr(import_module(module), attribute)
    return command


# --- groups of commands


class OpenGroup(click.Group):
    """A command of the core below which other packages may add theirs, announced as ``plugins.check``."""

    @property
    def prefix(self) -> str:
        """What the names of other packages' commands in this group begin with: ``plugins.``."""
        return f"{self.name}."

    def own_help(self) -> dict[str, str]:
        """Return the group's own commands, each with its line of help."""
        return {name: command.get_short_help_str(80) for name, command in self.commands.items()}

    def own_command(self, name: str) -> click.Command | None:
        """Return a command of the group's own."""
        return self.commands.get(name)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """List the group's own commands, then those of other packages."""
        return [*self.own_help(), *self._others()]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command; None if there is none. PluginError if its package is broken."""
        if (command := self.own_command(cmd_name)) is not None:
            return command
        other = self._others().get(cmd_name)
        return None if other is None else other.load(click.Command, "a click command")

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that was typed, as click does; UsageError with its package or a similar name if none is."""
        typed = args[0]
        if (command := self.get_command(ctx, typed)) is not None:
            return typed, command, args[1:]
        if (name := f"{self.prefix}{typed}") in KNOWN_ELSEWHERE:
            hint = f"It comes with another package:  pip install {KNOWN_ELSEWHERE[name][0]}"
        else:
            close = nearest(typed, self.list_commands(ctx))
            hint = f'Did you mean "{close}"?' if close else f"All commands:  {ctx.command_path} --help"
        raise click.UsageError(printable(f'There is no command "{typed}". {hint}'), ctx)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands with their help, without importing them."""
        others = {printable(name): printable(external_help(external)) for name, external in self._others().items()}
        for title, texts in (("Commands", self.own_help()), ("Commands of other packages", others)):
            if texts:
                with formatter.section(title):
                    formatter.write_dl(list(texts.items()))

    def _others(self) -> dict[str, Extension]:
        """Return the commands of other packages. One with the name of an own command cannot be reached."""
        reserved = self.own_help()
        commands = {
            name.removeprefix(self.prefix): command
            for name, command in external_commands().items()
            if name.startswith(self.prefix)
        }
        return {name: command for name, command in commands.items() if "." not in name and name not in reserved}


class LazyGroup(OpenGroup):
    """The command ``esper``: knows the names and the help of its commands without importing them.

    The status of a command is what it raises or gives to ``context.exit``; what it returns has no meaning.
    """

    prefix = ""

    def own_help(self) -> dict[str, str]:
        """Return the core's commands, each with its line of help."""
        return {name: text for name, (_, text) in BUILT_IN.items()}

    def own_command(self, name: str) -> click.Command | None:
        """Import a command of the core."""
        return load_built_in(name) if name in BUILT_IN else None

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Run what was typed, and leave the interpreter with its status."""
        if not kwargs.get("standalone_mode", True):
            return super().main(*args, **kwargs)
        if "_ESPER_COMPLETE" in os.environ:
            return super().main(prog_name="esper")
        typed = kwargs.get("args", args[0] if args else None)
        if typed is None:
            keep_stdout()
            leave_out_damaged_packages()
        try:
            status = run_command(self, sys.argv[1:] if typed is None else typed)
        except BrokenPipeError:
            _redirect_to_devnull()
            status = READER_GONE
        if typed is None:  # the process is this command's own
            end_process(status)
        sys.exit(status)


# --- running a command


def leave_out_damaged_packages() -> None:
    """Let pydantic and torch not ask installed packages for plugins of theirs if the metadata of one is damaged.

    They ask when they are imported, and fail for all packages if one cannot be read. Esper itself reads each by itself,
    and reports the damaged one (E223).
    """
    from importlib.metadata import distributions

    try:
        for distribution in distributions():
            distribution.entry_points  # noqa: B018  it is read here
    except Exception:  # damaged metadata may raise anything
        os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "1")
        os.environ.setdefault("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")


def run_command(command: click.Group, arguments: Sequence[str]) -> int:
    """Run the command, print what went wrong, and return the status for the shell. BrokenPipeError passes."""
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
            _redirect_to_devnull()
        return error.status
    except EsperError as error:
        print_problems(error.problems)
        return error.exit_code
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except BrokenPipeError:
        raise
    except SystemExit as end:
        name = (context and context.invoked_subcommand) or ""
        if name not in BUILT_IN or isinstance(load_built_in(name), OpenGroup):
            raise  # a command of another package may exit
        print_problems([_exit_by_component(end)])
        return PluginError.exit_code
    except BaseException as error:  # a GeneratorExit, a CancelledError: nothing awaits them here
        if isinstance(error, OSError) and error.errno in (errno.EBADF, errno.EMFILE, errno.ENFILE):
            print_problems([_lost_files(error)])
            return PluginError.exit_code
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:
            print_line(f"The output cannot be written: {error.strerror}", stream=sys.stderr)
            _redirect_to_devnull()
            return RunFolderError.exit_code
        _report_crash(None if context is None else context.invoked_subcommand)
        return CRASHED
    return 0


def _exit_by_component(end: SystemExit) -> Problem:
    """Return the problem of a component that called ``sys.exit``: the status must not look like success."""
    from esper_core.plugins import location_of

    file, line = location_of(end)
    message = f"a component exited the program: SystemExit: {end.code}"
    hint = "Its package must raise an error instead; report it there."
    return Problem("E231", message, file=file, line=line, hint=hint)


def _lost_files(error: OSError) -> Problem:
    """Return the problem of files that were closed, or cannot be opened any more; Esper closes only its own."""
    message = f"a component closed files of this process, or none can be opened any more: {error.strerror}"
    hint = "ESPER_SAFE_MODE=1 leaves plugins of other packages out; ulimit -n shows how many files may be open."
    return Problem("E231", message, hint="\n".join([hint, *getattr(error, "__notes__", ())]))


def _report_crash(name: str | None) -> None:
    """Print the traceback, and where to report it."""
    traceback.print_exc()
    versions = f"esper {__version__}, Python {platform.python_version()}, {platform.system()}"
    request = f"This is a bug in Esper: please report it, with the lines above ({versions})."
    external = None if name is None or name in BUILT_IN else external_commands().get(name)
    if external is not None:
        request = f'"{external.name}" is from {external.source}: please report this there ({versions}).'
    print_line(printable(request), stream=sys.stderr)


def _redirect_to_devnull() -> None:
    """Redirect stdout and stderr to the null device, so that the interpreter's last flush does not fail."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        os.dup2(nowhere, stream.fileno())


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="esper", message="%(prog)s %(version)s")
def main() -> None:
    """Grow neural networks while they train.

    \b
    esper run plugins.yaml          train and print the results
    esper check plugins.yaml        find mistakes without training
    esper plugins list              list what is installed
    """
