"""The rewards pass the conformance checks."""

from esper_testing import parametrize_with_checks


@parametrize_with_checks("rewards")
def test_it_conforms(check):
    check.run()
