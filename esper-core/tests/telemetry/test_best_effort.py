"""A sink's fault is told once, and the run hears nothing more of it."""

from __future__ import annotations

import logging
from asyncio import CancelledError
from typing import Any

import pytest

from esper_core.leyline.events import RunFinished
from esper_core.plugins.faults import Label
from esper_core.telemetry import BestEffort


class Fragile:
    def __init__(self, breaks_in: str) -> None:
        self.breaks_in = breaks_in
        self.calls: list[str] = []

    def _called(self, name: str) -> None:
        self.calls.append(name)
        if name == self.breaks_in:
            raise OSError("the line is dead")

    def hear(self, event: Any) -> None:
        self._called("hear")

    def settle(self) -> None:
        self._called("settle")

    def close(self) -> None:
        self._called("close")


@pytest.mark.parametrize("error", [SystemExit(0), GeneratorExit(), KeyboardInterrupt(), CancelledError()])
def test_a_sink_that_wants_to_end_the_program_does_not(error: BaseException, caplog: pytest.LogCaptureFixture) -> None:
    class Quitter(Fragile):
        def _called(self, name: str) -> None:
            self.calls.append(name)
            raise error

    listener = BestEffort(sink := Quitter("hear"), Label('sink "x/y" (x 1.0)', "nowhere:Quitter"))
    listener.hear(RunFinished(status="done"))
    listener.close()
    (told,) = [record.getMessage() for record in caplog.records]
    assert told.startswith('E228 sink "x/y" (x 1.0) raised ')
    assert type(error).__name__ in told
    assert told.endswith("\n  nowhere:Quitter")
    assert sink.calls == ["hear", "close"]


@pytest.mark.parametrize("breaks_in", ["hear", "settle", "close", "never"])
def test_a_sink_that_raises_is_shut_off_after_one_message(breaks_in: str, caplog: pytest.LogCaptureFixture) -> None:
    sink = Fragile(breaks_in)
    listener = BestEffort(sink, 'sink "x/y" (x 1.0)')
    with caplog.at_level(logging.WARNING, logger="esper"):
        for _ in range(3):
            listener.hear(RunFinished(status="done"))
            listener.settle()
        listener.close()
        listener.close()
    expected = {
        "hear": ["hear", "close"],  # it may hold a file open
        "settle": ["hear", "settle", "close"],
        "close": ["hear", "settle"] * 3 + ["close"],
        "never": ["hear", "settle"] * 3 + ["close"],
    }
    assert sink.calls == expected[breaks_in]
    told = [record.getMessage() for record in caplog.records]
    message = (
        'E228 sink "x/y" (x 1.0) raised OSError: the line is dead; it is shut off for the rest of the run\n'
        f"  {__file__}:{Fragile._called.__code__.co_firstlineno + 3}"
    )
    assert told == ([] if breaks_in == "never" else [message])
