"""The checks of each kind of component, and functions that run them.

``<kind>_checks`` yields a ``Check`` for each promise and case; ``check_<kind>`` runs them and returns the results. The
modules with the checks import torch and the core, so they are imported only when their checks are asked for.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from esper_core.leyline.specs import SITE_KINDS
from esper_testing.checks import Check, run_checks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from esper_core import BlueprintSpec, HostSpec
    from esper_testing.checks import CheckResult
    from esper_testing.policies import PolicySettings
    from esper_testing.sites import Factory

POLICY_SLOTS: Final = (1, 2, 3, 7)
"""Numbers of slots that a policy is checked with."""


def blueprint_checks(
    factory: Factory, spec: BlueprintSpec, *, name: str | None = None, module: str | None = None
) -> Iterator[Check]:
    """Yield the checks for a blueprint, each for every kind of site that it accepts.

    Args:
        factory: builds a block for a site.
        spec: what the blueprint is registered with.
        name: shown in results; the factory's own name by default.
        module: the factory's module, where the factory does not know it.
    """
    from esper_testing import blueprint_training, blueprints

    name = name or _name_of(factory)
    module = module or getattr(factory, "__module__", None)
    yield Check(name, "is_well_declared", partial(blueprints.is_well_declared, name, spec))
    yield Check(name, "imports_cleanly", partial(blueprints.imports_cleanly, module))
    for check in (*blueprints.CHECKS, *blueprint_training.CHECKS):
        for kind in [kind for kind in SITE_KINDS if kind in spec.kinds]:
            yield Check(name, check.__name__, partial(check, factory, spec, kind), kind)  # type: ignore[arg-type]


def reward_checks(
    factory: Callable[..., Any], *, settings: Mapping[str, Any] | None = None, name: str | None = None
) -> Iterator[Check]:
    """Yield the checks for a reward, each with a metric to maximise (``up``) and one to minimise (``down``).

    Args:
        factory: called as ``factory(metric=metric, **settings)``.
        settings: keyword arguments of the factory.
        name: shown in results.
    """
    from esper_testing import rewards

    for check in rewards.CHECKS:
        for direction, metric in rewards.METRICS.items():
            run = partial(check, partial(factory, **(settings or {})), metric)
            yield Check(name or _name_of(factory), check.__name__, run, direction)


def host_checks(
    factory: Callable[..., Any], spec: HostSpec, *, settings: Mapping[str, Any] | None = None, name: str | None = None
) -> Iterator[Check]:
    """Yield the checks for a host, each for every kind of data; a kind that the host refuses is skipped.

    Args:
        factory: called as ``factory(shape, **settings)``.
        spec: what the host is registered with.
        settings: keyword arguments of the factory.
        name: shown in results.
    """
    from esper_testing import hosts

    name, make = name or _name_of(factory), partial(factory, **(settings or {}))
    yield Check(name, "is_well_declared", partial(hosts.is_well_declared, spec))
    yield Check(name, "accepts_some_data", partial(hosts.accepts_some_data, make))
    for check in hosts.CHECKS:
        for kind in hosts.GRID:
            yield Check(name, check.__name__, partial(check, make, spec, kind), kind)


def policy_checks(
    factory: Callable[..., Any], *, settings: PolicySettings | None = None, name: str | None = None
) -> Iterator[Check]:
    """Yield the checks for a policy, each with 1, 2, 3 and 7 slots.

    Args:
        factory: called as ``factory(space, **settings)``.
        settings: keyword arguments of the factory, or a function of the action space that returns them.
        name: shown in results.
    """
    from esper_testing import policies

    for check in policies.CHECKS:
        for slots in POLICY_SLOTS:
            case = f"{slots} slot{'s' if slots > 1 else ''}"
            run = partial(check, policies.maker(factory, settings), slots)
            yield Check(name or _name_of(factory), check.__name__, run, case)


def task_checks(
    factory: Callable[..., Any], *, settings: Mapping[str, Any] | None = None, name: str | None = None
) -> Iterator[Check]:
    """Yield the checks for a task. ``factory(**settings)`` is called twice for all checks together."""
    from esper_testing import tasks

    builds = tasks.TaskBuilds(partial(factory, **(settings or {})))
    for check in tasks.TASK_CHECKS:
        yield Check(name or _name_of(factory), check.__name__, partial(check, builds))


def schedule_checks(
    factory: Callable[..., Any], *, settings: Mapping[str, Any] | None = None, name: str | None = None
) -> Iterator[Check]:
    """Yield the checks for a schedule of learning rates. It is built by ``factory(**settings)``."""
    from esper_testing import tasks

    for check in tasks.SCHEDULE_CHECKS:
        yield Check(name or _name_of(factory), check.__name__, partial(check, partial(factory, **(settings or {}))))


def sink_checks(
    factory: Callable[..., Any], *, settings: Mapping[str, Any] | None = None, name: str | None = None
) -> Iterator[Check]:
    """Yield the checks for a sink. It is built by ``factory(run, **settings)``, where ``run`` is an empty folder."""
    from esper_testing import sinks

    for check in sinks.CHECKS:
        yield Check(name or _name_of(factory), check.__name__, partial(check, partial(factory, **(settings or {}))))


def check_blueprint(
    factory: Factory, spec: BlueprintSpec, *, expected_failures: Mapping[str, str] | None = None, **options: Any
) -> list[CheckResult]:
    """Run every check for a blueprint. Arguments are those of ``blueprint_checks`` and ``run_checks``."""
    return run_checks(blueprint_checks(factory, spec, **options), expected_failures)


def check_host(
    factory: Callable[..., Any],
    spec: HostSpec,
    *,
    expected_failures: Mapping[str, str] | None = None,
    **options: Any,
) -> list[CheckResult]:
    """Run every check for a host. Arguments are those of ``host_checks`` and ``run_checks``."""
    return run_checks(host_checks(factory, spec, **options), expected_failures)


def check_policy(
    factory: Callable[..., Any], *, expected_failures: Mapping[str, str] | None = None, **options: Any
) -> list[CheckResult]:
    """Run every check for a policy. Arguments are those of ``policy_checks`` and ``run_checks``."""
    return run_checks(policy_checks(factory, **options), expected_failures)


def check_reward(
    factory: Callable[..., Any], *, expected_failures: Mapping[str, str] | None = None, **options: Any
) -> list[CheckResult]:
    """Run every check for a reward. Arguments are those of ``reward_checks`` and ``run_checks``."""
    return run_checks(reward_checks(factory, **options), expected_failures)


def check_schedule(
    factory: Callable[..., Any], *, expected_failures: Mapping[str, str] | None = None, **options: Any
) -> list[CheckResult]:
    """Run every check for a schedule. Arguments are those of ``schedule_checks`` and ``run_checks``."""
    return run_checks(schedule_checks(factory, **options), expected_failures)


def check_sink(
    factory: Callable[..., Any], *, expected_failures: Mapping[str, str] | None = None, **options: Any
) -> list[CheckResult]:
    """Run every check for a sink. Arguments are those of ``sink_checks`` and ``run_checks``."""
    return run_checks(sink_checks(factory, **options), expected_failures)


def check_task(
    factory: Callable[..., Any], *, expected_failures: Mapping[str, str] | None = None, **options: Any
) -> list[CheckResult]:
    """Run every check for a task. Arguments are those of ``task_checks`` and ``run_checks``."""
    return run_checks(task_checks(factory, **options), expected_failures)


def _name_of(factory: Callable[..., Any]) -> str:
    return str(getattr(factory, "__name__", type(factory).__name__))
