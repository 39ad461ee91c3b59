"""Every setting of every component is set by some test, and its default equals that of the component's parameter."""

import inspect
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest
from pydantic import BaseModel

from esper_core.plugins import load_plugins

ROOT = Path(__file__).parents[2]
MODULES = (
    "esper_blueprints.settings",
    "esper_policies.settings",
    "esper_policies.ppo.settings",
    "esper_rewards.settings",
    "esper_tasks.settings",
)
HERE = Path(__file__).name


def settings() -> Iterator[tuple[str, str]]:
    """Each model of settings, with each of its fields."""
    for module in map(import_module, MODULES):
        for name, model in vars(module).items():
            if isinstance(model, type) and issubclass(model, BaseModel) and model.__module__ == module.__name__:
                yield from ((name, field) for field in model.model_fields)


def names_set(source: str) -> set[str]:
    """Return the names that get a value anywhere in the tests: as an argument, in a mapping or in a list of names."""
    return set(re.findall(r'\b(\w+)\b["\']?\s*[=:,]', source))


def test_each_setting_is_set_by_a_test() -> None:
    files = [file for pattern in ("esper-*/tests/**/*.py", "tests/**/*.py") for file in ROOT.glob(pattern)]
    tests = "\n".join(file.read_text(encoding="utf-8") for file in files if file.name != HERE)
    names = names_set(tests)
    assert [f"{model}.{field}" for model, field in settings() if field not in names] == []


COMPONENTS = [component for component in load_plugins().registry.components() if component.settings_model() is not None]


@pytest.mark.parametrize("component", COMPONENTS, ids=lambda component: f"{component.kind}-{component.id}")
def test_settings_have_the_names_and_defaults_of_what_they_build(component) -> None:
    parameters = inspect.signature(component.load()).parameters.values()
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return  # it takes the settings as they are
    excluded = {"metric"} if component.kind == "reward" else set()
    defaults = {
        parameter.name: parameter.default
        for parameter in parameters
        if parameter.kind is parameter.KEYWORD_ONLY and parameter.name not in excluded
    }
    fields = component.settings_model().model_fields
    assert defaults == {
        name: inspect.Parameter.empty if field.is_required() else field.get_default(call_default_factory=True)
        for name, field in fields.items()
    }
    assert all(field.description for field in fields.values())
