"""``esper components show`` asks the plugins about a name that is not installed."""

from __future__ import annotations

import pytest

KNOWS = """
from esper_core import hookimpl

@hookimpl
def esper_component_missing(kind, name):
    if name == "mamba" and kind in ("blueprint", "host"):
        return f"the {kind} mamba\\ncomes with extra[mamba]"
"""

FAILS = """
from esper_core import hookimpl

@hookimpl
def esper_component_missing(kind, name):
    raise LookupError("no index")
"""


def test_every_kind_of_which_a_plugin_knows_is_told_once(esper, site_packages) -> None:
    site_packages.plugin("esper-knows", KNOWS, id="knows")
    answer = esper("components", "show", "mamba")
    assert (answer.status, answer.out) == (2, "")
    assert answer.err == (
        'E200 unknown component "mamba"\n'
        "  the blueprint mamba comes with extra[mamba]\n"
        "  the host mamba comes with extra[mamba]\n"
        "  List them:  esper components list\n"
    )


@pytest.mark.members
def test_the_line_stands_where_it_stands_for_a_name_in_a_configuration(esper, site_packages, tmp_path) -> None:
    site_packages.plugin("esper-knows", KNOWS, id="knows")
    file = tmp_path / "run.yaml"
    file.write_text("task: stripes\nhost: mamba\nslots: {early: {blueprints: [conv_light]}}\npolicy: static\n")
    *_, line, last = esper("check", str(file)).err.splitlines()
    assert (line, last) == ("  the host mamba comes with extra[mamba]", "  List them:  esper components list host")


def test_a_plugin_that_fails_when_it_is_asked_is_named_once(esper, site_packages) -> None:
    site_packages.plugin("esper-fails", FAILS, id="fails")
    site_packages.plugin("esper-knows", KNOWS.replace("mamba", "zamba"), id="knows")
    fault = 'plugin "fails" (esper-fails 1.0) failed in esper_component_missing: LookupError: no index'
    assert esper("components", "show", "no-such-thing").err.splitlines()[1:-1] == [f"  {fault}"]
    told = esper("components", "show", "zamba").err
    assert told.count("the host zamba comes with extra[zamba]") == 1
    assert fault in told


def test_a_name_that_is_there_asks_nobody(esper, site_packages) -> None:
    source = FAILS.replace("LookupError", "SystemExit") + (
        "\nfrom esper_core import BlueprintSpec\n"
        "@hookimpl\n"
        "def esper_register_blueprints(registry):\n"
        "    registry.add('tiny', 'm:Tiny', BlueprintSpec('vector', 'c'))\n"
    )
    site_packages.plugin("esper-fails", source, id="fails")
    answer = esper("components", "show", "tiny")
    assert (answer.status, answer.err) == (0, "")
