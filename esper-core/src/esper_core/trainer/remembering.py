"""What does an environment tell a checkpoint, and how does another one go on from it, bit for bit?

It is told between two steps, after what was decided is carried out. So much need not be kept: what each step measures
before it is read (the network's own losses and the seeds', gradients), what a step can be undone by while it lasts, and
whether the network was in training. The faults of a run are its pool's to keep, and the data its task's.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from esper_core.growth import Transition, decode_state, encode_state, state_mismatch
from esper_core.leyline.errors import GrowthError
from esper_core.leyline.lifecycle import Stage
from esper_core.leyline.protocols import State
from esper_core.leyline.signals import Signals
from esper_core.trainer.event_records import plain_of, record_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from esper_core.growth import FaultBook
    from esper_core.trainer.environment import Environment, Mishap


def state_of(environment: Environment, mishaps: Sequence[Mishap]) -> State:
    """All that the environment knows. mishaps: those of which nobody was told yet."""
    streams = environment.training_stream.state_dict(), environment.evaluation_stream.state_dict()
    return State.of(
        {
            "garden": environment.garden.state_dict(),
            "governor": environment.governor.state(),
            "order": environment.order.state(),
            "streams": encode_state(streams),
            "scales": environment.scales.state(),
            "leaning": environment.leaning.state(),
            "reading": environment.reading.state(),
            "mishaps": encode_state([asdict(mishap) for mishap in mishaps]),
        },
        round=environment.round,
        seed=environment.seed,
        steps=environment.steps,
        over=environment.over,
    )


def bring_back(environment: Environment, state: State) -> list[dict[str, Any]]:
    """Let the environment, of an equal recipe, go on from ``state``; the mishaps of which nobody was told yet.

    GrowthError where it does not fit. The environment is at the beginning of an episode then, and holds nothing of it.
    """
    try:
        round_, seed, steps = (state.plain[name] for name in ("round", "seed", "steps"))
        if not all(type(number) is int for number in (round_, seed, steps)):
            why = f"round, seed and steps are whole numbers. Received: {round_!r}, {seed!r}, {steps!r}"
            raise state_mismatch(why)
        environment.reset(round_, seed, bare=True)
        return _recalled(environment, state)
    except (GrowthError, LookupError, TypeError, ValueError, AttributeError) as error:
        environment.reset(environment.round, environment.seed, bare=True)
        environment.governor.begin(environment.garden)
        if isinstance(error, GrowthError):
            raise
        why = f"it cannot be read: {type(error).__name__}: {error}"
        raise state_mismatch(why) from error


def state_of_all(states_E: Sequence[State], faults: FaultBook, latest: Sequence[Signals]) -> State:
    """What a pool knows: its environments by their places, the faults of the run, and what was measured last."""
    return State.of(
        {
            "environments": State.of({str(place): state for place, state in enumerate(states_E)}),
            "faults": faults.state_dict(),
            "latest": encode_state([plain_of(signals) for signals in latest]),
        }
    )


def parts_of_all(state: State, count: int) -> tuple[list[State], list[Signals]]:
    """What each of ``count`` environments knew, and what was measured last, as ``state_of_all`` was given it."""
    environments = state.part("environments")
    latest = [record_of(Signals, plain) for plain in decode_state(state.part("latest"))]
    return [environments.part(str(place)) for place in range(count)], latest


def _recalled(environment: Environment, state: State) -> list[dict[str, Any]]:
    environment.garden.load_state_dict(state.part("garden"))
    environment.governor.begin(environment.garden)  # of the network as it is now: its own snapshots follow
    environment.governor.load(state.part("governor"))
    environment.order.load(state.part("order"))
    training, evaluation = decode_state(state.part("streams"))
    environment.training_stream.load_state_dict(training)
    environment.evaluation_stream.load_state_dict(evaluation)
    environment.scales.load(state.part("scales"))
    environment.leaning.load(state.part("leaning"))
    environment.reading.load(state.part("reading"))
    environment.steps, environment.over = state.plain["steps"], state.plain["over"]
    return [
        {**mishap, "ending": None if mishap["ending"] is None else _transition(mishap["ending"])}
        for mishap in decode_state(state.part("mishaps"))
    ]


def _transition(known: dict[str, Any]) -> Transition:
    was = None if known["was"] is None else Stage(known["was"])
    return Transition(**{**known, "was": was, "now": Stage(known["now"])})
