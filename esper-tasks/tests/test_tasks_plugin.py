"""The plugin registers its components without torch, and their settings fit."""

from __future__ import annotations

import inspect
import subprocess
import sys
from importlib import import_module

import pytest

from esper_core.leyline import SlotPlace
from esper_tasks import plugin

NAMES = [
    "bytes",
    "cifar10",
    "cnn1d",
    "cnn2d",
    "csv",
    "digits",
    "images-synthetic",
    "marked-sum",
    "mlp",
    "mnist1d",
    "mnist1d-shuffled",
    "npz",
    "pointwise-mlp",
    "riddles",
    "signals-family",
    "signals-family-host",
    "stripes",
    "token-mlp",
    "transformer",
    "wide-cnn1d",
]


class Book:
    """A registry that only writes down."""

    def __init__(self):
        self.entries = {}

    def add(self, name, target, spec):
        assert name not in self.entries
        self.entries[name] = (target, spec)


def registered():
    book = Book()
    plugin.esper_register_tasks(registry=book)
    plugin.esper_register_hosts(registry=book)
    return book.entries


def attribute(where):
    module, _, name = where.partition(":")
    return getattr(import_module(module), name)


def test_it_registers_these():
    assert sorted(registered()) == NAMES
    assert registered()["pointwise-mlp"][1].slots == {
        "early": SlotPlace("stem", "sequence"),
        "late": SlotPlace("hidden", "vector"),
    }


@pytest.mark.parametrize("name", NAMES)
def test_settings_and_factory_have_the_same_names_and_defaults(name):
    target, spec = registered()[name]
    parameters = inspect.signature(attribute(target)).parameters.values()
    of_factory = {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}
    fields = attribute(spec.settings).model_fields
    assert of_factory == {
        own: inspect.Parameter.empty if field.is_required() else field.default for own, field in fields.items()
    }


def test_importing_the_plugin_and_its_settings_imports_no_torch():
    code = "import esper_tasks.plugin, esper_tasks.settings, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
