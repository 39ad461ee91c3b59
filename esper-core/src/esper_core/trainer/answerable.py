"""Whose fault is it? What a plugin's component raises stops the run with the component and its package named."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from esper_core.leyline.errors import EsperError, PluginError, Problem
from esper_core.plugins.faults import Label, contained, is_ctrl_c, place_in

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def answerable(component: str, doing: str) -> Iterator[None]:
    """A block in which ``component`` ("policy policies/schedule (esper-policies 0.1.0)") is at work.

    Where it is a ``Label`` the fault is told at the author's own line, or else by the name of the target.
    """
    with contained() as caught:
        yield
    if isinstance(caught.error, EsperError):
        raise caught.error
    if caught.error is not None:
        raise _told(component, doing, caught.error) from caught.error


@contextmanager
def busily_answerable(component: str, doing: str) -> Iterator[None]:
    """The same for what is called with every batch: nobody looks after its output, which takes a dozen microseconds."""
    try:
        yield
    except EsperError:
        raise
    except BaseException as error:
        if is_ctrl_c(error):
            raise
        raise _told(component, doing, error) from error


def _told(component: str, doing: str, error: BaseException) -> PluginError:
    target = component.target if isinstance(component, Label) else None
    file, line = place_in(error, target)
    received = str(error).strip().split("\n")[0][:300]
    message = f"{component} raised {type(error).__name__} {doing}: {received}"
    hint = "This is a fault of its package."
    return PluginError(Problem("E231", message, file=file, line=line, path=None if file else target, hint=hint))
