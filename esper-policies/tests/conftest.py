"""Marks slow tests of this folder that come from shared checks."""

from __future__ import annotations

import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The kit's checks of a policy that is a network: dozens of episodes, and it learns from each."""
    for item in items:
        if item.path.name == "test_policies_conform.py" and "ppo" in item.name:
            item.add_marker(pytest.mark.slow)
