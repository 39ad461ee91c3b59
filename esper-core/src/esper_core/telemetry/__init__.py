"""Telemetry: what a run reports about itself while it runs.

* ``event_log``: the event bus, and the reader and writer of events.jsonl, the record of a run. Begin with its ``Bus``.
* ``sinks``: run the sinks of plugins on threads of their own.
* ``timing``: sum up where the time of a run goes.

The event types are in ``leyline.events``, and what shows them is in the package esper-watch.
"""

from esper_core.telemetry.event_log import Bus, EventFile, Listener, decode, encode, read_events
from esper_core.telemetry.sinks import SinkThread
from esper_core.telemetry.timing import Clock

__all__ = ["Bus", "Clock", "EventFile", "Listener", "SinkThread", "decode", "encode", "read_events"]
