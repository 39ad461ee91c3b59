"""Conformance checks, fixtures and fakes for authors of Esper plugins.

    from esper_testing import check_blueprint

    for result in check_blueprint(MyBlueprint, spec):
        print("ok  " if result.ok else "FAIL", result.check, result.message)

Names are imported when they are first used: ``import esper_testing`` costs nothing, and brings in neither torch nor
esper_core, so that pytest starts fast where this package is installed.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from esper_testing.checks import Check, CheckResult, blueprint_checks, check_blueprint

_HOME = {
    "Check": "esper_testing.checks",
    "CheckResult": "esper_testing.checks",
    "blueprint_checks": "esper_testing.checks",
    "check_blueprint": "esper_testing.checks",
}

__all__ = ["Check", "CheckResult", "blueprint_checks", "check_blueprint"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
