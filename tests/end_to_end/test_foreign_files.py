"""Commands that read a run directory neither hang nor crash, whatever its files are."""

import json
import os
import shutil
import signal
from itertools import product
from pathlib import Path

import pytest

from tests.end_to_end.conftest import run_once
from tests.support.configurations import GROWING
from tests.support.special_files import put

FILES = ["manifest.json", "summary.json", "growth.json", "events.jsonl", "config.yaml", "report.html", "latest"]
KINDS = ("pipe", "folder", "nested", "sparse")
SHORT = ("--set", "episode.steps=2")
SECONDS = 60

needs_pipes = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")


@pytest.fixture(autouse=True)
def no_hanging():
    """Fail a test that blocks, for example by reading from a pipe without a writer."""

    def fail(*_: object) -> None:
        raise AssertionError("a command waited for a pipe")

    before = signal.signal(signal.SIGALRM, fail)
    signal.alarm(SECONDS)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A finished run that no test changes."""
    return run_once(tmp_path_factory.mktemp("finished"), GROWING, *SHORT)


@pytest.fixture
def run(finished, tmp_path):
    """A copy of a finished run."""
    return Path(shutil.copytree(finished, tmp_path / "runs" / finished.name))


@needs_pipes
@pytest.mark.parametrize(
    ("kind", "every"), [("pipe", 4), *(pytest.param(kind, 1, marks=pytest.mark.slow) for kind in KINDS)]
)
def test_no_command_hangs_or_crashes_on_a_special_file(kind, every, run, esper, tmp_path):
    """every: which of the combinations of files and commands are tried."""
    runs = f"--runs-dir={run.parent}"  # as one word, so that the fixture does not read the damaged events itself
    commands = [("runs", "list", runs), ("runs", "list", "--json", runs), ("runs", "show", run), ("compare", run)]
    commands += [("resume", run, "--quiet"), ("report", run, "--out", tmp_path / "out.html"), ("report", run)]
    intact = tmp_path / "whole"
    run.rename(intact)
    for name, command in [*product(FILES, commands)][::every]:
        shutil.copytree(intact, run)
        put(kind, run / name)
        answer = esper(*command)
        assert "Traceback" not in answer.err, (name, command)
        assert answer.status == 0 or answer.err.startswith("E"), (name, command, answer)
        shutil.rmtree(run)


def test_one_changed_bit_of_a_finished_run_is_told_wherever_it_shows(run, esper, tmp_path):
    """A report goes on, since the results are not computed from the events; changed results are refused."""
    before = {name: (run / name).read_bytes() for name in ("events.jsonl", "summary.json", "growth.json")}
    page = tmp_path / "out.html"
    commands = [("runs", "show", run), ("runs", "show", run, "--seeds"), ("report", run, "--out", page)]
    for name, expected in {"events.jsonl": "changed since the run wrote it", "summary.json": "E430"}.items():
        place = before[name].index(b"0.") + 3
        (run / name).write_bytes(before[name][:place] + bytes([before[name][place] ^ 1]) + before[name][place + 1 :])
        for command in commands if name == "events.jsonl" else commands[:1]:
            answer = esper(*command)
            assert answer.status == int(name != "events.jsonl"), answer
            text = page.read_text(encoding="utf-8") if command[0] == "report" else answer.err
            assert expected in text, (name, command)
        (run / name).write_bytes(before[name])
    (run / "growth.json").write_bytes(before["growth.json"] + b" ")
    assert "E430" in esper("runs", "show", run).err
    (run / "growth.json").write_bytes(before["growth.json"])
    (run / "config.yaml").write_bytes((run / "config.yaml").read_bytes() + b"\n")
    for command in (["runs", "show", run], ["compare", run]):
        assert "config.yaml changed since the run" in esper(*command).err
    (run / "summary.json").unlink()
    assert "it was there when the run ended, and is missing" in esper("runs", "show", run).err


def interrupt(run: Path) -> None:
    """Let the run be one that can be resumed."""
    manifest = json.loads((run / "manifest.json").read_text())
    (run / "manifest.json").write_text(json.dumps(manifest | {"status": "interrupted"}))


@needs_pipes
@pytest.mark.parametrize("kind", KINDS)
def test_an_interrupted_run_is_not_resumed_without_its_events(kind, run, esper):
    interrupt(run)
    put(kind, run / "events.jsonl")
    answer = esper("resume", run, "--quiet")
    assert answer.status == 1
    assert any(line.startswith(("E413 ", "E421 ")) for line in answer.err.splitlines())
    assert "events.jsonl" in answer.err


@needs_pipes
@pytest.mark.parametrize("kind", ["pipe", "folder", "link"])
def test_a_log_that_is_no_file_is_refused_before_anything_changes(kind, run, esper):
    interrupt(run)
    put(kind, run / "log.txt")
    before = {path: path.read_bytes() for path in run.glob("*.*") if path.is_file() and path.name != "log.txt"}
    answer = esper("resume", run, "--quiet")
    assert answer.status == 1
    assert f"log.txt: expected a regular file, received a {kind}" in answer.err
    assert {path: path.read_bytes() for path in before} == before
