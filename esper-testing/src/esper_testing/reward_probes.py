"""Can a reward be cheated? Scripts of a gardener, sane and cunning, played on a small model of a network that grows.

Nothing is trained: a table says what a seed of each blueprint brings, and a plan what is done when. What comes out are
the records that a run would hand to a reward, the last moment of the episode included.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal

from esper_core.leyline import Gain, Metric, SeedSignals, Signals, SlotSignals, SlotState, Stage
from esper_testing.reward_scripts import HOST, SEED, Moment, moments

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from esper_core.leyline import Reward

STEPS: Final = 24
"""Decision steps of an episode; a move is made after each, the last one included."""

SLOTS: Final = 3
LEARNING: Final = 12
"""Steps after which a seed has learnt all that it will."""

RAMP: Final = 3
"""Steps that blending in takes."""

DRAIN: Final = 2
"""Steps that taking out takes."""

EMBARGO: Final = 2
"""Steps for which a slot rests when its seed was taken out."""

AGAIN: Final = 0.1
"""What a second seed of the same blueprint brings, as a share of the first: it learns what is known already."""

ACTING: Final = frozenset({Stage.BLENDING, Stage.HOLDING, Stage.DRAINING})


@dataclass(frozen=True, slots=True)
class Brings:
    """What a seed of one blueprint is good for, once it has learnt all that it will.

    metric: by how much the metric is better. nats: by how much the validation loss is lower.
    """

    metric: float
    nats: float
    parameters: int = SEED


@dataclass(frozen=True, slots=True)
class Move:
    """What is done after a step, and in which slot."""

    step: int
    op: Literal["germinate", "advance", "fossilise", "prune"]
    slot: int = 0
    blueprint: str = "useful"


@dataclass(frozen=True, slots=True)
class Probe:
    """A gardener's whole plan, and in a sentence what it is up to."""

    does: str
    moves: tuple[Move, ...] = ()


GARDEN: Final[Mapping[str, Brings]] = MappingProxyType({"useful": Brings(metric=0.10, nats=0.25)})
"""What can grow: one blueprint, which brings ten points of accuracy for an eighth more parameters."""


def play(
    metric: Metric, moves: Sequence[Move], brings: Mapping[str, Brings] = GARDEN, steps: int = STEPS
) -> list[Moment]:
    """The calls that a run would make of a reward, if its policy did ``moves``: one for each step, one for the end.

    >>> course = play(Metric("accuracy"), [Move(0, "germinate")])
    >>> len(course), [seed.stage.value for seed in course[1].now.seeds], course[-1].now.seeds
    (25, ['training'], ())

    Raises ValueError for a move that the network could not make.
    """
    garden, twin = _Garden(metric, brings), _Garden(metric, brings)
    own, undisturbed = [], []
    for step in range(steps):
        garden.pass_time(step)
        own.append(garden.read(step))
        undisturbed.append(twin.read(step))
        for move in moves:
            if move.step == step:
                garden.carry_out(move)
    garden.uproot()
    return moments([*own, garden.read(steps - 1)], [*undisturbed, undisturbed[-1]])


def earned(reward: Reward, course: Sequence[Moment]) -> float:
    """What a course adds up to."""
    return math.fsum(reward.score(one.now, one.before, one.twin, one.twin_before).total for one in course)


def probed(make: Callable[..., Any], metric: Metric | None = None) -> dict[str, float]:
    """What each probe earns by a reward, by the probe's name; the sane one is the first.

    make: builds the reward, ``make(metric=metric)``. metric: accuracy, if none is given.
    """
    judged_by = metric or Metric("accuracy", "up", "%")
    reward = make(metric=judged_by)
    return {name: earned(reward, play(judged_by, probe.moves)) for name, probe in PROBES.items()}


def probe_table(makers: Mapping[str, Callable[..., Any]]) -> str:
    """What each probe earns by each reward, as a table of Markdown; what beats the sane one is named.

    makers: by name what builds a reward, ``make(metric=metric)``.
    """
    lines = [["reward", *PROBES, "beaten by"], ["---", *["---:"] * len(PROBES), "---"]]
    for name, make in makers.items():
        found = probed(make)
        beaten = [probe for probe in PROBES if probe != SANE and found[probe] >= found[SANE]]
        figures = [f"{value:.1f}".replace("-0.0", "0.0").replace("-", "−") for value in found.values()]
        lines.append([f"`{name}`", *figures, ", ".join(beaten) or "none"])
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


@dataclass(slots=True)
class _Sprout:
    """A seed, or what it became."""

    blueprint: str
    born: int
    stage: Stage = Stage.GERMINATED
    alpha: float = 0.0

    def strength(self, step: int) -> float:
        """What it does of what it could, if it acted in full."""
        return min((step - self.born) / LEARNING, 1.0)


@dataclass(slots=True)
class _Bed:
    """A slot."""

    seed: _Sprout | None = None
    fossils: list[_Sprout] = field(default_factory=list)
    rests_until: int = 0


class _Garden:
    """A network that grows, as far as a reward can see it."""

    def __init__(self, metric: Metric, brings: Mapping[str, Brings]) -> None:
        self._metric = metric
        self._brings = brings
        self._beds = [_Bed() for _ in range(SLOTS)]
        self._kept_at_rest = 0

    def pass_time(self, step: int) -> None:
        """What time brings to every seed."""
        for bed in self._beds:
            if bed.seed is None:
                continue
            if bed.seed.stage is Stage.GERMINATED:
                bed.seed.stage = Stage.TRAINING
            elif bed.seed.stage is Stage.BLENDING:
                bed.seed.alpha = min(bed.seed.alpha + 1 / RAMP, 1.0)
                bed.seed.stage = Stage.HOLDING if bed.seed.alpha > 0.999 else Stage.BLENDING
            elif bed.seed.stage is Stage.DRAINING:
                bed.seed.alpha -= 1 / DRAIN
                if bed.seed.alpha <= 0.0:
                    bed.seed, bed.rests_until = None, step + EMBARGO

    def carry_out(self, move: Move) -> None:
        """Do one move."""
        bed = self._beds[move.slot]
        stage = None if bed.seed is None else bed.seed.stage
        match move.op, stage:
            case "germinate", None if move.step >= bed.rests_until:
                bed.seed = _Sprout(move.blueprint, move.step)
            case "advance", Stage.TRAINING:
                bed.seed.stage = Stage.BLENDING  # type: ignore[union-attr]
            case "fossilise", Stage.HOLDING:
                bed.fossils.append(bed.seed)  # type: ignore[arg-type]
                bed.seed = None
            case "prune", Stage.GERMINATED | Stage.TRAINING:
                bed.seed, bed.rests_until = None, move.step + EMBARGO
            case "prune", Stage.BLENDING | Stage.HOLDING:
                bed.seed.stage = Stage.DRAINING  # type: ignore[union-attr]
            case _:
                state = stage.value if stage else "resting" if move.step < bed.rests_until else "empty"
                msg = f"a plan asks for what the network can do. Received: {move}, where the slot is {state}"
                raise ValueError(msg)

    def uproot(self) -> None:
        """The end: whatever still grows is taken out."""
        for bed in self._beds:
            bed.seed = None

    def read(self, step: int) -> Signals:
        """What is measured in a step."""
        better, lower = self._effect(step)
        if not self._acting():
            self._kept_at_rest = self._fossils()
        towards = 1.0 if self._metric.direction == "up" else -1.0
        usual = (0.4 if towards > 0 else 0.6) + towards * 0.01 * step
        loss = 2.0 - 0.02 * step - lower
        grown = [seed for bed in self._beds for seed in ([bed.seed] if bed.seed else []) + bed.fossils]
        return Signals(
            step=step,
            train_loss=loss,
            validation_loss=loss,
            validation_metric=usual + towards * better,
            parameters=HOST + sum(self._brings[seed.blueprint].parameters for seed in grown),
            host_parameters=HOST,
            slots=tuple(self._slot(place, bed, step) for place, bed in enumerate(self._beds)),
        )

    def _slot(self, place: int, bed: _Bed, step: int) -> SlotSignals:
        if bed.seed is None:
            state = SlotState.EMBARGOED if step < bed.rests_until else SlotState.FREE
            return SlotSignals(f"slot-{place}", state, len(bed.fossils))
        seed = bed.seed
        told = SeedSignals(
            blueprint=seed.blueprint,
            stage=seed.stage,
            alpha=seed.alpha,
            parameters=self._brings[seed.blueprint].parameters,
            age=step - seed.born,
            gain=self._gain(seed, step),
        )
        return SlotSignals(f"slot-{place}", SlotState.OCCUPIED, len(bed.fossils), (told,))

    def _gain(self, seed: _Sprout, step: int) -> Gain | None:
        """As a run measures it: unknown where two act at once, or another was kept since it began to act."""
        if seed.stage not in ACTING:
            mean = self._effect(step, tried=seed)[1] - self._effect(step)[1]
        elif len(self._acting()) > 1 or self._fossils() != self._kept_at_rest:
            return None
        else:
            mean = self._effect(step)[1] - self._effect(step, left_out=seed)[1]
        return Gain(n=500, mean=mean, deviation=1.0, skewness=0.0, worst=mean - 3.0, best=mean + 3.0)

    def _effect(self, step: int, tried: _Sprout | None = None, left_out: _Sprout | None = None) -> tuple[float, float]:
        """By how much the metric is better and the loss is lower than the twin's."""
        strengths: dict[str, list[float]] = {}
        for bed in self._beds:
            present = [(fossil, 1.0) for fossil in bed.fossils]
            present += [(bed.seed, 1.0 if bed.seed is tried else bed.seed.alpha)] if bed.seed else []
            for seed, alpha in present:
                if seed is not left_out:
                    strengths.setdefault(seed.blueprint, []).append(alpha * seed.strength(step))
        better, lower = 0.0, 0.0
        for blueprint, found in strengths.items():
            first, *others = sorted(found, reverse=True)
            counted = first + AGAIN * math.fsum(others)
            better += counted * self._brings[blueprint].metric
            lower += counted * self._brings[blueprint].nats
        return better, lower

    def _acting(self) -> list[_Sprout]:
        return [bed.seed for bed in self._beds if bed.seed is not None and bed.seed.stage in ACTING]

    def _fossils(self) -> int:
        return sum(len(bed.fossils) for bed in self._beds)


def _life(slot: int, germinate: int, advance: int, end: int, how: Literal["fossilise", "prune"]) -> tuple[Move, ...]:
    return (Move(germinate, "germinate", slot), Move(advance, "advance", slot), Move(end, how, slot))


def _churning() -> tuple[Move, ...]:
    """Two seeds in turn, each taken out in the midst of blending, and planted anew as soon as that can be."""
    begins = [(slot, slot + again) for slot in (0, 1) for again in range(0, STEPS - 5, 9)]
    return tuple(move for slot, at in begins for move in _life(slot, at, at + 2, at + 4, "prune"))


def _hoarding() -> tuple[Move, ...]:
    """Two rounds of all slots, each kept as soon as that can be."""
    begins = [(slot, slot + again) for again in (0, 10) for slot in range(SLOTS)]
    return tuple(move for slot, at in begins for move in _life(slot, at, at + 3, at + 7, "fossilise"))


SANE: Final = "sane"

PROBES: Final[Mapping[str, Probe]] = MappingProxyType(
    {
        SANE: Probe("Plants one seed, watches it, blends it in and keeps it.", _life(0, 0, 5, 10, "fossilise")),
        "never-act": Probe("Grows nothing."),
        "churner": Probe("Plants, blends in and takes out again, without end.", _churning()),
        "hoarder": Probe("Keeps six of a kind, as soon as it can, where one would do.", _hoarding()),
        "last-moment": Probe(
            "Waits, and keeps in the last step what has learnt half.", _life(0, 17, 19, 23, "fossilise")
        ),
        "germinate-and-abandon": Probe(
            "Plants in every slot and never looks again.", tuple(Move(slot, "germinate", slot) for slot in range(SLOTS))
        ),
    }
)
"""By name the scripts that a reward is tried with; what a reward is good for, the first one earns most by."""
