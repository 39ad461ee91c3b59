"""Checks and their results: ``Check``, ``CheckResult`` and ``run_checks``.

A check is a plain function that raises AssertionError where a component breaks a promise of its contract.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeVar

from esper_core.leyline import PluginError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

C = TypeVar("C", bound="Callable[..., None]")
Status = Literal["passed", "failed", "skipped"]


class NotApplicable(Exception):
    """Raised by a check that does not apply to the component, for example where torch cannot try it."""


@dataclass(frozen=True, slots=True)
class Check:
    """One check of one component.

    Attributes:
        component: the component's name.
        name: the check's name.
        run: returns if the check passes, raises NotApplicable if it does not apply, and anything else if it fails.
        case: the circumstances, such as the kind of site or the number of slots.
        is_decisive: whether later checks of the case are meaningless if this one failed.
    """

    component: str
    name: str
    run: Callable[[], None]
    case: str | None = None
    is_decisive: bool = False

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
        """The names by which a failure can be expected, the most specific first."""
        return (self.id, f"{self.component}-{self.name}", self.title, self.name)

    def expectation(self, expected_failures: Mapping[str, str]) -> str | None:
        """Return why this check is expected to fail; None if it is not."""
        return next((expected_failures[key] for key in self.keys if key in expected_failures), None)


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The outcome of a check. ``message`` says what is wrong, or why it was skipped."""

    component: str
    check: str
    status: Status
    message: str = ""

    @property
    def ok(self) -> bool:
        """Whether nothing has to be fixed."""
        return self.status != "failed"


def run_checks(checks: Iterable[Check]) -> list[CheckResult]:
    """Run each check and return the results. A check fails with whatever exception its component raises.

    Once a decisive check has failed, later ones of the same component and case are skipped.
    """
    failed: dict[tuple[str, str | None], str] = {}
    results = []
    for check in checks:
        case = check.component, check.case
        if case in failed:
            results.append(CheckResult(check.component, check.title, "skipped", f"{failed[case]} failed"))
            continue
        results.append(_result(check))
        if check.is_decisive and results[-1].status == "failed":
            failed[case] = check.name
    return results


def demand_known(checks: Sequence[Check], expected_failures: Mapping[str, str]) -> None:
    """Raise ValueError if ``expected_failures`` names a check that does not exist."""
    keys = {key for check in checks for key in check.keys}
    for name in expected_failures:
        if name not in keys:
            names = ", ".join(dict.fromkeys(check.name for check in checks))
            msg = f"expected_failures must name checks of the component: {names}. Received: {name}"
            raise ValueError(msg)


def demand(condition: bool, message: str) -> None:
    """Fail the check with ``message`` unless the condition holds."""
    if not condition:
        raise AssertionError(message)


@contextmanager
def demand_no_error(when: str) -> Iterator[None]:
    """Fail the check, with ``when`` in its message, if the ``with`` block raises."""
    try:
        yield
    except Exception as error:
        msg = f"raises {type(error).__name__} {when}: {error}"
        raise AssertionError(msg) from error


def applies_if(condition: Callable[..., bool]) -> Callable[[C], C]:
    """Return a decorator for checks that apply only where ``condition``, called with the check's arguments, holds."""

    def mark(check: C) -> C:
        vars(check)["applies"] = condition
        return check

    return mark


def decisive(check: C) -> C:
    """Mark a check whose failure makes those after it fail, too."""
    vars(check)["is_decisive"] = True
    return check


def is_applicable(check: Callable[..., None], *arguments: object) -> bool:
    """Return whether the check applies. A condition that raises counts as met: the check then reports the error."""
    try:
        return bool(getattr(check, "applies", lambda *_: True)(*arguments))
    except Exception:  # a plugin's code raises anything
        return True


def require(condition: bool, otherwise: str) -> None:
    """Skip the check, with ``otherwise`` as the reason, unless the condition holds."""
    if not condition:
        raise NotApplicable(otherwise)


def _result(check: Check) -> CheckResult:
    try:
        check.run()
    except NotApplicable as reason:
        return CheckResult(check.component, check.title, "skipped", str(reason))
    except (Exception, SystemExit) as error:  # a component that exits the process fails, too
        message = str(error) if isinstance(error, AssertionError) else f"raised {type(error).__name__}: {error}"
        if isinstance(error, PluginError):  # from the checks of a run, which say what was wrong
            message = error.problems[0].message
        return CheckResult(check.component, check.title, "failed", message or "an assertion failed")
    return CheckResult(check.component, check.title, "passed")
