"""Loader: from metadata on the path to records and a registry; time and tracing."""

import re

import pytest

from esper_core.plugins import load_plugins

SOURCE = """
from esper_core import BlueprintSpec, hookimpl
@hookimpl
def esper_register_blueprints(registry):
    registry.add("tiny-conv", "my_package.blocks:TinyConv", BlueprintSpec(accepts="image", params="9*c*c"))
"""


def test_installed_package_is_found_through_its_metadata(workshop, install) -> None:
    workshop.write("my_package", SOURCE)
    install.metadata("blueprints-Extra", "[console_scripts]\nx = y\n[esper.plugins]\nblueprints-extra = my_package\n")
    plugins = load_plugins()
    (record,) = [record for record in plugins.records if record.id == "blueprints-extra"]
    assert (record.package, record.version, record.origin) == ("blueprints-Extra", "1.0", "my_package")
    assert (record.status, record.components) == ("active", ("blueprints-extra/tiny-conv",))
    assert plugins.registry.find("blueprint", "tiny-conv").package == "blueprints-Extra"
    assert plugins.settings == {}


@pytest.mark.members
@pytest.mark.parametrize(
    ("entry_points", "version"),
    [
        (b"[esper.plugins]\nextra = \xff\xfe", "1.0"),
        ("[esper.plugins]\nnonsense\n", "1.0"),
        ("[esper.plugins]\na=b", None),
    ],
)
def test_damaged_metadata_is_reported_and_the_others_load(install, entry_points, version) -> None:
    install.metadata("damaged", entry_points, version=version)
    plugins = load_plugins()
    assert "blueprints" in [record.id for record in plugins.records]
    (problem,) = plugins.problems
    assert problem.code == "E223"
    assert " cannot be read: " in problem.message


TRACED = """
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
def esper_report_sections(run):
    raise ValueError("no")
"""


def test_traced_hook_call_shows_arguments_plugins_and_result(load, workshop, monkeypatch, capsys) -> None:
    monkeypatch.setenv("ESPER_TRACE_HOOKS", "1")
    plugins = load(workshop.package(TRACED))
    plugins.manager.hook.esper_run_started(run=["long"] * 1000)
    with pytest.raises(ValueError, match="no"):
        plugins.manager.hook.esper_report_sections(run="b\x1bll\n")
    out, err = capsys.readouterr()
    assert out == ""
    lines = err.splitlines()
    assert all(len(line) < 400 for line in lines)
    assert [re.sub(r"<esper_core.*?>", "REGISTRAR", line) for line in lines] == [
        "hook esper_register_blueprints(registry=REGISTRAR)  extra  -> []",
        f"hook esper_run_started(run=[{', '.join(6 * [repr('long')])}, ...])  extra  -> [{'x' * 13}...{'x' * 14}]",
        "hook esper_report_sections(run='b\\x1bll\\n')  extra  -> raised ValueError",
    ]
