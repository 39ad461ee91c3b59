"""What do the events of a run tell of one episode? All that was measured and done in it, and who else is there."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from esper_core.app.asking import refused
from esper_core.app.resolution import TWIN
from esper_core.config.showing import quoted
from esper_core.leyline.errors import Problem, RunFolderError, nearest
from esper_core.leyline.events import EpisodeFinished, GovernorActed, RunFinished, StepFinished
from esper_core.telemetry import read_events
from esper_core.trainer.event_records import action_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from esper_core.leyline.actions import Action
    from esper_core.leyline.events import Event


@dataclass(frozen=True, slots=True)
class Recording:
    """One episode as the events tell it.

    events: its own, in their order. steps: those of them that tell of a step; step 0 first. ending: None where the run
    did not get to its end. actions: what was decided after each step. grown: what a control had from the start.
    """

    arm: str
    seed: int
    round: int
    events: tuple[Event, ...]
    steps: tuple[StepFinished, ...]
    ending: EpisodeFinished | None
    actions: tuple[Action, ...]
    grown: tuple[Mapping[str, Any], ...] = ()

    @property
    def name(self) -> str:
        """What it is asked for by: ``heuristic:3``."""
        return f"{self.arm}:{self.seed}"


@dataclass(slots=True)
class _Told:
    """What was read of a file: which episodes there are, and everything about those of one seed."""

    seeds: dict[str, set[int]] = field(default_factory=dict)
    by_arm: dict[str, list[Event]] = field(default_factory=dict)
    stopped: bool = False


def recording_in(run: Path, episode: str, controls: Mapping[str, str], tell: Callable[[str], None]) -> Recording:
    """The episode of the run in the folder ``run`` that ``episode`` names: ``ARM:SEED``, or the seed of the one arm.

    controls: for each arm the one that has what it grew from the start. ConfigError (E432) where there is no such
    episode; RunFolderError where the events cannot be read. ``tell`` hears what of them is left out.
    """
    arm, colon, number = episode.rpartition(":")
    seed = int(number) if number.isascii() and number.isdecimal() and len(number) < 20 else None
    told = _told_of(run / "events.jsonl", seed, tell)
    passive = {TWIN, *controls.values()}
    acting = [one for one in told.seeds if one not in passive]
    if seed is None:
        message = f"{quoted(episode)} names no episode"
        raise refused(message, _which(told.seeds), "--episode")
    if not colon and len(acting) > 1:
        message = f"{len(acting)} arms have a policy: of which is the episode of seed {seed} meant?"
        raise refused(message, f"Write:  {' or '.join(f'{one}:{seed}' for one in acting)}", "--episode")
    if not colon:
        arm = next(iter(acting), "")
    if seed not in told.seeds.get(arm, ()):
        message = f"there is no episode {quoted(f'{arm}:{seed}' if arm else episode)} in {run.name}"
        raise refused(message, _hint(told, arm), "--episode")
    return _recording(run, told, arm, seed, next((own for own, control in controls.items() if control == arm), None))


def _told_of(path: Path, seed: int | None, tell: Callable[[str], None]) -> _Told:
    told = _Told()
    try:
        for event in read_events(path, tell=tell):
            if isinstance(event, RunFinished):
                told.stopped = event.status == "stopped"
            if isinstance(event, StepFinished):
                told.seeds.setdefault(event.arm, set()).add(event.seed)
            if getattr(event, "seed", None) == seed and hasattr(event, "arm"):
                told.by_arm.setdefault(event.arm, []).append(event)
    except FileNotFoundError as error:
        message = f"cannot read {path}: {error.strerror}"
        raise RunFolderError(Problem("E430", message, hint="Without its events no episode can be replayed.")) from None
    return told


def _recording(run: Path, told: _Told, arm: str, seed: int, grew_in: str | None) -> Recording:
    events = told.by_arm[arm]
    steps = [event for event in events if isinstance(event, StepFinished)]
    ending = next((event for event in events if isinstance(event, EpisodeFinished)), None)
    beyond_repair = any(isinstance(event, GovernorActed) and event.act == "stop" for event in events)
    if told.stopped and ending is None and not beyond_repair:
        del steps[-1:]  # another episode went wrong in this step: nobody was asked any more what to do here
    if not steps:
        hint = "The run was stopped in its first step."
        message = f"no step of the episode {quoted(f'{arm}:{seed}')} was finished"
        raise refused(message, hint, "--episode")
    grown = [] if grew_in is None else [e for e in told.by_arm.get(grew_in, ()) if isinstance(e, EpisodeFinished)]
    return Recording(
        arm=arm,
        seed=seed,
        round=steps[0].round,
        events=tuple(events),
        steps=tuple(steps),
        ending=ending,
        actions=tuple(_action(run, event) for event in steps),
        grown=grown[0].grown if grown else (),
    )


def _action(run: Path, event: StepFinished) -> Action:
    try:
        return action_of(event)
    except ValueError:
        message = f"step {event.step} of {event.arm}:{event.seed} tells an action that is none: {quoted(event.action)}"
        hint = "The file was changed, or is of another version; packages.txt beside it names the one that wrote it."
        raise RunFolderError(Problem("E421", message, file=str(run / "events.jsonl"), hint=hint)) from None


def _hint(told: _Told, arm: str) -> str:
    if arm not in told.seeds and (close := nearest(arm, told.seeds)):
        return f'Did you mean "{close}"? {_which(told.seeds)}'
    return _which(told.seeds)


def _which(seeds: Mapping[str, set[int]]) -> str:
    """Which episodes there are, in a line."""
    ends = [(arm, min(own), max(own)) for arm, own in seeds.items() if own]
    if not ends:
        return "Its events tell of no step."
    return "There are: " + ", ".join(f"{arm}:{a}" + (f" to {arm}:{b}" if b > a else "") for arm, a, b in ends)
