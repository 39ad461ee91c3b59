"""Which checks does a component of each kind have to pass, and which did it pass?"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from esper_core.leyline.specs import SITE_KINDS
from esper_testing.checks import Check, run_checks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from esper_core import BlueprintSpec, HostSpec
    from esper_core.leyline import SiteKind
    from esper_testing.checks import CheckResult
    from esper_testing.policies import PolicySettings
    from esper_testing.sites import Factory

POLICY_SLOTS: Final = (1, 2, 3, 7)


def blueprint_checks(
    factory: Factory, spec: BlueprintSpec, *, name: str | None = None, module: str | None = None
) -> Iterator[Check]:
    """The checks for a blueprint, each for every kind of site that it accepts.

    factory: builds a block for a site. spec: what it is registered with. name: how it is called in results.
    module: where it stands, if the factory does not say.
    """
    from esper_testing import blueprint_form, blueprint_learning, blueprint_life, blueprint_manners, blueprint_traits

    name = name or _name_of(factory)
    module = module or getattr(factory, "__module__", None)
    yield Check(name, "is_well_declared", partial(blueprint_form.is_well_declared, name, spec))
    yield Check(name, "imports_cleanly", partial(blueprint_manners.imports_cleanly, module))
    promises: tuple[Callable[[Factory, BlueprintSpec, SiteKind], None], ...] = (
        blueprint_form.builds,
        blueprint_form.keeps_shape,
        blueprint_form.takes_one_example,
        blueprint_form.identity_at_birth,
        blueprint_form.honest_parameter_count,
        blueprint_form.evaluates_repeatably,
        blueprint_form.stays_finite,
        blueprint_form.leaves_its_input_alone,
        blueprint_form.survives_a_round_trip,
        blueprint_form.deepcopy_is_independent,
        blueprint_form.instances_share_nothing,
        blueprint_learning.gradient_within_two_steps,
        blueprint_learning.loss_falls_within_fifty_steps,
        blueprint_manners.same_seed_same_weights,
        blueprint_manners.leaves_generators_alone,
        blueprint_manners.computes_where_its_input_is,
        blueprint_manners.reads_no_value_in_forward,
        blueprint_life.host_is_unchanged_at_alpha_0,
        blueprint_life.host_stands_still_while_incubating,
        blueprint_life.lives_a_whole_life,
        blueprint_life.pruning_leaves_no_trace,
        blueprint_traits.is_deterministic,
        blueprint_traits.works_in_bfloat16,
        blueprint_traits.compiles,
        blueprint_traits.is_stateful,
        blueprint_traits.takes_other_sizes,
        blueprint_traits.is_born_informed,
    )
    for promise in promises:
        for kind in [kind for kind in SITE_KINDS if kind in spec.kinds]:
            yield Check(name, promise.__name__, partial(promise, factory, spec, kind), kind)  # type: ignore[arg-type]


def reward_checks(
    factory: Callable[..., Any], *, settings: Mapping[str, Any] | None = None, name: str | None = None
) -> Iterator[Check]:
    """The checks for a reward, each with a metric that is better high and one that is better low.

    factory: called as ``factory(metric=metric, **settings)``.
    """
    from esper_testing import rewards as home

    for promise in home.PROMISES:
        for direction in home.METRICS:
            run = partial(promise, partial(factory, **(settings or {})), home.METRICS[direction])
            yield Check(name or _name_of(factory), promise.__name__, run, direction)


def host_checks(
    factory: Callable[..., Any],
    spec: HostSpec,
    *,
    settings: Mapping[str, Any] | None = None,
    name: str | None = None,
) -> Iterator[Check]:
    """The checks for a host, each for every kind of data; a kind that it refuses is skipped.

    factory: called as ``factory(shape, **settings)``. spec: what it is registered with.
    """
    from esper_testing import hosts as home

    name, make = name or _name_of(factory), partial(_with_settings, factory, settings or {})
    yield Check(name, "is_well_declared", partial(home.is_well_declared, spec))
    yield Check(name, "accepts_some_data", partial(home.accepts_some_data, make))
    for promise in home.PROMISES:
        for kind in home.GRID:
            yield Check(name, promise.__name__, partial(promise, make, spec, kind), kind)


def policy_checks(
    factory: Callable[..., Any], *, settings: PolicySettings | None = None, name: str | None = None
) -> Iterator[Check]:
    """The checks for a policy, each with 1, 2, 3 and 7 slots.

    factory: called as ``factory(space, **settings)``. settings: a mapping, or a function that makes it for a space.
    """
    from esper_testing import policies as home

    for promise in home.PROMISES:
        for slots in POLICY_SLOTS:
            case = f"{slots} slot{'s' if slots > 1 else ''}"
            run = partial(promise, home.maker(factory, settings), slots)
            yield Check(name or _name_of(factory), promise.__name__, run, case)


def task_checks(
    factory: Callable[..., Any], *, settings: Mapping[str, Any] | None = None, name: str | None = None
) -> Iterator[Check]:
    """The checks for a task. factory: called as ``factory(**settings)``; it is built twice for all checks together."""
    from esper_testing import tasks as home

    workshop = home.Workshop(partial(factory, **(settings or {})))
    for promise in home.PROMISES:
        yield Check(name or _name_of(factory), promise.__name__, partial(promise, workshop))


def schedule_checks(
    factory: Callable[..., Any], *, settings: Mapping[str, Any] | None = None, name: str | None = None
) -> Iterator[Check]:
    """The checks for a schedule of learning rates. factory: called as ``factory(**settings)``."""
    from esper_testing import schedules as home

    for promise in home.PROMISES:
        run = partial(promise, partial(factory, **(settings or {})))
        yield Check(name or _name_of(factory), promise.__name__, run)


def sink_checks(
    factory: Callable[..., Any], *, settings: Mapping[str, Any] | None = None, name: str | None = None
) -> Iterator[Check]:
    """The checks for a sink. factory: called as ``factory(run, **settings)`` with an empty folder."""
    from esper_testing import sinks as home

    for promise in home.PROMISES:
        run = partial(promise, lambda run: factory(run, **(settings or {})))
        yield Check(name or _name_of(factory), promise.__name__, run)


def check_blueprint(
    factory: Factory,
    spec: BlueprintSpec,
    *,
    name: str | None = None,
    expected_failures: Mapping[str, str] | None = None,
) -> list[CheckResult]:
    """Run every check for a blueprint. Arguments as for ``blueprint_checks`` and ``run_checks``."""
    return run_checks(blueprint_checks(factory, spec, name=name), expected_failures)


def check_host(
    factory: Callable[..., Any],
    spec: HostSpec,
    *,
    settings: Mapping[str, Any] | None = None,
    name: str | None = None,
    expected_failures: Mapping[str, str] | None = None,
) -> list[CheckResult]:
    """Run every check for a host. Arguments as for ``host_checks`` and ``run_checks``."""
    return run_checks(host_checks(factory, spec, settings=settings, name=name), expected_failures)


def check_reward(
    factory: Callable[..., Any],
    *,
    settings: Mapping[str, Any] | None = None,
    name: str | None = None,
    expected_failures: Mapping[str, str] | None = None,
) -> list[CheckResult]:
    """Run every check for a reward. Arguments as for ``reward_checks`` and ``run_checks``."""
    return run_checks(reward_checks(factory, settings=settings, name=name), expected_failures)


def check_schedule(
    factory: Callable[..., Any],
    *,
    settings: Mapping[str, Any] | None = None,
    name: str | None = None,
    expected_failures: Mapping[str, str] | None = None,
) -> list[CheckResult]:
    """Run every check for a schedule. Arguments as for ``schedule_checks`` and ``run_checks``."""
    return run_checks(schedule_checks(factory, settings=settings, name=name), expected_failures)


def check_policy(
    factory: Callable[..., Any],
    *,
    settings: PolicySettings | None = None,
    name: str | None = None,
    expected_failures: Mapping[str, str] | None = None,
) -> list[CheckResult]:
    """Run every check for a policy. Arguments as for ``policy_checks`` and ``run_checks``."""
    return run_checks(policy_checks(factory, settings=settings, name=name), expected_failures)


def check_task(
    factory: Callable[..., Any],
    *,
    settings: Mapping[str, Any] | None = None,
    name: str | None = None,
    expected_failures: Mapping[str, str] | None = None,
) -> list[CheckResult]:
    """Run every check for a task. Arguments as for ``task_checks`` and ``run_checks``."""
    return run_checks(task_checks(factory, settings=settings, name=name), expected_failures)


def check_sink(
    factory: Callable[..., Any],
    *,
    settings: Mapping[str, Any] | None = None,
    name: str | None = None,
    expected_failures: Mapping[str, str] | None = None,
) -> list[CheckResult]:
    """Run every check for a sink. Arguments as for ``sink_checks`` and ``run_checks``."""
    return run_checks(sink_checks(factory, settings=settings, name=name), expected_failures)


def _with_settings(factory: Callable[..., Any], settings: Mapping[str, Any], runtime: Any) -> Any:
    return factory(runtime, **settings)


def _name_of(factory: Callable[..., Any]) -> str:
    return str(getattr(factory, "__name__", type(factory).__name__))
