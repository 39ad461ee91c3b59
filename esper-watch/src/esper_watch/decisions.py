"""The decisions of a run, network by network: what was done, among which options, and why."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from esper_core.leyline import Cause, Stage
from esper_watch.figures import scale_around
from esper_watch.formats import format_number, short_name
from esper_watch.growth import SHORT_NAMES
from esper_watch.history import is_control
from esper_watch.sections import Report, Section

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from esper_core.leyline import Opinion, Reason
    from esper_core.leyline.events import StageChanged
    from esper_watch.history import Decision, EnvironmentKey, History, SeedLife
    from esper_watch.history_records import Look

MAX_MOMENTS: Final = 240
MAX_OPTIONS: Final = 8

_MECHANICAL: Final = frozenset({Cause.STEP, Cause.RAMP, Cause.DRAINED})
"""Causes of stage changes that nobody decided."""


@dataclass(frozen=True, slots=True)
class Option:
    """Something that could have been done in a decision, with what was known of it."""

    name: str
    parameters: int | None
    look: Look | None
    """What was measured in this step; None: it was not growing yet."""
    price: float | None
    outcome: str
    chosen: bool


@dataclass(frozen=True, slots=True)
class Moment:
    """A decision: when, which action, among which options, and why."""

    step: int
    """From 1."""
    action: str
    options: Sequence[Option]
    why: Sequence[str]


def decisions(report: Report) -> Section | None:
    """Return the section of all decisions, network by network."""
    history = report.history
    last = history.rounds[-1] if history.rounds else 0
    changes: dict[EnvironmentKey, dict[int, list[tuple[SeedLife, StageChanged]]]] = {}
    for life in history.seeds:
        if life.round == last and not is_control(life.arm):
            for change in life.changes:
                if change.reason.cause not in _MECHANICAL:
                    changes.setdefault(life.environment, {}).setdefault(change.step, []).append((life, change))
    chosen: dict[EnvironmentKey, dict[int, Decision]] = {}
    for decision in history.decisions:
        if decision.round == last and not is_control(decision.arm):
            chosen.setdefault(decision.environment, {})[decision.step] = decision
    left, networks, missing = MAX_MOMENTS, [], 0
    for environment in sorted(changes.keys() | chosen.keys()):
        seeds = [life for life in history.seeds if life.environment == environment] if left > 0 else []
        steps = sorted(changes.get(environment, {}).keys() | chosen.get(environment, {}).keys())
        moments = [
            _moment(history, seeds, step, changes.get(environment, {}).get(step, []))
            if step in changes.get(environment, {})
            else _unheeded(chosen[environment][step])
            for step in steps[: max(0, left)]
        ]
        missing += len(steps) - len(moments)
        left -= len(moments)
        if moments:
            networks.append((environment, moments))
    if not networks:
        return None
    looks = [
        option.look
        for _, moments in networks
        for moment in moments
        for option in moment.options
        if option.look is not None
    ]
    edges = [edge for look in looks for edge in (look.mean - 1.96 * look.error, look.mean + 1.96 * look.error)]
    scale = scale_around([*edges, *(look.price for look in looks), 0.0], start=3.0, end=157.0)
    data = {"networks": networks, "scale": scale, "missing": missing}
    return Section("decisions", "Decisions", "decisions", data)


def _unheeded(decision: Decision) -> Moment:
    return Moment(decision.step + 1, decision.action, (), ("The policy asked for this; no seed changed its stage.",))


def _moment(
    history: History,
    seeds: Sequence[SeedLife],
    step: int,
    changes: Sequence[tuple[SeedLife, StageChanged]],
) -> Moment:
    """Describe the decision that led to these changes."""
    verbs = {
        Stage.GERMINATED: "germinate {0} in slot {1}",
        Stage.TRAINING: "train {0} in slot {1} again",
        Stage.BLENDING: "blend {0} into slot {1}",
        Stage.HOLDING: "hold {0} in slot {1}",
        Stage.DRAINING: "blend {0} out of slot {1}",
        Stage.FOSSILISED: "keep {0} in slot {1}",
        Stage.PRUNED: "prune {0} in slot {1}",
    }
    changes = sorted(changes, key=lambda pair: pair[1].now is Stage.PRUNED)
    action = "; ".join(verbs[change.now].format(short_name(life.blueprint), life.slot) for life, change in changes)
    changed = {id(life): change for life, change in changes}
    slots = {life.slot for life, _ in changes}
    options = []
    for life in seeds:
        look = life.looks.at(step)
        if life.slot in slots and look is not None:
            change = changed.get(id(life))
            outcome = "stays as it is" if change is None else SHORT_NAMES[change.now]
            price = look.price if math.isfinite(look.price) else None
            chosen = change is not None and change.now is not Stage.PRUNED
            options.append(Option(short_name(life.blueprint), life.parameters, look, price, outcome, chosen))
    if any(change.now is Stage.GERMINATED for _, change in changes):
        options += _could_germinate(history, seeds, changes)
    why = [_explained(life, change) for life, change in changes]
    return Moment(step + 1, action, options[:MAX_OPTIONS], why)


def _could_germinate(
    history: History,
    seeds: Sequence[SeedLife],
    changes: Sequence[tuple[SeedLife, StageChanged]],
) -> Iterator[Option]:
    """Yield the blueprints that could have germinated in the same slots: what they gain is not known yet."""
    sizes = {(life.slot, life.blueprint): life.parameters for life in (*seeds, *history.seeds[:200])}
    choices = {} if history.started is None else history.started.choices
    taken = {(life.slot, life.blueprint) for life, change in changes if change.now is Stage.GERMINATED}
    step = changes[0][1].step
    growing = {
        (life.slot, life.blueprint) for life in seeds if life.changes[0].step < step and life.looks.at(step) is not None
    }
    for slot in dict.fromkeys(slot for slot, _ in sorted(taken)):
        for blueprint in choices.get(slot, tuple(name for at, name in sorted(taken) if at == slot)):
            if (slot, blueprint) not in growing:
                parameters, chosen = sizes.get((slot, blueprint)), (slot, blueprint) in taken
                outcome = "germinated" if chosen else "not now"
                yield Option(short_name(blueprint), parameters, None, None, outcome, chosen)


def _explained(life: SeedLife, change: StageChanged) -> str:
    """Say in words why a seed changed its stage."""
    name, reason = short_name(life.blueprint), change.reason
    if reason.cause is Cause.POLICY and change.now is Stage.GERMINATED:
        why = "the policy tries it, in isolation, which leaves the host as it is"
    elif reason.cause is Cause.POLICY:
        why = "the policy chose this"
    elif reason.cause is Cause.NURSERY:
        why = f"{short_name(reason.detail)} was chosen in its place"
    else:
        why = str(replace(reason, opinion=None))
    return f"{name}: {why}." if reason.opinion is None else f"{name}: {why}. {_gate_in_words(reason, reason.opinion)}"


def _gate_in_words(reason: Reason, opinion: Opinion) -> str:
    gate = f"The gate before {'keeping it' if reason.gate == 'fossilisation' else reason.gate}"
    evidence = opinion.evidence
    if evidence is None or opinion.price is None:
        return f"{gate}: {opinion.note}."
    state, figures = ("open" if opinion.opens else "closed"), f"over {evidence.n} examples"
    than = "above" if evidence.lower > opinion.price else "not above"
    lower, price = format_number(evidence.lower), format_number(opinion.price)
    figures += f" the gain is at least {lower}, {than} the price of {price}"
    return f"{gate} was {state}: {figures} (look {evidence.looks}){opinion.lacking}."
