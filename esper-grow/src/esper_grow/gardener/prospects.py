"""What can grow in a loop, told before it trains: by its calls of ``tend``, its price, and its validation examples.

A seed that can never be kept trains and is pruned all the same, so that a loop would spend its time without a word.
Warnings name the arguments that the caller of a ``Gardener`` has.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING, Final

from esper_core.leyline.constants import FIRST_LOOK, GATE_ALPHA, GATE_DECISIONS, MIN_EXAMPLES_FOR_EVIDENCE
from esper_core.leyline.errors import Problem, plural
from esper_core.leyline.lifecycle import SlotState

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from torch import Tensor

    from esper_core.growth import Host, Variety
    from esper_core.leyline import Signals
    from esper_core.settings import GrowthConfig
    from esper_core.trainer import Arm
    from esper_grow.gardener.seed_sets import SeedSet

log = logging.getLogger("esper")

SHORTEST_LOOP: Final = 2 * FIRST_LOOK + 2
"""Fewest calls of ``tend`` in which gates let a seed be kept: it germinates, is looked at, is blended in, and again."""

DEAR_SHARE: Final = 0.5
"""Share of the validation loss that a seed hardly gains, so that one of this price is told."""

AFFORDABLE_SHARE: Final = 0.02
"""Share of the validation loss that the dearest blueprint costs at most at the price that a warning suggests."""

DIFFERENCE_SHARE: Final = 0.5
"""Standard deviation of the examples' gains, as a share of that of their losses: seen of adapters on trained hosts."""

VISIBLE_SHARE: Final = 0.05
"""Share of the validation loss: if no smaller gain can be shown, that is told."""


@dataclass(frozen=True, slots=True)
class _Offer:
    """A blueprint in the slot where it is cheapest."""

    price: float
    parameters: int
    name: str


class Prospects:
    """Warns of what cannot grow.

    Args:
        host: Grafted.
        varieties: What may grow, by slot.
        growth: The price, and how strict the gates are.
        arm: Who decides.
        steps: Planned calls of ``tend``.
    """

    def __init__(
        self, host: Host, varieties: Mapping[str, Sequence[Variety]], growth: GrowthConfig, arm: Arm, steps: int
    ) -> None:
        self._host, self._growth, self._arm, self._steps = host, growth, arm, steps
        self._offers = sorted(_offers(host, varieties, growth.price.per_parameter), key=lambda offer: offer.price)
        # Without gates a policy that was not built for the loop decides by rules of its own.
        self._judged = growth.gates != "off" or hasattr(arm.policy, "for_loop")
        self._warned = self._warned_of_frozen = False

    def warn_at_start(self, losses: Tensor, seed_set: SeedSet | None = None) -> None:
        """Log warnings of too few steps, of prices beside these validation losses (E381), and of too few (E382).

        ``seed_set``: what germinates together; what is to be known of it is noted there, too.
        """
        self._warn_of_steps(is_set=seed_set is not None)
        if not self._judged:
            return
        loss, price = float(losses.mean()), self._growth.price
        if loss < price.floor or float(losses.min()) < min(0.0, price.floor):  # of a density's logarithm
            if price.per_parameter is None:
                message = f"prices are a share of the loss above {price.floor:g}, its floor, and losses are below that"
                hint = 'Lower it:  growth={"price": {"floor": …}}.  Or set a price in nats per parameter.'
                log.warning("%s", Problem("E381", message, hint=hint))
            return
        if seed_set is not None:
            self._tell_of_set(seed_set, losses)
        self._warn_of_price(loss, DEAR_SHARE)
        if len(losses) >= MIN_EXAMPLES_FOR_EVIDENCE and math.isfinite(loss):
            self._warn_of_power(loss, float(losses.std()), len(losses))

    def warn_again(self, signals: Signals) -> None:
        """Log warnings, once each: the loss is below each price, with room for it (E381); growth is frozen (E358)."""
        if not self._growth.freeze_fossils and not any(slot.seeds for slot in signals.slots):
            self._warn_of_frozen()
        if self._judged and any(slot.state is not SlotState.CLOSED for slot in signals.slots):
            self._warn_of_price(signals.validation_loss, 1.0)

    def _warn_of_steps(self, *, is_set: bool) -> None:
        """Log a warning if the calls of ``tend`` are too few for the gates, or for the plan of a policy (E380)."""
        shortest, grown = (FIRST_LOOK, "a set of seeds") if is_set else (SHORTEST_LOOP, "any seed")
        plans = () if is_set else self._arm.impossible(self._steps)
        if self._growth.gates != "off" and self._steps < shortest:
            plans = (f"{grown} to be kept, for which gates need {shortest}",)
        hint = (
            "Call tend() more often, such as every 20 batches, and pass the number of calls as  steps=…\n"
            "A trainer's callback does so with  every=20."
        )
        for plan in plans:
            calls = f"{plural(self._steps, 'call')} of tend() {'is' if self._steps == 1 else 'are'}"
            message = f"{calls} too few for {plan}"
            log.warning("%s", Problem("E380", message, hint=hint))

    def _warn_of_frozen(self) -> None:
        kept = [parameter for slot in self._host.slots for seed in slot.fossils for parameter in seed.parameters()]
        trains = any(parameter.requires_grad for parameter in (*kept, *self._host.parameters().values()))
        if kept and not trains and not self._warned_of_frozen:
            self._warned_of_frozen = True
            hint = "Freeze a model before adapters are loaded or grow, which requires_grad_(False) freezes, too."
            log.warning("%s", Problem("E358", "nothing trains: what has grown is frozen like the model", hint=hint))

    def _tell_of_set(self, seed_set: SeedSet, losses: Tensor) -> None:
        """Note what a set costs, and what gains of it can be shown; log a warning if it costs too much (E381)."""
        loss, price = float(losses.mean()), seed_set.price(float(losses.mean()), self._growth)
        seed_set.prospect = f"{seed_set.size} seeds with {seed_set.parameters:,} parameters germinate together"
        if self._growth.gates != "off" and len(losses) >= MIN_EXAMPLES_FOR_EVIDENCE:
            gain = smallest_gain(float(losses.std()), len(losses), self._alpha(of_set=True))
            seed_set.prospect += f": {len(losses):,} validation examples show gains from about {gain:.2g} nats on"
            seed_set.prospect += "" if price is None else f", and the set has to gain more than {price:.2g}"
        log.info("%s", seed_set.prospect)
        if price is not None and price >= DEAR_SHARE * loss:
            message = f"the set cannot be kept: it costs {price:.4g} nats, and the validation loss is {loss:.3g}"
            hint = "Lower growth.price, raise growth.price.budget, or take fewer places."
            log.warning("%s", Problem("E381", message, hint=hint))

    def _alpha(self, *, of_set: bool = False) -> float:
        """Return what the gate before keeping spends on one of its decisions, at the first seed or set."""
        decisions = {look for look in GATE_DECISIONS if look <= self._steps} | ({self._steps} if of_set else set())
        return GATE_ALPHA / 2 / max(1, len(decisions))

    def _warn_of_price(self, loss: float, share: float) -> None:
        """Log a warning, once, if even the cheapest blueprint costs this share of the loss."""
        if self._warned or not self._offers or not 0.0 < share * loss <= self._offers[0].price:
            return
        self._warned, cheapest = True, self._offers[0]
        kept = "no seed" if cheapest.price >= loss else "hardly any seed"
        message = (
            f"{kept} can be kept: {cheapest.name}, the cheapest blueprint, costs {cheapest.price:.4g} nats "
            f"({cheapest.parameters:,} parameters), and the validation loss is {loss:.3g}"
        )
        price = 10.0 ** math.floor(math.log10(AFFORDABLE_SHARE * loss / self._offers[-1].parameters))
        hint = (
            f"A seed has to gain more than its price, {self._growth.price.per_parameter:g} nats for each parameter. "
            f'Make parameters cheaper:  growth={{"price": {price:.0e}}}'
        )
        log.warning("%s", Problem("E381", message, hint=hint))

    def _warn_of_power(self, loss: float, deviation: float, examples: int) -> None:
        if self._steps < FIRST_LOOK:  # which was told already
            return
        gain = smallest_gain(deviation, examples, self._alpha())
        if gain < VISIBLE_SHARE * loss:
            return
        message = (
            f"{examples:,} validation examples show gains from about {gain:.2g} nats on: "
            f"{gain / loss:.0%} of the loss, {loss:.3g}"
        )
        hint = f"A seed that gains less is not kept. {4 * examples:,} examples would show half of it"
        log.warning("%s", Problem("E382", message, hint=f"{hint}."))


def smallest_gain(deviation: float, examples: int, alpha: float) -> float:
    """Return about the smallest gain whose lower bound, wrong with probability ``alpha``, can lie above 0.

    ``deviation`` is that of the examples' losses; that of their gains is not known before a seed trains.

    >>> round(smallest_gain(0.4, 300, 0.05 / 40), 3)
    0.035
    """
    return NormalDist().inv_cdf(1.0 - alpha) * DIFFERENCE_SHARE * deviation / math.sqrt(examples)


def _offers(host: Host, varieties: Mapping[str, Sequence[Variety]], price: float | None) -> Iterator[_Offer]:
    """Yield each blueprint that has parameters and an absolute price, where it is cheapest.

    A relative price is a small share of the loss, whatever that is.
    """
    sites = {slot.name: slot.site for slot in host.slots}
    cheapest: dict[str, int] = {}
    for slot, fitting in varieties.items():
        for variety in fitting:
            if (site := sites[slot]) is not None:
                parameters = variety.block_parameters(site)
                cheapest[variety.id] = min(parameters, cheapest.get(variety.id, parameters))
    for name, parameters in cheapest.items():
        if parameters and price:
            yield _Offer(parameters * price, parameters, name.rpartition("/")[2])
