"""A run on a terminal: its live display, its results, and how it is interrupted and resumed."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import sys
import termios
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

Esper = Callable[..., Any]

SEQUENCE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
ALLOWED = re.compile(r"\x1b\[([0-9]*A|2?K|[0-9;]*m|\?25[lh])")


@dataclass
class Terminal:
    """A command on a terminal, and what it has shown so far."""

    process: int
    ours: int
    shown: str = ""

    def read(self, until: Callable[[str], bool], seconds: float = 60.0) -> None:
        """Read until something is shown, or the command ends."""
        deadline = time.monotonic() + seconds
        while not until(self.shown) and time.monotonic() < deadline:
            if select.select([self.ours], [], [], 0.1)[0]:
                try:
                    self.shown += os.read(self.ours, 65536).decode(errors="replace")
                except OSError:  # the other end is closed
                    return

    def resize(self, columns: int) -> None:
        fcntl.ioctl(self.ours, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))

    def end(self) -> int:
        """Read to the end, and the command's status."""
        self.read(lambda shown: False)
        os.close(self.ours)
        return os.waitstatus_to_exitcode(os.waitpid(self.process, 0)[1])

    @property
    def words(self) -> str:
        return SEQUENCE.sub("", self.shown)


def on_terminal(*arguments: str | Path, columns: int = 80, **environment: str) -> Terminal:
    process, ours = pty.fork()
    if process == 0:
        try:
            told = {name: value for name, value in os.environ.items() if name != "COLUMNS"}  # readline sets it, too
            told |= {"TERM": "xterm-256color", **environment}
            os.execve(sys.executable, [sys.executable, "-m", "esper_core", *map(str, arguments)], told)
        finally:
            os._exit(127)
    terminal = Terminal(process, ours)
    terminal.resize(columns)
    return terminal


def run_in(folder: Path) -> Path:
    (found,) = folder.iterdir()
    return found


@pytest.mark.slow
def test_an_interrupted_run_resumes_its_display_where_it_was(small: Path, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    terminal = on_terminal("run", small, "--runs-dir", runs, "--set", "episode.batches=12", "--set", "rounds=3")
    terminal.read(lambda shown: "round 2 of 3" in shown)
    assert "early  conv_light: 2 " in terminal.words
    terminal.resize(40)
    os.kill(terminal.process, signal.SIGINT)
    assert terminal.end() != 0
    assert "Stopping after this step" in terminal.words
    assert "the current step was finished" in terminal.words
    assert "esper resume" in terminal.words
    again = on_terminal("resume", run_in(runs), "--runs-dir", runs, columns=200)
    assert again.end() == 0
    assert "round 1 of 3" not in again.words
    assert "test accuracy" in again.words
    shares = [int(share) for share in re.findall(r"━.*?(\d+)%", again.words)]
    assert shares == sorted(shares)
    assert shares[0] > 20
    for shown in (terminal.shown, again.shown):
        assert all(ALLOWED.fullmatch(one) for one in SEQUENCE.findall(shown)), set(SEQUENCE.findall(shown))


@pytest.mark.slow
@pytest.mark.parametrize("columns", [40, 80, 200])
def test_no_line_of_the_results_is_broken_by_the_terminal(small: Path, tmp_path: Path, columns: int) -> None:
    terminal = on_terminal("run", small, "--runs-dir", tmp_path / "r", "--name", "n", columns=columns, NO_COLOR="1")
    assert terminal.end() == 0
    end = terminal.words[terminal.words.rindex("arm") :] if columns > 40 else terminal.words
    told = [line.rstrip() for line in end.replace("\r", "").split("\n")]
    path = str(tmp_path)
    assert [line for line in told if len(line) > columns and path not in line and ": step " not in line] == []
    showing = on_terminal("runs", "show", run_in(tmp_path / "r"), columns=columns, NO_COLOR="1")
    assert showing.end() == 0
    shown = showing.words.splitlines()
    assert any("plugins" in line for line in shown)
    assert [line for line in shown if len(line) > columns and " " in line.strip()] == [], "a path is not taken apart"
    assert "\x1b[32m" not in terminal.shown
    assert json.loads((run_in(tmp_path / "r") / "manifest.json").read_text())["status"] == "done"


def test_a_pipe_gets_a_few_plain_lines(esper: Esper, small: Path, tmp_path: Path) -> None:
    answer = esper("run", small, "--runs-dir", tmp_path / "runs", "--name", "otter")
    assert answer.code == 0
    lines = answer.err.splitlines()
    assert 1 <= len(lines) <= 5
    assert re.fullmatch(r"[0-9-]+-otter: step 8 of 8 \| .*[12] fossilized.*", lines[-1])
    assert "\x1b" not in answer.err + answer.out
