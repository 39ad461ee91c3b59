"""Tests of the integrations run only if the library is installed."""

import importlib.util

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skips the tests of a library that is not installed."""
    for item in items:
        for name in [mark.args[0] for mark in item.iter_markers("library")]:
            if importlib.util.find_spec(name) is None:
                item.add_marker(pytest.mark.skip(reason=f"needs {name}: make test-slow installs it"))
