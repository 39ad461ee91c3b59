"""The plugin registers its components without torch, and their settings fit."""

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
