"""Conformance checks, fixtures and fakes for authors of Esper plugins.

    from esper_testing import check_blueprint

    for result in check_blueprint(MyBlueprint, spec):
        print(result.status, result.check, result.message)

Begin with ``checks`` (what a check and its result are) and ``suites`` (which checks each kind of component has).

    checks              Check, CheckResult, run_checks
    suites              the checks of each kind: blueprint_checks, check_blueprint, …
    components          find the components of a plugin and check each; settings from the command line
    blueprints, blueprint_training, hosts, policies, rewards, sinks, tasks
                        the checks themselves: one function for each promise
    sites, reward_episodes, fakes, games
                        what the checks use, and tests may: sites and a tiny host, episodes of a reward, a recorded run,
                        decision problems whose optimum is known
    pytest_plugin       parametrize_with_checks, --esper-check, fixtures
    commands            ``esper plugins check``, ``esper new`` with its templates

Not here: the contracts that are checked (``esper_core.leyline``) and any component. Names are imported when they are
first used, so that ``import esper_testing`` brings in neither torch nor esper_core and pytest starts fast.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from esper_testing.checks import Check, CheckResult, NotApplicable, run_checks
    from esper_testing.components import check_component, check_plugin, component_checks, components_of
    from esper_testing.fakes import FakeDistribution, fake_plugin, recorded_events, write_run
    from esper_testing.pytest_plugin import parametrize_with_checks
    from esper_testing.sites import TinyHost, tiny_host
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

_HOME = {
    "Check": "checks",
    "CheckResult": "checks",
    "FakeDistribution": "fakes",
    "NotApplicable": "checks",
    "TinyHost": "sites",
    "blueprint_checks": "suites",
    "check_blueprint": "suites",
    "check_component": "components",
    "check_host": "suites",
    "check_plugin": "components",
    "check_policy": "suites",
    "check_reward": "suites",
    "check_schedule": "suites",
    "check_sink": "suites",
    "check_task": "suites",
    "component_checks": "components",
    "components_of": "components",
    "fake_plugin": "fakes",
    "host_checks": "suites",
    "parametrize_with_checks": "pytest_plugin",
    "policy_checks": "suites",
    "recorded_events": "fakes",
    "reward_checks": "suites",
    "run_checks": "checks",
    "schedule_checks": "suites",
    "sink_checks": "suites",
    "task_checks": "suites",
    "tiny_host": "sites",
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
