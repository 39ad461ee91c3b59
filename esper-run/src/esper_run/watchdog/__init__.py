"""The watchdog: end a run that stands still or crashed, and say in which line.

What is here:
    watchdog: watches this process from a process beside it.
"""
