"""The tasks and hosts pass the conformance checks."""

from importlib.util import find_spec

import pytest

from esper_testing import parametrize_with_checks


@pytest.fixture(autouse=True)
def _a_scikit_learn(request, check):
    """Use a fake where scikit-learn is not installed; the checks of digits do not depend on its images."""
    if check.component == "digits" and find_spec("sklearn") is None:
        request.getfixturevalue("scikit_learn")


@parametrize_with_checks("tasks")
def test_it_conforms(check):
    check.run()
