"""``esper`` as a process: signals, closed pipes, and terminals of any width."""

import fcntl
import json
import os
import re
import select
import signal
import struct
import termios
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import pytest

from esper_core.leyline.events import RunFinished, StepFinished
from esper_core.telemetry import read_events
from esper_run.runs.records import read_run

pytestmark = pytest.mark.install  # CI runs it for every change

SEQUENCE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
LATE = ("--set", "policy.settings.plan[2].step=99")
ENDLESS = ("--set", "episode.steps=10000")


@dataclass
class Terminal:
    """A terminal, with the output of a command so far."""

    processes: Any
    controller: int
    device: int
    shown: str = ""

    def start(self, *arguments: str | Path, columns: int = 80, **environment: str) -> Self:
        """Start a command on the terminal."""
        self.resize(columns)
        name = os.ttyname(self.device)
        self.processes.start(*arguments, terminal=name, TERM="xterm-256color", **environment)
        os.close(self.device)
        return self

    def read(self, until: Callable[[str], bool], seconds: float = 60.0) -> None:
        """Read until something is shown, or the command ends."""
        deadline = time.monotonic() + seconds
        while not until(self.shown) and time.monotonic() < deadline:
            if select.select([self.controller], [], [], 0.1)[0]:
                try:
                    self.shown += os.read(self.controller, 65536).decode(errors="replace")
                except OSError:  # the other end is closed
                    return

    def resize(self, columns: int) -> None:
        fcntl.ioctl(self.controller, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))

    def end(self) -> int:
        """Read to the end, and return the exit status."""
        self.read(lambda shown: False)
        os.close(self.controller)
        return int(self.processes.wait())

    @property
    def words(self) -> str:
        return SEQUENCE.sub("", self.shown)


@pytest.fixture
def new_terminal(processes):
    """Open a terminal."""
    return lambda: Terminal(processes, *os.openpty())


@pytest.fixture
def arguments(small, tmp_path):
    """``esper run`` with the small configuration."""
    return "run", small, "--runs-dir", tmp_path / "runs"


@pytest.fixture
def runs(tmp_path):
    return tmp_path / "runs"


def run_in(folder: Path) -> Path:
    (run,) = folder.iterdir()
    return run


def manifest(runs: Path) -> Any:
    return json.loads((run_in(runs) / "manifest.json").read_text())


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_the_run_after_the_step_in_progress(number, code, processes, arguments, runs):
    processes.start(*arguments, *ENDLESS, "--quiet")
    run = processes.interrupt(runs, number)
    assert processes.wait() == code
    assert "E401 interrupted" in processes.err
    assert "Traceback" not in processes.err
    events = list(read_events(run / "events.jsonl"))
    assert isinstance(events[-1], RunFinished)
    assert events[-1].status == "interrupted"
    steps = [event.step for event in events if isinstance(event, StepFinished)]
    assert all(steps.count(step) == 4 for step in set(steps))
    assert (manifest(runs)["status"], manifest(runs)["exit"]) == ("interrupted", code)


def handles_sigterm(pid: int) -> bool:
    """Return whether the process has a handler for SIGTERM, which Python has none for by default."""
    status = Path(f"/proc/{pid}/status").read_text()
    return bool(int(status.partition("SigCgt:")[2].split()[0], 16) >> (signal.SIGTERM - 1) & 1)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
def test_a_second_signal_ends_the_process_and_leaves_a_manifest_with_its_id(processes, arguments, runs):
    pid = processes.start(*arguments, "--set", "episode.batches=1000000", "--quiet")  # one step lasts for hours
    processes.wait_for(lambda: handles_sigterm(pid))
    os.kill(pid, signal.SIGINT)
    processes.wait_for(lambda: processes.err.count("\n") == 2)
    os.kill(pid, signal.SIGINT)
    assert processes.wait() == -signal.SIGINT
    first, second = processes.err.splitlines()
    assert first == "Stopping after this step; interrupt again to stop at once. Either way:"
    run = Path(second.split("esper resume ")[1].strip())
    processes.wait_for(lambda: read_run(run).status == "died")  # its lock may be let go a moment later
    assert (manifest(runs)["status"], manifest(runs)["process"]["pid"]) == ("running", pid)


def test_a_closed_terminal_ends_a_run_with_a_checkpoint_and_its_own_exit_code(new_terminal, processes, arguments, runs):
    """The message at the end cannot be written; the exit code must not depend on it."""
    terminal = new_terminal().start(*arguments, *ENDLESS, "--set", "checkpoints.every=1000", "--quiet")
    processes.wait_for(lambda: any(b"step-fin" in file.read_bytes() for file in runs.glob("*/events.jsonl")))
    os.close(terminal.controller)  # the kernel sends SIGHUP
    assert processes.wait() == 129
    assert (manifest(runs)["status"], manifest(runs)["exit"]) == ("interrupted", 129)
    assert len(list((run_in(runs) / "checkpoints").iterdir())) == 1


def test_a_reader_of_stderr_that_goes_away_does_not_end_the_run(processes, arguments, runs, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    processes.start(*arguments, *LATE, "--json", err=tmp_path / "pipe")
    os.close(reader)
    assert processes.wait() == 0
    assert json.loads(processes.out)["status"] == manifest(runs)["status"] == "done"


@pytest.mark.parametrize("columns", [40, 200])
def test_results_fit_the_width_of_the_terminal(new_terminal, arguments, runs, tmp_path, columns):
    terminal = new_terminal().start(*arguments, "--name", "n", columns=columns, NO_COLOR="1")
    assert terminal.end() == 0
    end = terminal.words[terminal.words.rindex("arm") :] if columns > 40 else terminal.words
    lines = [line.rstrip() for line in end.replace("\r", "").split("\n")]
    path = str(tmp_path)
    assert [line for line in lines if len(line) > columns and path not in line and " %, step " not in line] == []
    showing = new_terminal().start("runs", "show", run_in(runs), columns=columns, NO_COLOR="1")
    assert showing.end() == 0
    shown = showing.words.splitlines()
    assert any("plugins" in line for line in shown)
    # A path is not broken, and neither is the command to copy.
    assert [line for line in shown if len(line) > columns and " " in line.strip() and path not in line] == []
    assert "\x1b[32m" not in terminal.shown


def test_a_pipe_gets_a_few_plain_lines(esper, arguments):
    answer = esper(*arguments, "--name", "otter")
    assert answer.status == 0
    lines = answer.err.splitlines()
    assert 1 <= len(lines) <= 5
    last = r"[0-9-]+-otter: 100 %, step 8 of 8 \| schedule [\d.]+ %, twin [\d.]+ % \| .*[12] kept.*"
    assert re.fullmatch(last, lines[-1])
    assert "\x1b" not in answer.err + answer.out
