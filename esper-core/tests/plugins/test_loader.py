"""Loader: from metadata on the path to records and a registry."""

import pytest

from esper_core.plugins import load_plugins

SOURCE = """
from esper_core import BlueprintSpec, hookimpl
@hookimpl
def esper_register_blueprints(registry):
    registry.add("tiny-conv", "my_package.blocks:TinyConv", BlueprintSpec("image"))
"""


def test_installed_package_is_found_through_its_metadata(workshop, install) -> None:
    workshop.write("my_package", SOURCE)
    install.metadata("blueprints-Extra", "[console_scripts]\nx = y\n[esper.plugins]\nblueprints-extra = my_package\n")
    plugins = load_plugins()
    (record,) = [record for record in plugins.records if record.id == "blueprints-extra"]
    assert (record.package, record.version, record.origin) == ("blueprints-Extra", "1.0", "my_package")
    assert (record.status, record.components) == ("active", ("blueprints-extra/tiny-conv",))
    assert plugins.registry.find("blueprint", "tiny-conv").package == "blueprints-Extra"


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
