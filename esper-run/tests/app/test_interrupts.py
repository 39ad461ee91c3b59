"""Interrupts: a first signal finishes the step, a second one ends the process; and the allocator."""

import ctypes
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from esper_core.leyline import Interrupted
from esper_run.app import interrupts
from esper_run.app.interrupts import handled_signals
from esper_run.app.runtime import glibc_mallopt, tune_allocator
from esper_run.watchdog import can_fork, watchdog, watched

RUN = Path("runs/quiet-otter")


def test_a_second_ctrl_c_still_leaves_at_once() -> None:
    """After the first signal the system's own handler is installed again, also while a component runs."""
    with handled_signals(RUN):
        os.kill(os.getpid(), signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_DFL


@pytest.fixture
def on_hang_up() -> Iterator[Callable[[Any], None]]:
    """``on_hang_up(handler)``: install this handler for SIGHUP until the end of the test."""
    before = signal.getsignal(signal.SIGHUP)
    yield lambda handler: signal.signal(signal.SIGHUP, handler)
    signal.signal(signal.SIGHUP, before)


def test_a_hang_up_ends_the_run_once_and_a_second_one_is_ignored(on_hang_up) -> None:
    """A terminal that is closed sends SIGHUP more than once; the checkpoint must still be written."""
    received: list[int] = []
    on_hang_up(lambda number, frame: received.append(number))
    with handled_signals(RUN) as pause:
        os.kill(os.getpid(), signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        with pytest.raises(Interrupted) as caught:
            pause.raise_if_interrupted()
    assert caught.value.status == 129
    assert received == []
    os.kill(os.getpid(), signal.SIGHUP)
    assert received == [signal.SIGHUP]


def test_a_hang_up_that_was_ignored_stays_ignored(on_hang_up) -> None:
    """As under nohup."""
    on_hang_up(signal.SIG_IGN)
    with handled_signals(RUN) as pause:
        os.kill(os.getpid(), signal.SIGHUP)
        pause.raise_if_interrupted()
        os.kill(os.getpid(), signal.SIGTERM)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


def test_the_end_is_announced_at_once_after_a_signal_and_only_then(monkeypatch) -> None:
    announced = []
    monkeypatch.setattr(interrupts, "announce_end", lambda run: announced.append((run, threading.current_thread())))
    with handled_signals(RUN):
        pass
    assert announced == []
    with handled_signals(RUN) as pause:
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(Interrupted):
            pause.raise_if_interrupted()
    ((path, thread),) = announced
    assert path == RUN
    assert thread is not threading.main_thread()  # the interrupted code may have been writing


def hang_in(kind: type[ctypes.CDLL]) -> None:
    """Wait for ever in native code, with Python's lock or without."""
    library, mutex = kind(None), ctypes.create_string_buffer(64)
    library.pthread_mutex_lock(mutex)
    library.pthread_mutex_lock(mutex)


@pytest.mark.skipif(not can_fork(), reason="needs forks")
@pytest.mark.parametrize(
    ("hang", "ended"),
    [
        (lambda: time.sleep(60), 128 + signal.SIGTERM),
        (lambda: hang_in(ctypes.CDLL), 128 + signal.SIGTERM),
        (lambda: hang_in(ctypes.PyDLL), -signal.SIGKILL),
    ],
    ids=["Python", "native code", "native code with the lock"],
)
def test_a_component_that_does_not_return_cannot_keep_a_run_from_ending(hang, ended, tmp_path, monkeypatch) -> None:
    """The process says why, and ends soon after the grace."""
    monkeypatch.setattr(interrupts, "SECONDS_TO_UNWIND", 0.05)
    monkeypatch.setattr(watchdog, "SECONDS_BEYOND_GRACE", 0.1)
    said = tmp_path / "said"
    began, pid = time.monotonic(), os.fork()
    if pid == 0:
        leave = os._exit
        try:
            with (
                handled_signals(RUN, 0.05, lambda problem, code: said.write_text(problem.message)) as signals,
                watched(2.0, lambda problem, trace, code: said.write_text(problem.message), signals.interruption),
            ):
                said.touch()
                hang()
        finally:
            leave(0)
    while not said.exists():
        time.sleep(0.01)
    os.kill(pid, signal.SIGTERM)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == ended
    assert "interrupted by signal 15" in said.read_text()
    assert time.monotonic() - began < 5


def test_the_step_is_given_up_when_its_grace_has_passed() -> None:
    with handled_signals(RUN, 0.01) as signals:
        signals.raise_if_expired()
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.02)
        with pytest.raises(Interrupted, match=r"the current step did not end within 0\.01 seconds") as caught:
            signals.raise_if_expired()
    assert caught.value.status == 143


def test_a_component_that_closes_the_files_of_the_process_hides_no_error(monkeypatch) -> None:
    """As ``os.closerange`` does: what the run raises then is reported, and not what its handler meets."""
    ends, pair, failed = [], socket.socketpair, []
    monkeypatch.setattr(socket, "socketpair", lambda: ends.extend(pair()) or tuple(ends))
    monkeypatch.setattr(threading, "excepthook", failed.append)

    def close_and_fail() -> None:
        with handled_signals(RUN):
            for end in ends:
                os.close(end.fileno())
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        close_and_fail()
    assert failed == []


def test_the_allocator_is_not_tuned_on_other_systems(monkeypatch):
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
    assert glibc_mallopt() is None
    tune_allocator()


def test_a_timer_that_a_component_sets_does_not_end_a_run(tmp_path) -> None:
    before = signal.getsignal(signal.SIGALRM)
    with handled_signals(tmp_path):
        signal.raise_signal(signal.SIGALRM)
    assert signal.getsignal(signal.SIGALRM) is before
