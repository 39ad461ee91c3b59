"""Every check has a test in which it fails."""

from pathlib import Path

import pytest

from esper_testing import blueprint_trials, blueprints, hosts, policies, rewards, sinks, tasks

CHECKS = {
    "blueprint": (
        blueprints.is_well_declared,
        blueprints.imports_cleanly,
        *blueprints.CHECKS,
        *blueprint_trials.CHECKS,
    ),
    "host": (hosts.is_well_declared, hosts.accepts_some_data, hosts.builds_or_says_why_not, *hosts.CHECKS),
    "policy": policies.CHECKS,
    "reward": rewards.CHECKS,
    "schedule": tasks.SCHEDULE_CHECKS,
    "sink": sinks.CHECKS,
    "task": tasks.TASK_CHECKS,
}


@pytest.mark.parametrize("kind", CHECKS)
def test_every_check_is_named_by_a_test_that_fails_it(kind):
    source = Path(__file__).with_name(f"test_{kind}_checks.py").read_text()
    names = [check.__name__ for check in CHECKS[kind]]
    assert [name for name in names if f'"{name}"' not in source and f'"{name}[' not in source] == []
