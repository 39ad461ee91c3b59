"""Which commands are there, and where? A table of our own, and what other packages announce; imported when typed."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Final

import click

from esper_core.cli.rendering import visible
from esper_core.leyline.errors import PluginError, Problem, nearest
from esper_core.plugins.discovery import (
    COMMAND_GROUP,
    core_version_problem,
    discover,
    duplicate_problem,
    is_first_party,
    safe_mode_from_environment,
)
from esper_core.plugins.isolation import attempt, fault_problem, import_target

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from esper_core.plugins.discovery import Distribution
    from esper_core.plugins.records import EntryPointInfo


@dataclass(frozen=True, slots=True)
class BuiltIn:
    """A command of the core: where it stands, and its line in ``esper --help``."""

    target: str
    help: str
    is_open: bool = False
    """Whether other packages may put commands below it; then it is an ``OpenGroup``."""


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
    "runs": BuiltIn("esper_core.cli.runs:runs", "Show the runs that are there, or what one of them found."),
    "plugins": BuiltIn(
        "esper_core.cli.plugins:plugins", "Show the installed plugins, and what is wrong with them.", is_open=True
    ),
    "components": BuiltIn(
        "esper_core.cli.components:components",
        "Show what a run can use: blueprints, hosts, policies, rewards, sinks, tasks.",
    ),
    "schema": BuiltIn(
        "esper_core.cli.configuration:schema",
        "Print the JSON schema of a configuration, with what is installed, for editors.",
    ),
    "doctor": BuiltIn(
        "esper_core.cli.doctor:doctor",
        "Examine what a run needs here: Python, torch, packages, plugins, folder, terminal.",
    ),
}
"""The core's commands, in the order of ``esper --help``."""


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """A command of another package of this project, and its line in ``esper --help``."""

    package: str
    help: str


KNOWN_ELSEWHERE: Final[Mapping[str, Elsewhere]] = {
    "compare": Elsewhere("esper-watch", "Compare the arms of one or several finished runs."),
    "new": Elsewhere("esper-testing", "Write a package with a plugin that works, to begin your own with."),
    "plugins.check": Elsewhere("esper-testing", "Run the conformance checks of a plugin."),
    "replay": Elsewhere("esper-study", "Replay an episode of a run, or see what another action would have led to."),
    "report": Elsewhere("esper-watch", "Write the report of a run as one HTML page."),
    "watch": Elsewhere("esper-watch", "Show curves and seed lives of a run."),
}
"""Commands of the project's other packages: told of without an import, and by package where that is not installed."""


@dataclass(frozen=True, slots=True)
class External:
    """A command that other packages announce; several claims are a fault."""

    name: str
    claims: tuple[EntryPointInfo, ...]

    @property
    def package(self) -> str:
        """The packages that claim the name, each with its version."""
        return " and ".join(dict.fromkeys(claim.source for claim in self.claims))

    @property
    def is_shadowed(self) -> bool:
        """Whether the core has a command of this name, which comes first."""
        return self.name in BUILT_IN

    @property
    def group(self) -> str:
        """The command that it stands below: ``plugins.check`` is ``esper plugins check``. Empty: it stands alone."""
        return self.name.rpartition(".")[0]

    @property
    def is_stranded(self) -> bool:
        """Whether it is announced below a command that is not there, or takes none of other packages."""
        return bool(self.group) and not (self.group in BUILT_IN and BUILT_IN[self.group].is_open)

    @property
    def is_left_out(self) -> bool:
        """Whether safe mode leaves it out."""
        return safe_mode_from_environment() and not all(is_first_party(claim.package) for claim in self.claims)

    @property
    def help(self) -> str:
        """Its line in ``esper --help``; a stranger's own text would have to be imported."""
        if self.is_shadowed:
            return f"From {self.package}; not reachable: the core has a command of this name."
        if self.is_stranded:
            groups = " and ".join(f'"{name}"' for name, one in BUILT_IN.items() if one.is_open)
            return f"From {self.package}; not reachable: of the commands only {groups} takes those of others below it."
        if self.is_left_out:
            return f"From {self.package}; left out in safe mode."
        known = KNOWN_ELSEWHERE.get(self.name)
        if known is not None and {claim.package for claim in self.claims} == {known.package}:
            return f"{known.help} From {self.package}."
        return f"From {self.package}."


def external_commands(distributions: Iterable[Distribution] | None = None) -> dict[str, External]:
    """What other packages announce, by name. Nothing of theirs is imported."""
    found, _ = discover(COMMAND_GROUP, distributions)
    names = dict.fromkeys(announcement.name for announcement in found)
    return {name: External(name, tuple(claim for claim in found if claim.name == name)) for name in names}


def load_built_in(name: str) -> click.Command:
    """Imports a command of the core."""
    module, _, attribute = BUILT_IN[name].target.partition(":")
    command: click.Command = getattr(import_module(module), attribute)
    return command


def load_external(command: External) -> click.Command:
    """Imports a command of another package; PluginError, which names the package, where that cannot be."""
    if command.is_left_out:
        message = f'command "{command.name}" is from {command.package}, which safe mode leaves out'
        raise PluginError(Problem("E224", message, hint="Unset ESPER_SAFE_MODE."))
    claim = command.claims[0]
    title = f'command "{command.name}" ({claim.source})'
    if len(command.claims) > 1:
        raise PluginError(duplicate_problem(f'a command "{command.name}"', list(command.claims)))
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
            path=f"entry point {claim.name} = {claim.target}",
        )
        raise PluginError(problem) from tried.error
    if not isinstance(tried.value, click.Command):
        message = f"{title} is no click command: {claim.target} is of type {type(tried.value).__name__}"
        raise PluginError(Problem("E219", message, hint=f"Tell the author of {claim.package}."))
    return tried.value


def no_such_command(name: str, typed: str, known: Iterable[str], context: click.Context) -> click.UsageError:
    """The error for a command that is not there, with the package that would bring it, or the nearest name."""
    if name in KNOWN_ELSEWHERE:
        hint = f"It comes with another package:  pip install {KNOWN_ELSEWHERE[name].package}"
    else:
        close = nearest(typed, known)
        hint = f'Did you mean "{close}"?' if close else f"All commands:  {context.command_path} --help"
    return click.UsageError(visible(f'There is no command "{typed}". {hint}'), context)


class OpenGroup(click.Group):
    """A command of the core below which other packages may put theirs: announced as ``plugins.check``."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Its own commands, then those of other packages."""
        own = super().list_commands(ctx)
        return [*own, *(name for name in self._others() if name not in own)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Its own command, or another package's, imported; None where there is none."""
        if (own := super().get_command(ctx, cmd_name)) is not None:
            return own
        other = self._others().get(cmd_name)
        return None if other is None else load_external(other)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does it, with the way out for a name that is not there."""
        if (command := self.get_command(ctx, args[0])) is not None:
            return args[0], command, args[1:]
        name = f"{self.name}.{args[0]}"
        raise no_such_command(name, args[0], self.list_commands(ctx), ctx)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Its own commands with their help, and whose the others are; nothing is imported."""
        lines = [(name, command.get_short_help_str(80)) for name, command in self.commands.items()]
        lines += [
            (visible(name), visible(one.help)) for name, one in self._others().items() if name not in self.commands
        ]
        with formatter.section("Commands"):
            formatter.write_dl(lines)

    def _others(self) -> dict[str, External]:
        return {
            name.removeprefix(f"{self.name}."): one
            for name, one in external_commands().items()
            if one.group == self.name
        }
