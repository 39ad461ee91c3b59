"""Every check has a test in which it fails."""

from __future__ import annotations

from pathlib import Path

import pytest

from esper_core import BlueprintSpec, HostSpec
from esper_testing import components

SPEC = BlueprintSpec(accepts="vector", params="c")
CHECKS = {
    "blueprint": components.blueprint_checks(int, SPEC),
    "host": components.host_checks(int, HostSpec()),
    "policy": components.policy_checks(int),
    "reward": components.reward_checks(int),
    "schedule": components.schedule_checks(int),
    "sink": components.sink_checks(int),
    "task": components.task_checks(int),
}


@pytest.mark.parametrize("kind", CHECKS)
def test_every_check_is_named_by_a_test_that_fails_it(kind: str) -> None:
    source = Path(__file__).with_name(f"test_{kind}_checks.py").read_text()
    names = dict.fromkeys(check.name for check in CHECKS[kind])
    untested = [name for name in names if f'"{name}"' not in source and f'"{name}[' not in source]
    assert names
    assert untested == []


def test_every_kind_that_has_checks_is_looked_at() -> None:
    kinds = {name.removesuffix("_checks") for name in vars(components) if name.endswith("_checks")}
    assert kinds - {"run", "component", "plugin"} == set(CHECKS)
