"""Which known name was probably meant?"""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

ALIKE: Final = 0.6
"""Share of letters in common (as difflib counts them) from which a name may have been meant."""


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that is closest to ``name``, or None where none is close.

    >>> nearest("polcy", ["policy", "task"])
    'policy'
    """
    candidates = sorted(set(known))
    folded = {candidate.casefold().replace("-", "_"): candidate for candidate in candidates}
    wanted = name.casefold().replace("-", "_")
    if wanted in folded:
        return folded[wanted]
    close = get_close_matches(wanted[:200], list(folded), n=1, cutoff=ALIKE)
    return folded[close[0]] if close else None


def suggestion(name: str, known: Iterable[str]) -> str:
    """The hint that an unknown name deserves: the nearest one, or the list of what there is.

    >>> suggestion("polcy", ["policy", "task"])
    'Did you mean "policy"?'
    """
    known = sorted(set(known))
    if close := nearest(name, known):
        return f'Did you mean "{close}"?'
    if not known:
        return "There is nothing to choose from."
    shown = ", ".join(known[:12])
    return f"Known: {shown}" + (", …" if len(known) > 12 else "")
