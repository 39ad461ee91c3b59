"""Show and compare runs of Esper: reports, a live page, and comparisons.

Begin with ``history``: it reduces the events of a run to what every view shows.

    history             ``read_history``: the environments and seeds of a run, and its summary
    report              ``write_report``: report.html
    history_records     what a history consists of: seeds, looks of gates, decisions
    views, figures      the sections of the report, each made by itself, and its charts as numbers and coordinates
    growth              its networks step by step as pictures, and what gates saw
    sections, headline  what a section is made from, and the one that says what a run found
    probe_view          what a probe, or a plan of adapters, shows in a notebook, and its page
    comparison          ``esper compare``: several runs, paired and tested
    comparison_view     its table and its words
    pages, formats      jinja2 templates, and how numbers and names are written in all views
    web                 ``esper watch``: a local server that shows a run live
    command, plugin     the commands and hooks of this package

Not here: the events and their files (``esper_core.telemetry``), records of runs (``esper_run.runs``), and the plain
progress lines of ``esper run``. Nothing here changes a run. Names are imported when they are first used, since the
plugin of this package is loaded with every command.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
