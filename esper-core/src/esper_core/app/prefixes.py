"""What was played before need not be trained again: an episode is a function of its seed and its actions.

Episodes that begin alike share their beginning. What was seen there is given again, and nothing is trained before the
first action that is new: then the engine is brought to where the ways part, from the nearest place whose state is kept.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from esper_core.app.playing import Moment, Play
    from esper_core.leyline.actions import Action
    from esper_core.leyline.resuming import State

T = TypeVar("T")
Prefix = tuple[int, tuple["Action", ...]]
"""A seed, and what was done since the beginning of its episode."""

STATES_KEPT: Final = 64
"""States of the engine that are kept, the latest that were of use: some megabytes each for a large host."""

MOMENTS_KEPT: Final = 100_000
"""Moments that are kept."""


class Remembered:
    """A ``Play`` that trains nothing twice: ``begin`` and ``act`` give the same moments, to the bit, sooner.

    states, moments: how many of each are kept; with fewer states more is trained again, to the same numbers.
    ``trained`` and ``recalled`` count the steps of either kind.
    """

    def __init__(self, play: Play, *, states: int = STATES_KEPT, moments: int = MOMENTS_KEPT) -> None:
        if states < 1 or moments < 1:
            msg = f"there is room for one state and one moment at least. Received: {states} and {moments}"
            raise ValueError(msg)
        self.play = play
        self._room = states, moments
        self._states: OrderedDict[Prefix, State] = OrderedDict()
        self._moments: OrderedDict[Prefix, Moment] = OrderedDict()
        self._here: Prefix | None = None
        self._engine: Prefix | None = None
        """Where the engine is, as of its last move that was asked for here."""
        self._moves = play.moves
        self.trained = self.recalled = 0

    def begin(self, seed: int) -> Moment:
        """Begin the episode of ``seed``."""
        self._here = (seed, ())
        return self._moment(self._here)

    def act(self, action: Action) -> Moment:
        """Carry ``action`` out. Errors are those of ``Play.act``; nothing has changed then."""
        if self._here is None:
            msg = "there is no episode: begin(seed) begins one"
            raise RuntimeError(msg)
        seed, done = self._here
        moment = self._moment((seed, (*done, action)))
        self._here = (seed, (*done, action))
        return moment

    def _moment(self, prefix: Prefix) -> Moment:
        if prefix in self._moments:
            self.recalled += 1
            self._moments.move_to_end(prefix)
            return self._moments[prefix]
        seed, done = prefix
        start = next((n for n in range(len(done) - 1, -1, -1) if self._can_go_to((seed, done[:n]))), None)
        moment = self._begun(seed) if start is None else None
        for n in range(start or 0, len(done)):
            moment = self._went_on((seed, done[:n]), done[n])
        assert moment is not None
        return moment

    def _can_go_to(self, prefix: Prefix) -> bool:
        if self.play.moves != self._moves:  # somebody else has played on it since
            self._engine = None
        return prefix == self._engine or prefix in self._states

    def _begun(self, seed: int) -> Moment:
        self._engine = None
        return self._arrived((seed, ()), self.play.begin(seed))

    def _went_on(self, prefix: Prefix, action: Action) -> Moment:
        """One step from ``prefix``, which the engine is brought to where it is not there."""
        if prefix != self._engine:
            self.play.load(self._states[prefix])
        elif prefix not in self._states:
            _keep(self._states, prefix, self.play.state(), self._room[0])
        self._states.move_to_end(prefix)
        self._engine = None  # whatever goes wrong now
        return self._arrived((prefix[0], (*prefix[1], action)), self.play.act(action))

    def _arrived(self, prefix: Prefix, moment: Moment) -> Moment:
        self.trained += 1
        self._engine, self._moves = prefix, self.play.moves
        _keep(self._moments, prefix, moment, self._room[1])
        return moment


def _keep(kept: OrderedDict[Prefix, T], prefix: Prefix, thing: T, room: int) -> None:
    """Keep a thing, as the latest of as many as there is room for."""
    kept[prefix] = thing
    while len(kept) > room:
        kept.popitem(last=False)
