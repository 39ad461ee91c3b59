"""How does a test file ask for every check? One decorator, and each check is a test of its own with a readable id."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from esper_testing.checks import Check, NotApplicable, demand_known
from esper_testing.installed import plugin_checks

if TYPE_CHECKING:
    from collections.abc import Mapping

    from esper_testing.installed import Settings, Target


def parametrize_with_checks(
    target: Target, *, settings: Settings | None = None, expected_failures: Mapping[str, str] | None = None
) -> pytest.MarkDecorator:
    """Runs a test once for each check of a plugin; the test takes ``check`` and calls ``check.run()``.

        @parametrize_with_checks("my-plugin")
        def test_it_conforms(check):
            check.run()

    target: a plugin's id, a package, a module with hooks, a component, or a list of these.
    settings: by component. expected_failures: by name of the check the reason why it fails; a test that passes in
    spite of it fails.
    """
    checks, expected = plugin_checks(target, settings), dict(expected_failures or {})
    demand_known(checks, expected)
    return pytest.mark.parametrize("check", [_parameter(check, check.expectation(expected)) for check in checks])


def for_pytest(check: Check) -> Check:
    """The check, which pytest shows as skipped where it says nothing about the component."""

    def run() -> None:
        try:
            check.run()
        except NotApplicable as reason:
            pytest.skip(str(reason))

    return replace(check, run=run)


def _parameter(check: Check, expected: str | None) -> object:
    marks = [] if expected is None else [pytest.mark.xfail(reason=expected, strict=True)]
    return pytest.param(for_pytest(check), id=check.id, marks=marks)
