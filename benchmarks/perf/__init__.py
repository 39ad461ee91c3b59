"""Measure speed: one module for each measurement; ``python -m benchmarks.perf`` runs them all."""
