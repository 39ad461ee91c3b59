"""Components: targets and settings models are imported when they are needed."""

import sys

import pytest

from esper_core.leyline import ConfigError, PluginError

BLOCKS = """
from pydantic import BaseModel
class Tiny: pass
class Settings(BaseModel):
    width: int = 3
NOTHING = None
"""


@pytest.fixture
def component(load, workshop):
    """``component(target, spec)``: return a task with this target and spec, beside a module my_blocks."""
    workshop.write("my_blocks", BLOCKS)

    def find(target: str, spec: str = "TaskSpec()"):
        package = workshop.tasks(f'registry.add("signals", "{target}", {spec})')
        return load(package).registry.find("task", "signals")

    return find


def test_target_is_imported_by_load_only(component) -> None:
    task = component("my_blocks:Tiny")
    assert "my_blocks" not in sys.modules
    assert task.load() is sys.modules["my_blocks"].Tiny
    assert task.settings_model() is None


def test_a_component_and_the_registry_have_a_short_repr(load, workshop) -> None:
    package = workshop.tasks('registry.add("signals", "my_blocks:Tiny", TaskSpec())')
    registry = load(package).registry
    assert repr(registry.find("task", "signals")) == "<task extra/signals from esper-extra 0.2.0>"
    assert repr(registry) == "<Registry: task 1>"


TASK = 'task "extra/signals" (esper-extra 0.2.0)'
LACKS = "module 'my_blocks' has no attribute"
NO_TARGET = "my_blocks:NOTHING is of type NoneType"
TELL = "Tell the author of esper-extra."


@pytest.mark.parametrize(
    ("target", "fault", "more"),
    [
        ("wrong_blocks:Tiny", "loaded: ZeroDivisionError: division by zero", f"wrong_blocks.py:2\n  {TELL}"),
        ("my_blocks:Other", f"loaded: AttributeError: {LACKS} 'Other'", f"my_blocks:Other\n  {TELL}"),
        ("my_blocks:NOTHING", f"called: {NO_TARGET}", f"A target is a class or a function. {TELL}"),
    ],
)
def test_invalid_target_is_reported_with_its_package(component, workshop, refusal, target, fault, more) -> None:
    workshop.write("wrong_blocks", "import math\n1 / 0\n")
    assert refusal(component(target).load) == (PluginError, f"E219 {TASK} cannot be {fault}\n  {more}")


def test_settings_model_is_imported_from_its_target(component) -> None:
    assert component("my_blocks:Tiny", 'TaskSpec(settings="my_blocks:Settings")').settings_model()().width == 3


NO_MODEL = "declares settings that are not a pydantic model: my_blocks:Tiny"
LOST = f"has settings that cannot be loaded: AttributeError: {LACKS} 'Nope'"


@pytest.mark.parametrize(
    ("settings", "code", "fault", "more"),
    [
        ("Tiny", "E217", NO_MODEL, "Settings are a class that derives from pydantic.BaseModel. "),
        ("Nope", "E219", LOST, "my_blocks:Nope\n  "),
    ],
)
def test_invalid_settings_declaration_is_reported(component, refusal, settings, code, fault, more) -> None:
    task = component("my_blocks:Tiny", f'TaskSpec(settings="my_blocks:{settings}")')
    assert refusal(task.settings_model) == (PluginError, f"{code} {TASK} {fault}\n  {more}{TELL}")


@pytest.mark.parametrize(
    ("text", "outcome"),
    [
        ("", ("extra/tiny", 3)),
        ("(width=5)", ("extra/tiny(width=5)", 5)),
        ("( width = 5 )", ("extra/tiny(width=5)", 5)),
        ("(width=x)", "width: Input should be a valid integer"),
        ("(5)", "5: Extra inputs are not permitted. Its settings: width"),
        ("(width=5", "width: Input should be a valid integer"),
    ],
)
def test_settings_of_a_blueprint_stand_behind_its_name(load, workshop, text, outcome) -> None:
    strict = BLOCKS.replace("(BaseModel)", "(BaseModel, extra='forbid')")
    workshop.write("my_blocks", strict + "def build(site, *, width): return width\n")
    source = (
        "from esper_core import BlueprintSpec, hookimpl\n"
        "@hookimpl\n"
        "def esper_register_blueprints(registry):\n"
        "    spec = BlueprintSpec('vector', settings='my_blocks:Settings')\n"
        "    registry.add('tiny', 'my_blocks:build', spec)\n"
    )
    registry = load(workshop.package(source)).registry
    if isinstance(outcome, str):
        with pytest.raises(ConfigError, match=f"E120 .*extra/tiny.* does not take(?s:.)*({outcome})"):
            registry.find("blueprint", f"tiny{text}")
        return
    component = registry.find("blueprint", f"tiny{text}")
    assert (component.id, component.load()(None)) == outcome
    assert registry.match("blueprint", "*")[0].load()(None) == 3
