"""Keep each number and its unit in one line: a hook of MkDocs puts no-break spaces between them, outside of code.

Esper's own output has them from ``esper_run.formats``. The pages are written with ordinary spaces, which can be typed
and searched for.
"""

from __future__ import annotations

import re
from typing import Any, Final

NO_BREAK: Final = "\N{NO-BREAK SPACE}"

# What is between tags, and what is not prose: code, which is copied, and scripts.
_NO_PROSE: Final = re.compile(r"(<(code|pre|script|style|svg)\b.*?</\2>|<[^>]*>)", re.DOTALL)

_UNITS: Final = r"%|×|±|points?\b|nats?\b|(?:[a-z]+/)?s\b|[mµn]s\b|min\b|h\b|[kMGTPE](?:i?B|FLOPs?)?\b"
_LOOSE: Final = re.compile(rf"(?<=\d)[ \n](?={_UNITS})|(?<=[±×])[ \n](?=\d)")


def keep_together(html: str) -> str:
    """Return a page whose numbers and units stay in one line.

    >>> keep_together("<p>81.7 % in 1\\nmin 56 s, <code>12 s</code></p>").replace(NO_BREAK, "_")
    '<p>81.7_% in 1_min 56_s, <code>12 s</code></p>'
    """
    parts = _NO_PROSE.split(html)
    # Text, then a tag or code, then the name of the tag, which the expression needed to find its end.
    return "".join(
        _LOOSE.sub(NO_BREAK, text) + (tag or "") for text, tag in zip(parts[::3], [*parts[1::3], ""], strict=True)
    )


def on_page_content(html: str, **_: Any) -> str:
    """Change the content of a page; called by MkDocs."""
    return keep_together(html)
