"""What if a seed goes wrong? It is named, counted against its blueprint, and after three times that is withdrawn."""

from __future__ import annotations

import re
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from esper_core.leyline.constants import FAULTS_UNTIL_WITHDRAWN
from esper_core.leyline.errors import EsperError, PluginError, Problem
from esper_core.leyline.protocols import State
from esper_core.plugins.isolation import is_ctrl_c, is_third_party, location_of, target_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from esper_core.growth.seed import Seed
    from esper_core.growth.slot import Slot


_PLACE: Final = re.compile(r"\((?:[^()]*[/\\])([^()/\\]+:\d+)\)")


class SeedFault(PluginError):
    """A seed raised, or put out what cannot be.

    ``slots`` are those whose living seeds are to blame; none where it was a fossil, which cannot be taken out.
    ``number`` says which seed of a nursery it was; None: all that live there.
    """

    def __init__(self, slots: Iterable[str], what: str, *, number: int | None = None) -> None:
        self.slots = tuple(slots)
        self.number = number
        self.what = what
        where = f"in {', '.join(self.slots)} " if self.slots else ""
        super().__init__(Problem("E320", f"the seed {where}{what}"))


def in_words(error: BaseException, maker: object = None) -> str:
    """What an error says of itself, and on which line of its author's, in one line.

    maker: what built the seed, or the seed's block: it says in which package the author's lines are, and is named
    where the error passed through none of them.
    """
    said = (str(error).strip().splitlines() or [""])[0][:200]
    target = None if maker is None else target_of(maker)
    file, line = location_of(error, target)
    where = f"{file}:{line}" if file else target if target and is_third_party(target) else None
    return f"raised {type(error).__name__}: {said}" + (f" ({where})" if where else "")


def without_folders(said: str) -> str:
    """What ``in_words`` gave, with the name alone of the file that it names: an event holds no path of a machine.

    >>> without_folders("raised ValueError: too large (/home/me/odd.py:54)")
    'raised ValueError: too large (odd.py:54)'
    """
    return _PLACE.sub(r"(\1)", said)


@contextmanager
def blamed_on(slot: Slot, seed: Seed) -> Iterator[None]:
    """A block in which ``seed``, of ``slot``, answers for whatever is raised, unless somebody has already."""
    try:
        yield
    except EsperError:
        raise
    except BaseException as error:
        if is_ctrl_c(error):
            raise
        what = f'of blueprint "{seed.blueprint}" {in_words(error, seed.block)}'
        raise SeedFault([slot.name], what, number=seed.number) from error


class FaultBook:
    """Counts the faults of each blueprint over a run."""

    def __init__(self, limit: int = FAULTS_UNTIL_WITHDRAWN) -> None:
        self._limit = limit
        self._counts: Counter[str] = Counter()

    def record(self, blueprint: str) -> bool:
        """Count one more; whether the blueprint is withdrawn by it."""
        self._counts[blueprint] += 1
        return self._counts[blueprint] == self._limit

    def state(self) -> State:
        """How often each blueprint went wrong."""
        return State({"counts": dict(self._counts)})

    def load(self, state: State) -> None:
        """Go on counting from where another book was."""
        self._counts = Counter(state.plain["counts"])

    def is_withdrawn(self, blueprint: str) -> bool:
        """Whether the blueprint grows no more in this run."""
        return self._counts[blueprint] >= self._limit
