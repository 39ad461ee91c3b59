"""The plugin registers its components without torch, and their settings fit."""

from __future__ import annotations

import inspect
import subprocess
import sys

import pytest

from esper_core.leyline import SlotPlace
from esper_tasks import plugin

NAMES = (
    *("bytes", "cifar10", "cnn1d", "cnn2d", "csv", "digits", "images-synthetic", "marked-sum", "mlp", "mnist1d"),
    *("mnist1d-shuffled", "npz", "pointwise-mlp", "riddles", "signals-family", "signals-family-host", "stripes"),
    *("token-mlp", "transformer", "wide-cnn1d"),
)


@pytest.fixture
def registered(esper_plugins):
    """The components of the plugin, by name."""
    return {component.short: component for component in esper_plugins(plugin).registry.components()}


def test_the_plugin_registers_all_tasks_and_hosts(registered):
    assert tuple(sorted(registered)) == NAMES
    assert registered["pointwise-mlp"].spec.slots == {
        "early": SlotPlace("stem", "sequence"),
        "late": SlotPlace("hidden", "vector"),
    }


@pytest.mark.parametrize("name", NAMES)
def test_settings_and_factory_have_the_same_names_and_defaults(name, registered):
    parameters = inspect.signature(registered[name].load()).parameters.values()
    of_factory = {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}
    fields = registered[name].settings_model().model_fields
    assert of_factory == {
        own: inspect.Parameter.empty if field.is_required() else field.default for own, field in fields.items()
    }


def test_importing_the_plugin_and_its_settings_imports_no_torch():
    code = "import esper_tasks.plugin, esper_tasks.settings, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
