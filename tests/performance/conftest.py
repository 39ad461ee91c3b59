"""Fixtures of the benchmarks.

``make bench`` runs them in full. In the slow tests they only show that they run: one turn of a tiny size. They assert
no times; ``python -m benchmarks.perf`` compares the figures with their bounds.
"""

from contextlib import ExitStack, closing
from dataclasses import asdict

import pytest

from benchmarks.perf.figures import Figure, Interleaved
from benchmarks.perf.processes import Workers


def pytest_collection_modifyitems(items):
    for test in items:
        if "/tests/performance/" in test.path.as_posix():
            test.add_marker(pytest.mark.slow)


@pytest.fixture
def quick(request):
    """Whether this is only a smoke test, whose figures mean nothing."""
    return not request.config.getoption("benchmark_only")


@pytest.fixture
def compare(benchmark, quick):
    """Return the median seconds of each side over ``turns`` in which all sides take one turn."""

    def medians(sides, turns, warmup=3):
        timing, turns = Interleaved(sides), 1 if quick else turns
        benchmark.pedantic(timing.turn, rounds=turns, warmup_rounds=0 if quick else warmup)
        return timing.medians(turns)

    return medians


@pytest.fixture
def record(benchmark):
    """Add figures to the report of this benchmark."""

    def add(*figures: Figure):
        benchmark.extra_info.setdefault("figures", []).extend(map(asdict, figures))

    return add


@pytest.fixture
def in_process():
    """Tune the allocator as a run does, and compute with one thread."""
    from esper_run.app.runtime import one_thread, tune_allocator

    tune_allocator()
    with one_thread():
        yield


@pytest.fixture
def workers():
    """Start a process for each setup; they are one side, which steps them together."""
    with ExitStack() as stack:
        yield lambda *setups: stack.enter_context(closing(Workers(*setups)))
