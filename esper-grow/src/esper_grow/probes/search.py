"""probe: which blueprint would help a model, where, by how much, and at what price.

    print(esper_grow.probe(model, per_example, train, validation, budget="60s"))

A copy of the model is trained until its validation curve is flat. From this one state each candidate, a blueprint in a
slot, is trained with the host on the same batches and with the same random numbers as the host without it; the
difference of their validation losses is the candidate's gain. All candidates get short trials, the best third of them
longer ones, and the best of those the longest. The model itself is only copied.
"""

from __future__ import annotations

import math
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Any, Final, TypedDict, Unpack

import torch

from esper_core.growth import Host, RandomStream, SeedFault
from esper_core.leyline.constants import MIN_EXAMPLES_FOR_EVIDENCE
from esper_core.leyline.errors import GrowthError, Problem, plural
from esper_core.settings import GrowthConfig
from esper_grow.gardener.checks import refuse_unknown_options
from esper_grow.gardener.traces import without_trace
from esper_grow.gardener.validation import Validation, counted_example
from esper_grow.probes.budget import (
    LEVELS,
    SHARE_KEPT,
    BudgetClock,
    OutOfTimeError,
    seconds_of,
    seconds_of_trials,
    sizes_of_levels,
    steps_of_levels,
)
from esper_grow.probes.candidates import ProbeCandidate, best_of, find_candidates, rows_of
from esper_grow.probes.data import TrainingBatches
from esper_grow.probes.host import HostCurve, interval_of
from esper_grow.probes.places import attach_slots, slot_sites
from esper_grow.probes.results import ProbeFailure, ProbeResult, ProbeRow, verdict_on
from esper_grow.probes.trainings import guarded, new_training
from esper_run.app.descriptions import SlotDescriptions
from esper_run.config import section_of
from esper_run.formats import format_number, format_seconds, plain

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
    from datetime import timedelta

    from torch import Tensor, nn

    from esper_core.growth import Prices
    from esper_core.leyline import SlotPlace
    from esper_grow.gardener.choices import Blueprints
    from esper_grow.probes.trainings import Training

STEPS: Final = 450
"""Training steps of the longest trials."""

HOST_SHARE: Final = 0.7
"""Share of the budget that the host may use until its curve is flat."""

HOPELESS_SHARE: Final = 0.4
"""Share of the budget after which it is not trained further if it will not be flat in time, so that trials fit in."""

HARM: Final = 0.05
"""Share of its loss by which a host gets worse in training before that is reported."""

LONGER: Final = 1.25
"""Factor by which another budget is longer at least, where the time was planned too short."""

TIMED_STEPS: Final = 4
"""Steps of each candidate by which its speed is measured."""

RESERVE: Final = 1.15
"""Factor on the time that trials are expected to take."""


CUT_OFF: Final = "The budget was over before all of the longest trials: those without a verdict may pay more."


class ProbeOptions(TypedDict, total=False):
    """Further options of ``probe``.

    Attributes:
        clip_norm: The norm to which gradients are clipped; None: they are not.
        steps: Training steps of the longest trials; fewer if the budget is short. Default: 450.
        price: Gain in nats that each parameter has to bring; None: relative, as the price of gates (``growth.price``).
        seed: RNG seed of the probe. Default: 0.
        on_progress: Called with a line of text for each part of the probe.
    """

    clip_norm: float | None
    steps: int
    price: float | None
    seed: int
    on_progress: Callable[[str], object] | None


def probe(
    model: nn.Module,
    loss: Callable[[nn.Module, Any], Tensor],
    train: Iterable[Any],
    validation: Iterable[Any],
    *,
    slots: str | Sequence[str] | Mapping[str, str | SlotPlace] = "auto",
    blueprints: Blueprints | Mapping[str, Blueprints] = "auto",
    budget: str | float | timedelta = "60s",
    optimizer: torch.optim.Optimizer | Callable[[list[nn.Parameter]], torch.optim.Optimizer] | None = None,
    **options: Unpack[ProbeOptions],
) -> ProbeResult:
    """Try which blueprints would help a model, where, by how much, and at what price. The model is not changed.

    Args:
        model: Trained or not: a copy is trained until its validation loss hardly falls any more.
        loss: ``loss(model, batch)`` runs the model on a batch and returns one loss for each example, or the mean that
            torch computes of them. Another single loss for the whole batch counts as one example.
        train: Batches for training, iterated repeatedly.
        validation: Held-out batches, with 100 examples at least.
        slots: Where to try, as ``esper_core.graft`` takes it; "auto": up to four places, spread over the model.
        blueprints: What to try: names, globs or varieties, a mapping from slots to them, or "auto" for all that fit.
        budget: How long it may take: "60s", "5min", or a number of seconds.
        optimizer: A function that builds an optimizer from parameters, or the optimizer of the model, of which a copy
            is used. Default: Adam at a rate of 1e-3.
        options: ``clip_norm``, ``steps``, ``price``, ``seed`` and ``on_progress``, as ``ProbeOptions`` describes them.

    Raises:
        GraftError: The model cannot have these slots.
        GrowthError: Model, loss, optimizer or data cannot be used.
        ConfigError: The budget is not a duration, or there is no such blueprint.
        TypeError: There is no such option.
    """
    refuse_unknown_options(probe, options, ProbeOptions)
    clock, settings = BudgetClock(seconds_of(budget)), ProbeSettings.of(options)
    chosen_optimizer = partial(torch.optim.Adam, lr=1e-3) if optimizer is None else optimizer
    with torch.inference_mode(mode=False), torch.enable_grad():
        clip_norm = options.get("clip_norm")
        training = new_training(model, chosen_optimizer, guarded(loss), clip_norm, settings.seed, clock.now)
        with prepared(training, train, validation, slots, blueprints, settings, clock) as search:
            return search.run()


@dataclass(frozen=True, slots=True)
class ProbeSettings:
    """What a search goes by. Attributes: as in ``ProbeOptions``."""

    steps: int
    growth: GrowthConfig
    seed: int
    on_progress: Callable[[str], object] | None

    @classmethod
    def of(cls, options: ProbeOptions) -> ProbeSettings:
        """Return the settings that options of ``probe`` name; ConfigError if the price is not valid."""
        price = options.get("price")
        growth = section_of(GrowthConfig, {} if price is None else {"price": price}, "probe")
        return cls(options.get("steps", STEPS), growth, options.get("seed", 0), options.get("on_progress"))


@contextmanager
def prepared(
    training: Training,
    train: Iterable[Any],
    validation: Iterable[Any],
    slots: Any,
    blueprints: Any,
    settings: ProbeSettings,
    clock: BudgetClock,
) -> Iterator[Search]:
    """Give the ``with`` block a probe's search; restore what it changes in the process. Arguments: as of ``probe``."""
    batches = TrainingBatches(train, settings.seed, Host(training.model).device)
    with without_trace(training.model), batches.generators.kept():
        with torch.no_grad():
            example, by_example, losses = counted_example(training.model, batches.first(), training.loss)
        attach_slots(training.model, slots, example)
        candidates = find_candidates(training.model, blueprints)
        flops = SlotDescriptions(training.model, {}, {}, example).host_flops
        prices = Host(training.model).prices(settings.growth, flops)
        held_out = Validation(validation, by_example, settings.seed)
        reduced = len(losses) == 1 < example.size
        yield Search(training, batches, held_out, candidates, prices, settings, clock, len(losses), reduced)


@dataclass(slots=True)
class Search:
    """One probe at work: trains the host, then the candidates, level by level."""

    training: Training
    batches: TrainingBatches
    validation: Validation
    candidates: list[ProbeCandidate]
    prices: Prices
    settings: ProbeSettings
    clock: BudgetClock
    batch: int
    """The number of losses of a batch."""
    reduced: bool
    """Whether the loss function returns one loss for a whole batch, which counts as one example."""
    curve: HostCurve = field(default_factory=HostCurve, init=False)
    host: list[Tensor] = field(default_factory=list, init=False)
    """The validation losses of the host continued without a seed, at each level."""
    host_seconds: float = field(default=0.0, init=False)
    evaluation_seconds: float = field(default=0.0, init=False)
    training_seconds: float = field(default=0.0, init=False)
    """What the host's steps took together, with the loading of their batches."""
    examples: int = field(default=0, init=False)
    lengths: tuple[int, ...] = field(default=(), init=False)

    def run(self) -> ProbeResult:
        """Return the result."""
        try:
            self._train_host()
        except OutOfTimeError:
            return self._undecided_host()
        host = self.clock.used
        try:
            self._time_candidates()
            if self._plan():
                self._run_trials()
                rows = self._rows()
                return self._result(*verdict_on(rows), rows)
            self._rank()
        except OutOfTimeError:
            rows = self._rows([LEVELS - 2])  # those that reached the longest trials, and had none
            if any(row.pays for row in rows):
                verdict, reason = verdict_on(rows)
                more = f" {CUT_OFF}" if any(row.pays is None for row in rows) else ""
                return self._result(verdict, reason + more, rows)
        reason = f"Undecided: the host is trained, and {plural(len(self.candidates), 'candidate')} need longer trials."
        return self._result("undecided", reason, needs=max(self._seconds_needed(host), LONGER * self.clock.budget))

    def _train_host(self) -> None:
        """Train the host until its curve is flat; OutOfTimeError if its share of the budget is over."""
        stream, step, interval = self.batches.stream("host"), 0, 0
        trainable = any(parameter.requires_grad for parameter in self.training.model.parameters())
        while True:
            began = self.clock.now()
            losses = self.training.evaluate(self.validation, again=step > 0)
            duration = self.clock.now() - began
            # The first evaluation is slow, since memory is allocated.
            self.evaluation_seconds = min(self.evaluation_seconds or duration, duration)
            if not step:
                self._check_examples(losses)
                interval = interval_of(self.examples, self.batch)
            self._check_host(float(losses.mean()), step)
            if self.curve.is_flat or not trainable:
                break
            trained, began = self.training_seconds, self.clock.now()
            for _ in range(interval):
                self.training.step(next(stream))
                step += 1
                self.training_seconds = trained + self.clock.now() - began
                if len(self.training.seconds) > 1 and self._is_hopeless(step, interval):
                    raise OutOfTimeError
        self.host_seconds = self.training.seconds_of_step

    def _check_examples(self, losses: Tensor) -> None:
        self.examples = len(losses)
        if self.examples < MIN_EXAMPLES_FOR_EVIDENCE:
            counted = f"losses of {self.examples} batches" if self.reduced else plural(self.examples, "example")
            message = f"the validation data has {counted}, too few to judge by"
            hint = f"Hold out {MIN_EXAMPLES_FOR_EVIDENCE} at least; with 1,000 smaller gains can be shown."
            if self.reduced:
                hint = f'Return one loss for each example, with reduction="none", or smaller batches. {hint}'
            raise GrowthError(Problem("E353", message, hint=hint))

    def _check_host(self, loss: float, step: int) -> None:
        self.curve.add(step, loss)
        self._tell(f"host: {plural(step, 'step')}, validation loss {format_number(loss)}")
        if not math.isfinite(loss):
            message = f"the validation loss of the model is {loss} after {plural(step, 'step')} of training"
            hint = "Check the loss function, or pass an optimizer with a smaller learning rate."
            raise GrowthError(Problem("E352", message, hint=hint))

    def _is_hopeless(self, step: int, interval: int) -> bool:
        """Return whether the host's share of the budget is over, or will be before its curve is flat."""
        used, budget = self.clock.used, self.clock.budget
        if used <= HOPELESS_SHARE * budget:
            return False
        return used + self._seconds_of_host(self.curve.fewest_steps(interval), step, interval) > HOST_SHARE * budget

    def _seconds_of_host(self, steps: int, step: int, interval: int) -> float:
        """Return how long the host takes from ``step`` until ``steps`` after its latest evaluation, with others."""
        steps = max(0, self.curve.points[-1][0] + steps - step)
        return steps * self.training_seconds / max(step, 1) + math.ceil(steps / interval) * self.evaluation_seconds

    def _undecided_host(self) -> ProbeResult:
        """Rank the candidates beside a host that learns still, and say how long a decision needs."""
        step, interval = len(self.training.seconds), interval_of(self.examples, self.batch)
        host = self.clock.used + self._seconds_of_host(self.curve.steps_needed(interval), step, interval)
        self.host_seconds = self.training.seconds_of_step
        with suppress(OutOfTimeError):
            self._rank()
        needs = max(self._seconds_needed(host), LONGER * self.clock.budget)
        reason = f"Undecided: the host still improves after {plural(step, 'step')}."
        return self._result("undecided", reason, needs=needs)

    def _seconds_needed(self, host: float) -> float:
        """Return about how long a probe takes that decides, if the host is trained after ``host`` seconds."""
        # A step by itself is the shortest of ten; data and other programs take their time beside it.
        alone = self.host_seconds * len(self.training.seconds)
        pace = max(self.training_seconds / alone, 1.0) if alone else 1.0
        trials = pace * self._seconds_of_trials(self.settings.steps // SHARE_KEPT)
        timed = TIMED_STEPS * sum(self._step_seconds())
        return max(host / HOST_SHARE, host + timed + RESERVE * trials)

    def _time_candidates(self) -> None:
        """Measure how long a step of each candidate takes."""
        batch = self.batches.first()
        for candidate in self.candidates:
            if (trial := self._planted(candidate, batch)) is None:
                continue
            for _ in range(TIMED_STEPS):
                self._without_fault(candidate, partial(trial.step, batch))
                self.clock.check()
            # The first step allocates memory, and one that another process held up says nothing of the others.
            candidate.seconds = median(trial.seconds[1:] or [0.0])
            trial.release()

    def _step_seconds(self) -> list[float]:
        # One that was not measured is assumed to take twice as long as the host.
        return [candidate.seconds or 2.0 * self.host_seconds for candidate in self._trying()]

    def _seconds_of_trials(self, steps: int) -> float:
        return seconds_of_trials(steps, self.host_seconds, self._step_seconds() or [0.0], self.evaluation_seconds)

    def _plan(self) -> bool:
        """Set how long the trials are; return whether that is long enough."""
        expected = RESERVE * self._seconds_of_trials(self.settings.steps)
        share = min(1.0, self.clock.left / expected) if expected else 1.0
        affordable = int(self.settings.steps * share)
        if affordable < self.settings.steps // SHARE_KEPT:
            return False
        self.lengths = steps_of_levels(affordable)
        return True

    def _rank(self) -> None:
        """Give each candidate one trial, as long as the rest of the budget allows, on a part of the validation data.

        What the trials show is no decision: it ranks the candidates, and measures how long their steps take.
        """
        left, number = max(self.clock.left, 0.0), len(self._trying())
        share = left / 3.0 / ((number + 1) * self.evaluation_seconds) if self.evaluation_seconds else 1.0
        share = min(max(share, MIN_EXAMPLES_FOR_EVIDENCE / self.examples), 1.0)
        seconds_of_steps = self.host_seconds + sum(self._step_seconds())
        length = int(left / 2.0 / seconds_of_steps) if seconds_of_steps else 1
        self.lengths = (min(max(length, 1), steps_of_levels(self.settings.steps)[0]),)
        self.validation = self.validation.beginning(math.ceil(share * self.validation.batches))
        self._continue_host()
        self.examples = len(self.host[0])
        for candidate in self._trying():
            self._try(candidate, 0)

    def _run_trials(self) -> None:
        """Try all candidates, then the best of them longer, and the best of these for all steps."""
        self._continue_host()
        for level, size in enumerate(sizes_of_levels(len(self._trying()))):
            chosen = best_of(self._trying(), self.host, size, level)
            for number, candidate in enumerate(chosen, 1):
                self._try(candidate, level)
                self._tell(f"trials of {plural(self.lengths[level], 'step')}: {number} of {len(chosen)}")

    def _continue_host(self) -> None:
        """Train a copy of the host for as many steps as the longest trials, and evaluate it at each level."""
        control, stream, done = self._copy(), self.batches.stream("trial"), 0
        for length in self.lengths:
            for _ in range(length - done):
                control.step(next(stream))
                self.clock.check()
            done = length
            self.host.append(control.evaluate(self.validation))
        self.host_seconds = control.seconds_of_step
        control.release()

    def _try(self, candidate: ProbeCandidate, level: int) -> None:
        """Train host and candidate for the steps of a level, from the state of the trained host."""
        stream = self.batches.stream("trial")
        trial = self._planted(candidate, self.batches.first())
        if trial is None:
            return

        def train() -> None:
            for _ in range(self.lengths[level]):
                trial.step(next(stream))
                self.clock.check()
            losses = trial.evaluate(self.validation)
            if not losses.isfinite().all():
                candidate.failure = f"reached a loss that is not finite in {plural(self.lengths[level], 'step')}"
            candidate.losses.append(losses)
            candidate.seconds = trial.seconds_of_step

        self._without_fault(candidate, train)
        trial.release()

    def _copy(self) -> Training:
        """Return a copy of the trained host, judged by averages of its weights: short ones in short trials."""
        half_life = min(self.settings.growth.average, self.lengths[0] / 4 if self.lengths else 0.0)
        return self.training.copy(RandomStream.derive_seed(self.settings.seed, "trial"), half_life)

    def _planted(self, candidate: ProbeCandidate, batch: Any) -> Training | None:
        """Return a copy of the trained host with the candidate in its slot; None if that fails."""
        trial = self._copy()

        def plant() -> None:
            candidate.parameters = trial.plant(candidate.slot, candidate.variety, self.settings.seed, batch)
            size = (candidate.flops or 0) if self.prices.counts_operations else candidate.parameters
            candidate.price = self.prices.price(candidate.parameters, size, 0, self.curve.points[-1][1])

        self._without_fault(candidate, plant)
        return None if candidate.failure else trial

    def _without_fault(self, candidate: ProbeCandidate, act: Callable[[], object]) -> None:
        """Call ``act`` unless the candidate has failed; a fault of its seed takes it out."""
        if candidate.failure:
            return
        try:
            act()
        except SeedFault as fault:
            candidate.failure = fault.what

    def _trying(self) -> list[ProbeCandidate]:
        return [candidate for candidate in self.candidates if not candidate.failure]

    def _rows(self, undecided: Collection[int] = ()) -> tuple[ProbeRow, ...]:
        return rows_of(self.candidates, self.host, self.lengths, self.host_seconds, undecided)

    def _result(
        self, verdict: Any, reason: str, rows: tuple[ProbeRow, ...] | None = None, needs: float | None = None
    ) -> ProbeResult:
        model, (step, loss) = self.training.model, self.curve.points[-1]
        if needs is not None:
            budget = format_seconds(self.clock.budget)
            reason = plain(f"{reason} It needs about {format_seconds(needs)}; the budget was {budget}.")
        failed = [
            ProbeFailure(candidate.slot, candidate.variety.id, candidate.failure)
            for candidate in self.candidates
            if candidate.failure
        ]
        return ProbeResult(
            verdict=verdict,
            reason=reason,
            rows=self._rows(range(LEVELS)) if rows is None else rows,
            failed=tuple(failed),
            slots=dict(slot_sites(model)),
            model=type(model).__name__,
            parameters=sum(parameter.numel() for parameter in model.parameters()),
            host_steps=step,
            host_loss=loss,
            curve=tuple(self.curve.points),
            examples=self.examples,
            budget=self.clock.budget,
            seconds=self.clock.used,
            needs=needs,
            remarks=tuple(self._remarks()),
        )

    def _remarks(self) -> Iterator[str]:
        """Return what a reader of the result should know beside the verdict."""
        (_, first), (_, last) = self.curve.points[0], self.curve.points[-1]
        if self.reduced:
            yield (
                f"The loss function returns one loss for a batch, so each of {self.examples} validation batches counts "
                "as one example, and bounds are wider."
            )
        if last > first + HARM * abs(first):
            yield (
                "Training raised the validation loss of the host from "
                f"{format_number(first)} to {format_number(last)}: pass the optimizer with which it was trained."
            )
        steps = self.settings.steps
        if len(self.lengths) == 1 and self.host:
            yield (
                f"The gains are those of {plural(self.lengths[0], 'step')} on {self.examples:,} validation examples: "
                "they rank what to try first, and longer trials may show another order."
            )
        elif self.lengths and self.lengths[-1] < steps_of_levels(steps)[-1]:
            yield f"To fit in the budget the longest trials had {self.lengths[-1]} steps rather than {steps}."

    def _tell(self, text: str) -> None:
        if self.settings.on_progress is not None:
            self.settings.on_progress(text)
