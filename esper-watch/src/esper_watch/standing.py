"""How does a run stand whose events have no end? As its manifest tells, where it names the process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from esper_core import EsperError, load_run

if TYPE_CHECKING:
    from pathlib import Path


def standing(run: Path) -> str | None:
    """``running`` or ``died``, as ``esper runs list`` has it; None where nothing is known but that there is no end."""
    try:
        known = load_run(run).status
    except EsperError:
        return None
    return known if known in ("running", "died") else None
