"""Every dotted name of this project that a message, a hint or a docstring contains can be imported."""

import ast
import importlib
import re
from collections.abc import Iterator

import pytest

import esper_core
from esper_core.leyline.specs import SinkSpec
from esper_core.plugins import Component
from esper_run.app import components
from tests.contract.conftest import ROOT, SOURCES, tree

MEMBERS = sorted(path.name.removeprefix("esper-") for path in ROOT.glob("esper-*") if path.is_dir())
NAME = re.compile(rf"\besper_(?:{'|'.join(MEMBERS)})(?:\.[A-Za-z_]\w*)+")


def resolve(dotted: str) -> object:
    """Import a dotted name: modules first, then attributes. ImportError where there is no such name."""
    first, *parts = dotted.split(".")
    target: object = importlib.import_module(first)
    path = first
    for part in parts:
        path = f"{path}.{part}"
        target = getattr(target, part) if hasattr(target, part) else importlib.import_module(path)
    return target


def texts() -> Iterator[tuple[str, str]]:
    """Each string in the sources of the members, with its place."""
    for file in SOURCES:
        for node in ast.walk(tree(file)):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield f"{file.relative_to(ROOT)}:{node.lineno}", node.value


def test_every_name_in_a_string_resolves() -> None:
    wrong = []
    for place, text in texts():
        for name in NAME.findall(text):
            try:
                resolve(name)
            except ImportError:
                wrong.append(f"{place} {name}")
    assert wrong == []


@pytest.mark.parametrize("kind", components._PROTOCOLS)
def test_the_hint_of_a_component_without_its_methods_names_its_protocol(kind: str) -> None:
    component = Component("p/c", "c", kind, "p", "p", "1", "module:target", SinkSpec())  # type: ignore[arg-type]
    with pytest.raises(esper_core.EsperError) as caught:
        components.check_component(component, object())
    (name,) = NAME.findall(caught.value.problems[0].hint or "")
    assert resolve(name) is components._PROTOCOLS[kind]  # type: ignore[index]
