"""Stores: runs in any storage that fsspec knows.

What is here:
    storage: reads and writes runs in a storage.
    uploads: uploads a run to a storage while it trains.
"""
