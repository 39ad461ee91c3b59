"""Whose fault is it? What a plugin's component raises stops the run with the component and its package named."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from esper_core.leyline.errors import EsperError, PluginError, Problem
from esper_core.plugins.faults import Label, contained, place_in

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def answerable(component: str, doing: str) -> Iterator[None]:
    """A block in which ``component`` ("policy policies/schedule (esper-policies 0.1.0)") is at work.

    Where it is a ``Label`` the fault is told at the author's own line, or else by the name of the target.
    """
    with contained() as caught:
        yield
    error = caught.error
    if error is None:
        return
    if isinstance(error, EsperError):
        raise error
    target = component.target if isinstance(component, Label) else None
    file, line = place_in(error, target)
    received = str(error).strip().split("\n")[0][:300]
    message = f"{component} raised {type(error).__name__} {doing}: {received}"
    hint = "This is a fault of its package."
    raise PluginError(
        Problem("E231", message, file=file, line=line, path=None if file else target, hint=hint)
    ) from error
