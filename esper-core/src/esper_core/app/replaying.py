"""What would have been, had another thing been done? An episode is played again from its seed and its actions.

It is the one loop that plays it, with a policy that does what was recorded; from a step on it may do something else.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from esper_core.app.asking import as_typed, possible_in, refused
from esper_core.app.compose import Surroundings
from esper_core.app.differing import first_before, first_difference
from esper_core.app.interrupts import heeded_signals
from esper_core.app.resolved import resolved_config
from esper_core.app.runtime import one_thread
from esper_core.app.saying import tell_plainly, warned
from esper_core.app.whereabouts import tell_of_end
from esper_core.config.plain import plain
from esper_core.growth import Growth
from esper_core.leyline.actions import WAIT
from esper_core.leyline.errors import GovernorStop
from esper_core.leyline.events import EpisodeFinished, RunStarted, StepFinished
from esper_core.plugins.dispatch import Observers, health_check
from esper_core.telemetry import Bus, Clock
from esper_core.trainer.event_records import record_of
from esper_core.trainer.loop import run_study
from esper_core.trainer.progress import Course

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from esper_core.app.differing import Difference
    from esper_core.app.preparing import Prepared
    from esper_core.app.recording import Recording
    from esper_core.leyline.actions import Action, ActionMask
    from esper_core.leyline.events import Event
    from esper_core.leyline.signals import Observation
    from esper_core.telemetry import Listener
    from esper_core.trainer.study import Study

Then = Literal["recorded", "wait"]
"""What is done after another action: what was recorded, as far as it is possible then, or nothing."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What is asked about one step: what could be done after it, or what if ``action`` had been."""

    step: int
    action: Action | None = None
    then: Then = "recorded"


@dataclass(frozen=True, slots=True)
class Replay:
    """An episode that was played again.

    difference: the first, where it did not come to the numbers of the record; of a what-if as far as both are to be the
    same. possible: what could be done after the step that was asked about. stopped: why the governor stopped it.
    """

    recording: Recording
    wish: Wish | None
    steps: tuple[StepFinished, ...]
    ending: EpisodeFinished | None
    difference: Difference | None
    possible: tuple[str, ...]
    stopped: str | None


@dataclass(slots=True)
class Player:
    """A policy for one environment: it does what was recorded, and from a step on what is wished.

    What is not possible any more it does not do; ``tell`` hears of it.
    """

    recording: Recording
    wish: Wish | None
    tell: Callable[[str], None]
    possible: tuple[str, ...] = ()
    played: int = -1
    """The latest step after which it was asked; an environment whose episode is over stands still there."""

    def act(self, observations: Sequence[Observation], masks: Sequence[ActionMask]) -> list[Action]:
        """One action for each environment, of which there is one."""
        ((observation, mask),) = zip(observations, masks, strict=True)
        step, before = observation.step, self.played
        self.played = step
        return [WAIT if step == before else self._after(step, mask)]

    def _after(self, step: int, mask: ActionMask) -> Action:
        wish = self.wish
        if wish is not None and step == wish.step:
            self.possible = possible_in(mask)
            if wish.action is not None:
                return self._wished(wish.action, mask)
        if step >= len(self.recording.actions) or (wish is not None and step > wish.step and wish.then == "wait"):
            return WAIT
        recorded = self.recording.actions[step]
        if mask.allows(recorded):
            return recorded
        self.tell(f"step {step}: what was done then is not possible now, so it waits: {as_typed(recorded)}")
        return WAIT

    def _wished(self, action: Action, mask: ActionMask) -> Action:
        if mask.allows(action):
            return action
        message = f"{as_typed(action)} is not possible after step {self.played} of {self.recording.name}"
        raise refused(message, f"Possible then: {', '.join(self.possible)}", "--action")


@dataclass(slots=True)
class _Heard:
    """Keeps the events of one arm."""

    arm: str
    events: list[Event] = field(default_factory=list)

    def hear(self, event: Event) -> None:
        """Keep one event."""
        if getattr(event, "arm", None) == self.arm:
            self.events.append(event)

    def settle(self) -> None:
        """Nothing is written."""


def replay(
    prepared: Prepared,
    recording: Recording,
    wish: Wish | None = None,
    *,
    listeners: Sequence[Listener] = (),
    tell: Callable[[str], None] = tell_plainly,
) -> Replay:
    """Play an episode of a run again, or what if. prepared: the run's own configuration.

    ConfigError (E432) where what is wished cannot be. ``tell`` hears what is warned of, and which of the recorded
    actions were not possible any more.
    """
    decides = recording.arm in prepared.composition.acting
    if wish is not None:
        _check(wish, recording, decides=decides)
    player = Player(recording, wish, tell)
    heard = _Heard(recording.arm)
    bus = Bus([heard, *listeners])
    configuration = plain(resolved_config(prepared.composition.resolution))
    with heeded_signals(tell_of_end) as pause, warned(tell), one_thread():
        Observers(prepared.plugins).configured(prepared.settings, lambda: configuration)
        around = Surroundings(bus, Clock(), lambda course: pause(), health_check(prepared.plugins))
        study = prepared.composition.one_episode(
            around,
            arm=recording.arm,
            seed=recording.seed,
            round_=recording.round,
            steps=_length(prepared, recording, wish),
            policy=player if decides else None,
            grown=[record_of(Growth, one) for one in recording.grown],
        )
        bus.publish(_beginning(recording, study))
        stopped = _played(study, recording.round)
    return _replay(recording, wish, heard.events, player.possible, stopped)


def _check(wish: Wish, recording: Recording, *, decides: bool) -> None:
    steps = len(recording.steps)
    if not decides:
        hint = "Take an arm that has a policy, or leave out --step and --action."
        message = f"nobody decides anything in {recording.name}"
        raise refused(message, hint, "--episode")
    if not 0 <= wish.step < steps:
        message = f"there is no step {wish.step} in {recording.name}"
        unfinished = "" if recording.ending else ": the run did not get further"
        raise refused(message, f"Its steps are 0 to {steps - 1}{unfinished}.", "--step")


def _length(prepared: Prepared, recording: Recording, wish: Wish | None) -> int:
    """Steps to play: to the end where the record has one, else as far as it goes, and to the step asked about."""
    if wish is not None and wish.action is None:
        return wish.step + 1
    if recording.ending is None:
        return len(recording.steps)
    return prepared.composition.resolution.loaded.config.episode.steps


def _beginning(recording: Recording, study: Study) -> RunStarted:
    """For those who show how far it is."""
    arms = tuple(dict.fromkeys(environment.arm for environment in study.pool.environments))
    return RunStarted(run=f"replay of {recording.name}", arms=arms, rounds=1, environments=1, steps=study.steps)


def _played(study: Study, round_: int) -> str | None:
    """Play it to its end; why the governor stopped it, or None."""
    course = Course(study)
    course.round = round_
    try:
        run_study(course)
    except GovernorStop as stop:
        return stop.problems[0].message
    finally:
        study.pool.close()
    return None


def _replay(
    recording: Recording, wish: Wish | None, events: Sequence[Event], possible: tuple[str, ...], stopped: str | None
) -> Replay:
    steps = tuple(event for event in events if isinstance(event, StepFinished))
    if wish is not None and wish.action is not None:
        difference = first_before(recording.steps, steps, wish.step)
    else:
        whole = wish is None and recording.ending is not None
        until = None if whole else len(recording.steps) - 1 if wish is None else wish.step
        difference = first_difference(recording.events, events, until)
    ends = wish is None or wish.action is not None
    ending = next((event for event in events if isinstance(event, EpisodeFinished)), None)
    return Replay(
        recording=recording,
        wish=wish,
        steps=steps,
        ending=ending if ends and recording.ending is not None else None,
        difference=difference,
        possible=possible,
        stopped=stopped,
    )
