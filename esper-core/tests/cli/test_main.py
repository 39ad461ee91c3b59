"""The command ``esper``: help without imports, commands of other packages, and a status for every end."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator

import click
import pytest

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


def test_what_is_said_of_a_command_of_ours_is_not_said_of_a_strangers(esper, site_packages) -> None:
    site_packages.command("esper-extra", COMMAND.format(body="pass"), command="new")
    told = dict(listed(esper("--help").out))
    assert KNOWN_ELSEWHERE["new"][1] not in told["new"]
    assert "esper-extra 1.0" in told["new"]


@pytest.mark.members
@pytest.mark.parametrize("name", KNOWN_ELSEWHERE)
def test_what_is_said_of_a_command_elsewhere_is_what_it_says_itself(name: str) -> None:
    command = load_external(external_commands()[name])
    said, own = KNOWN_ELSEWHERE[name][1].split(), command.help.split()
    assert said[:4] == own[:4]


def test_help_needs_neither_plugins_nor_pydantic_nor_rich() -> None:
    program = """
import sys
from esper_core.cli import main
try:
    main(["--help"])
except SystemExit:
    heavy = ["torch", "rich", "pydantic", "yaml", "packaging", "pluggy", "esper_core.cli.run"]
    sys.stderr.write(repr([name for name in heavy if name in sys.modules]))
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stderr == "[]"


@pytest.mark.parametrize("name", BUILT_IN)
def test_the_line_in_the_table_is_the_commands_own(name: str) -> None:
    command = load_built_in(name)
    assert command.name == name
    assert command.get_short_help_str(200).rstrip(".") == BUILT_IN[name][1].rstrip(".")


def test_the_commands_can_be_walked_as_click_does(esper) -> None:
    context = click.Context(main)
    names = main.list_commands(context)
    assert names[: len(BUILT_IN)] == list(BUILT_IN)
    assert all(isinstance(main.get_command(context, name), click.Command) for name in names)


@pytest.mark.parametrize("argument", ["--version"])
def test_version(esper, argument: str) -> None:
    answer = esper(argument)
    assert (answer.status, answer.out, answer.err) == (0, f"esper {__version__}\n", "")


def test_nothing_typed_is_answered_with_the_help(esper) -> None:
    answer = esper()
    assert (answer.status, answer.out) == (2, "")
    assert "Commands:" in answer.err


@pytest.mark.parametrize(
    ("typed", "hint"),
    [
        ("plugin", 'There is no command "plugin". Did you mean "plugins"?'),
        ("explian", 'There is no command "explian". Did you mean "explain"?'),
        ("zzz", 'There is no command "zzz". All commands:  esper --help'),
        ("\x1b[31mx", 'There is no command "\\x1b[31mx". All commands:  esper --help'),
    ],
)
def test_a_misspelt_command_gets_a_suggestion(esper, typed: str, hint: str) -> None:
    answer = esper(typed)
    assert (answer.status, answer.out) == (2, "")
    assert answer.err.endswith(f"\nError: {hint}\n")


def test_an_unknown_option_is_a_usage_error(esper) -> None:
    assert esper("--nope").status == 2


def test_a_command_of_another_package_runs(esper, site_packages) -> None:
    other(site_packages, "click.echo('grown ' + how)")
    answer = esper("grow", "well")
    assert (answer.status, answer.out, answer.err) == (0, "grown well\n", "")


def test_what_a_command_returns_is_no_status(esper, site_packages) -> None:
    other(site_packages, "return 7")
    assert esper("grow").status == 0


@pytest.mark.parametrize(
    ("body", "status", "told"),
    [
        ("click.get_current_context().exit(5)", 5, ""),
        ("sys.exit(6)", 6, ""),
        ("raise click.UsageError('not so')", 2, "Error: not so\n"),
        ("raise click.Abort", 130, "\nInterrupted.\n"),
        ("raise KeyboardInterrupt", 130, "\nInterrupted.\n"),
        ("raise Interrupted(15)", 143, "E401 interrupted by signal 15; the current step was finished\n"),
        ("raise GovernorStop(Problem('E402', 'stopped'))", 4, "E402 stopped\n"),
        (
            "raise PluginError([Problem('E1', 'one', hint='so'), Problem('E2', 'two', file='f.py', line=3)])",
            3,
            "E1 one\n  so\n\nE2 two\n  f.py:3\n",
        ),
    ],
)
def test_every_end_has_its_status(esper, site_packages, body: str, status: int, told: str) -> None:
    other(site_packages, body)
    answer = esper("grow")
    assert (answer.status, answer.out) == (status, "")
    assert answer.err.endswith(told)


def test_a_crash_of_another_packages_command_is_reported_there(esper, site_packages) -> None:
    other(site_packages, "1 / 0")
    answer = esper("grow")
    assert (answer.status, answer.out) == (1, "")
    assert answer.err.startswith("Traceback (most recent call last):\n")
    *_, error, request = answer.err.splitlines()
    assert error == "ZeroDivisionError: division by zero"
    assert request.startswith(f'"grow" is from esper-extra 1.0: please report this there (esper {__version__}, Python ')


def test_a_crash_of_our_own_asks_for_a_report(esper, monkeypatch) -> None:
    monkeypatch.setattr("esper_core.plugins.load_plugins", lambda: 1 / 0)
    answer = esper("plugins", "list")
    assert answer.status == 1
    assert answer.err.splitlines()[-1].startswith(
        f"This is a bug in Esper: please report it, with the lines above (esper {__version__}, Python "
    )


def test_a_broken_command_names_its_package(esper, site_packages) -> None:
    path = site_packages.command("esper-extra", "import not_there\n", command="grow")
    answer = esper("grow")
    assert (answer.status, answer.out, answer.err) == (
        3,
        "",
        "E210 command \"grow\" (esper-extra 1.0) cannot be imported: ModuleNotFoundError: No module named 'not_there'\n"
        f"  {path}:1\n"
        '  Install the package that has the module "not_there". Tell the author of esper-extra.\n',
    )


def test_what_is_no_command_names_its_package(esper, site_packages) -> None:
    site_packages.command("esper-extra", "def command(): pass\n", command="grow")
    answer = esper("grow")
    assert (answer.status, answer.err) == (
        3,
        'E219 command "grow" (esper-extra 1.0) is no click command: esper_extra:command is of type function\n'
        "  Tell the author of esper-extra.\n",
    )


def test_a_command_that_needs_another_core_is_not_run(esper, site_packages) -> None:
    other(site_packages, "pass", requires="esper-core>=9")
    answer = esper("grow")
    assert (answer.status, answer.err) == (
        3,
        'E212 command "grow" (esper-extra 1.0) needs esper-core >=9, and this is 0.1.0; its code was not run\n'
        "  Bring them together:  pip install --upgrade esper-core esper-extra\n",
    )


def test_a_command_cannot_take_the_place_of_a_built_in(esper, site_packages) -> None:
    site_packages.command("evil", "raise AssertionError('was imported')", command="plugins")
    assert esper("plugins", "list").status == 0
    assert "evil" not in esper("--help").out


def test_a_command_that_two_packages_bring_is_neithers(esper, site_packages) -> None:
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


def test_a_package_may_put_a_command_below_one_of_ours(esper, site_packages) -> None:
    site_packages.command("esper-extra", COMMAND.format(body="click.echo('tended ' + how)"), command="plugins.tend")
    assert (esper("plugins", "tend", "well").out, esper("plugins", "tend", "well").status) == ("tended well\n", 0)
    assert ["tend", "From esper-extra 1.0."] in listed(esper("plugins", "--help").out)
    assert "tend" not in dict(listed(esper("--help").out))
    assert esper("plugins.tend").status == 2


def test_a_command_below_one_of_ours_does_not_take_the_place_of_another(esper, site_packages) -> None:
    site_packages.command("evil", "raise AssertionError('was imported')", command="plugins.list")
    assert esper("plugins", "list").status == 0


def test_a_misspelt_command_below_one_of_ours_gets_a_suggestion(esper) -> None:
    answer = esper("plugins", "lst")
    assert (answer.status, answer.out) == (2, "")
    assert answer.err.endswith('\nError: There is no command "lst". Did you mean "list"?\n')


def test_a_command_of_a_package_that_is_not_installed_is_told_with_its_pip_line(esper, monkeypatch) -> None:
    monkeypatch.setattr(sys.modules["esper_core.cli.main"], "discover", lambda *_: ((), ()))
    for typed, package in ((["watch"], "esper-watch"), (["plugins", "check"], "esper-testing")):
        answer = esper(*typed)
        hint = f'There is no command "{typed[-1]}". It comes with another package:  pip install {package}'
        assert (answer.status, answer.err.endswith(f"\nError: {hint}\n")) == (2, True)


def test_help_has_no_list_of_other_packages_where_none_brings_a_command(esper, monkeypatch) -> None:
    monkeypatch.setattr(sys.modules["esper_core.cli.main"], "discover", lambda *_: ((), ()))
    titles = [line for line in esper("--help").out.splitlines() if line.endswith(":")]
    assert titles == ["Options:", "Commands:"]


def test_safe_mode_leaves_out_commands_of_others(esper, site_packages, monkeypatch) -> None:
    site_packages.command("esper-extra", "raise AssertionError('was imported')", command="grow")
    monkeypatch.setenv("ESPER_SAFE_MODE", "1")
    answer = esper("grow")
    assert (answer.status, answer.err) == (
        3,
        'E224 command "grow" is from esper-extra 1.0, which safe mode leaves out\n  Unset ESPER_SAFE_MODE.\n',
    )
    assert ["grow", "From esper-extra 1.0; left out in safe mode."] in listed(esper("--help").out)


def test_hostile_metadata_does_not_reach_the_terminal(esper, site_packages) -> None:
    site_packages.command("esper-extra", "", command="\x1b[31mgrow")
    answer = esper("--help")
    assert "\x1b" not in answer.out
    assert "\\x1b[31mgrow" in answer.out


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_reader_that_goes_away_is_no_crash(unbuffered: str) -> None:
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
    other(site_packages, "import time; sys.stdout.write('ready'); sys.stdout.flush(); time.sleep(30)")
    environment = {**os.environ, "PYTHONPATH": str(site_packages.folder)}
    run = subprocess.Popen([*ESPER, "grow"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    assert run.stdout.read(5) == "ready"
    run.send_signal(signal.SIGINT)
    _, err = run.communicate(timeout=20)
    assert (run.returncode, err) == (130, "\nInterrupted.\n")


def test_the_module_is_the_command() -> None:
    run = subprocess.run([*ESPER, "--version"], capture_output=True, text=True, check=True)
    assert run.stdout == f"esper {__version__}\n"


def test_the_script_is_the_command() -> None:
    from importlib.metadata import entry_points

    (script,) = entry_points(group="console_scripts", name="esper")
    assert script.load() is main


def test_completion_of_the_shell_is_clicks_own(esper, monkeypatch) -> None:
    for name, value in {"_ESPER_COMPLETE": "bash_complete", "COMP_WORDS": "esper plug", "COMP_CWORD": "1"}.items():
        monkeypatch.setenv(name, value)
    assert esper().out == "plain,plugins\n"


def test_a_command_can_be_called_with_clicks_own_runner() -> None:
    from click.testing import CliRunner

    result = CliRunner().invoke(main, ["plugins", "show", "nope"])
    assert result.exit_code == 2
    assert 'E208 unknown plugin "nope"' in result.output


def test_a_command_that_fails_on_the_damaged_metadata_of_a_package_names_that_package(esper, site_packages) -> None:
    other(site_packages, "from importlib.metadata import entry_points; entry_points()")
    site_packages.plugin("other-torn", "", id="torn")
    site_packages.folder.joinpath("other_torn-1.0.dist-info", "entry_points.txt").write_text("[other]\nnonsense\n")
    answer = esper("grow")
    assert (answer.status, answer.out) == (3, "")
    first, second = answer.err.splitlines()
    assert first.startswith('E223 the metadata of package "other-torn" cannot be read: ')
    assert second == "  Install it again:  pip install --force-reinstall other-torn"


@pytest.mark.parametrize("error", ["asyncio.CancelledError()", "GeneratorExit()"])
def test_a_command_that_raises_what_is_no_exception_crashes_like_any_other(esper, site_packages, error: str) -> None:
    source = f"import asyncio, click\n@click.command()\ndef command():\n    raise {error}\n"
    site_packages.command("esper-odd", source, command="odd")
    answer = esper("odd")
    assert answer.status == 1
    assert '"odd" is from esper-odd 1.0: please report this there' in answer.err
