"""Marks checks slow that start an interpreter per blueprint, except one."""

from __future__ import annotations

import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks the checks of importing, a second or two each."""
    for item in items:
        if item.name.endswith("-imports_cleanly]") and "[conv_light-" not in item.name:
            item.add_marker(pytest.mark.slow)
            item.add_marker(pytest.mark.install)  # so that every change has to pass them all the same
