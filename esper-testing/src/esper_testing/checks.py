"""What is a check, and how did it go? A promise that a component makes, and a result that is data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

Status = Literal["passed", "failed", "skipped", "expected failure", "unexpected pass"]


class NotApplicable(Exception):
    """A check that says nothing about this component: what it checks is not claimed, or cannot be asked here."""


@dataclass(frozen=True, slots=True)
class Check:
    """One promise of one component.

    run: returns where the promise is kept, raises NotApplicable where it was not made, anything else where it is not.
    case: under which circumstances: the kind of site, the number of slots.
    """

    component: str
    name: str
    run: Callable[[], None]
    case: str | None = None

    @property
    def title(self) -> str:
        """The check and its case: ``keeps_shape[sequence]``."""
        return self.name if self.case is None else f"{self.name}[{self.case}]"

    @property
    def id(self) -> str:
        """Component and title: ``conv_light-keeps_shape[sequence]``."""
        return f"{self.component}-{self.title}"

    @property
    def keys(self) -> tuple[str, ...]:
        """How it can be named where its failure is expected, the most exact first."""
        return (self.id, f"{self.component}-{self.name}", self.title, self.name)

    def expectation(self, expected_failures: Mapping[str, str]) -> str | None:
        """Why this check is expected to fail; None where it is not."""
        return next((expected_failures[key] for key in self.keys if key in expected_failures), None)

    def __call__(self) -> None:
        """The same as ``run``."""
        self.run()


@dataclass(frozen=True, slots=True)
class CheckResult:
    """How a check went. ``message`` says what is broken, why it was skipped, or why it was expected to fail."""

    component: str
    check: str
    status: Status
    message: str = ""

    @property
    def ok(self) -> bool:
        """Whether there is nothing to mend."""
        return self.status not in ("failed", "unexpected pass")


def run_checks(checks: Iterable[Check], expected_failures: Mapping[str, str] | None = None) -> list[CheckResult]:
    """Run each check. Whatever a component raises is a broken promise, too.

    expected_failures: by name or title of the check the reason why it fails; where it passes, that is told.
    """
    planned, expected = list(checks), dict(expected_failures or {})
    demand_known(planned, expected)
    return [_result(check, check.expectation(expected)) for check in planned]


def demand_known(checks: Sequence[Check], expected_failures: Mapping[str, str]) -> None:
    """ValueError where a failure is expected of a check that is not there."""
    known = {key for check in checks for key in check.keys}
    for name in expected_failures:
        if name not in known:
            names = ", ".join(dict.fromkeys(check.name for check in checks))
            msg = f"expected_failures names checks, which are here {names}. Received: {name}"
            raise ValueError(msg)


def _result(check: Check, expected: str | None) -> CheckResult:
    try:
        check.run()
    except NotApplicable as reason:
        return CheckResult(check.component, check.title, "skipped", str(reason))
    except AssertionError as broken:
        return _failure(check, expected, str(broken) or "an assertion failed")
    except (Exception, SystemExit) as fault:  # a component that ends the program has not passed
        return _failure(check, expected, f"raised {type(fault).__name__}: {fault}")
    if expected is not None:
        return CheckResult(check.component, check.title, "unexpected pass", f"was expected to fail: {expected}")
    return CheckResult(check.component, check.title, "passed")


def _failure(check: Check, expected: str | None, message: str) -> CheckResult:
    if expected is None:
        return CheckResult(check.component, check.title, "failed", message)
    return CheckResult(check.component, check.title, "expected failure", f"{expected} ({message})")
