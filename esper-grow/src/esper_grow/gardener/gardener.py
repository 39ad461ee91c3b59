"""Gardener: grow a model in a training loop of your own.

    gardener = Gardener(model, optimizer, loss=per_example, slots=["stem"], example=batch, validation=batches)
    for epoch in range(40):
        for batch in loader:
            optimizer.zero_grad(); per_example(model, batch).mean().backward(); optimizer.step()
            gardener.step(batch)
        print(gardener.tend())
    gardener.close()

The loop trains the host. ``step`` trains the seeds, each on a branch: a copy of the host's tensors on which host and
seed train together. ``tend`` measures their gains, asks the policy, and carries out its action. Until a seed is kept
the host is bit for bit that of a loop without a Gardener.
"""

from __future__ import annotations

import logging
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, TypedDict, Unpack

import torch
from torch import nn
from torch.amp import GradScaler

from esper_core.growth import Example, Host, graft as graft, state_mismatch, ungraft as ungraft
from esper_core.leyline.errors import GrowthError, Problem
from esper_core.leyline.lifecycle import ActionSpace, Stage
from esper_core.leyline.protocols import Resumable, State
from esper_core.leyline.signals import Observation
from esper_core.leyline.specs import Operations
from esper_core.plugins import load_plugins
from esper_core.settings import GovernorConfig, GrowthConfig
from esper_core.telemetry import Bus
from esper_core.trainer import GrowingNetwork, NetworkSettings, Phases, Stepper
from esper_grow.gardener.borrowed_optimizers import BorrowedOptimizers, add_seed_group, optimizers_of
from esper_grow.gardener.checks import (
    ModelForm,
    refuse_arguments,
    refuse_grown_state,
    refuse_lost_slots,
    refuse_no_settings,
    refuse_unknown_options,
    warn_of_attributes,
    warn_of_full_slots,
)
from esper_grow.gardener.choices import blueprints_of, policy_of
from esper_grow.gardener.loop_environment import BatchFeed, LoopEnvironment, warn_at_exit
from esper_grow.gardener.loop_record import LoopRecord, plain_settings
from esper_grow.gardener.prospects import Prospects
from esper_grow.gardener.reports import Recorder, Tended
from esper_grow.gardener.seed_sets import seed_set_of
from esper_grow.gardener.stale_copies import StaleCopies
from esper_grow.gardener.traces import HostAutocast, without_trace
from esper_grow.gardener.validation import METRIC, Validation, checked_example, each_loss, example_of, noted
from esper_grow.peft_growth import forget_growth, keep_growth_with_adapters
from esper_run.app.descriptions import SlotDescriptions
from esper_run.app.dispatch import health_check
from esper_run.config import section_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path
    from types import TracebackType

    from torch import Tensor

    from esper_core.growth import Transition, Variety
    from esper_core.leyline import Action, Policy, Signals, SlotPlace
    from esper_core.plugins import Plugins
    from esper_grow.gardener.choices import Blueprints
    from esper_grow.gardener.seed_sets import SetLook
    from esper_grow.gardener.validation import Loss

STATE_FORMAT: Final = 8
"""Version of what ``state_dict`` returns."""

_MOVING: Final = {Stage.GERMINATED: "germinated", Stage.FOSSILISED: "kept", Stage.PRUNED: "pruned"}
"""The stages with which the parameters of the model change."""

log = logging.getLogger("esper")


class LoopOptions(TypedDict, total=False):
    """Further options of a ``Gardener``.

    Attributes:
        growth: Settings of ``growth`` in a configuration. Incubation is always by branch.
        governor: Settings of ``governor`` in a configuration; "off": the model is neither judged nor restored.
        example: One batch as the loop trains on; None: the first of ``validation``.
        seed: RNG seed of the Gardener. Default: 0.
        clip_norm: The norm to which the loop clips gradients, so that branches are clipped alike; None: it does not.
        seed_lr: Learning rate of what grows. It then gets a group of its own in the first optimizer, at once, so build
            a schedule after the Gardener. None: seeds join the groups of similar parameters.
        seed_decay: Weight decay of that group; None: the optimizer's default.
        together: The first blueprint of each slot germinates with the first batch, as a set on one branch: True, or how
            many in each slot, which needs a stack of so many. ``seed_sets`` says when members are pruned, and the
            others kept. Default: False.
        leave_out: How much it may take to leave out the members of the set, one at a time, as a share of the training
            so far. Default: 0.5.
        run_dir: A folder in which a run directory is made, for the report and the live view; None: nothing is written.
        name: Part of the name of the run directory.
    """

    growth: GrowthConfig | Mapping[str, Any] | None
    governor: GovernorConfig | Mapping[str, Any] | Literal["off", False] | None
    example: Any
    seed: int
    clip_norm: float | None
    seed_lr: float | None
    seed_decay: float | None
    together: bool | int
    leave_out: float
    run_dir: Path | str | None
    name: str | None


class Gardener:
    """Grows a model in a loop of the user's own.

    Args:
        model: The host. It is grafted in place, or has slots already and ``slots`` is None.
        optimizer: The loop's optimizer, several of them, or a function that builds one from parameters. Kept seeds join
            its groups.
        loss: ``loss(model, batch)`` runs the model on a batch and returns one loss for each example, or the mean that
            torch computes of them. Another single loss for the whole batch counts as one example.
        slots: Where something may grow, as ``esper_core.graft`` takes it.
        blueprints: What may grow: names, globs or varieties, a mapping from slots to them, or "auto" for all that fit.
        validation: Held-out batches, iterated in each ``tend``.
        steps: Number of calls of ``tend`` that the policy plans for. Later nothing germinates; living seeds finish.
        policy: The name of a policy, or an object with its methods.
        options: ``growth``, ``governor``, ``example``, ``seed``, ``clip_norm``, ``seed_lr``, ``seed_decay``,
            ``together``, ``leave_out``, ``run_dir`` and ``name``, as ``LoopOptions`` describes them.

    Raises:
        GraftError: The model cannot have these slots.
        GrowthError: Model, optimizer, loss, policy or validation data cannot be used, or no blueprint fits.
        ConfigError: There is no such blueprint or policy.
        TypeError: There is no such option.
    """

    best_loss: float
    """``best_loss`` of the latest ``tend``; before the first one, the model's validation loss at the start."""

    final_losses: tuple[float, float] | None = None
    """Validation losses after ``close``: with the average of the weights, which the model has if ``growth`` says
    ``final_weights: average``, and with those of the last batch."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer
        | Sequence[torch.optim.Optimizer]
        | Callable[[list[nn.Parameter]], torch.optim.Optimizer],
        *,
        loss: Callable[[nn.Module, Any], Tensor],
        slots: Sequence[str] | Mapping[str, str | SlotPlace] | None = None,
        blueprints: Blueprints | Mapping[str, Blueprints] = "auto",
        validation: Iterable[Any],
        steps: int = 40,
        policy: str | Policy = "heuristic",
        **options: Unpack[LoopOptions],
    ) -> None:
        refuse_unknown_options(Gardener, options, LoopOptions)
        clip_norm, seed = options.get("clip_norm"), options.get("seed", 0)
        refuse_arguments(model, steps, clip_norm)
        self.model, self.steps, self._loss, host = model, steps, loss, Host(model)
        trained = [member for member in host.parameters().values() if member.requires_grad]
        self._optimizers = optimizers_of(optimizer, trained)
        growth, governor = _growth_settings(options.get("growth")), _governor_settings(options.get("governor"))
        plugins = load_plugins()
        with ExitStack() as undo:
            if not host.is_grafted:
                undo.callback(_ungraft, model)
            example = example_of(validation) if (chosen := options.get("example")) is None else chosen
            batch, losses = _attach_slots(model, slots, example, loss)
            varieties = blueprints_of(blueprints, host, plugins)
            space = _action_space(model, varieties, batch)
            self._arm = policy_of(policy, space, plugins, steps)
            keep_growth_with_adapters(model)
            self._closing = undo.enter_context(ExitStack())
            self._autocast, self._feed = HostAutocast(model), BatchFeed()
            self._closing.callback(self._autocast.close)
            group = add_seed_group(self._optimizers[0], options.get("seed_lr"), options.get("seed_decay"), undo)
            self._keeper = BorrowedOptimizers(model, self._optimizers, clip_norm, group)
            flops = _operations_of(space, model, growth)
            rules = NetworkSettings(varieties, steps, growth=growth, governor=governor, metric=METRIC, operations=flops)
            data = Validation(validation, losses, seed, growth.gates)
            network = GrowingNetwork(model, self._keeper, rules, seed=seed, probe=self._probe)
            self._environment = LoopEnvironment(network, data, self._autocast, self._arm.name, seed, steps, example)
            self._phases = Phases([self._environment], 1, network.lost.faults)
            self._form, self._closed = ModelForm(model, self._optimizers, varieties), False
            self._stale = StaleCopies(model, self._form)
            for borrowed in self._optimizers:
                self._closing.callback(borrowed.register_step_pre_hook(self._keeper.remember_step).remove)
                self._closing.callback(borrowed.register_step_pre_hook(self._environment.compare_weights).remove)
                self._closing.callback(borrowed.register_step_post_hook(self._feed.count).remove)
                self._closing.callback(borrowed.register_load_state_dict_pre_hook(refuse_grown_state).remove)
            with without_trace(model):
                self._phases.begin()
            self._environment.seed_set = seed_set_of(options, network, data, self._autocast, varieties, growth)
            self._recorder, self._prospects = Recorder(), Prospects(host, varieties, growth, self._arm, steps)
            self._prospects.warn_at_start(network.evaluation.losses, self._environment.seed_set)
            self.best_loss = float(network.evaluation.losses.mean())
            self._record = self._new_record(options, space, growth, governor, plugins)
            self._stepper = self._new_stepper(plugins)
            undo.pop_all()
        warn_at_exit(self, lambda gardener: not gardener._closed)

    @property
    def arm(self) -> str:
        """The name of the policy, under which events and reports show the model."""
        return self._arm.name

    @property
    def together(self) -> str | None:
        """What grows together, at which price, and which gains of it can be shown; None if nothing does."""
        return None if self._environment.seed_set is None else self._environment.seed_set.prospect

    @property
    def steps_since_tend(self) -> int:
        """How many steps of the optimizer ``step`` has seen since the last ``tend``."""
        return self._feed.used

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """The optimizer of the loop, or the first of several; the one that was built, if a function was given."""
        return self._optimizers[0]

    def step(self, batch: Any) -> None:
        """Train the seeds on the batch that the loop has just trained the host on; call it after the optimizer's step.

        Batches between two steps of the optimizer are the micro-batches of one step, with equal weights.
        """
        self._refuse_closed()
        self._environment.last_batch, self._environment.resumed_loss = batch, None
        batches = self._feed.add(batch)
        network, seed_set = self._environment.network, self._environment.seed_set
        if batches and seed_set is not None:
            if not seed_set.germinated:
                with without_trace(self.model):
                    self._report(seed_set.germinate(self._environment.steps))
            seed_set.count(batches)
        if batches and (network.garden.incubating or network.averages.is_final):
            self._form.refuse_other(branched=bool(network.garden.incubating))
            equal = 1 if getattr(batches[0], "adds_up", False) else len(batches)  # a Trainer's are parts of the mean
            parts = [partial(self._mean_loss, micro_batch, equal) for micro_batch in batches]
            is_compared = network.garden.incubating.keys() <= self._environment.compared
            with without_trace(self.model, self._optimizers):
                (network if is_compared else self._environment).incubate(parts)
        if batches:
            self._keeper.stepped.clear()

    def tend(self) -> Tended:
        """Measure the seeds, ask the policy, and carry out its action: call it once an epoch, or every n batches.

        Raises:
            GrowthError: Nothing was trained since the last call (E345), or the validation data cannot be used (E344).
            GovernorStop: The model went wrong again, and was restored to its last healthy state if there is one.
        """
        self._refuse_closed()
        self._feed.refuse_untrained()
        refuse_lost_slots(self.model, self._environment.network.garden.slots.values())
        self._form.refuse_other(branched=bool(self._environment.network.garden.incubating), thorough=True)
        with without_trace(self.model):
            result = self._environment.advance(self._stepper.advance)
            if self._autocast.dtype is torch.float16 and self._keeper.scaler is None:
                self._keeper.scaler = GradScaler(Host(self.model).device.type)  # of the branches that begin now
            look = self._tend_set(result.step)
            action = self._decide(result.step, result.signals[0], rolled_back=bool(result.rolled))
            self._stepper.act(result, [action])
        self._feed.end_interval()
        concluded = "" if any(slot.seeds for slot in result.signals[0].slots) else "".join(self._arm.conclusions())
        tended = self._recorder.take(result.step, self.steps, result.signals[0], look, concluded)
        self._environment.end_tend()
        self._prospects.warn_again(tended.signals)
        self.best_loss = tended.best_loss
        changes = tended.moved
        moved = [f"{change.blueprint} was {_MOVING[change.now]}" for change in changes if change.now in _MOVING]
        self._stale.check(moved, [change.blueprint for change in changes if change.now is Stage.FOSSILISED])
        return tended

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint; save the state of the optimizer beside it.

        It is plain data and tensors: the model with what grew in it, the branches, the gates, the governor, the policy.
        Call it after a step of the optimizer, or between ``tend`` and the next batch. After ``close`` it is the state
        without the seeds that were pruned.
        """
        policy = self._arm.policy
        parts = {
            "environment": self._environment.state_dict(),
            "faults": self._phases.faults.state_dict(),
            "policy": policy.state_dict() if isinstance(policy, Resumable) else State(),
        }
        state = State.of(parts, fed=self._feed.used, form=self._form.described(self._arm.name))
        return {"format": STATE_FORMAT, "plain": dict(state.plain), "tensors": dict(state.tensors)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state, in a Gardener that was just made with the same arguments.

        The state of the optimizer is loaded after this, because its groups hold what grew.

        Raises:
            GrowthError: The state does not fit (E334).
        """
        self._refuse_closed()
        if not {"format", "plain", "tensors"} <= state.keys() or state["format"] != STATE_FORMAT:
            why = "it was not returned by Gardener.state_dict of this version"
            raise state_mismatch(why)
        saved, here = State(state["plain"], state["tensors"]), self._form.described(self._arm.name)
        form = saved.plain.get("form", here)
        if other := [name for name in here | form if here.get(name) != form.get(name)]:
            why = "\n".join(f"{name} is {form.get(name)}, expected {here.get(name)}" for name in other[:3])
            raise state_mismatch(why)
        with without_trace(self.model):
            self._environment.load_state_dict(saved.part("environment"))
            self._phases.faults.load_state_dict(saved.part("faults"))
            if isinstance(self._arm.policy, Resumable):
                self._arm.policy.load_state_dict(saved.part("policy"))
        self._feed.begin_at(saved.plain["fed"])

    def close(self) -> None:
        """Keep a set whose gain is shown, prune other seeds, remove hooks, and write results. May be called twice."""
        self._end(None)

    def __enter__(self) -> Gardener:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end(error)

    @property
    def path(self) -> Path | None:
        """The run directory; None if there is none."""
        return None if self._record is None else self._record.path

    def _end(self, error: BaseException | None) -> None:
        """Close everything, once; ``error`` ended the loop."""
        if self._closed:
            return
        self._closed = True
        with self._closing, without_trace(self.model):
            kept, pruned = self._environment.end()
            Host(self.model).prune()  # no step follows in which a slot could rest
            self._environment.network.close()
            if error is None and self._environment.network.averages.is_final:
                self.final_losses = self._environment.end_averaged()
            if error is None:
                self._environment.warn_of_end(
                    self._feed.used, [f"{transition.blueprint} in {transition.slot}" for transition in pruned]
                )
            if self._record is not None:
                self._report(kept + pruned)
                concluded = "".join(self._arm.conclusions())
                self._record.finish(self._environment, self._stepper.clock.summary(), concluded, error)

    def _new_record(
        self, options: LoopOptions, space: ActionSpace, growth: GrowthConfig, governor: GovernorConfig, plugins: Plugins
    ) -> LoopRecord | None:
        """Return what writes the run directory; None if there is to be none."""
        if (run_dir := options.get("run_dir")) is None:
            return None
        settings = plain_settings(self, space, growth, governor, options.get("seed", 0))
        return LoopRecord(run_dir, options.get("name"), self.model, space, settings, plugins, self._closing)

    def _new_stepper(self, plugins: Plugins) -> Stepper:
        """Return the stepper, which trains the network and publishes events."""
        listeners = [listener for listener in (self._recorder, self._record) if listener is not None]
        packages = {component.id: component.source for component in plugins.registry.components("blueprint")}
        return Stepper(self._phases, None, health_check(plugins), bus=Bus(listeners), packages=packages)

    def _decide(self, step: int, signals: Signals, *, rolled_back: bool) -> Action:
        """Ask the policy. Past the planned steps it sees the last one again."""
        (mask,) = self._phases.masks()
        at = min(step, self.steps - 1)
        observation = Observation(at, self.steps, signals, rolled_back=rolled_back, batches=self._feed.used)
        (action,) = self._arm.act([observation], [mask.shut() if rolled_back else mask])
        return action

    def _tend_set(self, step: int) -> SetLook | None:
        """Prune and keep members of the set; return what was found of it."""
        if (seed_set := self._environment.seed_set) is None:
            return None
        self._report(seed_set.decide(step, last=step + 1 >= self.steps))
        return seed_set.look

    def _report(self, transitions: Sequence[Transition]) -> None:
        """Publish what changed without an action, after the steps so far."""
        step, number = self._environment.steps, self._environment.pool_index
        if transitions:
            self._environment.network.governor.record(transitions, step)
            self._stepper.report([(number, transition) for transition in transitions], step)

    def _mean_loss(self, batch: Any, parts: int, model: nn.Module) -> Tensor:
        """Return the share of one micro-batch in the mean loss of a step."""
        with self._autocast():
            return each_loss(self._loss(model, batch)).mean() / parts

    def _probe(self, model: nn.Module) -> Tensor:
        """Return the mean loss on the latest batch, from which blueprints with informed birth choose their weights."""
        return self._mean_loss(self._environment.last_batch, 1, model)

    def _refuse_closed(self) -> None:
        if self._closed:
            hint = "Make a new one; with slots=None it uses the slots that the model has."
            raise GrowthError(Problem("E346", "this Gardener is closed", hint=hint))


def _governor_settings(governor: GovernorConfig | Mapping[str, Any] | Literal["off", False] | None) -> GovernorConfig:
    if governor is False or governor == "off":
        return GovernorConfig(enabled=False)
    refuse_no_settings(governor, "governor")
    return governor if isinstance(governor, GovernorConfig) else section_of(GovernorConfig, governor or {}, "governor")


def _growth_settings(growth: GrowthConfig | Mapping[str, Any] | None) -> GrowthConfig:
    """Return the settings: branches, since a loop has no twin."""
    if isinstance(growth, GrowthConfig):
        growth = growth.model_dump(exclude_unset=True)
    refuse_no_settings(growth, "growth")
    settings = section_of(GrowthConfig, growth or {}, "growth")
    if "incubation" in settings.model_fields_set and settings.incubation != "branch":
        message = f"a Gardener incubates on branches. Received: incubation {settings.incubation}"
        hint = "A seed in the shadow is compared with a twin once it acts, and a loop of your own has none."
        raise GrowthError(Problem("E347", message, hint=hint))
    if settings.evidence == "metric":
        message = "a Gardener measures gains in the loss. Received: evidence metric"
        hint = "It knows no metric of a loop of your own. Leave evidence out."
        raise GrowthError(Problem("E347", message, hint=hint))
    return settings.model_copy(update={"incubation": "branch"})


def _ungraft(model: nn.Module) -> None:
    """Take the slots off again, if the model has any, because the Gardener could not be made."""
    forget_growth(model)
    if Host(model).is_grafted:
        ungraft(model)


def _action_space(model: nn.Module, varieties: Mapping[str, Sequence[Variety]], batch: Example) -> ActionSpace:
    """Return what a policy can choose from, with descriptions of the slots."""
    sites = {slot.name: slot.site for slot in Host(model).slots if slot.site is not None}
    names = {name: tuple(variety.id for variety in fitting) for name, fitting in varieties.items()}
    return ActionSpace(names, SlotDescriptions(model, sites, varieties, batch))


def _operations_of(space: ActionSpace, model: nn.Module, growth: GrowthConfig) -> Operations | None:
    """Return the operations of host and blueprints if prices follow them; log a warning if they are unknown (E125)."""
    if not Host(model).follows_operations(growth):
        return None
    places = space.descriptions.items()
    of_host = {place.host_flops for _, place in places}
    blocks = {(slot, candidate.blueprint): candidate.flops for slot, place in places for candidate in place.candidates}
    unknown = [f"{blueprint} in {slot}" for (slot, blueprint), flops in blocks.items() if flops is None]
    if unknown or not all(of_host):
        message = f"torch cannot count the operations of {', '.join(unknown) or 'the model'}: prices follow parameters"
        hint = 'To say so yourself:  growth={"price": {"of": "parameters"}}'
        log.warning("%s", Problem("E125", message, hint=hint))
        return None
    return Operations(of_host.pop() or 0, {block: flops or 0 for block, flops in blocks.items()})


def _attach_slots(model: nn.Module, slots: Any, example: Any, loss: Loss) -> tuple[Example, Loss]:
    """Graft the model, or look at the slots that it has; return the example, and the loss of each example."""
    with without_trace(model):
        batch, losses = checked_example(model, example, loss)
    rows = Example.of(example).size
    note = f"The loss function returned {batch.size} losses for an example of {rows} rows."
    with noted(lambda: note if batch.size != rows else ""):
        if slots is None and Host(model).is_grafted:
            Host(model).observe(batch)
            warn_of_full_slots(model)
        else:
            graft(model, slots if slots is not None else (), example=batch)
    warn_of_attributes(model, batch)
    return batch, losses
