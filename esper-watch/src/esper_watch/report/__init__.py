"""A run as a page: one file without a network, written from its run directory alone.

``write_report(run)`` writes ``report.html`` into the run's folder; ``page_of(record)`` is the page itself.
"""

from __future__ import annotations

from esper_watch.report.page import page_of
from esper_watch.report.picture import picture_of
from esper_watch.report.record import Record, read_record
from esper_watch.report.writing import REPORT, write_picture, write_report

__all__ = ["REPORT", "Record", "page_of", "picture_of", "read_record", "write_picture", "write_report"]
