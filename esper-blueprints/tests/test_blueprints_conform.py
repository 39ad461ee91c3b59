"""The standard blueprints pass the conformance checks."""

from __future__ import annotations

from esper_testing import parametrize_with_checks


@parametrize_with_checks("blueprints")
def test_it_conforms(check):
    check.run()
