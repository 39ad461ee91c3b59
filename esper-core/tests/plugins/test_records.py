"""Components: targets and settings models are imported when they are needed."""

from __future__ import annotations

import pickle

import pytest

from esper_core.leyline import ConfigError, PluginError

TASK = "from esper_core import TaskSpec, hookimpl\n@hookimpl\ndef esper_register_tasks(registry):\n    {body}\n"


@pytest.fixture
def refusal(workshop):
    """``refusal(look)``: the error that ``look()`` raises, and its text."""

    def catch(look) -> tuple[type, str]:
        with pytest.raises((ConfigError, PluginError)) as caught:
            look()
        return type(caught.value), str(caught.value).replace(f"{workshop.folder}/", "")

    return catch


BLOCKS = """
from pydantic import BaseModel
class Tiny: pass
class Settings(BaseModel):
    width: int = 3
NOTHING = None
"""


def component(load, workshop, target: str, spec: str = "TaskSpec()"):
    body = f'registry.add("signals", "{target}", {spec})'
    return load(workshop.package(TASK.format(body=body))).registry.find("task", "signals")


def test_target_is_imported_by_load_only(load, workshop) -> None:
    import sys

    workshop.write("my_blocks", BLOCKS)
    found = component(load, workshop, "my_blocks:Tiny")
    assert "my_blocks" not in sys.modules
    assert found.load() is sys.modules["my_blocks"].Tiny


def test_target_that_raises_on_import_is_reported_with_its_package(load, workshop, refusal) -> None:
    workshop.write("my_blocks", "import math\n1 / 0\n")
    assert refusal(component(load, workshop, "my_blocks:Tiny").load) == (
        PluginError,
        'E219 task "extra/signals" (esper-extra 0.2.0) cannot be loaded: ZeroDivisionError: division by zero\n'
        "  my_blocks.py:2\n"
        "  Tell the author of esper-extra.",
    )


def test_missing_target_is_reported(load, workshop, refusal) -> None:
    workshop.write("my_blocks", BLOCKS)
    assert refusal(component(load, workshop, "my_blocks:Tinny").load) == (
        PluginError,
        'E219 task "extra/signals" (esper-extra 0.2.0) cannot be loaded:'
        " AttributeError: module 'my_blocks' has no attribute 'Tinny'\n"
        "  my_blocks:Tinny\n"
        "  Tell the author of esper-extra.",
    )


def test_target_that_is_not_callable_is_reported(load, workshop, refusal) -> None:
    workshop.write("my_blocks", BLOCKS)
    assert refusal(component(load, workshop, "my_blocks:NOTHING").load) == (
        PluginError,
        'E219 task "extra/signals" (esper-extra 0.2.0) cannot be called: my_blocks:NOTHING is of type NoneType\n'
        "  A target is a class or a function. Tell the author of esper-extra.",
    )


def test_settings_model_is_imported_from_its_target(load, workshop) -> None:
    workshop.write("my_blocks", BLOCKS)
    found = component(load, workshop, "my_blocks:Tiny", 'TaskSpec(settings="my_blocks:Settings")')
    assert found.settings_model()().width == 3


def test_component_without_settings_has_no_model(load, workshop) -> None:
    assert component(load, workshop, "my_blocks:Tiny").settings_model() is None


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        (
            "my_blocks:Tiny",
            'E217 task "extra/signals" (esper-extra 0.2.0) declares settings that are not a pydantic model:'
            " my_blocks:Tiny\n"
            "  Settings are a class that derives from pydantic.BaseModel. Tell the author of esper-extra.",
        ),
        (
            "my_blocks:Nope",
            'E219 task "extra/signals" (esper-extra 0.2.0) has settings that cannot be loaded:'
            " AttributeError: module 'my_blocks' has no attribute 'Nope'\n"
            "  my_blocks:Nope\n"
            "  Tell the author of esper-extra.",
        ),
    ],
)
def test_invalid_settings_declaration_is_reported(load, workshop, refusal, settings: str, text: str) -> None:
    workshop.write("my_blocks", BLOCKS)
    found = component(load, workshop, "my_blocks:Tiny", f'TaskSpec(settings="{settings}")')
    assert refusal(found.settings_model) == (PluginError, text)


def test_component_can_be_pickled(load, workshop) -> None:
    found = component(load, workshop, "my_blocks:Tiny")
    assert pickle.loads(pickle.dumps(found)) == found
    assert hash(found) == hash(pickle.loads(pickle.dumps(found)))
