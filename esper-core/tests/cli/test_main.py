"""The command ``esper``: help without imports, commands of other packages, and a status for every end."""

from __future__ import annotations

import os
import re
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import entry_points

import click
import pytest
from click.testing import CliRunner

from esper_core import __version__
from esper_core.cli import main
from esper_core.cli.main import (
    BUILT_IN,
    KNOWN_ELSEWHERE,
    external_commands,
    load_built_in,
    load_external,
)

ESPER = [sys.executable, "-m", "esper_core"]

COMMAND = """
import click, sys
from esper_core.leyline import GovernorStop, Interrupted, PluginError, Problem

@click.command()
@click.argument("how", default="")
def command(how):
    {body}
"""


def listed(help: str) -> list[list[str]]:
    """The lists of a help text: each name with its line, however wide the columns are."""
    return [re.split(r"  +", line.strip(), maxsplit=1) for line in help.splitlines() if re.match(r"  \S+  ", line)]


def other(site_packages, body: str, **settings) -> None:
    site_packages.command("esper-extra", COMMAND.format(body=body), command="grow", **settings)


@pytest.mark.members
def test_help_names_every_command_and_imports_none(esper, site_packages) -> None:
    site_packages.command("esper-extra", "raise AssertionError('was imported')", command="grow")
    answer = esper("--help")
    assert (answer.status, answer.err) == (0, "")
    for name, (_, text) in BUILT_IN.items():
        assert f"  {name} " in answer.out
        assert text.split()[0] in answer.out
    assert ["grow", "From esper-extra 1.0."] in listed(answer.out)
    assert f"watch {KNOWN_ELSEWHERE['watch'][1]} From esper-watch 0.1.0." in " ".join(answer.out.split())


def test_summary_of_a_first_party_command_is_not_used_for_another_package(esper, site_packages) -> None:
    site_packages.command("esper-extra", COMMAND.format(body="pass"), command="new")
    told = dict(listed(esper("--help").out))
    assert KNOWN_ELSEWHERE["new"][1] not in told["new"]
    assert "esper-extra 1.0" in told["new"]


@pytest.mark.members
@pytest.mark.parametrize("name", KNOWN_ELSEWHERE)
def test_summary_of_a_first_party_command_agrees_with_the_command(name: str) -> None:
    command = load_external(external_commands()[name])
    assert KNOWN_ELSEWHERE[name][1].split()[:4] == command.help.split()[:4]


def test_built_in_commands_are_listed_and_summarised_by_their_own_help() -> None:
    context = click.Context(main)
    names = main.list_commands(context)
    assert names[: len(BUILT_IN)] == list(BUILT_IN)
    assert all(isinstance(main.get_command(context, name), click.Command) for name in names)
    commands = {name: load_built_in(name) for name in BUILT_IN}
    assert {name: command.name for name, command in commands.items()} == {name: name for name in BUILT_IN}
    summaries = {name: command.get_short_help_str(200).rstrip(".") for name, command in commands.items()}
    assert summaries == {name: summary.rstrip(".") for name, (_, summary) in BUILT_IN.items()}


def test_version_is_printed(esper) -> None:
    answer = esper("--version")
    assert (answer.status, answer.out, answer.err) == (0, f"esper {__version__}\n", "")


def test_help_is_printed_without_arguments(esper) -> None:
    answer = esper()
    assert (answer.status, answer.out) == (2, "")
    assert "Commands:" in answer.err


@pytest.mark.parametrize(
    ("typed", "hint"),
    [
        ("explian", 'There is no command "explian". Did you mean "explain"?'),
        ("plugins lst", 'There is no command "lst". Did you mean "list"?'),
        ("zzz", 'There is no command "zzz". All commands:  esper --help'),
        ("\x1b[31mx", 'There is no command "\\x1b[31mx". All commands:  esper --help'),
        ("--nope", "No such option '--nope'."),
    ],
)
def test_misspelt_command_is_a_usage_error_with_a_suggestion(esper, typed: str, hint: str) -> None:
    answer = esper(*typed.split())
    assert (answer.status, answer.out) == (2, "")
    assert answer.err.endswith(f"\nError: {hint}\n")


def test_command_of_another_package_runs_and_its_return_value_is_no_status(esper, site_packages) -> None:
    other(site_packages, "click.echo('grown ' + how); return 7")
    answer = esper("grow", "well")
    assert (answer.status, answer.out, answer.err) == (0, "grown well\n", "")


@pytest.mark.parametrize(
    ("body", "status", "told"),
    [
        ("click.get_current_context().exit(5)", 5, ""),
        ("sys.exit(6)", 6, ""),
        ("raise click.UsageError('not so')", 2, "Error: not so\n"),
        ("raise click.Abort", 130, "\nInterrupted.\n"),
        ("raise KeyboardInterrupt", 130, "\nInterrupted.\n"),
        ("raise GeneratorExit", 1, "please report this there"),
        ("raise Interrupted(15)", 143, "E401 interrupted by signal 15; the current step was finished\n"),
        ("raise GovernorStop(Problem('E402', 'stopped'))", 4, "E402 stopped\n"),
        (
            "raise PluginError([Problem('E1', 'one', hint='so'), Problem('E2', 'two', file='f.py', line=3)])",
            3,
            "E1 one\n  so\n\nE2 two\n  f.py:3\n",
        ),
    ],
)
def test_every_error_has_its_exit_status(esper, site_packages, body: str, status: int, told: str) -> None:
    other(site_packages, body)
    answer = esper("grow")
    assert (answer.status, answer.out) == (status, "")
    assert told in answer.err if status == 1 else answer.err.endswith(told)


def test_crash_of_another_packages_command_names_that_package(esper, site_packages) -> None:
    other(site_packages, "1 / 0")
    answer = esper("grow")
    assert (answer.status, answer.out) == (1, "")
    assert answer.err.startswith("Traceback (most recent call last):\n")
    *_, error, request = answer.err.splitlines()
    assert error == "ZeroDivisionError: division by zero"
    assert request.startswith(f'"grow" is from esper-extra 1.0: please report this there (esper {__version__}, Python ')


def test_crash_of_a_built_in_command_asks_for_a_report(esper, monkeypatch) -> None:
    monkeypatch.setattr("esper_core.plugins.load_plugins", lambda: 1 / 0)
    answer = esper("plugins", "list")
    assert answer.status == 1
    assert answer.err.splitlines()[-1].startswith(
        f"This is a bug in Esper: please report it, with the lines above (esper {__version__}, Python "
    )


NOT_RUN = {
    "import not_there": (
        "E210 command \"grow\" (esper-extra 1.0) cannot be imported: ModuleNotFoundError: No module named 'not_there'\n"
        "  PATH:1\n"
        '  Install the package that has the module "not_there". Tell the author of esper-extra.\n'
    ),
    "def command(): pass": (
        'E219 command "grow" (esper-extra 1.0) is no click command: esper_extra:command is of type function\n'
        "  Tell the author of esper-extra.\n"
    ),
    "esper-core>=9": (
        'E212 command "grow" (esper-extra 1.0) needs esper-core >=9, and this is 0.1.0; its code was not run\n'
        "  Bring them together:  pip install --upgrade esper-core esper-extra\n"
    ),
}


@pytest.mark.parametrize("source", NOT_RUN)
def test_command_that_cannot_be_run_names_its_package(esper, site_packages, source: str) -> None:
    requires = source if source.startswith("esper-core") else "esper-core"
    source_text = "raise AssertionError('was imported')" if requires == source else source
    path = site_packages.command("esper-extra", source_text, command="grow", requires=requires)
    answer = esper("grow")
    assert (answer.status, answer.out) == (3, "")
    assert answer.err.replace(str(path), "PATH") == NOT_RUN[source]


@pytest.mark.parametrize("command", ["plugins", "plugins.list"])
def test_command_of_another_package_cannot_replace_a_built_in(esper, site_packages, command: str) -> None:
    site_packages.command("evil", "raise AssertionError('was imported')", command=command)
    assert esper("plugins", "list").status == 0
    assert "evil" not in esper("--help").out


def test_command_of_two_packages_is_not_loaded(esper, site_packages) -> None:
    for name in ("one", "two"):
        site_packages.command(name, "raise AssertionError('was imported')", command="grow")
    answer = esper("grow")
    assert (answer.status, answer.err) == (
        3,
        'E211 command "grow" is declared more than once, and not loaded:'
        " by one 1.0 (one:command) and by two 1.0 (two:command)\n"
        "  Keep one of them:  pip uninstall one or two\n",
    )
    assert ["grow", "From one 1.0 and two 1.0."] in listed(esper("--help").out)


def test_package_may_add_a_command_to_a_built_in_group(esper, site_packages) -> None:
    site_packages.command("esper-extra", COMMAND.format(body="click.echo('tended ' + how)"), command="plugins.tend")
    assert (esper("plugins", "tend", "well").out, esper("plugins", "tend", "well").status) == ("tended well\n", 0)
    assert ["tend", "From esper-extra 1.0."] in listed(esper("plugins", "--help").out)
    assert "tend" not in dict(listed(esper("--help").out))
    assert esper("plugins.tend").status == 2


def test_first_party_command_that_is_not_installed_names_its_package(esper, monkeypatch) -> None:
    monkeypatch.setattr(sys.modules["esper_core.cli.main"], "discover", lambda *_: ((), ()))
    for typed, package in ((["watch"], "esper-watch"), (["plugins", "check"], "esper-testing")):
        answer = esper(*typed)
        hint = f'There is no command "{typed[-1]}". It comes with another package:  pip install {package}'
        assert (answer.status, answer.err.endswith(f"\nError: {hint}\n")) == (2, True)
    titles = [line for line in esper("--help").out.splitlines() if line.endswith(":")]
    assert titles == ["Options:", "Commands:"]


def test_safe_mode_leaves_out_commands_of_other_packages(esper, site_packages, monkeypatch) -> None:
    site_packages.command("esper-extra", "raise AssertionError('was imported')", command="grow")
    monkeypatch.setenv("ESPER_SAFE_MODE", "1")
    answer = esper("grow")
    assert (answer.status, answer.err) == (
        3,
        'E224 command "grow" is from esper-extra 1.0, which safe mode leaves out\n  Unset ESPER_SAFE_MODE.\n',
    )
    assert ["grow", "From esper-extra 1.0; left out in safe mode."] in listed(esper("--help").out)


def test_control_characters_of_metadata_are_escaped(esper, site_packages) -> None:
    site_packages.command("esper-extra", "", command="\x1b[31mgrow")
    answer = esper("--help")
    assert "\x1b" not in answer.out
    assert "\\x1b[31mgrow" in answer.out


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_broken_pipe_is_no_crash(unbuffered: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    run = subprocess.run(
        [*ESPER, "plugins", "list"], stdout=writer, stderr=subprocess.PIPE, text=True, check=False, env=environment
    )
    os.close(writer)
    assert (run.returncode, run.stderr) == (141, "")


@pytest.fixture
def hang_up(monkeypatch) -> Iterator[Callable[[], None]]:
    """``hang_up()``: stdout and stderr are pipes from then on that nobody reads."""
    streams = []

    def close() -> None:
        for name in ("stdout", "stderr"):
            reader, writer = os.pipe()
            os.close(reader)
            streams.append(os.fdopen(writer, "w", buffering=1))
            monkeypatch.setattr(sys, name, streams[-1])

    yield close
    for stream in streams:
        stream.close()


@pytest.mark.parametrize(("body", "status"), [("click.echo('grown')", 141), ("raise Interrupted(1)", 129)])
def test_after_a_broken_pipe_the_interpreter_can_flush_its_streams(
    hang_up, site_packages, body: str, status: int
) -> None:
    other(site_packages, body)
    hang_up()
    with pytest.raises(SystemExit) as end:
        main(["grow"])
    assert end.value.code == status
    for stream in (sys.stdout, sys.stderr):
        stream.write("the last words\n")
        stream.flush()


def test_ctrl_c_ends_with_130(site_packages) -> None:
    """The command restores Python's handler, which a shell in the background makes processes ignore."""
    ready = "import signal, time; signal.signal(signal.SIGINT, signal.default_int_handler); print('ready', flush=True)"
    other(site_packages, f"{ready}; time.sleep(30)")
    environment = {**os.environ, "PYTHONPATH": str(site_packages.folder)}
    run = subprocess.Popen([*ESPER, "grow"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    assert run.stdout.read(5) == "ready"
    run.send_signal(signal.SIGINT)
    _, err = run.communicate(timeout=60)
    assert (run.returncode, err) == (130, "\nInterrupted.\n")


def test_installed_script_is_the_command() -> None:
    (script,) = entry_points(group="console_scripts", name="esper")
    assert script.load() is main


def test_shell_completion_is_clicks(esper, monkeypatch) -> None:
    for name, value in {"_ESPER_COMPLETE": "bash_complete", "COMP_WORDS": "esper plug", "COMP_CWORD": "1"}.items():
        monkeypatch.setenv(name, value)
    assert esper().out == "plain,plugins\n"


def test_command_can_be_called_with_clicks_runner() -> None:
    result = CliRunner().invoke(main, ["plugins", "show", "nope"])
    assert result.exit_code == 2
    assert 'E208 unknown plugin "nope"' in result.output


def test_command_that_fails_on_damaged_metadata_names_the_damaged_package(esper, site_packages) -> None:
    other(site_packages, "from importlib.metadata import entry_points; entry_points()")
    site_packages.damaged("other-torn")
    answer = esper("grow")
    assert (answer.status, answer.out) == (3, "")
    first, second = answer.err.splitlines()
    assert first.startswith('E223 the metadata of package "other-torn" cannot be read: ')
    assert second == "  Install it again:  pip install --force-reinstall other-torn"


# --- start-up: commands that only list import neither torch nor what they do not need

LIGHT = ["esper_core", *(f"esper_core.{part}" for part in ("leyline", "hooks", "plugins", "config", "cli"))]
HEAVY = ["torch", "rich", "pydantic", "yaml", "packaging", "pluggy", "esper_core.cli.run"]
STARTUP = f"""
import importlib, sys
from esper_core.cli import main

def imported(*arguments):
    try:
        main(list(arguments))
    except SystemExit as end:
        assert not end.code, (arguments, end.code)
    return set({HEAVY}) & set(sys.modules)

assert imported("--help") == set()
for name in {LIGHT}:
    importlib.import_module(name)
for arguments in sys.argv[1:]:
    arguments = arguments.split()
    assert "torch" not in imported(*arguments), arguments
"""
CONFIG = "task: t\nhost: h\nslots: {early: {blueprints: [b]}}\npolicy: p\n"


@pytest.mark.members
def test_commands_that_list_and_explain_do_not_import_torch(tmp_path) -> None:
    (tmp_path / "run.yaml").write_text(CONFIG)
    commands = ["plugins list", "plugins show tasks", "components list", "schema", f"explain {tmp_path}/run.yaml"]
    run = subprocess.run([sys.executable, "-c", STARTUP, *commands], capture_output=True, text=True, check=False)
    assert (run.returncode, run.stderr) == (0, "")


YARDSTICK = "import argparse, asyncio, decimal, email.message, http.client, logging.config, unittest, xml.dom.minidom"
"""Of the standard library about as much as ``esper --help`` takes: machines that are slow are slow at both."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "bound"), [(["--help"], 1.6), (["plugins", "list"], 2.5), (["plugins", "list", "--json"], 2.5)]
)
def test_listing_takes_little_more_than_starting_python(arguments: list[str], bound: float) -> None:
    """In yardsticks: one is 0.08 seconds where ``make bench`` found 0.09 for the first. Half as much again is left."""
    nothing, yardstick, answer = least_seconds(["-c", "pass"], ["-c", YARDSTICK], ["-m", "esper_core", *arguments])
    assert (answer - nothing) / (yardstick - nothing) < bound


def least_seconds(*commands: list[str], turns: int = 5) -> list[float]:
    """For each command the least processor time of several turns, since the machine may be busy with other tests."""
    taken = [[seconds(*command) for command in commands] for _ in range(turns)]
    return [min(times) for times in zip(*taken, strict=True)]


def seconds(*arguments: str) -> float:
    """The processor time of an interpreter."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *arguments], check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
