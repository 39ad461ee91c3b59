"""Do the tasks keep the promises of their kind?"""

from __future__ import annotations

from esper_testing import parametrize_with_checks


@parametrize_with_checks("tasks")
def test_it_conforms(check):
    check.run()
