"""Hook specifications: documented, typed and known to pluggy."""

from __future__ import annotations

import dataclasses
import inspect

import pytest

from esper_core.hooks import spec
from esper_core.leyline import protocols, signals
from esper_core.plugins.validation import hook_manager, known_hooks

HOOKS = {name: getattr(spec, name) for name in known_hooks()}


@pytest.mark.parametrize("name", HOOKS)
def test_hook_docstring_says_when_it_is_called_or_what_it_returns(name: str) -> None:
    first, *rest = (inspect.getdoc(HOOKS[name]) or "").splitlines()
    assert first.split()[0] in ("Add", "Observe", "Receive", "Return", "Wrap")
    assert first.endswith(".") or rest[0]
    returns = HOOKS[name].__annotations__["return"]
    if returns not in ("None", "object"):
        assert first.startswith("Return ")
        assert "Called " in "\n".join(rest)


def test_hook_manager_has_every_specification() -> None:
    manager = hook_manager()
    assert {name for name in vars(manager.hook) if name.startswith("esper_")} == set(HOOKS)
    first = {name for name in HOOKS if getattr(manager.hook, name).spec.opts["firstresult"]}
    assert first == {"esper_run", "esper_component_missing"}


def test_hook_arguments_are_frozen_dataclasses() -> None:
    found = [*vars(signals).values(), *vars(protocols).values()]
    records = [one for one in found if isinstance(one, type) and dataclasses.is_dataclass(one)]
    assert {protocols.RunInfo, protocols.RunOutcome, signals.HealthSnapshot} <= set(records)
    assert all(record.__dataclass_params__.frozen for record in records)
