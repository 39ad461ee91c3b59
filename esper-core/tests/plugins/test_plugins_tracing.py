"""``ESPER_TRACE_HOOKS``: every call of a hook in one line on stderr."""

from __future__ import annotations

import re

import pytest

SOURCE = """
from esper_core import BlueprintSpec, hookimpl

class Loud:
    def __repr__(self):
        return "x" * 10_000

@hookimpl
def esper_register_blueprints(registry):
    pass

@hookimpl
def esper_run_started(run):
    return Loud()

@hookimpl
def esper_component_missing(kind, name):
    raise ValueError("no")
"""


@pytest.mark.parametrize("off", [None, "", "0", "off"])
def test_nothing_is_told_unless_asked_for(load, workshop, monkeypatch, capsys, off) -> None:
    monkeypatch.delenv("ESPER_TRACE_HOOKS", raising=False)
    if off is not None:
        monkeypatch.setenv("ESPER_TRACE_HOOKS", off)
    load(workshop.package(SOURCE)).manager.hook.esper_run_started(run=1)
    assert capsys.readouterr() == ("", "")


def test_each_call_is_told_with_plugin_arguments_result_and_time(load, workshop, monkeypatch, capsys) -> None:
    monkeypatch.setenv("ESPER_TRACE_HOOKS", "1")
    found = load(workshop.package(SOURCE))
    found.manager.hook.esper_run_started(run=["long"] * 1000)
    with pytest.raises(Exception, match="unknown blueprint"):
        found.registry.find("blueprint", "b\x1bll\n")
    out, err = capsys.readouterr()
    assert out == ""
    lines = err.splitlines()
    assert all(len(line) < 400 for line in lines)
    assert [re.sub(r"<esper_core.*?>", "REGISTRAR", line) for line in lines] == [
        "hook esper_register_blueprints(registry=REGISTRAR)  extra  -> []",
        f"hook esper_run_started(run=[{', '.join(6 * [repr('long')])}, ...])  extra  -> [{'x' * 13}...{'x' * 14}]",
        "hook esper_component_missing(kind='blueprint', name='b\\x1bll\\n')  extra  -> raised ValueError",
    ]
