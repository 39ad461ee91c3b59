"""An option has the same default in a file, in a program and on the command line."""

import importlib
import inspect
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import click
import pytest

from esper_core.plugins import load_plugins
from esper_run import cli
from esper_run.config.errors import Entry, entry_at

FACES = ("esper_core", "esper_core.leyline", "esper_core.growth", "esper_core.governor", "esper_core.telemetry")

OTHER_MEANING = {
    "RandomStream.device": "where random numbers are drawn, which is not where a run computes",
    "GovernorDecision.penalty": "what this decision costs: nothing, where nothing is rolled back",
    "decode_state.device": "where numbers lie that were remembered",
    "probe.steps": "training steps, not decision steps",
    "Gardener.policy": "a file names its policies, and a loop has one at hand",
}
"""Parameters that share the name of an option, but not its meaning."""


def options(entry: Entry) -> Iterator[tuple[str, Any]]:
    """The name and the default of every key of the model that has one."""
    for name in entry.names:
        below = entry.below(name)
        assert below is not None
        if below.section is not None and not below.is_use:
            yield from options(below)
        elif below.field is not None and not below.field.is_required():
            yield name, below.field.get_default(call_default_factory=True)


def defaults_in_programs() -> Iterator[tuple[str, str, Any]]:
    """Yield the defaults of parameters of all public callables."""
    yielded = set()
    for face in FACES:
        module = importlib.import_module(face)
        for name in module.__all__:
            for owner, called in calls(name, getattr(module, name)):
                for parameter in inspect.signature(called).parameters.values():
                    default = parameter.default
                    says_something = default is not parameter.empty and default is not None and default != ()
                    if says_something and not repr(default).startswith("<") and (owner, parameter.name) not in yielded:
                        yielded.add((owner, parameter.name))
                        yield owner, parameter.name, default


def calls(name: str, candidate: Any) -> Iterator[tuple[str, Any]]:
    """Return the callables of ``candidate``, without the configuration's models, which define the defaults."""
    if inspect.isfunction(candidate):
        yield name, candidate
    elif inspect.isclass(candidate) and not name.endswith("Config"):
        yield name, candidate.__init__
        members = {key: value for key, value in vars(candidate).items() if not key.startswith("_")}
        yield from ((f"{name}.{key}", value) for key, value in members.items() if inspect.isfunction(value))


def test_run_12_a_program_has_the_defaults_of_a_file() -> None:
    """Library and configuration have one source of defaults; neither may repeat a number of the other."""
    top = entry_at(())
    assert top is not None
    defaults = defaultdict(list)
    for name, default in options(top):
        defaults[name].append(default)
    differing = {
        f"{owner}.{name}": (default, defaults[name])
        for owner, name, default in defaults_in_programs()
        if name in defaults and f"{owner}.{name}" not in OTHER_MEANING and default not in defaults[name]
    }
    assert differing == {}, "each has the name of an option and another default; if it means something else, say so"


def commands(command: click.Command, name: str = "esper") -> Iterator[tuple[str, click.Command]]:
    """Every command there is."""
    yield name, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for inner in command.list_commands(context):
            subcommand = command.get_command(context, inner)
            assert subcommand is not None
            yield from commands(subcommand, f"{name} {inner}")


def test_run_12_an_option_of_several_commands_has_one_default() -> None:
    defaults: dict[str, dict[str, Any]] = defaultdict(dict)
    for name, command in commands(cli.main):
        for parameter in command.params:
            if isinstance(parameter, click.Option):
                defaults[parameter.opts[0]][name] = parameter.get_default(click.Context(command))
    assert len(defaults["--runs-dir"]) >= 2
    assert [option for option, by_command in defaults.items() if len(set(map(repr, by_command.values()))) > 1] == []


COMPONENTS = [component for component in load_plugins().registry.components() if component.settings_model() is not None]


@pytest.mark.parametrize("component", COMPONENTS, ids=lambda component: f"{component.kind}-{component.id}")
def test_settings_have_the_names_and_defaults_of_what_they_build(component) -> None:
    parameters = inspect.signature(component.load()).parameters.values()
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return  # it takes the settings as they are
    excluded = {"metric"} if component.kind == "reward" else set()
    defaults = {
        parameter.name: parameter.default
        for parameter in parameters
        if parameter.kind is parameter.KEYWORD_ONLY and parameter.name not in excluded
    }
    fields = component.settings_model().model_fields
    assert defaults == {
        name: inspect.Parameter.empty if field.is_required() else field.get_default(call_default_factory=True)
        for name, field in fields.items()
    }
    assert all(field.description for field in fields.values())
