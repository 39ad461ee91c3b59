"""Stores: runs in any storage that fsspec knows.

What is here:
    storage: reads and writes the runs in a storage.
    plugin: opens a storage by its URL.
    command: the command ``esper runs upload``.
"""
