"""The examples of the tasks fit the installed components."""

from pathlib import Path

import pytest

from esper_core.app.compose import prepare

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.members
@pytest.mark.parametrize("name", ["images", "tokens", "bytes", "control-shuffled", "no-deficit", "signals-family"])
def test_examples_are_valid(name):
    prepared = prepare(EXAMPLES / f"{name}.yaml")
    assert prepared.arm_names[-1] == "twin"
    assert prepared.resolution.warnings == ()
