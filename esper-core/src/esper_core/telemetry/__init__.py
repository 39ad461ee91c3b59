"""Telemetry: what a run tells about itself while it runs.

What is here:
    event_log: the event bus, and the reader and writer of events.jsonl, the record of a run.
    sinks: runs the sinks of plugins on threads of their own.
    timing: sums up where the time of a run goes.

What is not here: the event types (``leyline.events``), how events are built from what happened
(``trainer.event_records``), and everything that shows them (the package esper-watch).

Begin with ``event_log.Bus``.
"""

from esper_core.telemetry.event_log import Bus, EventFile, Listener, decode, encode, read_events
from esper_core.telemetry.sinks import SinkGuard, SinkThread
from esper_core.telemetry.timing import Clock

__all__ = ["Bus", "Clock", "EventFile", "Listener", "SinkGuard", "SinkThread", "decode", "encode", "read_events"]
