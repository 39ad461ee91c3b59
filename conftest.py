"""What holds for every test: one thread, no GPU, the same examples, and a short summary of what was skipped."""

from __future__ import annotations

import gc
import os
from collections import Counter

import pytest
from hypothesis import HealthCheck, settings

pytest_plugins = ["tests.support.fixtures", "tests.support.plugin_packages"]

# Figures must not depend on how many cores are there. Set before torch is imported for the first time.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# The same examples in every run, and no deadline: a loaded machine is not a fault.
settings.register_profile(
    "esper",
    max_examples=40,
    derandomize=True,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
# For a search of one's own: pytest --hypothesis-profile=search
settings.register_profile("search", parent=settings.get_profile("esper"), derandomize=False, max_examples=2000)
settings.load_profile("esper")


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--write-golden``: for changes that are meant to change the course of a run."""
    parser.addoption("--write-golden", action="store_true", help="write the golden numbers anew")


def pytest_configure(config: pytest.Config) -> None:
    """Hide GPUs, whose numbers differ in the last bits from run to run, from all tests but those of ``-m gpu``."""
    if config.option.markexpr != "gpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""


@pytest.hookimpl(tryfirst=True)  # before pytest deselects by marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests for installations as slow, and skip tests marked ``gpu`` where there is no CUDA device."""
    for item in items:
        if item.get_closest_marker("install"):
            item.add_marker(pytest.mark.slow)
    waiting = [item for item in items if item.get_closest_marker("gpu")]
    if not waiting:  # torch is imported only for such a test
        return
    import torch

    if not torch.cuda.is_available():
        for item in waiting:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


def pytest_collection_finish() -> None:
    """Exempt all objects that exist before the first test from garbage collection, which saves time."""
    gc.collect()
    gc.freeze()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print how many tests were skipped for each reason."""
    skipped = terminalreporter.stats.get("skipped", [])
    reasons = Counter(report.longrepr[2].removeprefix("Skipped: ") for report in skipped)
    if reasons:
        terminalreporter.section(f"{len(skipped)} skipped")
        for reason, count in reasons.most_common():
            terminalreporter.line(f"{count:6}  {reason}")
