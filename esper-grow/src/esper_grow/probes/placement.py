"""Placement: where adapters go in a model, measured by training them at all places together.

    plan = place_adapters(model, loss, train, validation, where="all-linear", rank=4, parameters=15_000)

A copy of the model trains with an adapter at every place, and a second one without any: the difference is what all of
them bring. Then each place gets a gate, a factor on what its adapter puts out, for each example on its own. The
gradient of an example's loss by its gates says what every adapter brings to first order, at all places for the price of
one backward pass. With all gates at 0 that is what each would bring alone. The best are taken into the plan, their
gates opened, and what the others bring beside them is measured again, until nothing pays or the parameters are used up:
so of two places that do the same only one is taken. Within a limit of parameters the best has the largest gain, or the
most gain for each parameter, whichever makes the better plan out of the first look.

All of it costs no more than ``STEPS_PAID`` times the steps of the set: a place is taken with each look if that pays for
so many looks, several if not.

Where all gates are 0 the loss is higher than that of the model that trained without adapters, since the rest of the
copy, such as a head, has learned to rely on them. So gains are scaled to what all adapters bring together, as it was
measured.

Everything is judged by averaged weights, because those of a single step order places by noise, and where few adapters
act, because that is what a small plan is made of: leaving one out of a set in which all act says less of it. What an
adapter has learned still depends on the random weights that it began with. So what it brings alone is drawn halfway to
what layers of its block and of its kind bring; a plan is filled by what was measured.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, Final, TypedDict, Unpack, cast

import torch
from torch import Tensor

from esper_core.growth import Host, compare_losses, graft
from esper_core.leyline import SlotPlace
from esper_core.leyline.constants import GATE_ALPHA, MIN_EXAMPLES_FOR_EVIDENCE
from esper_core.leyline.errors import ConfigError, GraftError, GrowthError, Problem, plural
from esper_core.plugins import load_plugins
from esper_core.settings import GrowthConfig
from esper_grow.adaptation import ALL, adapters, blocks_together
from esper_grow.gardener.borrowed_optimizers import BorrowedOptimizers
from esper_grow.gardener.checks import frozen_norms, refuse_unknown_options
from esper_grow.gardener.choices import blueprints_of
from esper_grow.gardener.traces import without_trace
from esper_grow.gardener.validation import Validation, counted_example
from esper_grow.probes.budget import BudgetClock, seconds_of
from esper_grow.probes.data import TrainingBatches, held_out_batches, rows_of
from esper_grow.probes.gated_adapters import GatedAdapters, pooled
from esper_grow.probes.places import fitting_places, lora_in_peft
from esper_grow.probes.plans import AdapterPlace, AdapterPlan, PlaceKey, better_order, filled, gain_of, name_in_peft
from esper_grow.probes.trainings import guarded, new_training, refuse_not_finite
from esper_run.config import section_of
from esper_run.formats import format_number, format_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from datetime import timedelta

    from torch import nn

    from esper_core.growth import Prices, Seed
    from esper_grow.gardener.validation import Loss
    from esper_grow.probes.results import Verdict
    from esper_grow.probes.trainings import Training

    Places = dict[PlaceKey, AdapterPlace]

STEPS: Final = 100
"""Training steps of the set, and of the model without it."""

FEWEST_STEPS: Final = 30
"""Fewer steps than these order places by their first gradients, which mislead."""

TRAINING_SHARE: Final = 0.35
"""Share of the budget that the set may train; the model without it takes about half of that."""

STEPS_PAID: Final = 3
"""What all of it may cost, in multiples of the steps of the set: a fine-tuning, if that has three times as many."""

FEWEST_LOOKS: Final = 2
"""Looks at all places, even where they cost more."""

EXAMPLES: Final = 300
"""Validation examples that are looked at."""


class PlacementOptions(TypedDict, total=False):
    """Further options of ``place_adapters``.

    Attributes:
        budget: How long it may take: "5min", or a number of seconds. Default: 30min.
        alpha, rslora, dropout: Of LoRA, as of ``adapters``.
        block: Rank of the blocks in which LoRA is placed, each measured apart, so that layers get the ranks that pay.
            None: all layers have one rank.
        blueprint: What is placed instead of LoRA, such as ``"bottleneck_adapter(width=8)"``.
        clip_norm: The norm to which gradients are clipped; None: they are not.
        examples: How many validation examples are looked at, the first ones. Default: 300.
        price: Gain in nats that each parameter has to bring; None: relative, as the price of gates (``growth.price``).
        seed: RNG seed.
        on_progress: Called with a line of text for each part.
    """

    budget: str | float | timedelta
    alpha: float | None
    rslora: bool
    dropout: float
    block: int | None
    blueprint: str | None
    clip_norm: float | None
    examples: int
    price: float | None
    seed: int
    on_progress: Callable[[str], object] | None


def place_adapters(
    model: nn.Module,
    loss: Callable[[nn.Module, Any], Tensor],
    train: Iterable[Any],
    validation: Iterable[Any],
    *,
    where: str | Sequence[str] = ALL,
    rank: int = 4,
    parameters: int | None = None,
    steps: int = STEPS,
    optimizer: torch.optim.Optimizer | Callable[[list[nn.Parameter]], torch.optim.Optimizer] | None = None,
    **options: Unpack[PlacementOptions],
) -> AdapterPlan:
    """Measure beside which layers adapters help, and return a plan of the few that do. The model is not changed.

    Args:
        model: The network, usually frozen but for a head; it has no slots.
        loss: ``loss(model, batch)`` runs the model on a batch and returns one loss for each example.
        train: Batches for training, iterated repeatedly.
        validation: Held-out batches, with 100 examples at least.
        where: The places, as ``adapters`` takes them.
        rank: Of LoRA at each place; with ``block``, the largest.
        parameters: How many trainable parameters the plan may have; None: as many as pay.
        steps: Training steps; fewer if the budget is short. With a third of those of a fine-tuning, the plan costs as
            many operations as that, or less; half of them cost half more, and place better.
        optimizer: As for ``probe``. Default: AdamW at a rate of 1e-3.
        options: As ``PlacementOptions`` describes them.

    Raises:
        GraftError: The model has slots, or no layer is meant by ``where``.
        GrowthError: Model, loss, optimizer or data cannot be used, or the blueprint is no adapter.
        ConfigError: The budget or a number cannot be used, or there is no such blueprint.
        TypeError: There is no such option.
    """
    refuse_unknown_options(place_adapters, options, PlacementOptions)
    _refuse_small_numbers(steps, parameters, options.get("examples", EXAMPLES))
    model = getattr(model, "_orig_mod", model)  # a compiled model has other names
    clock, seed = BudgetClock(seconds_of(options.get("budget", "30min"))), options.get("seed", 0)
    layers, blueprints = _adapters_of(model, where, rank, options)
    chosen = partial(torch.optim.AdamW, lr=1e-3) if optimizer is None else optimizer
    price, report = options.get("price"), options.get("on_progress")
    growth = section_of(GrowthConfig, {} if price is None else {"price": price}, "place_adapters")
    with torch.inference_mode(mode=False), torch.enable_grad():
        training = new_training(model, chosen, guarded(loss), options.get("clip_norm"), seed, clock.now)
        # In training mode they would move with all adapters, and be wrong where few act.
        fixed = [norm.eval() for norm in frozen_norms(training.model).values() if norm.training]
        batches = TrainingBatches(train, seed, Host(training.model).device)
        with without_trace(training.model), batches.generators.kept():
            with torch.no_grad():
                example, by_example, _ = counted_example(training.model, batches.first(), training.loss)
            slots, refused = fitting_places(training.model, layers, example)
            if not slots:
                raise GraftError(refused)
            graft(training.model, {name: SlotPlace(name, stack=len(blueprints)) for name in slots}, example=example)
            held_out = held_out_batches(validation, options.get("examples", EXAMPLES))
            request = Request(blueprints, parameters, seed, clock, report)
            data = training, batches, held_out, by_example, Host(training.model).prices(growth, None)
            return Placement(*data, request, refused, len(fixed)).run(steps)


def _adapters_of(
    model: nn.Module, where: str | Sequence[str], rank: int, options: PlacementOptions
) -> tuple[list[str], tuple[str, ...]]:
    """Return the layers that are meant, and what one block at each of them is, what two are together, and so on."""
    form: Any = {name: value for name, value in options.items() if name in ("alpha", "rslora", "dropout")}
    block = options.get("block")
    places = adapters(model, where, rank=rank, block=block, blueprint=options.get("blueprint"), **form)
    blueprints = places["blueprints"] if block is None else blocks_together(rank, block, **form)
    return list(places["slots"]), tuple(blueprints)


def _refuse_small_numbers(steps: int, parameters: int | None, examples: int) -> None:
    """Raise ConfigError (E112) for numbers with which nothing can be measured."""
    for name, number in {"steps": steps, "parameters": parameters, "examples": examples}.items():
        if number is not None and number < 1:
            message = f"Input should be greater than or equal to 1; received {number}"
            raise ConfigError(Problem("E112", message, path=f"place_adapters.{name}"))


@dataclass(frozen=True, slots=True)
class Request:
    """What the caller asks for.

    Attributes:
        blueprints: What one block is that is placed in each slot, what two are together, and so on.
        limit: How many parameters the plan may have.
        seed: RNG seed.
        clock: The budget.
        report: Called with a line of text for each part.
    """

    blueprints: tuple[str, ...]
    limit: int | None
    seed: int
    clock: BudgetClock
    report: Callable[[str], object] | None


@dataclass(slots=True)
class Placement:
    """One placement at work.

    Attributes:
        training: A copy of the model, with slots and nothing in them.
        held_out: Validation batches.
        loss: Returns one loss for each example.
        refused: Why layers that were meant have no place.
        fixed: How many frozen normalisations do not move their statistics.
    """

    training: Training
    batches: TrainingBatches
    held_out: list[Any]
    loss: Loss
    prices: Prices
    request: Request
    refused: Sequence[Problem]
    fixed: int
    seeds: dict[PlaceKey, Seed] = field(default_factory=dict, init=False)
    """The adapter of each place, in the copy in which all act."""
    examples: int = field(default=0, init=False)
    """On how many examples the set was trained."""
    interrupted: bool = field(default=False, init=False)
    """Whether the budget was over before all that pays was taken."""

    def run(self, steps: int) -> AdapterPlan:
        """Return the plan."""
        together = self.training.copy(self.request.seed, 1.0)
        self._plant(together)
        gated = GatedAdapters(self.seeds, self.held_out, self.loss)
        validation = Validation(self.held_out, gated.noted_losses, self.request.seed)
        wanted, steps = steps, self._train(together, steps)
        alone = self.training.copy(self.request.seed, _half_life(steps))
        trains = [parameter.requires_grad for parameter in alone.model.parameters()]
        if any(trains):
            self._train(alone, steps, limited=False)
        host = alone.evaluate(validation, again=False)
        if len(host) < MIN_EXAMPLES_FOR_EVIDENCE:
            message = f"the validation data has {plural(len(host), 'example')}, too few to judge by"
            hint = f"Hold out {MIN_EXAMPLES_FOR_EVIDENCE} at least, and return one loss for each."
            raise GrowthError(Problem("E353", message, hint=hint))
        full = together.evaluate(validation)
        refuse_not_finite({"without adapters": host, "with adapters at all places": full})
        together.model.requires_grad_(requires_grad=False)
        with together.judged():
            looks = self._affordable_looks(host_passes=2 if all(trains) else int(any(trains)))
            places, planned = self._select(together.model, gated, (host, full), looks)
        return self._plan(places, (host, full, planned), steps, wanted)

    def _plant(self, training: Training) -> None:
        """Put an adapter into every slot of a copy, as seeds that act."""
        model = training.model
        blueprint = self.request.blueprints[0]
        varieties = blueprints_of(blueprint, Host(model), load_plugins())
        if not all(variety.spec.adapts for several in varieties.values() for variety in several):
            message = f"{blueprint} cannot be placed: it adds nothing to what a layer returns"
            raise GrowthError(Problem("E351", message, hint="Place lora or bottleneck_adapter."))
        keeper = BorrowedOptimizers(model, [training.optimizer], training.clip_norm)
        for slot, fitting in varieties.items():
            # A blueprint need not fit everywhere.
            for block, variety in enumerate(fitting[:1] * len(self.request.blueprints)):
                # Blocks that began with the same weights would stay the same.
                seed = self.seeds[slot, block + 1] = Host(model).plant(slot, variety, self.request.seed + block)
                keeper.adopt(seed)
                keeper.settle(seed, freeze=False)

    def _train(self, training: Training, steps: int, *, limited: bool = True) -> int:
        """Train a copy for so many steps, or fewer if the budget is short; return how many."""
        stream = self.batches.stream("trial")
        clock, what = self.request.clock, "with adapters at all places" if limited else "without adapters"
        began = clock.used
        for step in range(1, steps + 1):
            batch = next(stream)
            training.step(batch)
            self.examples += rows_of(batch) if limited else 0
            if step == FEWEST_STEPS // 10 and limited:
                affordable = TRAINING_SHARE * clock.budget * step / max(clock.used - began, 1e-9)
                steps = max(FEWEST_STEPS // 10, min(steps, int(affordable)))
                training.average = Host(training.model).running_average(_half_life(steps))
            if step >= steps:
                break
            if step % max(1, steps // 4) == 0:
                self._tell(f"{what}: {step} of {plural(steps, 'step')}")
        return step

    def _tell(self, text: str) -> None:
        if self.request.report is not None:
            self.request.report(text)

    def _affordable_looks(self, host_passes: int) -> int:
        """Return how many looks are paid for, where a look or a step takes two passes, and an evaluation takes one.

        The host takes ``host_passes`` for each step. Evaluated are host, set, plan, and a plan of each order.
        """
        looked = sum(map(rows_of, self.held_out))
        left = (2 * STEPS_PAID - 2 - host_passes) * self.examples - 5 * looked
        return max(FEWEST_LOOKS, left // (2 * looked))

    def _select(
        self, model: nn.Module, gated: GatedAdapters, trained: tuple[Tensor, Tensor], looks: int
    ) -> tuple[list[AdapterPlace], Tensor]:
        """Return all places, those of the plan first, in order, and the losses where those of the plan act."""
        host, full = trained
        sizes = {key: seed.parameter_count for key, seed in self.seeds.items()}
        limit = sum(sizes.values()) if self.request.limit is None else self.request.limit
        planned: Places = {}
        first: Places = {}
        scale, worth = 1.0, cast("Callable[[AdapterPlace], float]", gain_of)
        for left in range(looks, 0, -1):
            gains, seen = gated.gains(model, list(planned))
            if not first:
                reliance = float((seen - full).mean())
                scale = min(1.0, max(0.0, float((host - full).mean())) / reliance) if reliance > 0.0 else 0.0
            figures = {key: _mean_and_error(scale * gain) for key, gain in gains.items()}
            if not first:
                first = {key: self._place(key, *_mean_and_error(scale * gain)) for key, gain in pooled(gains).items()}
                seen_alone = [replace(place, alone=figures[key][0]) for key, place in first.items()]
                worth = better_order(seen_alone, self.request.limit, partial(gated.losses, model))
            used = sum(sizes[key] for key in planned)
            others = [place for key, place in first.items() if key not in planned]
            paying = self._paying(others, figures, used, float(host.mean()))
            fitting = filled(sorted(paying, key=worth, reverse=True), limit - used)
            if not fitting:
                return self._ordered(planned, first), seen
            taken = math.ceil(len(fitting) / left)
            for place in fitting[:taken]:
                planned[place.key] = replace(place, order=len(planned) + 1)
                self._tell(f"{len(planned)}. {place.name}: {format_number(place.beside or 0.0, signed=True)} nats")
            if taken == len(fitting):
                break
            self.interrupted = self.request.clock.left < 0.0
            if self.interrupted:
                break
        return self._ordered(planned, first), gated.losses(model, list(planned))

    def _place(self, key: PlaceKey, alone: float, error: float) -> AdapterPlace:
        seed, (slot, block) = self.seeds[key], key
        features, rank = (seed.site.inputs, seed.site.channels), getattr(seed.block, "rank", None)
        return AdapterPlace(slot, rank, seed.parameter_count, alone, error, features=features, block=block)

    def _paying(
        self, places: Sequence[AdapterPlace], figures: Mapping[PlaceKey, tuple[float, float]], used: int, loss: float
    ) -> Iterator[AdapterPlace]:
        """Yield the places whose gains beside those that are planned exceed their prices."""
        quantile = NormalDist().inv_cdf(1 - GATE_ALPHA / len(self.seeds))  # all places share the 5 %
        for place in places:
            gain, error = figures[place.key]
            price = self.prices.price(place.parameters, place.parameters, used, loss)
            if (lower := gain - quantile * error) > price:
                yield replace(place, beside=gain, at_least=lower, price=price)

    @staticmethod
    def _ordered(planned: Places, first: Places) -> list[AdapterPlace]:
        """Return places of the plan, then the others by what they bring alone."""
        others = [place for key, place in first.items() if key not in planned]
        return [*planned.values(), *sorted(others, key=lambda place: -place.alone)]

    def _plan(
        self, places: list[AdapterPlace], losses: tuple[Tensor, Tensor, Tensor], steps: int, wanted: int
    ) -> AdapterPlan:
        host, full, planned = losses
        chosen = [place for place in places if place.order is not None]
        layers = tuple(dict.fromkeys(slot for slot, _ in self.seeds))
        verdict, reason = self._verdict(places, losses, steps, wanted)
        if verdict == "nothing pays":
            chosen = []
        model, slots = self.training.model, list(dict.fromkeys(place.slot for place in chosen))
        names = list(Host.split_state(dict(model.named_modules(remove_duplicate=False)))[0])
        ends = tuple(f".{name_in_peft(layer)}" for layer in layers)
        peft, obstacle = lora_in_peft(model, names, slots, next(iter(self.seeds.values())).block)
        if not chosen:
            places = [replace(place, order=None, beside=None, at_least=None, price=None) for place in places]
        return AdapterPlan(
            verdict=verdict,
            reason=reason,
            places=tuple(places),
            layers=layers,
            blueprint=self.request.blueprints[0],
            blueprints=self.request.blueprints,
            peft=peft,
            obstacle_in_peft=obstacle,
            by_pattern=any(name_in_peft(name).endswith(ends) for name in names),
            model=type(model).__name__,
            parameters=sum(place.parameters for place in chosen),
            limit=self.request.limit,
            host_loss=float(host.mean()),
            all_loss=float(full.mean()),
            plan_loss=float(planned.mean()),
            steps=steps,
            examples=len(host),
            seconds=self.request.clock.used,
            remarks=(*[f"{text}." for text in (peft and obstacle) or ()], *self._remarks(chosen, steps, wanted)),
        )

    def _verdict(
        self, places: Sequence[AdapterPlace], losses: tuple[Tensor, Tensor, Tensor], steps: int, wanted: int
    ) -> tuple[Verdict, str]:
        """Return the verdict and its reason."""
        host, full, planned = losses
        chosen = [place for place in places if place.order is not None]
        evidence = compare_losses(host, full, GATE_ALPHA)
        gain, error = format_number(evidence.mean, signed=True), format_number(evidence.standard_error)
        sizes, limit = [seed.parameter_count for seed in self.seeds.values()], self.request.limit
        if steps < FEWEST_STEPS:
            needs = f"It needs about {format_seconds(self.request.clock.used * FEWEST_STEPS / steps)}."
            if steps == wanted:
                needs = f"Pass steps={FEWEST_STEPS} at least."
            return "undecided", f"Undecided: training for {plural(steps, 'step')} is too short. {needs}"
        together = f"adapters at all places bring {gain} ± {error} nats together"
        price = self.prices.price(sum(sizes), sum(sizes), 0, float(host.mean()))
        if evidence.upper <= price:
            priced = f"{format_number(price)} (price=… sets it)"
            return "nothing pays", f"Nothing pays in {plural(steps, 'step')}: {together}, and their price is {priced}."
        if limit is not None and min(sizes) > limit:
            least = f"the smallest adapter has {plural(min(sizes), 'parameter')}, and the plan may have {limit}"
            return "nothing pays", f"Nothing pays: {least}; {together}."
        if evidence.lower <= 0.0 or not chosen:
            needs = f"More than {plural(steps, 'step')} or {plural(len(host), 'validation example')} may show more."
            if evidence.lower > 0.0:
                needs = self._obstacle(places, float(host.mean())) or needs
                together += "; no single one is shown to bring more than its price"
            return "undecided", f"Undecided: {together}. {needs}"
        share = 100 * float((host.mean() - planned.mean()) / evidence.mean)
        used = sum(place.parameters for place in chosen)
        what = plural(len({place.slot for place in chosen}), "adapter")
        if len(self.request.blueprints) > 1:
            what += f" of {plural(len(chosen), 'block')}"
        return "pays", (
            f"{what} with {used:,} parameters: of the {gain} ± {error} nats that all places "
            f"bring, these bring {share:.0f} % without being trained for themselves."
        )

    def _obstacle(self, places: Sequence[AdapterPlace], loss: float) -> str | None:
        """Return that single places are too dear, if none that fits the limit seems to bring more than its price."""
        limit = math.inf if self.request.limit is None else self.request.limit
        sizes = {place: place.parameters for place in places if place.parameters <= limit}
        prices = {place: self.prices.price(size, size, 0, loss) for place, size in sizes.items()}
        best = max(prices, key=lambda place: place.alone - prices[place])
        if best.alone > prices[best]:
            return None
        alone, price = format_number(best.alone, signed=True), format_number(prices[best])
        return f"The best of them brings about {alone}, and its price is {price} (price=… sets it)."

    def _remarks(self, chosen: Sequence[AdapterPlace], steps: int, wanted: int) -> Iterator[str]:
        if chosen and len(self.request.blueprints) > 1:
            blocks = Counter(place.slot for place in chosen)
            ranks = [f"{slot} {count * (chosen[0].rank or 0)}" for slot, count in blocks.items()]
            yield f"Ranks: {', '.join(ranks)}."
        if FEWEST_STEPS <= steps < min(wanted, STEPS // 2):
            yield f"The budget was enough for {plural(steps, 'step')}; more of them order places better."
        if self.interrupted:
            yield "The budget was over before all places were looked at again; more of them may pay."
        if self.fixed:
            keeps = "keeps its" if self.fixed == 1 else "keep their"
            layers = f"{plural(self.fixed, 'frozen BatchNorm layer')} {keeps} statistics"
            yield f"{layers}: in your training, too, keep what is frozen in evaluation mode."
        if self.refused:
            yield f"Left out: {'; '.join(problem.message for problem in self.refused)}."
        yield (
            "Gains of single places are first-order estimates after one joint training: they rank what to place, and "
            "can be larger than true gains."
        )


def _half_life(steps: int) -> float:
    """Return the half-life of averages: short where there are few steps, after which the weights still move."""
    return min(GrowthConfig().average, steps / 8)


def _mean_and_error(gains: Tensor) -> tuple[float, float]:
    return float(gains.mean()), float(gains.std()) / math.sqrt(len(gains))
