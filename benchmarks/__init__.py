"""Measurements: speed in ``perf``."""
