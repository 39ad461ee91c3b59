from .checks import Check as Check, CheckResult as CheckResult, NotApplicable as NotApplicable, run_checks as run_checks
from .components import (
    blueprint_checks as blueprint_checks,
    check_blueprint as check_blueprint,
    check_component as check_component,
    check_host as check_host,
    check_plugin as check_plugin,
    check_policy as check_policy,
    check_reward as check_reward,
    check_schedule as check_schedule,
    check_sink as check_sink,
    check_task as check_task,
    component_checks as component_checks,
    components_of as components_of,
    host_checks as host_checks,
    policy_checks as policy_checks,
    reward_checks as reward_checks,
    schedule_checks as schedule_checks,
    sink_checks as sink_checks,
    task_checks as task_checks,
)
from .fakes import (
    FakeDistribution as FakeDistribution,
    fake_plugin as fake_plugin,
    recorded_events as recorded_events,
    write_run as write_run,
)
from .pytest_plugin import parametrize_with_checks as parametrize_with_checks
from .sites import TinyHost as TinyHost, tiny_host as tiny_host
