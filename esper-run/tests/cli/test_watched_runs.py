"""``esper run --watch``: the page of a run is served beside it, and afterwards."""

import http.client
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack, closing
from types import SimpleNamespace
from urllib.parse import urlsplit

import pytest

from tests.support.waiting import until


def is_listening(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except ConnectionRefusedError:
        return False
    return True


@pytest.mark.install
@pytest.mark.members
def test_a_run_is_watched_from_its_beginning_until_it_is_interrupted(file, tmp_path):
    command = [sys.executable, "-m", "esper_run", "run", str(file), "--runs-dir", str(tmp_path), "--quiet", "--watch"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=file.parent) as process, ExitStack() as stack:
        stack.callback(process.kill)
        lines = {}  # of two processes, in any order
        while len(lines) < 2:
            line = process.stderr.readline()
            lines |= {start: line.strip() for start in ("http://", "The page") if line.startswith(start)}
        url, port = lines["http://"], urlsplit(lines["http://"]).port
        with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=10)) as connection:
            connection.request("GET", url.partition(str(port))[2])
            assert connection.getresponse().status == 303
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
    until(lambda: not is_listening(port))


def test_a_browser_is_opened_only_for_a_page_that_is_served(esper, file):
    answer = esper("run", file, "--open")
    assert (answer.status, "--open needs --watch" in answer.err) == (2, True)


def test_without_a_package_that_serves_pages_nothing_runs(esper, file, monkeypatch, tmp_path):
    monkeypatch.setattr("esper_run.cli.page_beside.Extension", SimpleNamespace(find=lambda *_: {}))
    answer = esper("run", file, "--runs-dir", tmp_path / "runs", "--watch")
    assert (answer.status, (tmp_path / "runs").exists()) == (2, False)
    assert "pip install 'esper-run[watch]'" in answer.err
