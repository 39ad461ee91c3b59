"""Replay an episode of a run: from its seed and its recorded actions, or with another action in one step.

An episode is a function of its configuration, its seed and its actions. A run directory records all three, so a replay
has to produce the recorded numbers, to the last bit, up to the step in which another action is taken.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Final, Literal, NoReturn

from esper_core.leyline import WAIT, Action, ConfigError, GovernorStop, Problem, RunFolderError
from esper_core.leyline.errors import nearest
from esper_core.leyline.events import EpisodeFinished, GovernorActed, RunFinished, StepFinished
from esper_run import read_events
from esper_study.actions import format_action, possible_actions, quoted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from esper_core.leyline import ActionMask
    from esper_core.leyline.events import Event
    from esper_run.app.episode import Episode, EpisodeStep

Then = Literal["recorded", "wait"]
TWIN: Final = "twin"
CONTROL: Final = "capacity"
"""Controls by static capacity are called this, or ``capacity-of-ARM``."""

_LONGEST_SEED: Final = 19


@dataclass(frozen=True, slots=True)
class Recording:
    """An episode as the events of its run record it.

    Attributes:
        steps: Its steps, with signals, rewards and actions.
        ending: None if the run did not get that far.
    """

    arm: str
    seed: int
    steps: tuple[StepFinished, ...]
    ending: EpisodeFinished | None
    actions: tuple[Action, ...]

    @property
    def name(self) -> str:
        """The name of the episode, such as ``heuristic:3``."""
        return f"{self.arm}:{self.seed}"


@dataclass(frozen=True, slots=True)
class Change:
    """A step to ask about. ``action`` is taken there instead of the recorded one; None lists what is possible.

    Attributes:
        then: What follows the action: what was recorded, as far as it is possible, or waiting.
    """

    step: int
    action: Action | None = None
    then: Then = "recorded"


@dataclass(frozen=True, slots=True)
class Difference:
    """The first difference: its step, or None for the end; the name of the value, and both values."""

    step: int | None
    what: str
    recorded: Any
    replayed: Any


@dataclass(slots=True)
class Replay:
    """The result of a replay.

    Attributes:
        steps: The replayed steps.
        test: Loss and metric on the test split, if the replay got to the end of the episode.
        difference: The first deviation from the recording, among the numbers that have to be the same.
        possible: The actions that were possible in the step that was asked about.
        stopped: Why the governor stopped the episode, if it did.
    """

    recording: Recording
    change: Change | None
    steps: list[StepFinished] = field(default_factory=list)
    test: tuple[float, float] | None = None
    difference: Difference | None = None
    possible: tuple[str, ...] = ()
    stopped: str | None = None


def read_recording(run: Path, episode: str, warn: Callable[[str], None]) -> Recording:
    """Read the events of one episode from a run directory.

    Args:
        run: The run directory.
        episode: ``ARM:SEED``, or ``SEED`` if the run has one arm with a policy.
        warn: Called with a message about events that cannot be read.

    Raises:
        ConfigError: E432, if there is no such episode.
        RunFolderError: E421 or E430, if the events cannot be read.
    """
    arm, colon, number = episode.rpartition(":")
    seed = int(number) if number.isascii() and number.isdecimal() and len(number) <= _LONGEST_SEED else None
    seeds: dict[str, set[int]] = {}
    events: dict[str, list[Event]] = {}
    stopped = False
    for event in _events(run, warn):
        if isinstance(event, RunFinished):
            stopped = event.status == "stopped"
        if isinstance(event, StepFinished):
            seeds.setdefault(event.arm, set()).add(event.seed)
        if isinstance(event, StepFinished | GovernorActed | EpisodeFinished) and event.seed == seed:
            events.setdefault(event.arm, []).append(event)
    acting = [arm for arm in seeds if arm != TWIN and arm.partition("-of-")[0] != CONTROL]
    if seed is None:
        _refuse(f"{quoted(episode)} names no episode", _known(seeds))
    if not colon and len(acting) > 1:
        message = f"{len(acting)} arms have a policy: name the one to replay with RNG seed {seed}"
        _refuse(message, f"Write:  {' or '.join(f'{arm}:{seed}' for arm in acting)}")
    arm = arm if colon else next(iter(acting), "")
    if seed not in seeds.get(arm, ()):
        close = nearest(arm, seeds) if arm not in seeds else None
        message = f"there is no episode {quoted(f'{arm}:{seed}' if arm else episode)} in {run.name}"
        _refuse(message, f'Did you mean "{close}"? {_known(seeds)}' if close else _known(seeds))
    if arm != TWIN and arm not in acting:
        _refuse(f"{arm} is a control without a policy, and controls cannot be replayed", _known(seeds))
    return _recording(run, arm, seed, events[arm], stopped=stopped)


def replay(play: Episode, recording: Recording, change: Change | None = None, *, warn: Callable[[str], None]) -> Replay:
    """Replay an episode on an ``Episode`` of the run's own configuration.

    Args:
        play: The episode to replay on, not yet begun.
        recording: What was recorded.
        change: The step to ask about; None: replay what was recorded.
        warn: Called with a message for each recorded action that is no longer possible.

    Raises:
        ConfigError: E432, if the step does not exist, or the action is not possible in it.
    """
    if change is not None:
        _check(change, recording)
    replayed = Replay(recording, change)
    ending: EpisodeStep | None = None
    try:
        if recording.arm == TWIN:
            _replay_twin(play, replayed)
        else:
            ending = _replay_actions(play, replayed, warn)
    except GovernorStop as stop:
        replayed.stopped = stop.problems[0].message
    if ending is not None and ending.ending is not None and recording.ending is not None:
        replayed.test = (ending.ending.test_loss, ending.ending.test_metric)
    replayed.difference = _first_difference(replayed, ending)
    return replayed


def _replay_actions(play: Episode, replayed: Replay, warn: Callable[[str], None]) -> EpisodeStep | None:
    """Play an episode as far as the recording goes. Return its end, or None if it does not get there."""
    recording, change = replayed.recording, replayed.change
    last = None if recording.ending is not None else len(recording.steps) - 1
    if change is not None and change.action is None:
        last = change.step
    latest = play.begin(recording.seed)
    while not latest.over:
        step = latest.observation.step
        if change is not None and step == change.step:
            replayed.possible = possible_actions(latest.mask)
        action = _action_after(step, latest.mask, recording, change, warn)
        replayed.steps.append(_as_event(recording, latest, action))
        if step == last:
            return None
        latest = play.act(action)
    return latest


def _replay_twin(play: Episode, replayed: Replay) -> None:
    """Compare the twin's signals; it takes no action, and its rewards are 0 by definition."""
    recording = replayed.recording
    twin = play.twin_of(recording.seed)
    pairs = zip(recording.steps, twin.signals, strict=False)  # of an unfinished episode there are fewer steps
    replayed.steps += [replace(step, signals=signals) for step, signals in pairs]
    if recording.ending is not None:
        replayed.test = (twin.ending.test_loss, twin.ending.test_metric)


def _action_after(
    step: int, mask: ActionMask, recording: Recording, change: Change | None, warn: Callable[[str], None]
) -> Action:
    if change is not None and step == change.step and change.action is not None:
        if not mask.allows(change.action):
            message = f"{format_action(change.action)} is not possible after step {step} of {recording.name}"
            _refuse(message, f"Possible then: {', '.join(possible_actions(mask))}", "--action")
        return change.action
    waits = change is not None and step > change.step and change.then == "wait"
    if waits or step >= len(recording.actions):
        return WAIT
    recorded = recording.actions[step]
    if mask.allows(recorded):
        return recorded
    warn(f"step {step}: the recorded action is not possible any more, so the replay waits: {format_action(recorded)}")
    return WAIT


def _as_event(recording: Recording, latest: EpisodeStep, action: Action) -> StepFinished:
    return StepFinished(
        round=recording.steps[0].round,
        arm=recording.arm,
        seed=recording.seed,
        step=latest.observation.step,
        signals=latest.observation.signals,
        reward={} if latest.reward is None else dict(latest.reward.terms),
        action=action,
    )


def _first_difference(replay: Replay, end: EpisodeStep | None) -> Difference | None:
    """Compare what has to be the same: everything, or what precedes another action, or a stop of the governor."""
    recorded, replayed, change = replay.recording.steps, tuple(replay.steps), replay.change
    if replay.stopped is not None:
        recorded = recorded[: len(replayed)]
    elif change is not None:
        recorded, replayed = recorded[: change.step + 1], replayed[: change.step + 1]
    has_twin = any(step.reward for step in replay.recording.steps)
    for then, now in zip_longest(recorded, replayed):
        if then is None or now is None:
            return Difference((then or now).step, "step", then and then.step, now and now.step)
        acts = change is not None and change.action is not None and then.step == change.step
        for name in ("signals", "reward") if acts else ("signals", "reward", "action"):
            for value_path, recorded_value, replayed_value in _differences(
                getattr(then, name), getattr(now, name), name
            ):
                if has_twin or not (name == "reward" or value_path.endswith(".gain")):  # an Episode always has a twin
                    return Difference(then.step, value_path, recorded_value, replayed_value)
    if (change is not None and change.action is not None) or replay.test is None or replay.recording.ending is None:
        return None
    return _difference_at_end(replay.recording.ending, replay.test, end if has_twin else None)


def _difference_at_end(
    recorded: EpisodeFinished, test: tuple[float, float], end: EpisodeStep | None
) -> Difference | None:
    pairs: dict[str, tuple[Any, Any]] = {
        "test_loss": (recorded.test_loss, test[0]),
        "test_metric": (recorded.test_metric, test[1]),
    }
    if end is not None and end.ending is not None:
        pairs["closing"] = (recorded.closing, {} if end.reward is None else end.reward.terms)
        pairs["grown"] = (list(recorded.grown), [asdict(growth) for growth in end.ending.growth])
    for name, (expected, actual) in pairs.items():
        for value_path, recorded_value, replayed_value in _differences(expected, actual, name):
            return Difference(None, value_path, recorded_value, replayed_value)
    return None


def _differences(expected: Any, actual: Any, path: str) -> Iterator[tuple[str, Any, Any]]:
    """Yield each place where two values differ, with both. NaN equals NaN."""
    if is_dataclass(expected) and type(expected) is type(actual):
        for field in fields(expected):
            yield from _differences(getattr(expected, field.name), getattr(actual, field.name), f"{path}.{field.name}")
    elif hasattr(expected, "keys") and hasattr(actual, "keys"):
        for key in dict.fromkeys((*expected, *actual)):
            yield from _differences(expected.get(key), actual.get(key), f"{path}.{key}")
    elif isinstance(expected, list | tuple) and isinstance(actual, list | tuple) and len(expected) == len(actual):
        for place, pair in enumerate(zip(expected, actual, strict=True)):
            yield from _differences(*pair, f"{path}[{place}]")
    elif expected != actual and repr(expected) != repr(actual):  # NaN differs from itself
        yield path, expected, actual


def _check(change: Change, recording: Recording) -> None:
    if recording.arm == TWIN:
        _refuse("no action is taken in the twin", "Name an arm that has a policy, or leave out --step and --action.")
    if not 0 <= change.step < len(recording.steps):
        unfinished = "" if recording.ending else ": the run did not get further"
        hint = f"Its steps are 0 to {len(recording.steps) - 1}{unfinished}."
        _refuse(f"there is no step {change.step} in {recording.name}", hint, "--step")


def _events(run: Path, warn: Callable[[str], None]) -> Iterator[Event]:
    path = run / "events.jsonl"
    try:
        yield from read_events(path, tell=warn)
    except OSError as error:
        message = f"cannot read {path}: {error.strerror or error}"
        raise RunFolderError(Problem("E430", message, hint="Without its events no episode can be replayed.")) from None


def _recording(run: Path, arm: str, seed: int, events: Sequence[Event], *, stopped: bool) -> Recording:
    steps = [event for event in events if isinstance(event, StepFinished)]
    ending = next((event for event in events if isinstance(event, EpisodeFinished)), None)
    stopped_here = any(isinstance(event, GovernorActed) and event.act == "stop" for event in events)
    if stopped and ending is None and not stopped_here:
        del steps[-1:]  # the governor stopped another episode in this step, before an action was taken in this one
    if not steps:
        _refuse(
            f"no step of the episode {quoted(f'{arm}:{seed}')} was finished", "The run was stopped in its first step."
        )
    return Recording(arm, seed, tuple(steps), ending, tuple(event.action for event in steps))


def _known(seeds: Mapping[str, set[int]]) -> str:
    """Return the episodes that exist, in one line."""
    if not seeds:
        return "The events contain no step."
    ranges = [(arm, min(arm_seeds), max(arm_seeds)) for arm, arm_seeds in seeds.items()]
    return "There are: " + ", ".join(f"{arm}:{a}" + (f" to {arm}:{b}" if b > a else "") for arm, a, b in ranges)


def _refuse(message: str, hint: str, option: str = "--episode") -> NoReturn:
    raise ConfigError(Problem("E432", message, path=option, hint=hint))
