from .checks import Check as Check
from .checks import CheckResult as CheckResult
from .checks import NotApplicable as NotApplicable
from .checks import run_checks as run_checks
from .components import (
    blueprint_checks as blueprint_checks,
)
from .components import (
    check_blueprint as check_blueprint,
)
from .components import (
    check_component as check_component,
)
from .components import (
    check_host as check_host,
)
from .components import (
    check_plugin as check_plugin,
)
from .components import (
    check_policy as check_policy,
)
from .components import (
    check_reward as check_reward,
)
from .components import (
    check_schedule as check_schedule,
)
from .components import (
    check_sink as check_sink,
)
from .components import (
    check_task as check_task,
)
from .components import (
    component_checks as component_checks,
)
from .components import (
    components_of as components_of,
)
from .components import (
    host_checks as host_checks,
)
from .components import (
    policy_checks as policy_checks,
)
from .components import (
    reward_checks as reward_checks,
)
from .components import (
    schedule_checks as schedule_checks,
)
from .components import (
    sink_checks as sink_checks,
)
from .components import (
    task_checks as task_checks,
)
from .fakes import (
    FakeDistribution as FakeDistribution,
)
from .fakes import (
    fake_plugin as fake_plugin,
)
from .fakes import (
    recorded_events as recorded_events,
)
from .fakes import (
    write_run as write_run,
)
from .pytest_plugin import parametrize_with_checks as parametrize_with_checks
from .sites import TinyHost as TinyHost
from .sites import tiny_host as tiny_host
