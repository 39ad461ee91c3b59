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
    found = load_plugins()
    (record,) = [record for record in found.records if record.id == "blueprints-extra"]
    assert (record.package, record.version, record.origin) == ("blueprints-Extra", "1.0", "my_package")
    assert (record.status, record.components) == ("active", ("blueprints-extra/tiny-conv",))
    assert found.registry.find("blueprint", "tiny-conv").package == "blueprints-Extra"


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
    found = load_plugins()
    assert "blueprints" in [record.id for record in found.records]
    (problem,) = found.problems
    assert problem.code == "E223"
    assert " cannot be read: " in problem.message


def test_every_installed_component_can_be_imported() -> None:
    found = load_plugins()
    assert found.problems == ()
    for component in found.registry.components():
        assert callable(component.load())
        component.settings_model()


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
def esper_component_missing(kind, name):
    raise ValueError("no")
"""


def test_traced_hook_call_shows_arguments_plugins_and_result(load, workshop, monkeypatch, capsys) -> None:
    monkeypatch.setenv("ESPER_TRACE_HOOKS", "1")
    found = load(workshop.package(TRACED))
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


FINE = """
from esper_core import BlueprintSpec, hookimpl

@hookimpl
def esper_register_blueprints(registry):
    for name in ("first", "second"):
        registry.add(name, "nowhere:Block", BlueprintSpec("vector", "c"))
"""
HOOK = "from esper_core import BlueprintSpec, hookimpl\n@hookimpl\ndef "
ADD = "registry.add('a', 'm:A', BlueprintSpec('vector', '9*x'))"
BROKEN = {
    "E210 raises": ("1 / 0", "esper-core"),
    "E210 lacks": ("import nowhere_to_be_found", "esper-core"),
    "E210 syntax": ("def (", "esper-core"),
    "E212 old": ("", "esper-core<0.1"),
    "E213 misspelt": (HOOK + "esper_register_blueprint(registry): pass", "esper-core"),
    "E214 argument": (HOOK + "esper_register_blueprints(registrar): pass", "esper-core"),
    "E215 level": (HOOK + "esper_plugin_info(): return {'api': 1}", "esper-core"),
    "E218 formula": (HOOK + f"esper_register_blueprints(registry): {ADD}", "esper-core"),
    "E221 leaves": (HOOK + "esper_register_blueprints(registry): raise SystemExit(3)", "esper-core"),
    "E223 metadata": ("", None),
}


def test_ten_broken_plugins_of_fifty_are_each_reported(install) -> None:
    for number in range(40):
        install(f"fine-{number:02}", FINE, requires="esper-core>=0.1,<0.2")
    for what, (source, requires) in BROKEN.items():
        install(what.split()[1], source, requires=requires or "", version=requires and "1.0")
    found = load_plugins()
    assert sorted(problem.code for problem in found.problems) == sorted(what.split()[0] for what in BROKEN)
    status = {record.id: record.status for record in found.records}
    assert {id_ for id_, is_ in status.items() if is_ in ("broken", "rejected")} == {
        what.split()[1] for what in BROKEN if "metadata" not in what
    }
    fine = [id_ for id_ in status if id_.startswith("fine-")]
    assert len(fine) == 40
    assert {status[id_] for id_ in fine} == {"active"}
    assert set(fine) <= {name for name, _ in found.manager.list_name_plugin()} <= {*status} - {"raises", "leaves"}
    assert sum(one.plugin in fine for one in found.registry.components("blueprint")) == 80
