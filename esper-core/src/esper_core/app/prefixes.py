"""What was played before need not be trained again: an episode is a function of its seed and its actions.

Episodes that begin alike share their beginning. What was seen there is given again, and nothing is trained before the
first action that is new: then the engine is brought to where the ways part, from the nearest place whose state is kept.
What is kept in a folder besides is there for the next process, and for others at the same time.
"""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from esper_core.app.moments import moment_of, told_of_moment, told_of_twin, twin_of
from esper_core.app.prefix_folder import PrefixFolder
from esper_core.app.sameness import identity_of
from esper_core.leyline.errors import GrowthError

if TYPE_CHECKING:
    from esper_core.app.episode import Moment, Play, Undisturbed
    from esper_core.leyline.actions import Action, ActionSpace
    from esper_core.leyline.protocols import State
    from esper_core.leyline.signals import Metric

T = TypeVar("T")
Prefix = tuple[int, tuple["Action", ...]]
"""A seed, and what was done since the beginning of its episode."""

STATES_KEPT: Final = 64
"""States of the engine that are kept, the latest that were of use: some megabytes each for a large host."""

MOMENTS_KEPT: Final = 100_000
"""Moments that are kept."""

ROOM: Final = 1 << 30
"""Bytes that the files in a folder may take."""

UNFIT: Final = (GrowthError, LookupError, TypeError, ValueError)
"""What is raised by something that is read and is none of what it should be."""


class Remembered:
    """A ``Play`` that trains nothing twice: ``begin`` and ``act`` give the same moments, to the bit, sooner.

    states, moments: how many of each are kept; with fewer states more is trained again, to the same numbers.
    home: a folder in which moments, states and twins are kept for other processes too, in ``room`` bytes together. What
    another configuration, another version or another machine came to is never taken for this one's.
    ``trained`` and ``recalled`` count the steps of either kind.
    """

    def __init__(
        self,
        play: Play,
        *,
        states: int = STATES_KEPT,
        moments: int = MOMENTS_KEPT,
        home: Path | str | None = None,
        room: int = ROOM,
    ) -> None:
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
        self._folder = None if home is None else _folder(play, Path(home).absolute(), room)

    @property
    def steps(self) -> int:
        """Length of an episode, in decision steps."""
        return self.play.steps

    @property
    def space(self) -> ActionSpace:
        """What there is to choose from."""
        return self.play.space

    @property
    def metric(self) -> Metric:
        """What the task is judged by."""
        return self.play.metric

    @property
    def twin(self) -> Undisturbed:
        """The same host of the present seed, which never grew. RuntimeError where no episode was begun."""
        seed, _ = self._present()
        self._know_twin(seed)
        return self.play.twin_of(seed)

    def begin(self, seed: int) -> Moment:
        """Begin the episode of ``seed``."""
        self._here = (seed, ())
        return self._moment(self._here)

    def act(self, action: Action) -> Moment:
        """Carry ``action`` out. Errors are those of ``Play.act``; nothing has changed then."""
        seed, done = self._present()
        moment = self._moment((seed, (*done, action)))
        self._here = (seed, (*done, action))
        return moment

    def close(self) -> None:
        """Let the networks go. What is kept stays."""
        self.play.close()

    def _present(self) -> Prefix:
        if self._here is None:
            msg = "there is no episode: begin(seed) begins one"
            raise RuntimeError(msg)
        return self._here

    def _moment(self, prefix: Prefix) -> Moment:
        known = self._recalled(prefix)
        if known is not None:
            self.recalled += 1
            return known
        seed, done = prefix
        start = next((n for n in range(len(done) - 1, -1, -1) if self._can_go_to((seed, done[:n]))), None)
        moment = self._begun(seed) if start is None else None
        for n in range(start or 0, len(done)):
            moment = self._went_on((seed, done[:n]), done[n])
        assert moment is not None
        return moment

    def _recalled(self, prefix: Prefix) -> Moment | None:
        if prefix not in self._moments:
            found = self._read(prefix)
            if found is not None:
                _keep(self._moments, prefix, found, self._room[1])
            return found
        self._moments.move_to_end(prefix)
        return self._moments[prefix]

    def _can_go_to(self, prefix: Prefix) -> bool:
        if self.play.moves != self._moves:  # somebody else has played on it since
            self._engine = None
        return prefix == self._engine or prefix in self._states or self._fetched(prefix)

    def _begun(self, seed: int) -> Moment:
        self._engine = None
        self._know_twin(seed)
        return self._arrived((seed, ()), self.play.begin(seed))

    def _went_on(self, prefix: Prefix, action: Action) -> Moment:
        """One step from ``prefix``, which the engine is brought to where it is not there."""
        if prefix != self._engine:
            self._know_twin(prefix[0])
            self.play.load(self._states[prefix])
        elif prefix not in self._states:
            state = self.play.state()
            _keep(self._states, prefix, state, self._room[0])
            if self._folder is not None:
                self._folder.write("state", _name(prefix), state)
        self._states.move_to_end(prefix)
        self._engine = None  # whatever goes wrong now
        return self._arrived((prefix[0], (*prefix[1], action)), self.play.act(action))

    def _arrived(self, prefix: Prefix, moment: Moment) -> Moment:
        self.trained += 1
        self._engine, self._moves = prefix, self.play.moves
        _keep(self._moments, prefix, moment, self._room[1])
        if self._folder is not None:
            told, name = told_of_moment(moment), _name(prefix)
            known = self._folder.read("moment", name)
            if known is not None and known.plain != told.plain:
                self._folder.close("a step that was trained again came to other numbers than stand there")
            self._folder.write("moment", name, told)
        return moment

    def _read(self, prefix: Prefix) -> Moment | None:
        """The moment that the folder has of a prefix."""
        found = None if self._folder is None else self._folder.read("moment", _name(prefix))
        if self._folder is None or found is None:
            return None
        try:
            return moment_of(found)
        except UNFIT as error:
            self._folder.drop("moment", _name(prefix), f"{type(error).__name__}: {error}")
            return None

    def _fetched(self, prefix: Prefix) -> bool:
        """Whether the folder has the state of a prefix; the engine is there then."""
        found = None if self._folder is None else self._folder.read("state", _name(prefix))
        if self._folder is None or found is None:
            return False
        self._know_twin(prefix[0])
        self._engine = None
        try:
            self.play.load(found)
        except UNFIT as error:
            self._folder.drop("state", _name(prefix), f"{type(error).__name__}: {error}")
            return False
        self._engine, self._moves = prefix, self.play.moves
        _keep(self._states, prefix, found, self._room[0])
        return True

    def _know_twin(self, seed: int) -> None:
        """Have the twin of a seed known to ``play``, if the folder has it; else have the folder know it."""
        folder, name = self._folder, _name((seed, ()))
        if folder is None or self.play.knows_twin(seed):
            return
        found = folder.read("twin", name)
        if found is not None:
            try:
                self.play.know_twin(seed, twin_of(found, self.play.device))
            except UNFIT as error:
                folder.drop("twin", name, f"{type(error).__name__}: {error}")
        if not self.play.knows_twin(seed):
            folder.write("twin", name, told_of_twin(self.play.twin_of(seed)))


def _folder(play: Play, home: Path, room: int) -> PrefixFolder:
    """The folder, which is left alone where nobody can say what its numbers would be of."""
    try:
        identity = identity_of(play.prepared)
    except OSError as error:
        folder = PrefixFolder(home, "", room)
        folder.close(f"the code that runs cannot be read: {error}")
        return folder
    folder = PrefixFolder(home, identity.key, room)
    if identity.changed:
        first, *more = identity.changed
        others = f", and {len(more)} more files were" if more else " was"
        folder.close(f"{first}{others} written after this process began, and may not be what runs. Begin a new one.")
    return folder


def _name(prefix: Prefix) -> str:
    return repr((int(prefix[0]), prefix[1]))


def _keep(kept: OrderedDict[Prefix, T], prefix: Prefix, thing: T, room: int) -> None:
    """Keep a thing, as the latest of as many as there is room for."""
    kept[prefix] = thing
    while len(kept) > room:
        kept.popitem(last=False)
