"""Spread runs of Esper over processes and Ray clusters, and keep them in stores such as S3.

A run finds these by entry points: ``engine: processes``, ``engine: ray``, and ``store: s3://bucket/prefix``.

What is here:
    engines: workers in processes and on Ray clusters.
    stores: runs in any storage that fsspec knows.
"""
