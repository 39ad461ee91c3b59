"""The reference page on the Python API lists every public name of ``esper_core``, and only names that exist."""

import ast
import importlib
import re
from pathlib import Path

import esper_core

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "python-api.md"
LISTED = re.findall(r"^::: ([\w.]+)\.(\w+)$", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)


def test_every_public_name_is_listed_once():
    assert sorted(name for module, name in LISTED if module == "esper_core") == list(esper_core.__all__)
    assert len(LISTED) == len(set(LISTED))


def test_every_listed_name_exists_and_has_a_docstring():
    undocumented = [
        name
        for module, name in LISTED
        if "integrations" not in module and not getattr(importlib.import_module(module), name).__doc__
    ]
    assert undocumented == []


def test_every_name_that_needs_another_library_exists_and_has_a_docstring():
    for module, name in LISTED:
        if "integrations" in module:
            source = Path(esper_core.__file__).parent / "integrations" / f"{module.rpartition('.')[2]}.py"
            named = {one.name: one for one in ast.parse(source.read_text()).body if hasattr(one, "name")}
            assert ast.get_docstring(named[name]), name
