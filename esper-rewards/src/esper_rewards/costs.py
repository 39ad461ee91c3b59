"""What did growing cost? Terms that are never above 0.

What a rollback costs is no term of a reward: the run takes it off, as ``penalty``, whatever the reward.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from esper_core.leyline import Signals
    from esper_rewards.moments import Lives

FEE: Final = 0.10
"""What a fossil costs beside its parameters, as a share of the price of a host: growing is not free, however small."""


def rent(now: Signals, price: float, price_of_flops: float = 0.0) -> float:
    """The price of what was added to the host: parameters, and operations where these have one.

    Formula: −price · (parameters − host's) / host's − price_of_flops · (operations − host's) / host's. Range: below 0
    without end. Direction: down with parameters and operations. Invites: small seeds, and many of them where nothing
    counts them; taken anew in each step, growing late.

    >>> from esper_core.leyline import Signals
    >>> rent(Signals(9, 1.0, 1.0, 0.5, parameters=6000, host_parameters=5000, slots=()), price=20.0)
    -4.0
    """
    added = (now.parameters - now.host_parameters) / now.host_parameters
    return 0.0 - price * added - (price_of_flops * added_flops(now) if price_of_flops else 0.0)


def added_flops(now: Signals) -> float:
    """Operations that were added, as a share of the host's; ValueError where nobody counted them.

    A run counts them where a reward has an attribute ``price_of_flops`` above 0.
    """
    if now.flops is None or now.host_flops is None:
        msg = "operations have a price, and the signals tell of none. Received: flops=None"
        raise ValueError(msg)
    return (now.flops - now.host_flops) / now.host_flops


def fossil_fee(now: Signals, price: float) -> float:
    """The price of keeping at all.

    Formula: −0.10 · price · fossils. Range: below 0 without end. Direction: down with fossils. Invites: few seeds, and
    large ones.

    >>> from esper_core.leyline import Signals, SlotSignals, SlotState
    >>> fossil_fee(Signals(9, 1.0, 1.0, 0.5, 6000, 5000, (SlotSignals("early", SlotState.FREE, 1),)), price=20.0)
    -2.0
    """
    return 0.0 - price * FEE * now.fossils


def churn(lives: Lives, cost: float) -> float:
    """The price of being busy.

    Formula: −cost · (germinations + prunes). Range: below 0 without end. Direction: down with either. Invites: to leave
    a seed alone that ought to be taken out, and to try nothing.

    >>> from esper_rewards.moments import Lives
    >>> churn(Lives(), cost=0.5)
    0.0
    """
    return 0.0 - cost * (len(lives.born) + len(lives.pulled))


def haste(lives: Lives, young: int, cost: float) -> float:
    """The price of giving up on a seed too soon.

    Formula: −cost · prunes of seeds that were younger than ``young`` steps; one whose age is unknown was not. Range:
    below 0 without end. Direction: down with such prunes. Invites: to keep what is bad until it is old enough.

    >>> from esper_rewards.moments import Lives
    >>> haste(Lives(), young=5, cost=0.5)
    0.0
    """
    return 0.0 - cost * sum(seed.age is not None and seed.age < young for seed in lives.pulled)
