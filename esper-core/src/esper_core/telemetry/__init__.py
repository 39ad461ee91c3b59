"""Telemetry: events on a bus, the file that keeps them, and the clock that is always on."""

from esper_core.telemetry.event_log import Bus, EventFile, Listener, decode, encode, read_events
from esper_core.telemetry.sinks import BestEffort
from esper_core.telemetry.timing import Clock

__all__ = ["BestEffort", "Bus", "Clock", "EventFile", "Listener", "decode", "encode", "read_events"]
