"""Mark the slow cases of the conformance checks."""

import re

import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the checks of ppo, which trains, and of 1 and 3 slots; the fast suite tries 2 and 7."""
    for test in items:
        if test.path.name == "test_policies_conform.py" and re.search(r"ppo|1 slot|3 slots", test.name):
            test.add_marker(pytest.mark.slow)
