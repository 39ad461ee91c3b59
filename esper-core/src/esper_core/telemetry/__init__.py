"""Telemetry: events on a bus, the file that keeps them, and the clock that is always on."""

from esper_core.telemetry.best_effort import BestEffort
from esper_core.telemetry.bus import Bus, Listener
from esper_core.telemetry.codec import decode, encode
from esper_core.telemetry.event_file import EventFile
from esper_core.telemetry.reading import read_events
from esper_core.telemetry.timing import Clock

__all__ = ["BestEffort", "Bus", "Clock", "EventFile", "Listener", "decode", "encode", "read_events"]
