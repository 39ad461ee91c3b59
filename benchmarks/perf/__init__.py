"""Performance measurements.

workloads  hosts with their data, in Esper's environments and in hand-written training loops
processes  a workload in a process of its own, with its own threads and allocator
memory     memory of a study over many rounds
event_files  made-up run directories of any size
live_pages   what opening the page of a run takes
figures    measured figures, interleaved timing, and the comparison with the baseline

The measurements are the tests in ``tests/performance``. ``python -m benchmarks.perf`` runs them and prints the table.
"""
