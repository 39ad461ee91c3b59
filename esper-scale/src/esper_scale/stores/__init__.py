"""Stores: runs in any storage that fsspec knows.

What is here:
    storage: copies runs to a storage and back. When a run is uploaded is decided in ``esper_run.runs.uploads``.
    plugin: opens a storage by its URL.
"""
