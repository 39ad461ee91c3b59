"""``esper schema``: installed names are suggested, and other names stay valid."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from typing import Any

import pytest

EXTRA = """
from esper_core import BlueprintSpec, TaskSpec, hookimpl
from pydantic import BaseModel, Field

class Inner(BaseModel):
    depth: int = 1

class Settings(BaseModel):
    width: int = Field(3, description="How wide.")
    inner: Inner = Inner()

class Own(BaseModel):
    every: int = Field(10, description="How often.")

@hookimpl
def esper_settings_model(): return Own

@hookimpl
def esper_register_blueprints(registry):
    registry.add("conv_light", "m:Tiny", BlueprintSpec("sequence", "c", "Another."))

@hookimpl
def esper_register_tasks(registry):
    registry.add("wide", "m:Task", TaskSpec("Wide.", Settings))
    registry.add("lost", "m:Task", TaskSpec("Lost.", "not_there:Settings"))
"""


@pytest.fixture
def schema(esper, site_packages) -> dict[str, Any]:
    """The schema with a plugin beside our own."""
    site_packages.plugin("esper-extra", EXTRA)
    answer = esper("schema")
    assert (answer.status, answer.err) == (0, "")
    return json.loads(answer.out)


def suggestions(names: dict[str, Any]) -> dict[str, str]:
    *known, otherwise = names["anyOf"]
    assert otherwise["type"] == "string"
    return {one["const"]: one["description"] for one in known}


def test_it_is_the_models_with_descriptions(schema) -> None:
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert {"task", "host", "slots"} <= set(schema["required"])
    assert schema["$defs"]["SlotConfig"]["required"] == ["blueprints"]
    assert schema["$defs"]["use-task"]["anyOf"][1]["required"] == ["use"]
    assert schema["properties"]["environments"]["description"].startswith("Environments of each arm")
    assert schema["properties"]["task"] == {"description": "Data, loss and metric.", "$ref": "#/$defs/use-task"}
    assert schema["additionalProperties"] is False


def test_every_reference_leads_somewhere(schema) -> None:
    references = set(re.findall(r'"\$ref": "#/\$defs/([^"]+)"', json.dumps(schema)))
    assert references
    assert references <= set(schema["$defs"])


@pytest.mark.members
def test_installed_names_are_suggested_short_where_that_is_unique(schema) -> None:
    tasks = suggestions(schema["$defs"]["use-task"]["anyOf"][0])
    assert tasks["wide"] == tasks["extra/wide"] == "Wide.  (esper-extra 1.0)"
    assert {"mnist1d", "tasks/mnist1d"} <= set(tasks)
    blueprints = suggestions(schema["$defs"]["SlotConfig"]["properties"]["blueprints"]["items"])
    assert "conv_light" not in blueprints
    assert {"blueprints/conv_light", "extra/conv_light"} <= set(blueprints)


def test_settings_depend_on_the_name(schema) -> None:
    mapping = schema["$defs"]["use-task"]["anyOf"][1]
    by_name = {name: rule["then"] for rule in mapping["allOf"] for name in rule["if"]["properties"]["use"]["enum"]}
    reference = by_name["wide"]["properties"]["settings"]["$ref"].removeprefix("#/$defs/")
    assert schema["$defs"][reference]["properties"]["width"]["description"] == "How wide."
    assert schema["$defs"][f"{reference}.Inner"]["properties"]["depth"]["default"] == 1
    lost = by_name["extra/lost"]["properties"]["settings"]
    assert lost["type"] == "object"
    assert 'task "extra/lost" (esper-extra 1.0) has settings that cannot be loaded' in lost["description"]


def test_settings_of_plugins_are_part_of_it(schema) -> None:
    settings = schema["$defs"]["PluginsConfig"]["properties"]["settings"]
    assert settings["properties"] == {"extra": {"$ref": "#/$defs/plugin.extra"}}
    assert settings["additionalProperties"]
    assert schema["$defs"]["plugin.extra"]["properties"]["every"]["description"] == "How often."


def test_json_is_the_same_one_line(esper) -> None:
    plain, machine = esper("schema"), esper("schema", "--json")
    assert len(machine.out.splitlines()) == 1
    assert json.loads(machine.out) == json.loads(plain.out)


def test_it_does_not_import_torch() -> None:
    program = """
import sys
from esper_core.cli import main
try:
    main(["schema"])
except SystemExit as end:
    assert not end.code, end.code
sys.stderr.write(str("torch" in sys.modules))
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stderr == "False"
