"""Each check of sinks fails for its own fault, and passes for a correct sink."""

import contextlib
import sqlite3

import pytest

from esper_core.leyline.events import RunFinished, SeedLost, StepFinished
from esper_testing import check_sink


class Right:
    """Writes the type of each event into a file."""

    def __init__(self, run):
        self.file = run / "types.txt"
        self.closed = False

    def hear(self, event):
        with self.file.open("a") as file:
            file.write(f"{event.type}\n")

    def settle(self):
        pass

    def close(self):
        self.closed = True


class CannotTakeNan(Right):
    def hear(self, event):
        if isinstance(event, StepFinished):
            int(event.signals.train_loss)


class DoesNotKnowSeedLost(Right):
    def hear(self, event):
        if isinstance(event, SeedLost):
            raise KeyError(event.type)


class ClosesOnce(Right):
    def close(self):
        assert not self.closed
        super().close()


class WantsAnEventBeforeItSettles(Right):
    def settle(self):
        self.file.read_text()


class WantsTheEndLast(Right):
    ended = False

    def hear(self, event):
        if self.ended and not self.closed:
            raise RuntimeError("the run was over")
        self.ended = isinstance(event, RunFinished)


class StaysOnItsThread(Right):
    def __init__(self, run):
        super().__init__(run)
        self.log = sqlite3.connect(run / "log.db")

    def hear(self, event):
        if not self.closed:
            self.log.execute("select 1")

    def close(self):
        with contextlib.suppress(sqlite3.ProgrammingError):
            self.log.close()
        super().close()


class SaysThatItIsClosed(Right):
    def hear(self, event):
        if self.closed:
            raise ValueError("I/O operation on closed file")


def test_a_sink_without_a_fault_passes_every_check():
    assert {result.status for result in check_sink(Right)} == {"passed"}


@pytest.mark.parametrize(
    ("factory", "check", "says"),
    [
        (CannotTakeNan, "takes_numbers_that_are_none", 'raises ValueError at a "step-finished" with NaN in it'),
        (DoesNotKnowSeedLost, "takes_every_event", 'raises KeyError at a "seed-lost"'),
        (ClosesOnce, "closes_twice", "raises AssertionError when it is closed twice"),
        (WantsAnEventBeforeItSettles, "takes_any_order", "raises FileNotFoundError when it settles before any event"),
        (WantsTheEndLast, "takes_any_order", 'raises RuntimeError at a "episode-finished" out of order'),
        (StaysOnItsThread, "works_on_another_thread", 'raises ProgrammingError at a "run-started" on another thread'),
        (SaysThatItIsClosed, "says_nothing_once_closed", 'raises ValueError at a "run-started" once it is closed'),
    ],
)
def test_a_fault_fails_its_own_check_and_no_other(factory, check, says):
    messages = {result.check: result.message for result in check_sink(factory) if not result.ok}
    assert list(messages) == [check] or factory is DoesNotKnowSeedLost, messages
    assert says in messages[check]
