"""Check that built components have what their kind requires, before anything is trained."""

from __future__ import annotations

from inspect import isfunction
from typing import TYPE_CHECKING, Any, Final

from torch import nn

from esper_core.leyline.errors import PluginError, Problem
from esper_core.leyline.protocols import DataShape, Policy, Reward, Schedule, Sink, Task
from esper_core.leyline.signals import Metric

if TYPE_CHECKING:
    from collections.abc import Mapping

    from esper_core.leyline.specs import ComponentKind
    from esper_core.plugins.isolation import Label

_PROTOCOLS: Final[Mapping[ComponentKind, type]] = {
    "policy": Policy,
    "reward": Reward,
    "schedule": Schedule,
    "sink": Sink,
    "task": Task,
}

_PARTS: Final[Mapping[ComponentKind, Mapping[str, type]]] = {"task": {"metric": Metric, "shape": DataShape}}
"""What is no method, and of which type it is."""


def demand_able(kind: ComponentKind, built: Any, label: Label) -> None:
    """PluginError (E231) where ``built`` is not what a component of this kind has to be."""
    if kind == "host" and not isinstance(built, nn.Module):
        raise _unable(label, f"builds {_article(built)}, not a torch.nn.Module", "Its target returns the network.")
    protocol = _PROTOCOLS.get(kind)
    if protocol is None:
        return
    methods = [name for name, own in vars(protocol).items() if isfunction(own) and not name.startswith("_")]
    if missing := [name for name in methods if not callable(getattr(built, name, None))]:
        what = f"builds {_article(built)} without the method {' and '.join(missing)}"
        raise _unable(label, what, f"A {kind} has {', '.join(methods)}: see esper_core.leyline.{protocol.__name__}.")
    for name, wanted in _PARTS.get(kind, {}).items():
        if not isinstance(found := getattr(built, name, None), wanted):
            what = f"builds {_article(built)} whose {name} is {_article(found)}"
            raise _unable(label, what, f"The {name} of a {kind} is a {wanted.__name__}.")


def _unable(label: Label, what: str, hint: str) -> PluginError:
    return PluginError(Problem("E231", f"{label} {what}", path=label.target, hint=hint))


def _article(thing: object) -> str:
    name = type(thing).__name__
    return "None" if thing is None else f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"
