"""Each setting of each component is described, and its default is that of the component's parameter."""

import inspect

import pytest

from esper_core.plugins import load_plugins

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
