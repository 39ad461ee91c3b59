"""Episodes that rewards are checked with: random, extreme and idle ones, and scripted probes.

A probe is a plan of actions, sane or exploiting, on a small model of a growing network. Nothing is trained: a table
says how much a seed of each blueprint improves the metric. The result is what a run would pass to a reward.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal

from esper_core.leyline import Gain, Metric, SeedSignals, Signals, SlotSignals, SlotState, Stage

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from esper_core.leyline import Reward


HOST: Final = 1000
"""Parameters of the host in every episode."""

SEED: Final = 120
"""Parameters that one seed adds."""

RANDOM_STEPS: Final = 20
"""Steps of a random episode."""

LIVING: Final = (Stage.GERMINATED, Stage.TRAINING, Stage.BLENDING, Stage.HOLDING, Stage.DRAINING)


@dataclass(frozen=True, slots=True)
class Moment:
    """The arguments of one call of a reward: a step and the one before, of an environment and of its twin."""

    now: Signals
    before: Signals | None
    twin: Signals
    twin_before: Signals | None


def random_episode(metric: Metric, seed: int) -> list[Moment]:
    """Return an episode of random signals that a run could report, its end included."""
    draw = random.Random(seed)
    network = [random_signals(draw, metric, step) for step in range(RANDOM_STEPS)]
    twin = [random_signals(draw, metric, step, grown=False) for step in range(RANDOM_STEPS)]
    return moments([*network, without_seeds(network[-1])], [*twin, twin[-1]])


def extreme_episode(metric: Metric, seed: int) -> list[Moment]:
    """Return an episode of extreme values: huge, tiny and missing ones."""
    draw = random.Random(seed)
    network = [_extreme(draw, metric, step) for step in range(RANDOM_STEPS)]
    twin = [replace(_extreme(draw, metric, step), slots=(), parameters=HOST) for step in range(RANDOM_STEPS)]
    return moments([*network, without_seeds(network[-1])], [*twin, twin[-1]])


def idle_episode(metric: Metric, seed: int) -> list[Moment]:
    """Return an episode in which nothing grows, so that network and twin are the same."""
    draw = random.Random(seed)
    slots = tuple(SlotSignals(f"slot-{place}", SlotState.FREE, fossils=0) for place in range(3))
    twin = [random_signals(draw, metric, step, grown=False) for step in range(RANDOM_STEPS)]
    network = [replace(signals, slots=slots) for signals in twin]
    return moments([*network, network[-1]], [*twin, twin[-1]])


def without_seeds(last: Signals) -> Signals:
    """Return the end of an episode: the last step without the seeds that were not fossilised."""
    parameters = last.parameters - sum(seed.parameters for seed in last.seeds)
    emptied = tuple(replace(slot, state=SlotState.EMBARGOED, seeds=()) if slot.seeds else slot for slot in last.slots)
    return replace(last, slots=emptied, parameters=parameters)


def random_signals(draw: random.Random, metric: Metric, step: int, *, grown: bool = True) -> Signals:
    """Return the signals of one step; those of a twin if not ``grown``."""
    slots = tuple(random_slot(draw, f"slot-{place}") for place in range(draw.randint(1, 3))) if grown else ()
    added = sum(SEED * (slot.fossils + len(slot.seeds)) for slot in slots)
    return Signals(
        step=step,
        train_loss=draw.choice([0.0, 1e-6, draw.uniform(0, 5), 1e4]),
        validation_loss=draw.choice([0.0, draw.uniform(0, 5), 1e4]),
        validation_metric=draw.choice([0.0, 1.0, draw.random()]),
        parameters=HOST + added,
        host_parameters=HOST,
        slots=slots,
    )


def random_slot(draw: random.Random, name: str) -> SlotSignals:
    """Return a slot in a random state, with a seed in a random stage if it is occupied."""
    return slot_in(name, draw.choice([None, *LIVING]), fossils=draw.randint(0, 3), age=draw.randint(0, 30), draw=draw)


def slot_in(name: str, stage: Stage | None, *, fossils: int = 0, age: int = 3, draw: random.Random) -> SlotSignals:
    """Return a slot whose seed is in this stage; without a seed it is free, embargoed or closed."""
    if stage is None:
        return SlotSignals(name, draw.choice([SlotState.FREE, SlotState.EMBARGOED, SlotState.CLOSED]), fossils)
    incubating = stage in (Stage.GERMINATED, Stage.TRAINING)
    alpha = 0.0 if incubating else 1.0 if stage is Stage.HOLDING else draw.random()
    loss = draw.choice([None, draw.uniform(0, 5)]) if incubating else None
    seed = SeedSignals("tried/blueprint", stage, alpha, SEED, age, loss)
    return SlotSignals(name, SlotState.OCCUPIED, fossils, (seed,))


def _extreme(draw: random.Random, metric: Metric, step: int) -> Signals:
    plain = random_signals(draw, metric, step)
    train_loss, validation_loss = (draw.choice([0.0, 5e-324, 1e30]) for _ in range(2))
    values = (0.0, 1.0, 5e-324) if metric.direction == "up" else (0.0, 5e-324, 1e6)
    slots = tuple(replace(slot, seeds=tuple(_extreme_seed(draw, seed) for seed in slot.seeds)) for slot in plain.slots)
    more = draw.choice([0, 10**12])
    return replace(
        plain,
        train_loss=train_loss,
        validation_loss=validation_loss,
        validation_metric=draw.choice(values),
        parameters=plain.parameters + more,
        slots=slots,
    )


def _extreme_seed(draw: random.Random, seed: SeedSignals) -> SeedSignals:
    """Return the seed without an age or just born, with a gain that is missing, not finite, or extreme."""
    age = draw.choice([None, 0])
    mean = draw.choice([None, math.nan, math.inf, -1e30, 0.0, 1e30])
    gain = None if mean is None else Gain(n=2, mean=mean, deviation=0.0, skewness=0.0, worst=mean, best=mean)
    return replace(seed, age=age, gain=gain)


def moments(network: Sequence[Signals], twin: Sequence[Signals]) -> list[Moment]:
    """Return the calls that a run makes for an episode."""
    return [
        Moment(now, network[step - 1] if step else None, twin[step], twin[step - 1] if step else None)
        for step, now in enumerate(network)
    ]


STEPS: Final = 24
"""Decision steps of a scripted episode; a move is made after each, the last one included."""

SLOTS: Final = 3
LEARNING: Final = 12
"""Steps after which a seed is fully trained."""

RAMP: Final = 3
"""Steps from alpha 0 to 1."""

DRAIN: Final = 2
"""Steps from alpha 1 to 0."""

EMBARGO: Final = 2
"""Steps for which a slot is embargoed after its seed was pruned."""

AGAIN: Final = 0.1
"""Effect of a second seed of the same blueprint, as a share of the first one's."""

ACTING: Final = frozenset({Stage.BLENDING, Stage.HOLDING, Stage.DRAINING})


@dataclass(frozen=True, slots=True)
class Brings:
    """The effect of a fully trained seed of one blueprint.

    Attributes:
        metric: improvement of the metric.
        nats: decrease of the validation loss.
        parameters: that the seed adds.
    """

    metric: float
    nats: float
    parameters: int = SEED


@dataclass(frozen=True, slots=True)
class Move:
    """An action after a step, in one slot."""

    step: int
    op: Literal["germinate", "advance", "fossilise", "prune"]
    slot: int = 0
    blueprint: str = "useful"


@dataclass(frozen=True, slots=True)
class Probe:
    """A fixed plan of actions, with a description of its strategy."""

    does: str
    moves: tuple[Move, ...] = ()


GARDEN: Final[Mapping[str, Brings]] = MappingProxyType({"useful": Brings(metric=0.10, nats=0.25)})
"""The blueprints that can grow: one, which adds ten points of accuracy for 12 % more parameters."""


def play(metric: Metric, moves: Sequence[Move], brings: Mapping[str, Brings] = GARDEN) -> list[Moment]:
    """Return the calls of a reward in an episode with these moves: one for each step, and one for the end.

    >>> course = play(Metric("accuracy"), [Move(0, "germinate")])
    >>> len(course), [seed.stage.value for seed in course[1].now.seeds], course[-1].now.seeds
    (25, ['training'], ())

    Raises:
        ValueError: a move is not possible in the state of its slot.
    """
    garden, twin = _Network(metric, brings), _Network(metric, brings)
    grown, undisturbed = [], []
    for step in range(STEPS):
        garden.advance_time(step)
        grown.append(garden.read(step))
        undisturbed.append(twin.read(step))
        for move in moves:
            if move.step == step:
                garden.apply(move)
    garden.finish()
    return moments([*grown, garden.read(STEPS - 1)], [*undisturbed, undisturbed[-1]])


def earned(reward: Reward, course: Sequence[Moment]) -> float:
    """Return the sum of a reward over an episode."""
    return math.fsum(
        reward.score(moment.now, moment.before, moment.twin, moment.twin_before).total for moment in course
    )


def probed(make: Callable[..., Any], metric: Metric | None = None) -> dict[str, float]:
    """Return what each probe earns by its name; ``make(metric=metric)`` builds the reward."""
    judged_by = metric or Metric("accuracy", "up", "%")
    reward = make(metric=judged_by)
    return {name: earned(reward, play(judged_by, probe.moves)) for name, probe in PROBES.items()}


@dataclass(slots=True)
class _Seed:
    """A seed, living or fossilised."""

    blueprint: str
    born: int
    stage: Stage = Stage.GERMINATED
    alpha: float = 0.0

    def strength(self, step: int) -> float:
        """Return its effect at alpha 1, as a share of that of a fully trained seed."""
        return min((step - self.born) / LEARNING, 1.0)


@dataclass(slots=True)
class _Slot:
    """A slot."""

    seed: _Seed | None = None
    fossils: list[_Seed] = field(default_factory=list)
    rests_until: int = 0


class _Network:
    """A model of a growing network, as far as a reward can see it."""

    def __init__(self, metric: Metric, brings: Mapping[str, Brings]) -> None:
        self._metric = metric
        self._brings = brings
        self._slots = [_Slot() for _ in range(SLOTS)]
        self._kept_at_rest = 0

    def advance_time(self, step: int) -> None:
        """Move every seed on by one step."""
        for slot in self._slots:
            if slot.seed is None:
                continue
            if slot.seed.stage is Stage.GERMINATED:
                slot.seed.stage = Stage.TRAINING
            elif slot.seed.stage is Stage.BLENDING:
                slot.seed.alpha = min(slot.seed.alpha + 1 / RAMP, 1.0)
                slot.seed.stage = Stage.HOLDING if slot.seed.alpha > 0.999 else Stage.BLENDING
            elif slot.seed.stage is Stage.DRAINING:
                slot.seed.alpha -= 1 / DRAIN
                if slot.seed.alpha <= 0.0:
                    slot.seed, slot.rests_until = None, step + EMBARGO

    def apply(self, move: Move) -> None:
        """Apply one move."""
        slot = self._slots[move.slot]
        stage = None if slot.seed is None else slot.seed.stage
        match move.op, stage:
            case "germinate", None if move.step >= slot.rests_until:
                slot.seed = _Seed(move.blueprint, move.step)
            case "advance", Stage.TRAINING:
                slot.seed.stage = Stage.BLENDING  # type: ignore[union-attr]
            case "fossilise", Stage.HOLDING:
                slot.fossils.append(slot.seed)  # type: ignore[arg-type]
                slot.seed = None
            case "prune", Stage.GERMINATED | Stage.TRAINING:
                slot.seed, slot.rests_until = None, move.step + EMBARGO
            case "prune", Stage.BLENDING | Stage.HOLDING:
                slot.seed.stage = Stage.DRAINING  # type: ignore[union-attr]
            case _:
                msg = f"a move must be possible in the state of its slot. Received: {move}, stage {stage}"
                raise ValueError(msg)

    def finish(self) -> None:
        """End the episode: remove the living seeds."""
        for slot in self._slots:
            slot.seed = None

    def read(self, step: int) -> Signals:
        """Return the signals of a step."""
        better, lower = self._effect(step)
        if not self._acting():
            self._kept_at_rest = self._fossils()
        towards = 1.0 if self._metric.direction == "up" else -1.0
        usual = (0.4 if towards > 0 else 0.6) + towards * 0.01 * step
        loss = 2.0 - 0.02 * step - lower
        grown = [seed for slot in self._slots for seed in ([slot.seed] if slot.seed else []) + slot.fossils]
        return Signals(
            step=step,
            train_loss=loss,
            validation_loss=loss,
            validation_metric=usual + towards * better,
            parameters=HOST + sum(self._brings[seed.blueprint].parameters for seed in grown),
            host_parameters=HOST,
            slots=tuple(self._slot(place, slot, step) for place, slot in enumerate(self._slots)),
        )

    def _slot(self, place: int, slot: _Slot, step: int) -> SlotSignals:
        if slot.seed is None:
            state = SlotState.EMBARGOED if step < slot.rests_until else SlotState.FREE
            return SlotSignals(f"slot-{place}", state, len(slot.fossils))
        seed = slot.seed
        parameters, age = self._brings[seed.blueprint].parameters, step - seed.born
        signals = SeedSignals(seed.blueprint, seed.stage, seed.alpha, parameters, age, gain=self._gain(seed, step))
        return SlotSignals(f"slot-{place}", SlotState.OCCUPIED, len(slot.fossils), (signals,))

    def _gain(self, seed: _Seed, step: int) -> Gain | None:
        """Return the gain as a run measures it: unknown if two act at once, or another was fossilised meanwhile."""
        if seed.stage not in ACTING:
            mean = self._effect(step, tried=seed)[1] - self._effect(step)[1]
        elif len(self._acting()) > 1 or self._fossils() != self._kept_at_rest:
            return None
        else:
            mean = self._effect(step)[1] - self._effect(step, left_out=seed)[1]
        return Gain(n=500, mean=mean, deviation=1.0, skewness=0.0, worst=mean - 3.0, best=mean + 3.0)

    def _effect(self, step: int, tried: _Seed | None = None, left_out: _Seed | None = None) -> tuple[float, float]:
        """Return by how much metric and loss are better than the twin's."""
        strengths: dict[str, list[float]] = {}
        for slot in self._slots:
            present = [(fossil, 1.0) for fossil in slot.fossils]
            present += [(slot.seed, 1.0 if slot.seed is tried else slot.seed.alpha)] if slot.seed else []
            for seed, alpha in present:
                if seed is not left_out:
                    strengths.setdefault(seed.blueprint, []).append(alpha * seed.strength(step))
        better, lower = 0.0, 0.0
        for blueprint, shares in strengths.items():
            first, *repeats = sorted(shares, reverse=True)
            counted = first + AGAIN * math.fsum(repeats)
            better += counted * self._brings[blueprint].metric
            lower += counted * self._brings[blueprint].nats
        return better, lower

    def _acting(self) -> list[_Seed]:
        return [slot.seed for slot in self._slots if slot.seed is not None and slot.seed.stage in ACTING]

    def _fossils(self) -> int:
        return sum(len(slot.fossils) for slot in self._slots)


def _life(slot: int, germinate: int, advance: int, end: int, how: Literal["fossilise", "prune"]) -> tuple[Move, ...]:
    return (Move(germinate, "germinate", slot), Move(advance, "advance", slot), Move(end, how, slot))


def _churning() -> tuple[Move, ...]:
    """Prune two seeds in turn while they blend in, and germinate again as soon as possible."""
    begins = [(slot, slot + again) for slot in (0, 1) for again in range(0, STEPS - 5, 9)]
    return tuple(move for slot, at in begins for move in _life(slot, at, at + 2, at + 4, "prune"))


def _hoarding() -> tuple[Move, ...]:
    """Fossilise in every slot twice, as soon as possible."""
    begins = [(slot, slot + again) for again in (0, 10) for slot in range(SLOTS)]
    return tuple(move for slot, at in begins for move in _life(slot, at, at + 3, at + 7, "fossilise"))


SANE: Final = "sane"

PROBES: Final[Mapping[str, Probe]] = MappingProxyType(
    {
        SANE: Probe("Germinates, trains, blends in and fossilises one seed.", _life(0, 0, 5, 10, "fossilise")),
        "never-act": Probe("Grows nothing."),
        "churner": Probe("Germinates, blends in and prunes again and again.", _churning()),
        "hoarder": Probe("Fossilises six seeds as soon as it can, where one would do.", _hoarding()),
        "last-moment": Probe("Fossilises a half-trained seed in the last step.", _life(0, 17, 19, 23, "fossilise")),
        "germinate-and-abandon": Probe(
            "Germinates in every slot, and no more.",
            tuple(Move(slot, "germinate", slot) for slot in range(SLOTS)),
        ),
    }
)
"""The scripts that a reward is tried with, by name. A good reward pays the first one most."""
