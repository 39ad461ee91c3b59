"""Which checks does a component have to pass, and which did it pass?"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from esper_testing import blueprints

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from esper_core import BlueprintSpec
    from esper_testing.blueprints import Factory


@dataclass(frozen=True, slots=True)
class Check:
    """One promise of one component: ``run()`` raises where it is broken."""

    name: str
    run: Callable[[], None]


@dataclass(frozen=True, slots=True)
class CheckResult:
    """How a check went: its name, whether the promise is kept, and what is wrong where it is not."""

    check: str
    ok: bool
    message: str


def blueprint_checks(factory: Factory, spec: BlueprintSpec) -> Iterator[Check]:
    """The checks for a blueprint; what the spec does not claim is not checked.

    factory: builds a block for a site. spec: what it is registered with.
    """
    promises = [
        blueprints.keeps_shape,
        blueprints.honest_parameter_count,
        blueprints.gradient_within_two_steps,
        blueprints.same_seed_same_weights,
        blueprints.finite_outputs,
    ]
    if spec.starts_as_identity:
        promises.append(blueprints.identity_at_birth)
    for promise in promises:
        yield Check(promise.__name__, partial(promise, factory, spec))


def check_blueprint(factory: Factory, spec: BlueprintSpec) -> list[CheckResult]:
    """Run every check for a blueprint. Whatever a component raises is a broken promise, too."""
    return [_result(check) for check in blueprint_checks(factory, spec)]


def _result(check: Check) -> CheckResult:
    try:
        check.run()
    except AssertionError as broken:
        return CheckResult(check.name, ok=False, message=str(broken))
    except Exception as fault:
        return CheckResult(check.name, ok=False, message=f"raised {type(fault).__name__}: {fault}")
    return CheckResult(check.name, ok=True, message="")
