"""The command ``esper``: help without imports, commands of other packages, and a status for every end."""

import errno
import os
import re
import runpy
import sys
from contextlib import ExitStack
from importlib.metadata import entry_points

import click
import pytest
from click.testing import CliRunner

from esper_core import __version__
from esper_core.plugins import Extension
from esper_run.cli import main
from esper_run.cli.main import BUILT_IN, KNOWN_ELSEWHERE, external_commands, load_built_in

COMMAND = """
import click, sys
from esper_core.leyline import GovernorStop, Interrupted, PluginError, Problem

@click.command()
@click.argument("how", default="")
def command(how):
    {body}
"""


def listed(help: str) -> list[list[str]]:
    """Return the lists of a help text: each name with its line, for any column width."""
    return [re.split(r"  +", line.strip(), maxsplit=1) for line in help.splitlines() if re.match(r"  \S+  ", line)]


NEVER = "raise AssertionError('was imported')"


@pytest.fixture
def grow(install, esper):
    """``grow(body, argument, …)``: return the result of the command ``grow`` of esper-extra 1.0 with this body."""

    def call(body: str, *arguments: str):
        install.command("grow", COMMAND.format(body=body))
        return esper("grow", *arguments)

    return call


@pytest.mark.members
def test_help_names_every_command_and_imports_none(esper, install):
    install.command("grow", NEVER)
    install.command("\x1b[31mgrow", NEVER, package="odd")
    answer = esper("--help")
    assert (answer.status, answer.err) == (0, "")
    assert ("\x1b" in answer.out, "\\x1b[31mgrow" in answer.out) == (False, True), "control characters are escaped"
    for name, (_, text) in BUILT_IN.items():
        assert f"  {name} " in answer.out
        assert text.split()[0] in answer.out
    assert ["grow", "From esper-extra 1.0."] in listed(answer.out)
    assert f"watch {KNOWN_ELSEWHERE['watch'][1]} From esper-watch {__version__}." in " ".join(answer.out.split())


@pytest.mark.members
def test_summaries_of_first_party_commands_agree_with_the_commands_whose_help_fits_a_terminal():
    for name, (_, summary) in KNOWN_ELSEWHERE.items():
        command = external_commands()[name].load(click.Command, "a click command")
        assert summary.split()[:4] == command.help.split()[:4], name
        assert max(map(len, command.get_help(click.Context(command)).splitlines())) <= 80, name


def test_built_in_commands_are_listed_and_summarised_by_their_own_help():
    context = click.Context(main)
    names = main.list_commands(context)
    assert names[: len(BUILT_IN)] == list(BUILT_IN)
    assert all(isinstance(main.get_command(context, name), click.Command) for name in names)
    commands = {name: load_built_in(name) for name in BUILT_IN}
    assert {name: command.name for name, command in commands.items()} == {name: name for name in BUILT_IN}
    summaries = {name: command.get_short_help_str(200).rstrip(".") for name, command in commands.items()}
    assert summaries == {name: summary.rstrip(".") for name, (_, summary) in BUILT_IN.items()}


def test_version_is_printed_and_help_without_arguments(esper):
    answer = esper("--version")
    assert (answer.status, answer.out, answer.err) == (0, f"esper {__version__}\n", "")
    answer = esper()
    assert (answer.status, answer.out, "Commands:" in answer.err) == (2, "", True)
    with pytest.raises(SystemExit, match="2"):
        runpy.run_module("esper_run", run_name="__main__")


@pytest.mark.parametrize(
    ("typed", "hint"),
    [
        ("check1", 'There is no command "check1". Did you mean "check"?'),
        ("plugins lst", 'There is no command "lst". Did you mean "list"?'),
        ("zzz", 'There is no command "zzz". All commands:  esper --help'),
        ("\x1b[31mx", 'There is no command "\\x1b[31mx". All commands:  esper --help'),
        ("--nope", "No such option '--nope'."),
    ],
)
def test_misspelt_command_is_a_usage_error_with_a_suggestion(esper, typed, hint):
    answer = esper(*typed.split())
    assert (answer.status, answer.out) == (2, "")
    assert answer.err.endswith(f"\nError: {hint}\n")


def test_command_of_another_package_runs_and_its_return_value_is_no_status(grow):
    answer = grow("click.echo('grown ' + how); return 7", "well")
    assert (answer.status, answer.out, answer.err) == (0, "grown well\n", "")


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ("click.get_current_context().exit(5)", 5, ""),
        ("sys.exit(6)", 6, ""),
        ("raise click.UsageError('not so')", 2, "Error: not so\n"),
        ("raise click.Abort", 130, "\nInterrupted.\n"),
        ("raise KeyboardInterrupt", 130, "\nInterrupted.\n"),
        ("raise GeneratorExit", 1, "please report this there"),
        ("raise Interrupted(15)", 143, "E401 interrupted by signal 15; the current step was finished\n"),
        ("raise GovernorStop(Problem('E402', 'stopped'))", 4, "E402 stopped\n"),
        ("raise PluginError([Problem('E1', 'one', hint='so'), Problem('E2', 'two')])", 3, "E1 one\n  so\n\nE2 two\n"),
    ],
)
def test_every_error_has_its_exit_status(grow, body, status, message):
    answer = grow(body)
    assert (answer.status, answer.out) == (status, "")
    assert message in answer.err if status == 1 else answer.err.endswith(message)


def test_crash_of_another_packages_command_names_that_package(grow):
    answer = grow("1 / 0")
    assert (answer.status, answer.out) == (1, "")
    assert answer.err.startswith("Traceback (most recent call last):\n")
    *_, error, request = answer.err.splitlines()
    assert error == "ZeroDivisionError: division by zero"
    assert request.startswith(f'"grow" is from esper-extra 1.0: please report this there (esper {__version__}, Python ')


@pytest.mark.parametrize("number", [errno.EBADF, errno.EMFILE])
def test_files_that_a_component_closed_are_no_bug_in_esper(number: int, esper, monkeypatch) -> None:
    def fail() -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("esper_core.plugins.load_plugins", fail)
    answer = esper("plugins", "list")
    message = "E231 a component closed files of this process, or none can be opened any more: "
    assert (answer.status, answer.err.splitlines()[0]) == (3, f"{message}{os.strerror(number)}")


def test_crash_of_a_built_in_command_asks_for_a_report_though_a_package_is_damaged(esper, install, monkeypatch):
    install.damaged("other-torn")
    monkeypatch.setattr("esper_core.plugins.load_plugins", lambda: 1 / 0)
    answer = esper("plugins", "list")
    assert (answer.status, "E223" in answer.err) == (1, False)
    request = f"This is a bug in Esper: please report it, with the lines above (esper {__version__}, Python "
    assert answer.err.splitlines()[-1].startswith(request)


LACKING = """\
E210 command "grow" (esper-extra 1.0) cannot be imported: ModuleNotFoundError: No module named 'not_there'
  PATH:1
  Install the package that has the module "not_there". Tell the author of esper-extra.
"""
NO_COMMAND = """\
E219 command "grow" (esper-extra 1.0) is not a click command: esper_extra:command is of type function
  Tell the author of esper-extra.
"""
TWICE = """\
E211 command "grow" is declared more than once, and not loaded: by one 1.0 (one:command) and by two 1.0 (two:command)
  Keep one of them:  pip uninstall one or two
"""
TOO_NEW = f"""\
E212 command "grow" (esper-extra 1.0) needs esper-core >=9, and this is {__version__}; its code was not run
  Bring them together:  pip install --upgrade esper-core esper-extra
"""


@pytest.mark.parametrize(
    ("source", "requires", "message"),
    [
        ("import not_there", "esper-core", LACKING),
        ("def command(): pass", "esper-core", NO_COMMAND),
        (NEVER, "esper-core>=9", TOO_NEW),
    ],
)
def test_command_that_cannot_be_run_names_its_package(esper, install, source, requires, message):
    path = install.command("grow", source, requires=requires)
    answer = esper("grow")
    assert (answer.status, answer.out, answer.err.replace(str(path), "PATH")) == (3, "", message)


@pytest.mark.parametrize("command", ["plugins", "plugins.list"])
def test_command_of_another_package_cannot_replace_a_built_in(esper, install, command):
    install.command(command, NEVER, package="evil")
    assert esper("plugins", "list").status == 0
    assert "evil" not in esper("--help").out


def test_command_of_two_packages_is_not_loaded(esper, install):
    for package in ("one", "two"):
        install.command("grow", NEVER, package=package)
    answer = esper("grow")
    assert (answer.status, answer.err) == (3, TWICE)
    assert ["grow", "From one 1.0 and two 1.0."] in listed(esper("--help").out)


def test_package_may_add_a_command_to_a_built_in_group(esper, install):
    install.command("plugins.tend", COMMAND.format(body="click.echo('tended ' + how)"))
    answer = esper("plugins", "tend", "well")
    assert (answer.out, answer.status) == ("tended well\n", 0)
    assert ["tend", "From esper-extra 1.0."] in listed(esper("plugins", "--help").out)
    assert "tend" not in dict(listed(esper("--help").out))
    assert esper("plugins.tend").status == 2


def test_first_party_command_that_is_not_installed_names_its_package(esper, monkeypatch):
    monkeypatch.setattr(Extension, "find", lambda *_: {})
    for typed, package in ((["watch"], "esper-watch"), (["plugins", "check"], "esper-testing")):
        answer = esper(*typed)
        hint = f'There is no command "{typed[-1]}". It comes with another package:  pip install {package}'
        assert (answer.status, answer.err.endswith(f"\nError: {hint}\n")) == (2, True)
    titles = [line for line in esper("--help").out.splitlines() if line.endswith(":")]
    assert titles == ["Options:", "Commands:"]


def test_safe_mode_leaves_out_commands_of_other_packages(esper, install, monkeypatch):
    install.command("grow", NEVER)
    monkeypatch.setenv("ESPER_SAFE_MODE", "1")
    assert esper("grow").err.startswith("E224 ")
    assert ["grow", "From esper-extra 1.0; left out in safe mode."] in listed(esper("--help").out)


@pytest.mark.parametrize(("body", "status"), [("click.echo('grown')", 141), ("raise Interrupted(1)", 129)])
def test_after_a_broken_pipe_the_interpreter_can_flush_its_streams(install, monkeypatch, body, status):
    install.command("grow", COMMAND.format(body=body))
    with ExitStack() as streams:
        for name in ("stdout", "stderr"):
            reader, writer = os.pipe()
            os.close(reader)
            monkeypatch.setattr(sys, name, streams.enter_context(os.fdopen(writer, "w", buffering=1)))
        with pytest.raises(SystemExit) as end:
            main(["grow"])
        assert end.value.code == status
        for stream in (sys.stdout, sys.stderr):
            stream.write("the last words\n")
            stream.flush()


def test_command_is_the_installed_script_and_works_with_clicks_completion_and_runner(esper, monkeypatch):
    (script,) = entry_points(group="console_scripts", name="esper")
    assert script.load() is main
    result = CliRunner().invoke(main, ["plugins", "show", "nope"])
    assert (result.exit_code, 'E208 unknown plugin "nope"' in result.output) == (2, True)
    assert CliRunner().invoke(main, ["--version"], standalone_mode=False).output.startswith("esper ")
    for name, value in {"_ESPER_COMPLETE": "bash_complete", "COMP_WORDS": "esper plug", "COMP_CWORD": "1"}.items():
        monkeypatch.setenv(name, value)
    assert esper().out == "plain,plugins\n"
