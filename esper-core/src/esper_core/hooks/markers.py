"""How does a function become a hook of Esper?"""

from __future__ import annotations

from typing import Final

import pluggy

PROJECT: Final = "esper"

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)
