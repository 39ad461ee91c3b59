"""The terms of rewards: gains, costs and shaping, and what happened to seeds between two steps.

A higher gain is better, and costs are never above 0. All slots count equally, and terms depend on what was measured,
not on actions. The run itself charges a rollback as ``penalty``, whatever the reward.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from esper_core.leyline import Stage

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from esper_core.leyline import Metric, SeedSignals, Signals, SlotSignals


FEE: Final = 0.10
"""Cost of a fossil beside its parameters, as a share of the price of doubling the host."""


def rent(now: Signals, price: float, price_of_flops: float = 0.0) -> float:
    """Return the price of added parameters, and of added operations if these have one.

    Formula: −price · (parameters − host's) / host's − price_of_flops · (operations − host's) / host's.

    Range: at most 0, if the network is not smaller than its host.

    Direction: down with parameters and operations.

    Incentive: to grow small seeds, and many of them; to grow late, if it is charged in each step.

    Examples:
        >>> from esper_core.leyline import Signals
        >>> rent(Signals(9, 1.0, 1.0, 0.5, parameters=6000, host_parameters=5000, slots=()), price=20.0)
        -4.0
    """
    added = (now.parameters - now.host_parameters) / now.host_parameters
    return 0.0 - price * added - (price_of_flops * added_flops(now) if price_of_flops else 0.0)


def added_flops(now: Signals) -> float:
    """Return added operations as a share of the host's. Raises ValueError if they were not counted.

    A run counts them where a reward has an attribute ``price_of_flops`` above 0.
    """
    if now.flops is None or now.host_flops is None:
        msg = "operations have a price, but the signals have no count of them. Received: flops=None"
        raise ValueError(msg)
    return (now.flops - now.host_flops) / now.host_flops


def fossil_fee(now: Signals, price: float) -> float:
    """Return the price of fossils, beside that of their parameters.

    Formula: −0.10 · price · fossils.

    Range: at most 0.

    Direction: down with fossils.

    Incentive: to keep few and large seeds.

    Examples:
        >>> from esper_core.leyline import Signals, SlotSignals, SlotState
        >>> fossil_fee(Signals(9, 1.0, 1.0, 0.5, 6000, 5000, (SlotSignals("early", SlotState.FREE, 1),)), price=20.0)
        -2.0
    """
    return 0.0 - price * FEE * now.fossils


def churn(lives: Lives, cost: float) -> float:
    """Return the price of germinations and prunes.

    Formula: −cost · (germinations + prunes).

    Range: at most 0.

    Direction: down with either.

    Incentive: to keep seeds that should be pruned, and to try nothing.

    Examples:
        >>> from esper_rewards.terms import Lives
        >>> churn(Lives(), cost=0.5)
        0.0
    """
    return 0.0 - cost * (len(lives.born) + len(lives.pulled))


def haste(lives: Lives, young: int, cost: float) -> float:
    """Return the price of pruning young seeds.

    Formula: −cost · prunes of seeds younger than ``young`` steps; a seed of unknown age does not count.

    Range: at most 0.

    Direction: down with such prunes.

    Incentive: to keep a bad seed until it is old enough.

    Examples:
        >>> from esper_rewards.terms import Lives
        >>> haste(Lives(), young=5, cost=0.5)
        0.0
    """
    return 0.0 - cost * sum(seed.age is not None and seed.age < young for seed in lives.pulled)


POINTS: Final = 100.0
"""Points for a metric that is better by 1, or a loss that is lower by 1 nat."""

INCUBATING: Final = frozenset({Stage.GERMINATED, Stage.TRAINING})
"""Stages in which a seed does not act on the host."""

ACTING: Final = frozenset({Stage.BLENDING, Stage.HOLDING, Stage.DRAINING})
"""Stages in which a living seed acts on the host."""

MOST: Final = 10.0
"""Differences of losses are clipped to this many nats."""


def improvement(metric: Metric, now: Signals, twin: Signals) -> float:
    """Return the advantage of the metric over the twin, in points.

    Formula: 100 · gain(metric, metric of the twin).

    Range: −100 to 100 for a metric between 0 and 1.

    Direction: up with a better metric.

    Incentive: to overfit the validation split.

    Examples:
        >>> from esper_core.leyline import Metric, Signals
        >>> twin = Signals(9, 1.0, 1.0, 0.50, parameters=5000, host_parameters=5000, slots=())
        >>> improvement(Metric("accuracy"), Signals(9, 1.0, 1.0, 0.75, 6000, 5000, ()), twin)
        25.0
    """
    return POINTS * metric.gain(now.validation_metric, twin.validation_metric)


def nats(now: Signals, twin: Signals) -> float:
    """Return how much lower the validation loss is than the twin's, in nats.

    Formula: loss of the twin − loss.

    Range: clipped to ±10; NaN if a loss is NaN.

    Direction: up with a lower loss.

    Incentive: to be cautious, because a grown network can be more certain of its errors: its loss may rise while its
    accuracy does.

    Examples:
        >>> from esper_core.leyline import Signals
        >>> nats(Signals(9, 1.0, 0.75, 0.5, 6000, 5000, ()), Signals(9, 1.0, 1.0, 0.5, 5000, 5000, ()))
        0.25
    """
    return _cut(twin.validation_loss - now.validation_loss)


def contribution(now: Signals, twin: Signals) -> float:
    """Return the gain of all seeds in nats, whether fossilised, acting or incubating.

    Formula: nats over the twin, which include acting seeds and fossils, + Σ known gains of the incubating seeds.

    Range: clipped to ±10.

    Direction: up with a lower loss and with the gain of any seed, in any slot.

    Incentive: to leave seeds in isolation, where they count without affecting the host. Two seeds that learn the same
    count twice.

    Examples:
        >>> from esper_core.leyline import Signals
        >>> contribution(Signals(9, 1.0, 0.75, 0.5, 6000, 5000, ()), Signals(9, 1.0, 1.0, 0.5, 5000, 5000, ()))
        0.25
    """
    return _cut(nats(now, twin) + known_gain(seed for seed in now.seeds if seed.stage in INCUBATING))


def kept_contribution(now: Signals, twin: Signals) -> float:
    """Return the gain of the fossils in nats; 0 without fossils.

    Formula: nats over the twin − Σ known gains of the acting seeds.

    Range: clipped to ±10.

    Direction: up with a lower loss.

    Incentive: to fossilise early, so that it is paid for long.

    Examples:
        >>> from esper_core.leyline import Signals, SlotSignals, SlotState
        >>> kept = Signals(9, 1.0, 0.75, 0.5, 6000, 5000, (SlotSignals("early", SlotState.FREE, fossils=1),))
        >>> kept_contribution(kept, Signals(9, 1.0, 1.0, 0.5, 5000, 5000, ()))
        0.25
    """
    if now.fossils == 0:
        return 0.0
    return _cut(nats(now, twin) - known_gain(seed for seed in now.seeds if seed.stage in ACTING))


def kept_share(now: Signals) -> float:
    """Return the share of fossils among all that acts on the host.

    Formula: fossils / (fossils + Σ alpha of the acting seeds); 0 without fossils.

    Range: 0 to 1.

    Direction: up with fossils, down with acting seeds.

    Incentive: to fossilise any seed, so that the others are paid for.

    Examples:
        >>> from esper_core.leyline import Signals, SlotSignals, SlotState
        >>> kept_share(Signals(9, 1.0, 0.75, 0.5, 6000, 5000, (SlotSignals("early", SlotState.FREE, fossils=2),)))
        1.0
    """
    if now.fossils == 0:
        return 0.0
    return now.fossils / (now.fossils + math.fsum(seed.alpha for seed in now.seeds if seed.stage in ACTING))


def known_gain(seeds: Iterable[SeedSignals]) -> float:
    """Return the sum of the gains of seeds, in nats. A gain that is unknown or not finite adds nothing."""
    gains = [seed.gain for seed in seeds]
    return math.fsum(_cut(gain.mean) for gain in gains if gain is not None and gain.finite)


def _cut(value: float) -> float:
    """Return ``value`` clipped to −MOST..MOST; NaN stays NaN, which the governor handles."""
    return value if math.isnan(value) else max(-MOST, min(MOST, value))


@dataclass(frozen=True, slots=True)
class Lives:
    """Seeds that appeared or left between two steps.

    born: new seeds. kept: those that became fossils, as they were a step before. pulled: all others that are gone, as
    they were a step before.
    """

    born: tuple[SeedSignals, ...] = ()
    kept: tuple[SeedSignals, ...] = ()
    pulled: tuple[SeedSignals, ...] = ()


def demand_pair(before: Signals | None, twin_before: Signals | None) -> None:
    """Raise ValueError if the step before is given for the network or for its twin alone."""
    if (before is None) != (twin_before is None):
        missing, present = ("before", "twin_before") if before is None else ("twin_before", "before")
        msg = f"before and twin_before belong together. Received: {present} without {missing}"
        raise ValueError(msg)


def closes(now: Signals, before: Signals | None) -> bool:
    """Return whether ``now`` is the end of an episode: its last step again, measured without the living seeds.

    >>> from esper_core.leyline import Signals
    >>> last = Signals(39, 1.0, 1.0, 0.6, parameters=5000, host_parameters=5000, slots=())
    >>> closes(last, last), closes(last, None)
    (True, False)
    """
    return before is not None and now.step == before.step


def lives_between(now: Signals, before: Signals | None) -> Lives:
    """Return the seeds that were born, kept and pulled since the step before, in all slots.

    A seed is identified by its slot, its blueprint and the step in which it was born. A rollback counts what it removes
    as pulled, and what it restores as born.
    """
    earlier = {} if before is None else {slot.name: slot for slot in before.slots}
    born, kept, pulled = [], [], []
    for slot in now.slots:
        was = earlier.get(slot.name)
        gone = list(_missing(was, _step_of(before), slot, now.step)) if was is not None else []
        gone.sort(key=lambda seed: seed.stage is not Stage.HOLDING)
        fossils = max(slot.fossils - was.fossils, 0) if was is not None else 0
        born += list(_missing(slot, now.step, was, _step_of(before)))
        kept += gone[:fossils]
        pulled += gone[fossils:]
    return Lives(tuple(born), tuple(kept), tuple(pulled))


def _missing(slot: SlotSignals, step: int, other: SlotSignals | None, other_step: int) -> Iterator[SeedSignals]:
    """Yield the seeds of ``slot`` that are not in ``other``."""
    present = Counter(_birth(seed, other_step) for seed in (() if other is None else other.seeds))
    for seed in slot.seeds:
        if present[_birth(seed, step)] > 0:
            present[_birth(seed, step)] -= 1
        else:
            yield seed


def _birth(seed: SeedSignals, step: int) -> tuple[str, int | None]:
    return seed.blueprint, None if seed.age is None else step - seed.age


def _step_of(signals: Signals | None) -> int:
    return -1 if signals is None else signals.step


PROGRESS: Final[Mapping[Stage, float]] = MappingProxyType(
    {
        Stage.GERMINATED: 0.1,
        Stage.TRAINING: 0.2,
        Stage.BLENDING: 0.5,
        Stage.HOLDING: 0.8,
        Stage.DRAINING: 0.0,
        Stage.FOSSILISED: 1.0,
    }
)
"""Progress of a seed by stage."""


def progress(now: Signals) -> float:
    """Return the progress of all seeds: fossils count 1, others by their stage.

    >>> from esper_core.leyline import Signals, SlotSignals, SlotState
    >>> progress(Signals(9, 1.0, 1.0, 0.5, 6000, 5000, (SlotSignals("early", SlotState.FREE, fossils=2),)))
    2.0
    """
    return math.fsum(PROGRESS.get(seed.stage, 0.0) for seed in now.seeds) + PROGRESS[Stage.FOSSILISED] * now.fossils


@dataclass(frozen=True, slots=True)
class Shaping:
    """The discounted change of a potential.

    Formula: γ · Φ(now) − Φ(before), where Φ = weight · progress, and Φ = 0 before the first step and at the end.

    Range: ±weight · seeds.

    Direction: up with progress, and down by as much when it is undone.

    Incentive: none: an episode's discounted sum is 0, so the best policy stays the best. This holds if γ is the
    learner's discount; a larger γ rewards being busy early, a smaller one being busy late.

    Args:
        weight: reward of a seed for all its stages.
        gamma: the learner's discount, 0 to 1.

    Examples:
        >>> from esper_core.leyline import Signals, SlotSignals, SlotState
        >>> kept = Signals(9, 1.0, 1.0, 0.5, 6000, 5000, (SlotSignals("early", SlotState.FREE, fossils=1),))
        >>> Shaping(weight=2.0, gamma=1.0).score(kept, None), Shaping(weight=2.0, gamma=1.0).score(kept, kept)
        (2.0, -2.0)
    """

    weight: float
    gamma: float

    def score(self, now: Signals, before: Signals | None) -> float:
        """Return the shaping of one step."""
        after = 0.0 if closes(now, before) else self.weight * progress(now)
        earlier = 0.0 if before is None else self.weight * progress(before)
        return self.gamma * after - earlier
