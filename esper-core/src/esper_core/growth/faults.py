"""What if a seed goes wrong? It is named, counted against its blueprint, and after three times that is withdrawn."""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from traceback import extract_tb
from typing import TYPE_CHECKING

from esper_core.leyline.constants import FAULTS_UNTIL_WITHDRAWN
from esper_core.leyline.errors import EsperError, PluginError, Problem

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from esper_core.growth.slot import Slot


class SeedFault(PluginError):
    """A seed raised, or put out what cannot be.

    ``slots`` are those whose living seeds are to blame; none where it was a fossil, which cannot be taken out.
    """

    def __init__(self, slots: Iterable[str], what: str) -> None:
        self.slots = tuple(slots)
        self.what = what
        where = ", ".join(self.slots) or "a slot for good"
        super().__init__(Problem("E320", f"the seed in {where} {what}"))


def in_words(error: BaseException) -> str:
    """What an error says of itself, and where, in one line."""
    said = (str(error).strip().splitlines() or [""])[0][:200]
    frames = [frame for frame in extract_tb(error.__traceback__) if not frame.filename.startswith("<")]
    where = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    return f"raised {type(error).__name__}: {said}{where}"


@contextmanager
def blamed_on(slot: Slot) -> Iterator[None]:
    """A block in which the seed that lives in ``slot`` answers for whatever is raised, unless somebody has already."""
    try:
        yield
    except EsperError:
        raise
    except (Exception, SystemExit) as error:
        whose = "" if slot.living is None else f'of blueprint "{slot.living.blueprint}" '
        raise SeedFault([slot.name], f"{whose}{in_words(error)}") from error


class FaultBook:
    """Counts the faults of each blueprint over a run."""

    def __init__(self, limit: int = FAULTS_UNTIL_WITHDRAWN) -> None:
        self._limit = limit
        self._counts: Counter[str] = Counter()

    def record(self, blueprint: str) -> bool:
        """Count one more; whether the blueprint is withdrawn by it."""
        self._counts[blueprint] += 1
        return self._counts[blueprint] == self._limit

    def is_withdrawn(self, blueprint: str) -> bool:
        """Whether the blueprint grows no more in this run."""
        return self._counts[blueprint] >= self._limit
