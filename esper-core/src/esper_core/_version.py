"""The version of esper_core, in a module that imports nothing."""

from __future__ import annotations

from typing import Final

__version__: Final = "0.1.0"
