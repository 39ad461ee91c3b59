"""A sink that is slow, hangs or prints is no trouble to the run, and what it missed is told in numbers."""

from __future__ import annotations

import io
import logging
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from esper_core.leyline import Signals
from esper_core.leyline.events import Event, RunFinished, RunStarted, StepFinished
from esper_core.telemetry import BestEffort
from esper_core.telemetry.sinks import Mark, Parted, Waiting

LABEL = 'sink "x/y" (x 1.0)'
STARTED = RunStarted(run="r", arms=("grown",), rounds=1, environments=1, steps=9)
FINISHED = RunFinished(status="done")
SECONDS = 20
"""After which a test that hangs gives up."""


def step(number: int) -> StepFinished:
    return StepFinished(round=0, arm="grown", seed=0, step=number, signals=Signals(number, 1.0, 1.0, 0.5, 9, 9, ()))


class Kept:
    """Keeps what it is told, and on which thread; ``before`` is called before each event."""

    def __init__(self, before: Callable[[], Any] = lambda: None) -> None:
        self.before = before
        self.told: list[Event | str] = []
        self.threads: set[threading.Thread] = set()

    def hear(self, event: Event) -> None:
        self.before()
        self._told(event)

    def settle(self) -> None:
        self._told("settled")

    def close(self) -> None:
        self._told("closed")

    def _told(self, what: Event | str) -> None:
        self.told.append(what)
        self.threads.add(threading.current_thread())


class Gate:
    """Holds up whoever passes, until it is opened."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.reached = threading.Event()

    def __call__(self) -> None:
        self.reached.set()
        self.open.wait(SECONDS)


@pytest.fixture
def gate() -> Iterator[Gate]:
    """A gate that is open at the test's end, so that no thread is left behind."""
    gate = Gate()
    yield gate
    gate.open.set()


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    caplog.set_level(logging.WARNING, logger="esper")
    return lambda: [record.getMessage().splitlines()[0] for record in caplog.records]


def test_a_sink_is_told_everything_in_its_order_on_one_thread_that_is_not_the_runs(warnings) -> None:
    listener = BestEffort(sink := Kept(), LABEL)
    expected: list[Event | str] = []
    for number in range(200):
        listener.hear(step(number))
        listener.hear(step(number))
        listener.settle()
        expected += [step(number), step(number), "settled"]
    listener.close()
    listener.hear(FINISHED)
    listener.settle()
    assert sink.told == [*expected, "closed"]
    (thread,) = sink.threads
    assert thread is not threading.main_thread()
    assert not thread.is_alive()
    assert warnings() == []


def test_the_thread_begins_with_the_first_event_and_a_sink_that_heard_nothing_is_closed() -> None:
    before = threading.active_count()
    listener = BestEffort(sink := Kept(), LABEL)
    assert threading.active_count() == before
    listener.close()
    listener.close()
    assert sink.told == ["closed"]
    assert threading.active_count() == before


def test_a_slow_sink_holds_nobody_up_and_what_it_missed_is_told_once_and_in_numbers(gate: Gate, warnings) -> None:
    listener = BestEffort(sink := Kept(gate), LABEL, waiting=Waiting(places=5, kept=3))
    listener.hear(STARTED)
    assert gate.reached.wait(SECONDS)
    began = time.monotonic()
    for number in range(1000):
        listener.hear(step(number))
        listener.settle()
    listener.hear(FINISHED)
    assert time.monotonic() - began < SECONDS / 4
    first = "is slower than the run: events for which there is no place are dropped until it has caught up"
    assert warnings() == [f"E228 {LABEL} {first}"]
    gate.open.set()
    listener.close()
    events = [one for one in sink.told if not isinstance(one, str)]
    assert events == [STARTED, *(step(number) for number in range(5)), FINISHED]
    assert sink.told[-1] == "closed"
    assert warnings()[1:] == [f"E228 {LABEL} is slower than the run: 995 of 1,002 events were dropped"]


def test_events_that_are_few_have_places_of_their_own_and_these_have_an_end() -> None:
    waiting = Waiting(places=2, kept=2)
    assert [waiting.put(step(number)) for number in range(3)] == [True, True, False]
    assert [waiting.put(one) for one in (STARTED, STARTED, FINISHED)] == [True, True, False]


def test_a_step_that_is_over_takes_no_place_however_often_it_is_said() -> None:
    waiting = Waiting(places=2, kept=0)
    for _ in range(50):
        waiting.settle()
    assert waiting.put(step(0))
    waiting.settle()
    waiting.end()
    assert [waiting.take() for _ in range(5)] == [Mark.SETTLED, step(0), Mark.SETTLED, Mark.END, Mark.END]


def test_a_sink_that_is_too_slow_at_the_end_still_learns_how_the_run_ended_and_is_closed(gate: Gate, warnings) -> None:
    listener = BestEffort(sink := Kept(gate), LABEL, drain=0.05, closing=SECONDS)
    for number in range(10):
        listener.hear(step(number))
    listener.settle()
    listener.hear(FINISHED)
    assert gate.reached.wait(SECONDS)
    threading.Timer(0.3, gate.open.set).start()
    listener.close()
    assert sink.told == [step(0), FINISHED, "settled", "closed"]
    assert warnings() == [f"E228 {LABEL} is slower than the run: 9 of 11 events were dropped"]


def test_a_sink_that_hangs_is_left_behind(gate: Gate, warnings) -> None:
    listener = BestEffort(sink := Kept(gate), LABEL, drain=0.05, closing=0.05)
    for number in range(3):
        listener.hear(step(number))
    assert gate.reached.wait(SECONDS)
    listener.close()
    assert sink.told == []
    said = "did not close within 0.1 seconds, and is left behind: 2 of 3 events were dropped"
    assert warnings() == [f"E228 {LABEL} {said}"]


def test_a_program_ends_though_a_sink_hangs() -> None:
    program = """
import threading
from esper_core.leyline.events import RunFinished
from esper_core.telemetry import BestEffort
class Hangs:
    def hear(self, event):
        threading.Event().wait()
    settle = close = hear
listener = BestEffort(Hangs(), "it", drain=0.05, closing=0.05)
listener.hear(RunFinished(status="done"))
listener.close()
print("over")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=SECONDS, check=False)
    assert (done.returncode, done.stdout) == (0, "over\n")


def test_what_raises_while_others_wait_is_told_by_the_runs_thread_as_soon_as_it_tells_more(gate: Gate) -> None:
    def fails() -> None:
        gate()
        raise OSError("the line is dead")

    heard: list[threading.Thread] = []

    class Listening(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            heard.append(threading.current_thread())

    handler = Listening(logging.WARNING)
    logging.getLogger("esper").addHandler(handler)
    try:
        listener = BestEffort(sink := Kept(fails), LABEL)
        for number in range(3):
            listener.hear(step(number))
        gate.open.set()
        deadline = time.monotonic() + SECONDS
        while not heard and time.monotonic() < deadline:
            listener.hear(FINISHED)
            time.sleep(0.001)  # or so much is waiting that this is told, too
        listener.close()
    finally:
        logging.getLogger("esper").removeHandler(handler)
    assert heard == [threading.main_thread()]
    assert sink.told == ["closed"]


def test_what_a_sink_prints_goes_to_stderr_and_what_others_print_goes_where_it_went(
    gate: Gate, capsys: pytest.CaptureFixture[str]
) -> None:
    def prints() -> None:
        print("from the sink")
        sys.stdout.close()
        sys.stderr.close()
        gate()

    before = (sys.stdout, sys.stderr)
    listeners = [BestEffort(Kept(prints), LABEL) for _ in range(2)]
    for listener in listeners:
        listener.hear(FINISHED)
    assert gate.reached.wait(SECONDS)
    print("from the run")
    gate.open.set()
    for listener in listeners:
        listener.close()
    assert (sys.stdout, sys.stderr) == before
    said = capsys.readouterr()
    assert said.out == "from the run\n"
    assert said.err == "from the sink\n" * 2


def test_a_parted_stream_is_for_others_what_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    own = io.StringIO("one\ntwo\n")
    monkeypatch.setattr(sys, "stdout", parted := Parted("stdout", own))
    parted.take_in(0)
    assert list(parted) == ["one\n", "two\n"]
    assert not parted.isatty()
    parted.close()
    assert own.closed
    parted.let_go(0)
    assert sys.stdout is own
