"""The hooks' docstrings are their reference: each says when it is called, what it returns, what goes wrong."""

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
def test_a_hook_says_when_returns_errors(name: str) -> None:
    assert missing_from(HOOKS[name]) == []


def test_a_hook_that_says_less_is_refused() -> None:
    def esper_new(run: object) -> None:
        """Tells something.

        When: now.
        Errors: none.
        """

    def esper_mute() -> None: ...

    assert missing_from(esper_new) == ["Returns"]
    assert missing_from(esper_mute) == ["When", "Returns", "Errors", "a first line"]


def test_pluggy_knows_every_hook() -> None:
    manager = hook_manager()
    assert {name for name in vars(manager.hook) if name.startswith("esper_")} == set(HOOKS)
    first = {name for name in HOOKS if getattr(manager.hook, name).spec.opts["firstresult"]}
    assert first == {"esper_run", "esper_component_missing"}


@pytest.mark.parametrize("name", HOOKS)
def test_a_hook_has_no_defaults_and_every_argument_a_type(name: str) -> None:
    for parameter in inspect.signature(HOOKS[name]).parameters.values():
        assert parameter.default is parameter.empty
        assert parameter.annotation is not parameter.empty


def test_what_hooks_are_passed_is_frozen() -> None:
    found = [*vars(signals).values(), *vars(protocols).values()]
    records = [one for one in found if isinstance(one, type) and dataclasses.is_dataclass(one)]
    assert {protocols.RunInfo, protocols.RunOutcome, signals.HealthSnapshot} <= set(records)
    assert all(record.__dataclass_params__.frozen for record in records)


def test_a_plain_esper_run_would_never_be_called_and_is_refused(told, workshop) -> None:
    package = workshop.package("from esper_core import hookimpl\n@hookimpl\ndef esper_run(context): return []\n")
    assert told(package) == (
        'E214 plugin "extra" (esper-extra 0.2.0) has a hook esper_run that is not a wrapper, so it is never called\n'
        "  esper_extra.py:2\n"
        "  Mark it with @hookimpl(wrapper=True), and yield where the run is to be."
    )


@pytest.mark.parametrize(
    ("given", "told_of", "code"),
    [
        ("int", "has settings that are not a pydantic model: esper_settings_model returned int", "E217"),
        ("{}", "has settings that are not a pydantic model: esper_settings_model returned dict", "E217"),
        ("1 / 0", "failed in esper_settings_model: ZeroDivisionError: division by zero", "E221"),
    ],
)
def test_settings_that_are_no_model_make_a_plugin_broken(load, workshop, given, told_of, code) -> None:
    package = workshop.package(
        f"from esper_core import hookimpl\n@hookimpl\ndef esper_settings_model(): return {given}\n"
    )
    (record,) = load(package).records
    assert record.status == "broken"
    assert str(record.problems[0]).splitlines()[0] == f'{code} plugin "extra" (esper-extra 0.2.0) {told_of}'
    assert record.problems[0].line in (2, 3)
