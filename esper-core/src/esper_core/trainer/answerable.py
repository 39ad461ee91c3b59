"""Whose fault is it? What a plugin's component raises stops the run with the component and its package named."""

from __future__ import annotations

from contextlib import contextmanager
from traceback import extract_tb
from typing import TYPE_CHECKING

from esper_core.leyline.errors import EsperError, PluginError, Problem

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def answerable(component: str, doing: str) -> Iterator[None]:
    """A block in which ``component`` ("policy policies/schedule (esper-policies 0.1.0)") is at work."""
    try:
        yield
    except EsperError:
        raise
    except (Exception, SystemExit) as error:
        frame = extract_tb(error.__traceback__)[-1]
        received = str(error).strip().split("\n")[0][:300]
        message = f"{component} raised {type(error).__name__} {doing}: {received}"
        problem = Problem(
            "E231", message, file=frame.filename, line=frame.lineno, hint="This is a fault of its package."
        )
        raise PluginError(problem) from error
