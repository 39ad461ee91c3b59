"""Stores: runs in any storage that fsspec knows.

What is here:
    storage: reads and writes runs in a storage.
    uploads: uploads a run to a storage while it trains.
    plugin: the stores as a run finds them.
    command: the command ``esper runs upload``.
"""
