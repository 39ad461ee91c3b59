"""Hook specifications: documented, typed and known to pluggy."""

from __future__ import annotations

import dataclasses
import inspect

import pytest

from esper_core.hooks import spec
from esper_core.leyline import protocols, signals
from esper_core.plugins.dispatch import OBSERVER_HOOKS
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


def test_manual_says_what_holds_for_all_hooks_of_a_kind() -> None:
    """What the module says of observers and registration hooks is not repeated at each of them."""
    manual = inspect.getdoc(spec) or ""
    assert all(word in manual for word in ("frozen", "once (E228)", "not loaded", "registry.add(name, target, spec)"))
    observers = ("esper_configured", "esper_run_started", "esper_run_finished", "esper_stage_changed")
    observers += ("esper_step_finished", "esper_update_finished", "esper_governor_acted")
    assert set(observers) == set(OBSERVER_HOOKS)
    names = list(HOOKS)
    first, last = names.index("esper_configured"), names.index("esper_governor_acted")
    assert names[first : last + 1] == list(observers)


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
