"""Placement: where adapters go in a model, measured by training them at all places together.

    plan = place_adapters(model, loss, train, validation, where="all-linear", rank=4, parameters=15_000)

A copy of the model trains with an adapter at every place, and a second one without any: the difference is what all of
them bring. Then each place gets a gate, a factor on what its adapter puts out, for each example on its own. The
gradient of an example's loss by its gates says what every adapter brings to first order, at all places for the price of
one backward pass. With all gates at 0 that is what each would bring alone. The best is taken into the plan, its gate
opened, and what the others bring beside it is measured again, until nothing pays or the parameters are used up: so of
two places that do the same only one is taken. Within a limit of parameters the best has the largest gain, or the most
gain for each parameter, whichever makes the better plan out of the first look.

Where all gates are 0 the loss is higher than that of the model that trained without adapters, since the rest of the
copy, such as a head, has learned to rely on them. So gains are scaled to what all adapters bring together, as it was
measured.

Everything is judged by averaged weights, because those of a single step order places by noise, and where few adapters
act, because that is what a small plan is made of: leaving one out of a set in which all act says less of it.
"""

from __future__ import annotations

import math
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, Final, TypedDict, Unpack

import torch
from torch import Tensor

from esper_blueprints.dora import Dora
from esper_blueprints.lora import Lora
from esper_core.growth import Example, Host, compare_losses, graft
from esper_core.leyline.constants import GATE_ALPHA, MIN_EXAMPLES_FOR_EVIDENCE
from esper_core.leyline.errors import ConfigError, GraftError, GrowthError, Problem, plural
from esper_core.plugins import load_plugins
from esper_core.settings import GrowthConfig
from esper_grow.adaptation import ALL, adapters
from esper_grow.gardener.borrowed_optimizers import BorrowedOptimizers
from esper_grow.gardener.checks import refuse_unknown_options
from esper_grow.gardener.choices import blueprints_of
from esper_grow.gardener.traces import without_trace
from esper_grow.gardener.validation import Validation, counted_example, each_loss, same_order
from esper_grow.probes.budget import BudgetClock, seconds_of
from esper_grow.probes.data import TrainingBatches
from esper_grow.probes.plans import AdapterPlace, AdapterPlan, better_order, gain_of, has_longer_name
from esper_grow.probes.trainings import guarded, new_training
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

STEPS: Final = 100
"""Training steps of the set, and of the model without it."""

FEWEST_STEPS: Final = 30
"""Fewer steps than these order places by their first gradients, which mislead."""

TRAINING_SHARE: Final = 0.5
"""Share of the budget that the set may train; the model without it takes about half of that."""

EXAMPLES: Final = 300
"""Validation examples that are looked at."""

MOST_PLACED: Final = 24
"""Adapters in a plan; each costs a look at all places."""


class PlacementOptions(TypedDict, total=False):
    """Further options of ``place_adapters``.

    Attributes:
        budget: How long it may take: "5min", or a number of seconds. Default: 30min.
        alpha, rslora, dropout: Of LoRA, as of ``adapters``.
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
        rank: Of LoRA at each place.
        parameters: How many trainable parameters the plan may have; None: as many as pay.
        steps: Training steps; fewer if the budget is short. Half of those of a fine-tuning are a good start.
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
    names = ("alpha", "rslora", "dropout", "blueprint")
    form: Any = {name: options[name] for name in names if name in options}  # type: ignore[literal-required]
    places = adapters(model, where, rank=rank, **form)
    chosen = partial(torch.optim.AdamW, lr=1e-3) if optimizer is None else optimizer
    price, report = options.get("price"), options.get("on_progress")
    growth = section_of(GrowthConfig, {} if price is None else {"price": price}, "place_adapters")
    with torch.inference_mode(mode=False), torch.enable_grad():
        training = new_training(model, chosen, guarded(loss), options.get("clip_norm"), seed, clock.now)
        batches = TrainingBatches(train, seed, Host(training.model).device)
        with without_trace(training.model), batches.generators.kept():
            with torch.no_grad():
                example, by_example, _ = counted_example(training.model, batches.first(), training.loss)
            modules = [name for name, _ in training.model.named_modules()]
            refused = _graft(training.model, places["slots"], example)
            held_out = _held_out(validation, by_example, options.get("examples", EXAMPLES), seed)
            prices = Host(training.model).prices(growth, None)
            request = Request(places["blueprints"][0], parameters, seed, clock, report)
            return Placement(training, batches, held_out, by_example, prices, request, refused, modules).run(steps)


def _refuse_small_numbers(steps: int, parameters: int | None, examples: int) -> None:
    """Raise ConfigError (E112) for numbers with which nothing can be measured."""
    for name, number in {"steps": steps, "parameters": parameters, "examples": examples}.items():
        if number is not None and number < 1:
            message = f"Input should be greater than or equal to 1; received {number}"
            raise ConfigError(Problem("E112", message, path=f"place_adapters.{name}"))


def _graft(model: nn.Module, slots: list[str], example: Example) -> list[Problem]:
    """Put slots behind the layers that can have them, and return why others cannot; GraftError if none can."""
    refused: list[Problem] = []
    while True:
        try:
            graft(model, slots, example=example)
        except GraftError as error:
            unfit = {problem.path for problem in error.problems}
            fitting = [slot for slot in slots if slot not in unfit]
            if not fitting or len(fitting) == len(slots):
                raise
            slots, refused = fitting, [*refused, *error.problems]
        else:
            return refused


def _held_out(validation: Iterable[Any], loss: Loss, most: int, seed: int) -> list[Any]:
    """Return the first validation batches, with ``most`` examples or a few more."""
    Validation(validation, loss, seed)  # refuses data that cannot be iterated
    batches: list[Any] = []
    with same_order(validation):
        for batch in islice(validation, most):
            batches.append(batch)
            if len(batches) * _rows(batches[0]) >= most:
                break
    return batches


def _rows(batch: Any) -> int:
    return max(1, Example.of(batch).size)


@dataclass(frozen=True, slots=True)
class Request:
    """What the caller asks for.

    Attributes:
        blueprint: What is placed in each slot.
        limit: How many parameters the plan may have.
        seed: RNG seed.
        clock: The budget.
        report: Called with a line of text for each part.
    """

    blueprint: str
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
        modules: The names of all modules of the model.
    """

    training: Training
    batches: TrainingBatches
    held_out: list[Any]
    loss: Loss
    prices: Prices
    request: Request
    refused: Sequence[Problem]
    modules: Sequence[str]
    seeds: dict[str, Seed] = field(default_factory=dict, init=False)
    """The adapter of each place, in the copy in which all act."""
    rows: list[int] = field(default_factory=list, init=False)
    """The losses of each validation batch."""
    interrupted: bool = field(default=False, init=False)
    """Whether the budget was over before all that pays was taken."""
    scale: float = field(default=1.0, init=False)
    """What all adapters bring, as a share of what the copy relies on."""

    def run(self, steps: int) -> AdapterPlan:
        """Return the plan."""
        validation = Validation(self.held_out, self.loss, self.request.seed)
        together = self.training.copy(self.request.seed, 1.0)
        self._plant(together)
        wanted, steps = steps, self._train(together, steps)
        alone = self.training.copy(self.request.seed, _half_life(steps))
        if any(parameter.requires_grad for parameter in alone.model.parameters()):
            self._train(alone, steps, limited=False)
        host = alone.evaluate(validation, again=False)
        if len(host) < MIN_EXAMPLES_FOR_EVIDENCE:
            message = f"the validation data has {plural(len(host), 'example')}, too few to judge by"
            hint = f"Hold out {MIN_EXAMPLES_FOR_EVIDENCE} at least, and return one loss for each."
            raise GrowthError(Problem("E353", message, hint=hint))
        full = together.evaluate(validation)
        _refuse_not_finite({"without adapters": host, "with adapters at all places": full})
        together.model.requires_grad_(requires_grad=False)
        with together.judged():
            acting = partial(self._losses, together.model, validation)
            silent = acting(())
            gain, reliance = float((host - full).mean()), float((silent - full).mean())
            self.scale = min(1.0, max(0.0, gain) / reliance) if reliance > 0.0 else 0.0
            places = self._select(together.model, float(host.mean()), acting)
            planned = acting([place.slot for place in places if place.order is not None])
        return self._plan(places, (host, full, planned), steps, wanted)

    def _plant(self, training: Training) -> None:
        """Put an adapter into every slot of a copy, as seeds that act."""
        model = training.model
        varieties = blueprints_of(self.request.blueprint, Host(model), load_plugins())
        if not all(variety.spec.adapts for several in varieties.values() for variety in several):
            message = (
                f"{self.request.blueprint} cannot be placed: it replaces what a layer returns, and adds nothing to it"
            )
            raise GrowthError(Problem("E351", message, hint="Place lora or bottleneck_adapter."))
        keeper = BorrowedOptimizers(model, [training.optimizer], training.clip_norm)
        for slot, fitting in varieties.items():
            for variety in fitting[:1]:  # a blueprint need not fit everywhere
                seed = self.seeds[slot] = Host(model).plant(slot, variety, self.request.seed)
                keeper.adopt(seed)
                keeper.settle(seed, freeze=False)

    def _train(self, training: Training, steps: int, *, limited: bool = True) -> int:
        """Train a copy for so many steps, or fewer if the budget is short; return how many."""
        stream = self.batches.stream("trial")
        began, what = self.request.clock.used, "with adapters at all places" if limited else "without adapters"
        for step in range(1, steps + 1):
            training.step(next(stream))
            if step == FEWEST_STEPS // 10 and limited:
                affordable = (
                    TRAINING_SHARE * self.request.clock.budget * step / max(self.request.clock.used - began, 1e-9)
                )
                steps = max(FEWEST_STEPS // 10, min(steps, int(affordable)))
                training.average_over(_half_life(steps))
            if step >= steps:
                break
            if step % max(1, steps // 4) == 0:
                self._tell(f"{what}: {step} of {plural(steps, 'step')}")
        return step

    def _tell(self, text: str) -> None:
        if self.request.report is not None:
            self.request.report(text)

    # --- what each place brings

    @contextmanager
    def _gates(self, values: Mapping[str, float | Tensor]) -> Iterator[None]:
        """Multiply what each adapter puts out by its gate in the ``with`` block: a number, or one for each example."""

        def multiply(slot: str, _module: nn.Module, _inputs: Any, outputs: Tensor) -> Tensor:
            gate = values[slot]
            if isinstance(gate, Tensor):
                gate = gate.view(-1, *[1] * (outputs.ndim - 1)).to(outputs.dtype)
            return outputs * gate

        with ExitStack() as hooks:
            for slot in values:
                hook = partial(multiply, slot)
                hooks.callback(self.seeds[slot].block.register_forward_hook(hook).remove)
            yield

    def _losses(self, model: nn.Module, validation: Validation, acting: Sequence[str]) -> Tensor:
        """Return the loss of each validation example where these adapters alone act."""
        with self._gates({slot: float(slot in acting) for slot in self.seeds}):
            return validation.evaluate(model, ExitStack, trial=True)

    def _gains(self, model: nn.Module, acting: Sequence[str]) -> dict[str, Tensor]:
        """Return for each place, and each example, what its adapter brings beside those that act, to first order."""
        host = Host(model)
        batches = [Example.of(batch).to(host.device) for batch in self.held_out]
        gains: dict[str, list[Tensor]] = {slot: [] for slot in self.seeds}
        with host.evaluating():
            if not self.rows:
                with torch.no_grad():
                    self.rows = [len(each_loss(self.loss(model, batch))) for batch in batches]
            for batch, rows in zip(batches, self.rows, strict=True):
                gates = {
                    slot: torch.full((rows,), float(slot in acting), device=host.device, requires_grad=True)
                    for slot in self.seeds
                }
                with self._gates(gates):
                    losses = each_loss(self.loss(model, batch))
                    # With the gates in place, since checkpointing runs layers again. Some need not act on every batch.
                    gradients = torch.autograd.grad(losses.sum(), list(gates.values()), materialize_grads=True)
                for slot, gradient in zip(gates, gradients, strict=True):
                    gains[slot].append(-self.scale * gradient.detach().float().cpu())
        return {slot: torch.cat(parts) for slot, parts in gains.items()}

    def _select(self, model: nn.Module, loss: float, losses: Callable[[Sequence[str]], Tensor]) -> list[AdapterPlace]:
        """Return all places: those of the plan first, in order, then the others by what they bring alone."""
        sizes = {slot: seed.parameter_count for slot, seed in self.seeds.items()}
        quantile = NormalDist().inv_cdf(1 - GATE_ALPHA / len(self.seeds))  # all places share the 5 %
        planned: dict[str, AdapterPlace] = {}
        first: dict[str, AdapterPlace] = {}
        worth: Callable[[AdapterPlace], float] = gain_of
        while len(planned) < min(MOST_PLACED, len(self.seeds)) and not self.interrupted:
            used = sum(sizes[slot] for slot in planned)
            gains = self._gains(model, list(planned))
            figures = {slot: _mean_and_error(gain) for slot, gain in gains.items()}
            if not first:
                ranks = {slot: getattr(seed.block, "rank", None) for slot, seed in self.seeds.items()}
                first = {
                    slot: AdapterPlace(slot, ranks[slot], sizes[slot], *figure) for slot, figure in figures.items()
                }
                worth = better_order(list(first.values()), self.request.limit, losses)
            fitting: list[AdapterPlace] = []
            for slot, (mean, error) in figures.items():
                price, lower = self.prices.price(sizes[slot], sizes[slot], used, loss), mean - quantile * error
                fits = self.request.limit is None or used + sizes[slot] <= self.request.limit
                if slot not in planned and fits and lower > price:
                    order = len(planned) + 1
                    fitting.append(replace(first[slot], order=order, beside=mean, at_least=lower, price=price))
            if not fitting:
                break
            best = max(fitting, key=worth)
            planned[best.slot] = best
            self.interrupted = self.request.clock.left < 0.0
            self._tell(f"{best.order}. {best.slot}: {format_number(best.beside or 0.0, signed=True)} nats")
        others = [place for slot, place in first.items() if slot not in planned]
        return [*planned.values(), *sorted(others, key=lambda place: -place.alone)]

    def _plan(
        self, places: list[AdapterPlace], losses: tuple[Tensor, Tensor, Tensor], steps: int, wanted: int
    ) -> AdapterPlan:
        host, full, planned = losses
        chosen = [place for place in places if place.order is not None]
        verdict, reason = self._verdict(chosen, losses, steps, wanted)
        if verdict == "nothing pays":
            chosen = []
        if not chosen:
            places = [replace(place, order=None, beside=None, at_least=None, price=None) for place in places]
        return AdapterPlan(
            verdict=verdict,
            reason=reason,
            places=tuple(places),
            layers=tuple(self.seeds),
            blueprint=self.request.blueprint,
            peft=self._peft(),
            by_pattern=has_longer_name(self.seeds, self.modules),
            model=type(self.training.model).__name__,
            parameters=sum(place.parameters for place in chosen),
            limit=self.request.limit,
            host_loss=float(host.mean()),
            all_loss=float(full.mean()),
            plan_loss=float(planned.mean()),
            steps=steps,
            examples=len(host),
            seconds=self.request.clock.used,
            remarks=tuple(self._remarks(steps, wanted)),
        )

    def _verdict(
        self, chosen: Sequence[AdapterPlace], losses: tuple[Tensor, Tensor, Tensor], steps: int, wanted: int
    ) -> tuple[Verdict, str]:
        """Return the verdict and its reason."""
        host, full, planned = losses
        evidence = compare_losses(host, full, GATE_ALPHA)
        gain, error = format_number(evidence.mean, signed=True), format_number(evidence.standard_error)
        smallest = min(seed.parameter_count for seed in self.seeds.values())
        if steps < FEWEST_STEPS:
            needs = f"It needs about {format_seconds(self.request.clock.used * FEWEST_STEPS / steps)}."
            if steps == wanted:
                needs = f"Pass steps={FEWEST_STEPS} at least."
            return "undecided", f"Undecided: training for {plural(steps, 'step')} is too short. {needs}"
        if evidence.lower <= 0.0:
            return "nothing pays", f"Nothing pays: adapters at all places bring {gain} ± {error} nats together."
        if self.request.limit is not None and smallest > self.request.limit:
            sizes = (
                f"the smallest adapter has {plural(smallest, 'parameter')}, and the plan may have {self.request.limit}"
            )
            return "nothing pays", f"Nothing pays: {sizes}. All places bring {gain} ± {error} nats together."
        if not chosen:
            price = format_number(self.prices.price(smallest, smallest, 0, float(host.mean())))
            together = f"adapters at all places bring {gain} ± {error} nats together"
            but = f"no single one is shown to bring more than its price, {price} nats at least (price=… sets another)"
            return "nothing pays", f"Nothing pays: {together}, but {but}."
        share = 100 * float((host.mean() - planned.mean()) / evidence.mean)
        size = sum(place.parameters for place in chosen)
        return "pays", (
            f"{plural(len(chosen), 'adapter')} with {size:,} parameters: of the {gain} ± {error} nats that all places "
            f"bring, these bring {share:.0f} % without being trained for themselves."
        )

    def _peft(self) -> dict[str, Any] | None:
        """Return the settings of PEFT's LoRA that all places have in common; None if they are no LoRA."""
        blocks = [seed.block for seed in self.seeds.values()]
        lora = blocks[0]
        if not isinstance(lora, Lora):
            return None
        dropout = 0.0 if lora.dropout is None else lora.dropout.p
        settings = {"r": lora.rank, "lora_alpha": lora.alpha, "use_rslora": lora.rslora, "lora_dropout": dropout}
        return settings | ({"use_dora": True} if isinstance(lora, Dora) else {})

    def _remarks(self, steps: int, wanted: int) -> Iterator[str]:
        if FEWEST_STEPS <= steps < min(wanted, STEPS // 2):
            yield f"The budget was enough for {plural(steps, 'step')}; more of them order places better."
        if self.interrupted:
            yield "The budget was over before all places were looked at again; more of them may pay."
        if self.refused:
            yield f"Left out: {'; '.join(problem.message for problem in self.refused)}."
        yield (
            "Gains of single places are first-order estimates after one joint training: they rank what to place, and "
            "can be larger than true gains."
        )


def _refuse_not_finite(losses: Mapping[str, Tensor]) -> None:
    """Raise GrowthError (E352) if validation losses after a training are not finite."""
    for training, examples in losses.items():
        if wrong := int((~examples.isfinite()).sum()):
            message = f"{wrong} of {len(examples)} losses of the validation data are not finite"
            hint = "Lower the learning rate, set clip_norm, or check the loss: a mean over no labels is nan."
            raise GrowthError(Problem("E352", f"{message} after training {training}", hint=hint))


def _half_life(steps: int) -> float:
    """Return the half-life of averages: short where there are few steps, after which the weights still move."""
    return min(GrowthConfig().average, steps / 8)


def _mean_and_error(gains: Tensor) -> tuple[float, float]:
    return float(gains.mean()), float(gains.std()) / math.sqrt(len(gains))
