"""Reading files: each failure is one clear problem, and nothing blocks."""

import errno
import os
import threading
from pathlib import Path

import pytest

from esper_run.config import load_config
from esper_run.config.values import MAX_BYTES
from tests.support.configurations import problem_of


def refused(path):
    """Return the problem of a path. Reads in a thread, so that a reader that blocks fails the test only."""
    problems = []
    reader = threading.Thread(target=lambda: problems.append(problem_of(load_config, path)), daemon=True)
    reader.start()
    reader.join(timeout=10)
    assert not reader.is_alive(), "it waits for somebody to write"
    return problems[0]


def test_missing_file_suggests_the_nearest_in_its_folder(tmp_path):
    (tmp_path / "plugins.yaml").touch()
    problem = refused(tmp_path / "plugin.yaml")
    assert (problem.code, problem.message) == ("E101", "there is no such file")
    assert problem.hint == f'Did you mean "{tmp_path / "plugins.yaml"}"?'


@pytest.mark.parametrize("code", [errno.EACCES, errno.EIO, errno.ENOENT])
def test_operating_system_error_is_reported(tmp_path, monkeypatch, code):
    def fail(*_, **__):
        raise OSError(code, os.strerror(code))

    (tmp_path / "run.yaml").touch()
    monkeypatch.setattr(os, "open", fail)
    problem = refused(tmp_path / "run.yaml")
    assert problem.code == "E101"
    assert ("there is no such file" if code == errno.ENOENT else os.strerror(code)) in problem.message


def test_file_replaced_by_a_pipe_before_it_is_opened_does_not_hang(tmp_path, monkeypatch):
    (tmp_path / "regular").touch()
    os.mkfifo(tmp_path / "pipe")
    seen = (tmp_path / "regular").stat()
    monkeypatch.setattr(os, "stat", lambda *_, **__: seen)
    assert refused(tmp_path / "pipe").message.endswith("expected a regular file, received a pipe")


def test_too_large_a_file_is_refused_before_it_is_read(tmp_path):
    file = tmp_path / "big.yaml"
    with file.open("wb") as stream:
        stream.truncate(1 << 40)
    problem = refused(file)
    assert problem.code == "E102"
    assert f"{MAX_BYTES:,}" in problem.message


def test_file_of_the_kernel_is_refused_with_a_code():
    for path in ("/proc/kmsg", "/proc/self/mem", "/proc/self/status", "/proc/1/environ"):
        if Path(path).exists():
            assert refused(path).code.startswith("E10")


def test_path_that_leads_to_no_file_is_refused_and_printed_harmlessly(tmp_path):
    for path in ("", "a\0b", "x" * 300, "a\x1b[31mb", "\udcff.yaml"):
        problem = refused(path)
        assert problem.code == "E101"
        assert problem.hint
        str(problem).encode()
        assert "\x1b" not in str(problem)
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    (tmp_path / "file").touch()
    assert refused(tmp_path / "a").code == "E101"
    assert "Not a directory" in refused(tmp_path / "file" / "b.yaml").message
