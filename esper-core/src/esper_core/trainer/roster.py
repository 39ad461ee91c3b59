"""Who takes part in a study, and whose turn is when? The environments of every arm, interleaved, each at its place.

Places are the same wherever an environment lives: in this process, or in one of several that share a run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Sequence


class Member(Protocol):
    """What anybody may ask of an environment, wherever it lives.

    arm, index: whose it is. round, seed: which episode is played. steps: how many it was trained for. over: whether the
    episode came to its end before its time. seconds: of the latest step's training, all of it and what of it went into
    seeds that incubate.
    """

    @property
    def arm(self) -> str: ...

    @property
    def index(self) -> int: ...

    @property
    def round(self) -> int: ...

    @property
    def seed(self) -> int: ...

    @property
    def steps(self) -> int: ...

    @property
    def over(self) -> bool: ...

    @property
    def seconds(self) -> tuple[float, float]: ...


M = TypeVar("M", bound=Member)


class Roster(Generic[M]):
    """Environments, by their places.

    before, whole: where this is a part of a roster, how many stand before it, and how many the whole one has.
    """

    def __init__(self, environments: Sequence[M], before: int = 0, whole: int | None = None) -> None:
        self.environments = list(environments)
        self._before = before
        self._whole = len(self.environments) if whole is None else whole

    @property
    def members(self) -> Sequence[Member]:
        """The same, as whoever tells of them knows them."""
        return self.environments

    def of_arm(self, *names: str) -> list[int]:
        """The places of the environments of an arm, or of several, in the order of their seeds."""
        return [place for place, environment in enumerate(self.environments) if environment.arm in names]

    @property
    def over(self) -> bool:
        """Whether every episode came to its end before its time. That of a twin never does."""
        return all(environment.over for environment in self.environments)

    def running(self) -> list[int]:
        """The places of the environments whose episode goes on."""
        return [place for place, environment in enumerate(self.environments) if not environment.over]

    def turns(self, step: int) -> list[int]:
        """The same, in the order of their turns in ``step``: who is first changes, so that no arm always is."""
        first = step % self._whole - self._before
        return sorted(self.running(), key=lambda place: (place < first, place))

    @property
    def shadow_share(self) -> float:
        """What share of the latest step's training went into seeds that incubate, over all environments."""
        whole, shadow = (sum(times) for times in zip(*(one.seconds for one in self.environments), strict=True))
        return shadow / whole if whole else 0.0


def interleaved(arms: Sequence[str], indices: Sequence[int]) -> list[tuple[int, str]]:
    """Index and arm of each place: those of one index, and so of one seed, stand side by side."""
    return [(index, arm) for index in indices for arm in arms]
