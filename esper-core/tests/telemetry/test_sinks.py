"""Sinks on threads of their own: a sink that is slow, hangs, raises or prints does not disturb the run."""

import logging
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from esper_core.leyline import Signals
from esper_core.leyline.events import Event, RunFinished, RunStarted, StepFinished
from esper_core.telemetry import SinkThread

LABEL = 'sink "x/y" (x 1.0)'
STARTED = RunStarted(run="r", arms=("grown",), rounds=1, environments=1, steps=9)
FINISHED = RunFinished(status="done")
SECONDS = 20
"""After this time a test that hangs gives up."""


def step(number: int) -> StepFinished:
    return StepFinished(round=0, arm="grown", seed=0, step=number, signals=Signals(number, 1.0, 1.0, 0.5, 9, 9, ()))


class Kept:
    """Records its calls, on which thread they come, and what it receives; ``breaks`` is called before each of them."""

    def __init__(self, breaks: Callable[[str], Any] = lambda name: None) -> None:
        self.breaks = breaks
        self.calls: list[str] = []
        self.received: list[Event | str] = []
        self.threads: set[threading.Thread] = set()

    def hear(self, event: Event) -> None:
        self._called("hear", event)

    def settle(self) -> None:
        self._called("settle", "settled")

    def close(self) -> None:
        self._called("close", "closed")

    @property
    def events(self) -> list[Event | str]:
        return [event for event in self.received if not isinstance(event, str)]

    def _called(self, name: str, event: Event | str) -> None:
        self.calls.append(name)
        self.threads.add(threading.current_thread())
        self.breaks(name)
        self.received.append(event)


class Gate:
    """Blocks every caller until it is opened."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.reached = threading.Event()

    def __call__(self, name: str) -> None:
        if name == "hear":
            self.reached.set()
            self.open.wait(SECONDS)


@pytest.fixture
def gate() -> Iterator[Gate]:
    """A gate that is opened at the end of the test, so that no thread stays blocked."""
    gate = Gate()
    yield gate
    gate.open.set()


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    caplog.set_level(logging.WARNING, logger="esper")
    return lambda: [record.getMessage().splitlines()[0] for record in caplog.records]


def test_a_sink_receives_all_events_in_order_on_one_thread_of_its_own(warnings):
    listener = SinkThread(sink := Kept(), LABEL)
    expected: list[Event | str] = []
    for number in range(200):
        listener.hear(step(number))
        listener.hear(step(number))
        listener.settle()
        expected += [step(number), step(number), "settled"]
    listener.close()
    listener.hear(FINISHED)
    listener.settle()
    assert sink.received == [*expected, "closed"]
    (thread,) = sink.threads
    assert thread is not threading.main_thread()
    assert not thread.is_alive()
    assert warnings() == []


def test_a_blocked_sink_does_not_block_the_run_and_its_dropped_events_are_counted(gate, warnings):
    listener = SinkThread(sink := Kept(gate), LABEL, places=9, kept=3)
    listener.hear(STARTED)
    assert gate.reached.wait(SECONDS)
    for number in range(1000):
        listener.hear(step(number))
        listener.settle()
    listener.hear(FINISHED)
    first = "is slower than the run: events that do not fit into its queue are dropped"
    assert warnings() == [f"E228 {LABEL} {first}"]
    gate.open.set()
    listener.close()
    assert sink.events == [STARTED, *(step(number) for number in range(5)), FINISHED]
    assert sink.received[-1] == "closed"
    assert warnings()[1:] == [f"E228 {LABEL} is slower than the run: 995 of 1,002 events were dropped"]


def test_rare_events_have_places_of_their_own_and_these_are_limited_too(gate):
    listener = SinkThread(sink := Kept(gate), LABEL, places=4, kept=4)
    listener.hear(STARTED)
    assert gate.reached.wait(SECONDS)
    for event in (step(0), step(1), step(2), FINISHED, STARTED, FINISHED):
        listener.hear(event)
        for _ in range(5):
            listener.settle()
    gate.open.set()
    listener.close()
    assert sink.events == [STARTED, step(0), step(1), FINISHED, STARTED]
    assert sink.received.count("settled") == 4, "at most once after each event"


def test_a_sink_that_is_too_slow_at_the_end_still_receives_the_last_event_and_is_closed(gate, warnings):
    listener = SinkThread(sink := Kept(gate), LABEL, drain=0.05, closing=SECONDS)
    for number in range(10):
        listener.hear(step(number))
    listener.settle()
    listener.hear(FINISHED)
    assert gate.reached.wait(SECONDS)
    join = listener._thread.join

    def wait(timeout: float) -> None:
        """Return at once from the first wait, in which the sink would catch up; then let the sink continue."""
        if timeout == SECONDS:
            gate.open.set()
            join(timeout)

    listener._thread.join = wait
    listener.close()
    assert sink.received == [step(0), "settled", FINISHED, "closed"]
    assert warnings() == [f"E228 {LABEL} is slower than the run: 9 of 11 events were dropped"]


def test_a_sink_that_hangs_is_left_behind(gate, warnings):
    listener = SinkThread(sink := Kept(gate), LABEL, drain=0.05, closing=0.05)
    for number in range(3):
        listener.hear(step(number))
    assert gate.reached.wait(SECONDS)
    listener.close()
    assert sink.received == []
    message = "did not close within 0.1 seconds and is abandoned: 2 of 3 events were dropped"
    assert warnings() == [f"E228 {LABEL} {message}"]


def test_the_process_ends_although_a_sink_hangs():
    program = """
import threading
from esper_core.leyline.events import RunFinished
from esper_core.telemetry import SinkThread
class Hangs:
    def hear(self, event):
        threading.Event().wait()
    settle = close = hear
listener = SinkThread(Hangs(), "it", drain=0.05, closing=0.05)
listener.hear(RunFinished(status="done"))
listener.close()
print("over")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=SECONDS, check=False)
    assert (done.returncode, done.stdout) == (0, "over\n")


def test_an_exception_in_a_sink_is_reported_by_the_runs_thread_at_the_next_event(gate, caplog):
    def fails(name: str) -> None:
        gate(name)
        if name == "hear":
            raise OSError("the line is dead")

    listener = SinkThread(sink := Kept(fails), LABEL)
    for number in range(3):
        listener.hear(step(number))
    gate.open.set()
    listener._thread.join(SECONDS)
    assert caplog.records == []
    listener.hear(FINISHED)
    listener.close()
    assert [record.threadName for record in caplog.records] == [threading.main_thread().name]
    assert sink.received == ["closed"]


@pytest.mark.parametrize(
    ("breaks_in", "calls"),
    [
        ("hear", ["hear", "close"]),  # it may hold a file open
        ("hear close", ["hear", "close"]),
        ("settle", ["hear", "settle", "close"]),
        *((name, ["hear", "settle"] * 3 + ["close"]) for name in ("close", "never")),
    ],
)
def test_a_sink_that_raises_is_shut_off_after_one_message(breaks_in, calls, caplog):
    def fail(name: str) -> None:
        if name in breaks_in.split():
            raise OSError("the line is dead")

    listener = SinkThread(sink := Kept(fail), LABEL)
    for _ in range(3):
        listener.hear(FINISHED)
        listener.settle()
    listener.close()
    listener.close()
    assert sink.calls == calls
    messages = [record.getMessage() for record in caplog.records]
    message = f"E228 {LABEL} raised OSError: the line is dead; it is shut off for the rest of the run\n  {__file__}:"
    assert [line.rstrip("0123456789") for line in messages] == ([] if breaks_in == "never" else [message])


def test_seeds_that_a_sink_sets_do_not_reach_the_generator_of_the_run() -> None:
    def seed(name: str) -> None:
        torch.manual_seed(1)
        assert torch.initial_seed() == 1, "the sink has its seed"
        torch.set_rng_state(torch.Generator().get_state())
        torch.seed()

    before = torch.get_rng_state()
    listener = SinkThread(sink := Kept(seed), LABEL)
    for number in range(3):
        listener.hear(step(number))
    listener.close()
    assert torch.equal(torch.get_rng_state(), before)
    assert len(sink.received) == 4, "nothing was raised"
