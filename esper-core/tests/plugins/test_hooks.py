"""Hook specifications: documented, typed and known to pluggy."""

from __future__ import annotations

import dataclasses
import inspect
import re

import pytest

from esper_core.hooks import spec
from esper_core.leyline import protocols, signals
from esper_core.plugins.validation import hook_manager, known_hooks

HOOKS = {name: getattr(spec, name) for name in known_hooks()}


def missing_from(hook: object) -> list[str]:
    """What a hook's docstring does not say."""
    text = inspect.getdoc(hook) or ""
    parts = re.findall(r"^(When|Returns|Errors): \S", text, flags=re.MULTILINE)
    summary = text.split("\n")[0]
    return [
        *(part for part in ("When", "Returns", "Errors") if parts.count(part) != 1),
        *([] if summary.endswith((".", "``.", ".")) or ":" in summary else ["a first line"]),
    ]


@pytest.mark.parametrize("name", HOOKS)
def test_hook_docstring_has_when_returns_and_errors(name: str) -> None:
    assert missing_from(HOOKS[name]) == []


def test_incomplete_hook_docstring_is_detected() -> None:
    def esper_new(run: object) -> None:
        """Tells something.

        When: now.
        Errors: none.
        """

    def esper_mute() -> None: ...

    assert missing_from(esper_new) == ["Returns"]
    assert missing_from(esper_mute) == ["When", "Returns", "Errors", "a first line"]


def test_hook_manager_has_every_specification() -> None:
    manager = hook_manager()
    assert {name for name in vars(manager.hook) if name.startswith("esper_")} == set(HOOKS)
    first = {name for name in HOOKS if getattr(manager.hook, name).spec.opts["firstresult"]}
    assert first == {"esper_run", "esper_component_missing"}


@pytest.mark.parametrize("name", HOOKS)
def test_hook_arguments_have_types_and_no_defaults(name: str) -> None:
    for parameter in inspect.signature(HOOKS[name]).parameters.values():
        assert parameter.default is parameter.empty
        assert parameter.annotation is not parameter.empty


def test_hook_arguments_are_frozen_dataclasses() -> None:
    found = [*vars(signals).values(), *vars(protocols).values()]
    records = [one for one in found if isinstance(one, type) and dataclasses.is_dataclass(one)]
    assert {protocols.RunInfo, protocols.RunOutcome, signals.HealthSnapshot} <= set(records)
    assert all(record.__dataclass_params__.frozen for record in records)
