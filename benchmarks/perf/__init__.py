"""How fast is it? One module for each question; ``python -m benchmarks.perf`` asks them all."""
