"""A learning rate schedule of a plugin applies to the host and to each seed; its errors name its package."""

from __future__ import annotations

import importlib

import pytest

from esper_core.leyline import ConfigError, PluginError

PACER = """
from esper_core import ScheduleSpec, hookimpl

asked = []

class Half:
    def factor(self, step, steps):
        asked.append((step, steps))
        return %s

@hookimpl
def esper_register_schedules(registry):
    registry.add("half", Half, ScheduleSpec("A half."))
"""


@pytest.mark.members
def test_host_and_seeds_are_asked_by_clocks_of_their_own(install, run_small) -> None:
    install("pacer", PACER % "0.5")
    told = run_small("optimizer: {host: {schedule: half}, seed: {schedule: pacer/half}}\n")
    asked = importlib.import_module("esper_pacer").asked
    assert set(asked) == {(0, 3), (1, 3), (2, 3), (0, 2), (1, 2)}  # seeds are born after the first step of three
    assert "schedule: pacer/half" in (told["path"] / "config.yaml").read_text()


@pytest.mark.members
@pytest.mark.parametrize(
    ("given", "said"), [("1 / 0", "in step 0 of 3"), ("-1.0", "gave the factor -1.0"), ("'x'", "in step 0 of 3")]
)
def test_one_that_fails_stops_the_run_with_its_package_named(given: str, said: str, install, run_small) -> None:
    install("pacer", PACER % given)
    with pytest.raises(PluginError, match=said) as told:
        run_small("optimizer: {host: {schedule: half}}\n")
    assert 'schedule "pacer/half" (esper-pacer 1.0)' in str(told.value)


@pytest.mark.members
def test_an_unknown_one_is_told_with_its_place(run_small) -> None:
    with pytest.raises(ConfigError) as told:
        run_small("optimizer: {seed: {schedule: cosin}}\n")
    (problem,) = told.value.problems
    assert (problem.code, problem.path, problem.line) == ("E230", "optimizer.seed.schedule.use", 12)
    assert 'Did you mean "cosine"' in (problem.hint or "")
