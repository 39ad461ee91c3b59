"""Conformance checks, fixtures and fakes for authors of Esper plugins.

    from esper_testing import check_blueprint

    for result in check_blueprint(MyBlueprint, spec):
        print(result.status, result.check, result.message)

Names are imported when they are first used: ``import esper_testing`` costs nothing, and brings in neither torch nor
esper_core, so that pytest starts fast where this package is installed.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from esper_testing.checks import Check, CheckResult, NotApplicable, run_checks
    from esper_testing.event_samples import recorded_events
    from esper_testing.fakes import FakeDistribution, fake_plugin, write_run
    from esper_testing.installed import check_component, check_plugin, component_checks, components_of
    from esper_testing.parametrize import parametrize_with_checks
    from esper_testing.suites import (
        blueprint_checks,
        check_blueprint,
        check_host,
        check_policy,
        check_reward,
        check_schedule,
        check_sink,
        check_task,
        host_checks,
        policy_checks,
        reward_checks,
        schedule_checks,
        sink_checks,
        task_checks,
    )
    from esper_testing.tiny import TinyHost, tiny_host

_HOME = {
    "Check": "checks",
    "CheckResult": "checks",
    "FakeDistribution": "fakes",
    "NotApplicable": "checks",
    "TinyHost": "tiny",
    "blueprint_checks": "suites",
    "check_blueprint": "suites",
    "check_component": "installed",
    "check_host": "suites",
    "check_plugin": "installed",
    "check_policy": "suites",
    "check_reward": "suites",
    "check_schedule": "suites",
    "check_sink": "suites",
    "check_task": "suites",
    "component_checks": "installed",
    "components_of": "installed",
    "fake_plugin": "fakes",
    "host_checks": "suites",
    "parametrize_with_checks": "parametrize",
    "policy_checks": "suites",
    "recorded_events": "event_samples",
    "reward_checks": "suites",
    "run_checks": "checks",
    "schedule_checks": "suites",
    "sink_checks": "suites",
    "task_checks": "suites",
    "tiny_host": "tiny",
    "write_run": "fakes",
}

__all__ = [
    "Check",
    "CheckResult",
    "FakeDistribution",
    "NotApplicable",
    "TinyHost",
    "blueprint_checks",
    "check_blueprint",
    "check_component",
    "check_host",
    "check_plugin",
    "check_policy",
    "check_reward",
    "check_schedule",
    "check_sink",
    "check_task",
    "component_checks",
    "components_of",
    "fake_plugin",
    "host_checks",
    "parametrize_with_checks",
    "policy_checks",
    "recorded_events",
    "reward_checks",
    "run_checks",
    "schedule_checks",
    "sink_checks",
    "task_checks",
    "tiny_host",
    "write_run",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    value = getattr(import_module(f"esper_testing.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
