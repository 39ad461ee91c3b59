"""A component cannot end the command by SystemExit, nor keep its process alive."""

import json
import os
import subprocess
import sys
import textwrap
from typing import Any

import pytest

from tests.support.hostile_plugin import plugin

PLUGIN = """
import os, sys, threading, time
from esper_core import BlueprintSpec, hookimpl

{at_import}

def beat():
    time.sleep(60)

@hookimpl
def esper_register_blueprints(registry):
    {at_registration}
    registry.add("block", "torch.nn:Identity", BlueprintSpec("sequence"))
"""


@pytest.mark.members
def test_a_blueprint_that_ends_the_program_is_an_error_before_the_run(esper, file, install):
    install("quitters", plugin(blocks={0: ("outputs", "exit(0)")}))
    runs = file.parent / "runs"
    answer = esper("run", file, "--runs-dir", runs, "--set", "slots.early.blueprints=[quitters/b0]")
    assert (answer.status, answer.out, runs.exists()) == (3, "", False)
    assert answer.err.startswith('E322 blueprint "quitters/b0" (esper-quitters 1.0) raised SystemExit')
    assert "esper_quitters.py:" in answer.err


def ended(*arguments: str, **more: Any) -> subprocess.CompletedProcess[str]:
    """Return how Python ended with these arguments."""
    command = [sys.executable, *map(textwrap.dedent, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, **more)


@pytest.mark.members
@pytest.mark.slow
def test_a_package_with_damaged_metadata_stops_no_other(file, tmp_path):
    """pydantic and torch ask every installed package for plugins of theirs."""
    folder = tmp_path / "torn-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: torn\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_bytes(b"\xff\xfe\x00\x81")
    for command in (["check", str(file)], ["runs", "list"]):
        done = ended("-m", "esper_run", *command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(tmp_path)})
        assert done.returncode == 0, done.stderr
        assert ('E223 the metadata of package "torn"' in done.stderr) is (command[0] == "check")


@pytest.mark.slow
def test_closed_streams_are_the_null_device(tmp_path):
    """A file that is opened next would get their descriptors."""
    script = "import os, sys; [os.close(number) for number in range(3)]; os.execv(sys.executable, sys.argv[1:])"
    for command in (["-m", "esper_run", "plugins", "list"], ["-m", "esper_run", "--help"]):
        assert ended("-c", script, sys.executable, *command).returncode == 0


def test_a_process_ends_with_its_status_although_threads_are_left(tmp_path):
    done = ended(
        "-c",
        f"""
        import sys, threading, time
        from esper_run.cli.exits import end_process
        file = open({str(tmp_path / "kept.txt")!r}, "w")
        file.write("all of it")
        print("result")
        threading.Thread(target=time.sleep, args=(0.1,)).start()
        threading.Thread(target=time.sleep, args=(60,), name="beat").start()
        end_process(4, seconds=0.2)
    """,
    )
    assert (done.returncode, done.stdout) == (4, "result\n")
    assert done.stderr == 'warning: the process ends, although components left threads: "beat"\n'
    assert (tmp_path / "kept.txt").read_text() == "all of it"


@pytest.mark.slow
@pytest.mark.members
def test_a_run_ends_although_a_plugin_left_a_thread(tmp_path, file):
    thread = "threading.Thread(target=beat, name='beat').start()"
    (tmp_path / "beater.py").write_text(PLUGIN.format(at_import="", at_registration=thread))
    sets = ["--set", f"plugins.local=[{tmp_path / 'beater.py'}]"]
    done = ended("-m", "esper_run", "check", str(file), *sets)
    assert (done.returncode, "in order" in done.stdout) == (0, True)
    assert 'although components left threads: "beat" of ' in done.stderr


@pytest.mark.slow
@pytest.mark.members
def test_a_plugin_whose_import_hangs_ends_the_command_with_its_line(tmp_path, file):
    plugin = tmp_path / "sleeper.py"
    plugin.write_text(PLUGIN.format(at_import="time.sleep(60)", at_registration="pass"))
    done = ended(
        "-c",
        f"""
        from esper_core.leyline import constants
        constants.PREPARATION_SECONDS = 6.0
        from esper_run.cli.main import main
        main(["check", {str(file)!r}, "--set", {f"plugins.local=[{plugin}]"!r}])
    """,
    )
    assert done.returncode == 1
    assert f'File "{plugin}", line 5' in done.stderr


@pytest.mark.members
def test_stdout_holds_the_answer_alone_whatever_a_plugin_writes(tmp_path) -> None:
    plugin = tmp_path / "writer.py"
    plugin.write_text(PLUGIN.format(at_import="os.write(1, b'noise')", at_registration="os.system('echo more')"))
    done = ended("-m", "esper_run", "plugins", "list", "--json", "--local", str(plugin))
    assert (done.returncode, len(json.loads(done.stdout)) > 1) == (0, True), done.stderr
    assert "noise" in done.stderr
    assert "more" in done.stderr
