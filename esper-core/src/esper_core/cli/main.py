"""The command ``esper``: find the command that was typed, run it, and exit with a status.

Commands are imported when they are typed, so that ``esper --help`` answers at once: the core's are listed in
``BUILT_IN``, those of other packages come by the entry points ``esper.commands``.

Statuses: 0 done, 1 crash, 2 usage or configuration, 3 plugin, 4 stopped by the governor, 130 and 143 interrupted,
141 the reader of our output closed it.
"""

from __future__ import annotations

import os
import platform
import sys
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

import click

from esper_core._version import __version__
from esper_core.cli.output import print_line, print_problems
from esper_core.leyline.errors import EsperError, Interrupted, PluginError, Problem, nearest, printable
from esper_core.plugins.discovery import (
    COMMAND_GROUP,
    core_version_problem,
    discover,
    duplicate_problem,
    is_first_party,
    is_set,
)
from esper_core.plugins.isolation import attempt, fault_problem, import_target

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from esper_core.plugins.discovery import Distribution
    from esper_core.plugins.records import EntryPointInfo

CRASHED: Final = 1
INTERRUPTED: Final = 130
READER_GONE: Final = 141


@dataclass(frozen=True, slots=True)
class BuiltIn:
    """A command of the core.

    Attributes:
        target: Where it is, ``module:attribute``.
        help: Its line in ``esper --help``.
        is_open: Whether other packages may add commands below it; then it is an ``OpenGroup``.
    """

    target: str
    help: str
    is_open: bool = False


BUILT_IN: Final[Mapping[str, BuiltIn]] = {
    "run": BuiltIn("esper_core.cli.run:run", "Run a configuration, or once more what a run directory holds."),
    "resume": BuiltIn("esper_core.cli.run:resume", "Resume an interrupted or killed run from its newest checkpoint."),
    "check": BuiltIn(
        "esper_core.cli.configuration:check",
        "Check a configuration: its values, its names, and whether its pieces fit together.",
    ),
    "explain": BuiltIn(
        "esper_core.cli.configuration:explain",
        "Explain a value: what it is, its type, its default, and where it was set.",
    ),
    "runs": BuiltIn("esper_core.cli.runs:runs", "List the runs, or show what one of them found."),
    "plugins": BuiltIn(
        "esper_core.cli.plugins:plugins", "Show the installed plugins, and what is wrong with them.", is_open=True
    ),
    "components": BuiltIn(
        "esper_core.cli.plugins:components",
        "Show what a run can use: blueprints, hosts, policies, rewards, sinks, tasks.",
    ),
    "schema": BuiltIn(
        "esper_core.cli.configuration:schema",
        "Print the JSON schema of a configuration, with what is installed, for editors.",
    ),
    "doctor": BuiltIn(
        "esper_core.cli.doctor:doctor",
        "Check what a run needs here: Python, torch, packages, plugins, folder, terminal.",
    ),
}
"""The core's commands, in the order of ``esper --help``."""

KNOWN_ELSEWHERE: Final[Mapping[str, tuple[str, str]]] = {
    "compare": ("esper-watch", "Compare the arms of one or several finished runs."),
    "new": ("esper-testing", "Write a package with a plugin that works, to begin your own with."),
    "plugins.check": ("esper-testing", "Run the conformance checks of a plugin."),
    "replay": ("esper-study", "Replay an episode of a run, or see what another action would have led to."),
    "report": ("esper-watch", "Write the report of a run as one HTML page."),
    "watch": ("esper-watch", "Show curves and seed lives of a run."),
}
"""The package and the help line of commands of the project's other packages, which are not imported for ``--help``."""


# --- commands of other packages


@dataclass(frozen=True, slots=True)
class External:
    """A command that other packages announce. It is an error if several announce the same name."""

    name: str
    claims: tuple[EntryPointInfo, ...]

    @property
    def package(self) -> str:
        """The packages that announce it, each with its version."""
        return " and ".join(dict.fromkeys(claim.source for claim in self.claims))

    @property
    def is_shadowed(self) -> bool:
        """Whether the core has a command of this name, which comes first."""
        return self.name in BUILT_IN

    @property
    def group(self) -> str:
        """The command that it belongs below: ``plugins.check`` is ``esper plugins check``. Empty for one at the top."""
        return self.name.rpartition(".")[0]

    @property
    def is_stranded(self) -> bool:
        """Whether it is announced below a command that does not exist or takes no commands of others."""
        return bool(self.group) and not (self.group in BUILT_IN and BUILT_IN[self.group].is_open)

    @property
    def is_left_out(self) -> bool:
        """Whether safe mode leaves it out."""
        return is_set("ESPER_SAFE_MODE") and not all(is_first_party(claim.package) for claim in self.claims)

    @property
    def help(self) -> str:
        """Its line in ``esper --help``, which names its package; the command's own text would need an import."""
        if self.is_shadowed:
            return f"From {self.package}; not reachable: the core has a command of this name."
        if self.is_stranded:
            groups = " and ".join(f'"{name}"' for name, one in BUILT_IN.items() if one.is_open)
            return f"From {self.package}; not reachable: only {groups} can have commands of other packages below it."
        if self.is_left_out:
            return f"From {self.package}; left out in safe mode."
        package, text = KNOWN_ELSEWHERE.get(self.name, ("", ""))
        known = {claim.package for claim in self.claims} == {package}
        return f"{text} From {self.package}." if known else f"From {self.package}."


def external_commands(distributions: Iterable[Distribution] | None = None) -> dict[str, External]:
    """Return the commands that other packages announce, by name, without importing them."""
    found, _ = discover(COMMAND_GROUP, distributions)
    names = dict.fromkeys(announcement.name for announcement in found)
    return {name: External(name, tuple(claim for claim in found if claim.name == name)) for name in names}


def load_built_in(name: str) -> click.Command:
    """Import a command of the core."""
    module, _, attribute = BUILT_IN[name].target.partition(":")
    command: click.Command = getattr(import_module(module), attribute)
    return command


def load_external(command: External) -> click.Command:
    """Import a command of another package; PluginError, which names the package, if that fails."""
    if command.is_left_out:
        message = f'command "{command.name}" is from {command.package}, which safe mode leaves out'
        raise PluginError(Problem("E224", message, hint="Unset ESPER_SAFE_MODE."))
    claim = command.claims[0]
    title = f'command "{command.name}" ({claim.source})'
    if len(command.claims) > 1:
        raise PluginError(duplicate_problem(f'command "{command.name}"', command.claims))
    if problem := core_version_problem(claim, title):
        raise PluginError(problem)
    tried = attempt(lambda: import_target(claim.target))
    if tried.error is not None:
        problem = fault_problem(
            "E210",
            f"{title} cannot be imported",
            tried.error,
            target=claim.target,
            package=claim.package,
            requires=claim.requires,
        )
        raise PluginError(problem) from tried.error
    if not isinstance(tried.value, click.Command):
        message = f"{title} is no click command: {claim.target} is of type {type(tried.value).__name__}"
        raise PluginError(Problem("E219", message, hint=f"Tell the author of {claim.package}."))
    return tried.value


def no_such_command(name: str, typed: str, known: Iterable[str], context: click.Context) -> click.UsageError:
    """Return the error for an unknown command, with the package that has it, or the most similar name."""
    if name in KNOWN_ELSEWHERE:
        hint = f"It comes with another package:  pip install {KNOWN_ELSEWHERE[name][0]}"
    else:
        close = nearest(typed, known)
        hint = f'Did you mean "{close}"?' if close else f"All commands:  {context.command_path} --help"
    return click.UsageError(printable(f'There is no command "{typed}". {hint}'), context)


# --- groups of commands


class _SuggestingGroup(click.Group):
    """A group that suggests a name for one that it does not have."""

    def full_name(self, name: str) -> str:
        """Return the name that an entry point has for a command of this group."""
        return name

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that was typed, as click does; UsageError with a suggestion if there is none."""
        if (command := self.get_command(ctx, args[0])) is not None:
            return args[0], command, args[1:]
        raise no_such_command(self.full_name(args[0]), args[0], self.list_commands(ctx), ctx)


class OpenGroup(_SuggestingGroup):
    """A command of the core below which other packages may add theirs: announced as ``plugins.check``."""

    def full_name(self, name: str) -> str:
        """Return the name with that of the group: ``plugins.check``."""
        return f"{self.name}.{name}"

    def list_commands(self, ctx: click.Context) -> list[str]:
        """List its own commands, then those of other packages."""
        own = super().list_commands(ctx)
        return [*own, *(name for name in self._others() if name not in own)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return its own command, or import another package's; None if there is none."""
        if (own := super().get_command(ctx, cmd_name)) is not None:
            return own
        other = self._others().get(cmd_name)
        return None if other is None else load_external(other)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write its own commands with their help, then the others, without importing them."""
        lines = [(name, command.get_short_help_str(80)) for name, command in self.commands.items()]
        others = self._others().items()
        lines += [(printable(name), printable(one.help)) for name, one in others if name not in self.commands]
        with formatter.section("Commands"):
            formatter.write_dl(lines)

    def _others(self) -> dict[str, External]:
        own = {name: one for name, one in external_commands().items() if one.group == self.name}
        return {name.removeprefix(f"{self.name}."): one for name, one in own.items()}


class LazyGroup(_SuggestingGroup):
    """The command ``esper``: knows the names and the help of its commands without importing them.

    The status of a command is what it raises or gives to ``context.exit``; what it returns has no meaning.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        """List the core's commands in the order of the table, then those of other packages."""
        others = external_commands().items()
        return [*BUILT_IN, *(name for name, one in others if not one.is_shadowed and not one.group)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command; None if there is none. PluginError if its package is broken."""
        if cmd_name in BUILT_IN:
            return load_built_in(cmd_name)
        external = external_commands().get(cmd_name)
        return None if external is None or external.group else load_external(external)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the lists of ``esper --help`` from the tables."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, command.help) for name, command in BUILT_IN.items()])
        if others := {name: one for name, one in external_commands().items() if not one.group or one.is_stranded}:
            with formatter.section("Commands of other packages"):
                formatter.write_dl([(printable(name), printable(command.help)) for name, command in others.items()])

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Run what was typed, and leave the interpreter with its status."""
        if not kwargs.get("standalone_mode", True):
            return super().main(*args, **kwargs)
        if "_ESPER_COMPLETE" in os.environ:
            return super().main(prog_name="esper")
        typed = kwargs.get("args", args[0] if args else None)
        sys.exit(run_command(self, sys.argv[1:] if typed is None else typed))


# --- running a command


def run_command(command: click.Group, arguments: Sequence[str]) -> int:
    """Run the command, print what went wrong, and return the status for the shell."""
    try:
        return _run_reporting_errors(command, arguments)
    except BrokenPipeError:
        _redirect_to_devnull()
        return READER_GONE


def _run_reporting_errors(command: click.Group, arguments: Sequence[str]) -> int:
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
        if isinstance(error, click.MissingParameter) and error.param in _run_arguments(error.ctx):
            print_line("The runs that are there:  esper runs list", stream=sys.stderr)
        return error.exit_code
    except BrokenPipeError:
        raise
    except SystemExit as end:
        if context is None or not _is_core_command(command, context):
            raise  # a command of another package ends as it likes
        print_problems([_exit_by_component(end)])
        return PluginError.exit_code
    except BaseException as error:  # a GeneratorExit, a CancelledError: nothing awaits them here
        if problems := _damaged_packages(error):
            print_problems(problems)
            return PluginError.exit_code
        _report_crash(None if context is None else context.invoked_subcommand)
        return CRASHED
    return 0


def _run_arguments(context: click.Context | None) -> list[click.Parameter]:
    """Return the arguments of the command that was typed which name a run."""
    parameters = [] if context is None else context.command.params
    return [one for one in parameters if one.human_readable_name.rstrip(".") == "RUN"]


def _is_core_command(command: click.Group, context: click.Context) -> bool:
    """Return whether a command of the core was typed, below which no other package has one."""
    name = context.invoked_subcommand
    return name is not None and name in BUILT_IN and not isinstance(command.get_command(context, name), OpenGroup)


def _exit_by_component(end: SystemExit) -> Problem:
    """Return the problem of a component that called ``sys.exit``: the status must not look like success."""
    from esper_core.plugins.isolation import location_of

    file, line = location_of(end)
    message = f"a component ended the program in the middle of its work: SystemExit: {end.code}"
    hint = "This is a fault of its package: it must raise an error instead."
    return Problem("E231", message, file=file, line=line, hint=hint)


def _damaged_packages(error: BaseException) -> list[Problem]:
    """Return E223 for each package whose metadata cannot be read, if that is what raised ``error``.

    Pydantic and torch ask every installed package for their own plugins when they are first used.
    """
    from traceback import walk_tb

    modules = (str(frame.f_globals.get("__name__")) for frame, _ in walk_tb(error.__traceback__))
    if not any(module.startswith("importlib.metadata") for module in modules):
        return []
    from esper_core.plugins import load_plugins

    return list(dict.fromkeys(problem for problem in load_plugins().problems if problem.code == "E223"))


def _report_crash(name: str | None) -> None:
    """Print the traceback, and whom to tell of it."""
    import traceback

    traceback.print_exc()
    versions = f"esper {__version__}, Python {platform.python_version()}, {platform.system()}"
    request = f"This is a bug in Esper: please report it, with the lines above ({versions})."
    external = None if name is None or name in BUILT_IN else external_commands().get(name)
    if external is not None:
        request = f'"{external.name}" is from {external.package}: please report this there ({versions}).'
    print_line(printable(request), stream=sys.stderr)


def _redirect_to_devnull() -> None:
    """Point stdout and stderr nowhere, so that the interpreter's last flush does not fail."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        try:
            os.dup2(nowhere, stream.fileno())
        except (OSError, ValueError):  # a stream without a file has no last flush that could fail
            continue
    os.close(nowhere)


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="esper", message="%(prog)s %(version)s")
def main() -> None:
    """Grow neural networks while they train.

    \b
    esper run plugins.yaml          train, and see what grew
    esper check plugins.yaml        find mistakes before
    esper plugins list              what is installed
    """
