"""How fast is it? One script for each question; ``python -m benchmarks.perf`` asks them all."""
