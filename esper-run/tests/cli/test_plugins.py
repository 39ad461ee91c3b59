"""``esper plugins`` and ``esper components`` work however broken a plugin is."""

import pytest

from esper_core import __version__
from esper_core.plugins import loader

GOOD = """
from esper_core import BlueprintSpec, HostSpec, SlotPlace, TaskSpec, hookimpl
from pydantic import BaseModel, Field

class Settings(BaseModel):
    width: int = Field(3, description="How wide.")
    name: str

@hookimpl
def esper_register_blueprints(registry):
    spec = BlueprintSpec(("image", "sequence"), summary="Small.", starts_as_identity=True, version=3)
    registry.add("tiny-conv", "m:Tiny", spec)

@hookimpl
def esper_register_hosts(registry):
    registry.add("big", Settings, HostSpec("Large.", {"early": SlotPlace("stem", "image")}, Settings))

@hookimpl
def esper_register_tasks(registry):
    registry.add("big", "m:Task", TaskSpec("Heavy.", "not_there:Settings"))
"""


@pytest.mark.members
def test_list_shows_every_plugin_and_every_problem(esper, install) -> None:
    path = install("bad", "1 / 0\n")
    install("old", "", requires="esper-core<0.1")
    answer = esper("plugins", "list")
    assert (answer.status, answer.err) == (0, "")
    table, first, second = answer.out.split("\n\n")
    head, *rows = table.splitlines()
    assert head.split() == ["id", "package", "version", "status", "components"]
    facts = {row.split()[0]: row.split()[1:5] for row in rows}
    assert facts["bad"] == ["esper-bad", "1.0", "broken", "0"]
    assert facts["blueprints"][:3] == ["esper-blueprints", __version__, "active"]
    assert int(facts["blueprints"][3]) >= 3
    assert facts["old"] == ["esper-old", "1.0", "rejected", "0"]
    assert first.startswith('E210 plugin "bad" (esper-bad 1.0) cannot be imported: Zero')
    assert f"\n  {path}:1\n" in first
    assert second.startswith('E212 plugin "old" (esper-old 1.0) needs esper-core <0.1')


FACTS = """\
extra
  status       active
  package      esper-extra 1.0
  entry point  esper_extra
  hooks        esper_register_blueprints, esper_register_hosts, esper_register_tasks
  components   extra/tiny-conv, extra/big, extra/big"""


def test_plugin_is_shown_with_its_facts_and_problems(esper, install) -> None:
    install("extra", GOOD + "def esper_forgotten(): pass\n")
    answer = esper("plugins", "show", "extra")
    facts, problem = answer.out.split("\n\n")
    assert facts == FACTS
    assert problem.startswith('E222 plugin "extra" (esper-extra 1.0) has a function esper_forgotten')
    (record,) = esper("plugins", "show", "extra", "--json").json
    assert record["hooks"] == ["esper_register_blueprints", "esper_register_hosts", "esper_register_tasks"]


def test_both_plugins_of_a_duplicate_id_are_shown(esper, install) -> None:
    for name in ("one", "two"):
        install("extra", "1 / 0", package=name)
    answer = esper("plugins", "show", "extra")
    assert answer.status == 0
    assert ("  package      one 1.0\n" in answer.out, "  package      two 1.0\n" in answer.out) == (True, True)
    assert answer.out.count("E211") == 1
    assert len(esper("plugins", "show", "extra", "--json").json) == 2


def test_empty_list_says_what_to_install(esper, monkeypatch) -> None:
    loaded = loader.load_plugins(distributions=())
    monkeypatch.setattr("esper_core.plugins.load_plugins", lambda **_: loaded)
    assert esper("plugins", "list").out.startswith("No plugin is installed. Install some:  pip install ")
    assert esper("plugins", "list", "--json").out == "[]\n"
    assert esper("components", "list").out == "There is no component.\n"


def test_control_characters_of_names_and_messages_are_escaped(esper, install) -> None:
    install("extra", "raise ValueError('\\x1b[2J\\x9b\\u202e gone')\n")
    for command in (["list"], ["show", "extra"], ["list", "--json"], ["show", "\x1b[2J"]):
        answer = esper("plugins", *command)
        assert not set("\x1b\x9b\u202e") & set(answer.out + answer.err)
    assert "ValueError: \\x1b[2J\\x9b\\u202e gone" in esper("plugins", "list").out


@pytest.mark.members
def test_name_of_two_components_is_listed_in_full(esper, install) -> None:
    install("one", GOOD)
    install("two", GOOD)
    names = [line.split()[1] for line in esper("components", "list", "host").out.splitlines()]
    assert set(names) >= {"name", "one/big", "pointwise-mlp", "two/big"}
    assert "big" not in names


@pytest.mark.parametrize("kind", ["blueprint", "blueprints"])
def test_one_kind_is_listed_by_its_name_or_its_plural(esper, install, kind: str) -> None:
    install("extra", GOOD)
    components = esper("components", "list", kind, "--json").json
    assert {component["kind"] for component in components} == {"blueprint"}
    whose = {"plugin": "extra", "package": "esper-extra", "version": "1.0"}
    name = {"id": "extra/tiny-conv", "short": "tiny-conv", "kind": "blueprint", "summary": "Small.", "target": "m:Tiny"}
    spec = {"accepts": ["image", "sequence"], "starts_as_identity": True}
    expected = whose | name | spec | {"adapts": False, "blueprint_version": 3}
    assert [component for component in components if component["plugin"] == "extra"] == [expected]


def test_an_unknown_kind_gets_a_suggestion(esper) -> None:
    answer = esper("components", "list", "blueprnt")
    assert answer.status == 2
    assert 'there is no kind "blueprnt". Did you mean "blueprint"?' in answer.err


@pytest.mark.members
def test_plugins_that_were_not_searched_are_named(esper, install) -> None:
    install("bad", "1 / 0")
    answer = esper("components", "list", "--json")
    assert answer.json
    assert answer.err == "Not searched: bad (esper-bad 1.0, broken)\nMore:  esper plugins list\n"


SHOWN = """\
host extra/big
  Large.
  plugin    extra
  package   esper-extra
  version   1.0
  target    esper_extra:Settings
  slots     early (stem, image, 1)
  settings  esper_extra:Settings

setting             meaning
width    default 3  How wide.
name     required
task extra/big
  Heavy.
  plugin    extra
  package   esper-extra
  version   1.0
  target    m:Task
  settings  not_there:Settings
"""


def test_component_is_shown_with_its_settings_as_text_and_as_json(esper, install) -> None:
    install("extra", GOOD)
    answer = esper("components", "show", "big")
    assert answer.status == 3
    assert answer.out == SHOWN
    assert answer.err.startswith('E219 task "extra/big" (esper-extra 1.0) has settings that cannot be loaded: ')
    host, task = esper("components", "show", "extra/big", "--json").json
    assert host["settings_schema"]["properties"]["width"]["default"] == 3
    assert host["slots"] == {"early": {"at": "stem", "kind": "image", "stack": 1, "output": None}}
    assert (task["settings"], task["settings_schema"]) == ("not_there:Settings", None)
