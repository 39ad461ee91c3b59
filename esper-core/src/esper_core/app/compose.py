"""Composition: build task, host, slots, policies and rewards of a resolved configuration, and check that they fit.

``compose`` builds every piece and trains nothing: what a run would refuse is refused here, with its place in the file.
``Composition.study`` puts the pieces together with what belongs to one run, ready for ``trainer.loop.run_study``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast, get_args

import torch

from esper_core.app.resolution import TWIN, load_run_plugins, resolve
from esper_core.app.runtime import one_thread, tune_allocator
from esper_core.config import load_config, parse_path
from esper_core.config.model import CAPACITY
from esper_core.engines.worker_pool import WorkerPool
from esper_core.growth import (
    Draws,
    Growth,
    PlaceDescriptions,
    RandomStream,
    Variety,
    audition,
    count_operations,
    derive_seed,
    draws_of,
    draws_of_variety,
    graft,
    host_layers,
    slots_of,
)
from esper_core.leyline.actions import ActionSpace
from esper_core.leyline.constants import MIN_EXAMPLES_FOR_EVIDENCE, PROBE_EXAMPLES
from esper_core.leyline.errors import ConfigError, GraftError, PluginError, Problem
from esper_core.leyline.protocols import Split, SplitName
from esper_core.plugins.isolation import AttributedSchedule, AttributedTask, attributed_to, output_to_stderr
from esper_core.trainer.batches import sent
from esper_core.trainer.environment import Recipe
from esper_core.trainer.event_records import record_of
from esper_core.trainer.measurements import count_parameters
from esper_core.trainer.pool import Pool
from esper_core.trainer.study import Arm, RunReward, Study

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import nn

    from esper_core.app.components import ConfiguredComponent
    from esper_core.app.resolution import Resolution
    from esper_core.config import RunConfig
    from esper_core.config.values import KeyPath
    from esper_core.engines.selection import ChosenEngine
    from esper_core.engines.verdicts import Verdicts
    from esper_core.leyline.events import EpisodeFinished, HostLayer
    from esper_core.leyline.protocols import Policy, Reward, Schedule, Task
    from esper_core.leyline.signals import HealthSnapshot, Verdict
    from esper_core.leyline.specs import BlueprintSpec
    from esper_core.plugins import Component
    from esper_core.telemetry import Bus, Clock
    from esper_core.trainer.pool import StudyPool


@dataclass(frozen=True, slots=True)
class StudyContext:
    """What a study gets from the run that it is part of. See ``Study``.

    Attributes:
        engine: Computes the environments; None: threads of this process.
        verdicts: Seeds that ended or blocked a worker of this run before.
        on_wait: Called about once a second while workers compute.
    """

    bus: Bus
    clock: Clock
    check_health: Callable[[HealthSnapshot], Verdict]
    engine: ChosenEngine | None = None
    verdicts: Verdicts | None = None
    on_wait: Callable[[], None] = lambda: None


@dataclass(frozen=True, slots=True)
class Composition:
    """The pieces of a study, built and checked.

    Attributes:
        judges: The rewards of the run, in the order in which ``Arm.parts`` are named after them.
        layers: Those of the host, with the slots behind them.
        devices: Those that the configuration asks for; data and trial passes are on the first.
    """

    resolution: Resolution
    task: Task
    recipe: Recipe
    space: ActionSpace
    arms: tuple[Arm, ...]
    judges: tuple[RunReward, ...]
    host_parameters: int
    layers: tuple[HostLayer, ...]
    devices: tuple[torch.device, ...]

    @property
    def config(self) -> RunConfig:
        """The configuration as the file has it."""
        return self.resolution.config

    @property
    def acting(self) -> tuple[str, ...]:
        """Every arm that has a policy, once for each reward if there are several."""
        return tuple(name for arm in self.arms for name in arm.names)

    @property
    def arm_names(self) -> tuple[str, ...]:
        """Every arm that is trained side by side, the twin last."""
        return (*self.acting, TWIN) if self.config.twin else self.acting

    @property
    def controls(self) -> Mapping[str, str]:
        """For each arm that may grow, the arm that has what it grew from the start; empty without ``capacity``."""
        if not self.config.capacity:
            return {}
        alone = len(self.acting) == 1
        return {name: CAPACITY if alone else f"{CAPACITY}-of-{name}" for name in self.acting}

    @property
    def every_arm(self) -> tuple[str, ...]:
        """The arms, the twin, and the controls."""
        return (*self.arm_names, *self.controls.values())

    @property
    def rewards(self) -> Mapping[str, RunReward]:
        """The reward of each arm that has a policy."""
        return {name: judge for arm in self.arms for name, judge in zip(arm.names, self.judges, strict=True)}

    def judge_of(self, arm: str | None) -> RunReward:
        """Return the reward of an arm, or the only one of the run if ``arm`` is None; ConfigError (E114) otherwise."""
        if arm is None and len(self.judges) == 1:
            return self.judges[0]
        if arm is not None and arm in self.rewards:
            return self.rewards[arm]
        message = f"an episode has one reward, and the configuration has {len(self.judges)}"
        if arm is not None:
            message = f'there is no arm "{arm}" with a policy'
        raise ConfigError(Problem("E114", message, hint=f"Name the arm whose reward counts: {', '.join(self.acting)}."))

    def study(self, context: StudyContext) -> Study:
        """Return the study of all arms and their twin."""
        twin = TWIN if self.config.twin else None
        return self._study(context, self._pool(context, self.arm_names, twin), self.arms, twin)

    def follow_up(self, context: StudyContext, finished: Sequence[EpisodeFinished]) -> Study | None:
        """Return the study of the controls: what each arm grew, trained from the start with the same RNG seeds.

        None if nothing was grown. ``finished`` says how the episodes of the first study ended.
        """
        grown = {
            (self.controls[e.arm], e.seed): [record_of(Growth, one) for one in e.grown]
            for e in finished
            if e.arm in self.controls
        }
        arms = [own for arm, own in self.controls.items() if any(e.grown for e in finished if e.arm == arm)]
        if not arms:
            return None
        pool = self._pool(context, arms, None, grown)
        return self._study(context, pool, (), None)

    def _pool(
        self,
        context: StudyContext,
        arms: Sequence[str],
        twin: str | None,
        implants: Mapping[tuple[str, int], Sequence[Growth]] | None = None,
    ) -> StudyPool[Any]:
        config = self.config
        if config.compute.allocator == "tuned":
            tune_allocator()
        if context.engine is not None:
            return WorkerPool(
                context.engine.engine,
                arms,
                config.instances,
                workers=context.engine.workers,
                notices=self.recipe.notices,
                twin=twin,
                implants=implants,
                patience=None if config.patience == "auto" else config.patience,
                verdicts=context.verdicts,
                on_wait=context.on_wait,
            )
        return Pool(
            self.recipe,
            arms,
            config.instances,
            twin=twin,
            devices=self.devices,
            lanes=None if config.lanes == "auto" else config.lanes,
            implants=None if implants is None else lambda arm, seed: implants[arm, seed],
        )

    def _study(self, context: StudyContext, pool: StudyPool[Any], arms: Sequence[Arm], twin: str | None) -> Study:
        config, blueprints = self.config, self.resolution.blueprints.values()
        return Study(
            pool=pool,
            arms=arms,
            twin=twin,
            reward=self.judges[0],
            rewards=self.rewards,
            rounds=config.rounds,
            environments=config.instances,
            steps=config.episode.steps,
            first_seed=config.seed,
            bus=context.bus,
            clock=context.clock,
            packages={component.id: component.source for components in blueprints for component in components},
            check_health=context.check_health,
        )


def prepare(file: Path | str, overrides: Sequence[str] = (), overlays: Sequence[Path] = ()) -> Composition:
    """Load, resolve and compose a configuration.

    Raises:
        ConfigError: Something in the file is wrong.
        PluginError: A plugin that the file uses is at fault.
    """
    loaded = load_config(file, overrides, overlays)
    return compose(resolve(loaded, load_run_plugins(loaded, Path(file).parent)))


def compose(resolution: Resolution) -> Composition:
    """Build and check every piece of a run, with one thread. What plugins print goes to stderr.

    Raises:
        ConfigError: The pieces do not fit together, or a component refuses its settings.
        PluginError: A component raises, or is not what its kind requires.
    """
    with one_thread(), output_to_stderr():
        return _compose(resolution)


def _compose(resolution: Resolution) -> Composition:
    config = resolution.config
    devices = _choose_devices(resolution)
    device = devices[0]
    task = AttributedTask(cast("Task", _build(resolution, resolution.task)), resolution.task.label)
    data = {name: _load_split(resolution, task, name, device) for name in get_args(SplitName)}
    _check_data(resolution, data)

    def build_host() -> nn.Module:
        return cast("nn.Module", _build(resolution, resolution.host, task.shape))

    host = _graft_prototype(resolution, build_host, data["train"], device)
    varieties = _select_varieties(resolution, host, device)
    recipe = Recipe(
        task=task,
        data=data,
        build_host=build_host,
        slots=resolution.places,
        varieties=varieties,
        episode=config.episode,
        optimizers=config.optimizer,
        growth=config.growth,
        governor=config.governor,
        device=device,
        compute=config.compute,
        host_schedule=_build_schedule(resolution, "host"),
        seed_schedule=_build_schedule(resolution, "seed"),
    ).laid_out(host)
    if config.randomness == "auto":
        recipe = replace(recipe, draws=_find_draws(recipe, host))
    judges = tuple(
        RunReward(cast("Reward", _build(resolution, chosen, metric=task.metric)), chosen.label)
        for chosen in resolution.of_kind("reward")
    )
    sites = {slot.name: slot.site for slot in slots_of(host).each() if slot.site is not None}
    example = sent(data["train"].inputs[:1], device)
    space = ActionSpace(
        {name: tuple(variety.id for variety in own) for name, own in varieties.items()},
        PlaceDescriptions(host, sites, varieties, example),
    )
    operations = count_operations(host, sites, varieties, example)
    priced = any(judge.counts_flops for judge in judges)
    if priced and operations is None:
        raise _uncounted(resolution, judges, space)
    return Composition(
        resolution=replace(resolution, blueprints=_fitting_blueprints(resolution, varieties)),
        task=task,
        recipe=replace(recipe, operations=operations, price_operations=priced),
        space=space,
        arms=tuple(
            Arm(name, cast("Policy", _build(resolution, chosen, space)), chosen.label, _part_names(name, judges))
            for name, chosen in resolution.policies.items()
        ),
        judges=judges,
        host_parameters=count_parameters(host),
        layers=host_layers(host),
        devices=devices,
    )


# --- devices and data


def _choose_devices(resolution: Resolution) -> tuple[torch.device, ...]:
    """Return the devices that the file asks for; ConfigError (E123) if this machine lacks one."""
    config = resolution.config
    wanted: dict[KeyPath, str] = {("devices", index): name for index, name in enumerate(config.devices)}
    devices = []
    for path, name in (wanted or {("device",): config.device}).items():
        device = torch.device(name if name != "auto" else "cuda" if torch.cuda.is_available() else "cpu")
        if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
            found = f"torch {torch.__version__} sees {torch.cuda.device_count()} CUDA devices"
            raise ConfigError(resolution.loaded.problem("E123", path, f'there is no device "{name}": {found}'))
        devices.append(device)
    return tuple(devices)


def _load_split(resolution: Resolution, task: Task, name: SplitName, device: torch.device) -> Split:
    split, label = task.split(name), resolution.task.label
    if not (isinstance(split, Split) and all(isinstance(one, torch.Tensor) for one in (split.inputs, split.targets))):
        message = f'{label} returns no Split of two tensors for its split "{name}"'
        hint = "Task.split returns Split(inputs, targets)."
        raise PluginError(Problem("E231", message, path=label.target, hint=hint))
    if split.inputs.is_floating_point() and split.inputs.dtype != torch.float32:
        message = f'{label} gives inputs of {split.inputs.dtype} in its split "{name}"'
        raise PluginError(Problem("E234", message, hint="Hosts compute in torch.float32: give inputs.float()."))
    with attributed_to(label, f'with its split "{name}"'):
        home = torch.device("cpu") if resolution.config.compute.data == "streamed" else device
        return type(split)(split.inputs.to(home), split.targets.to(home))


def _check_data(resolution: Resolution, data: Mapping[SplitName, Split]) -> None:
    """Raise ConfigError if there are too few examples for a batch, or for the gates."""
    config, train, validation = resolution.config, len(data["train"]), len(data["validation"])
    if config.episode.batch_size > train:
        message = f"a batch of {config.episode.batch_size} is larger than the training data"
        hint = f"There are {train} training examples."
        raise ConfigError(resolution.loaded.problem("E124", ("episode", "batch_size"), message, hint))
    if config.growth.gates != "off" and validation < MIN_EXAMPLES_FOR_EVIDENCE:
        message = f"gates: {config.growth.gates} cannot work with {validation} validation examples"
        hint = f'A gate needs at least {MIN_EXAMPLES_FOR_EVIDENCE}: use more validation examples, or gates: "off".'
        raise ConfigError(resolution.loaded.problem("E114", ("growth", "gates"), message, hint))


# --- host and blueprints


def _graft_prototype(
    resolution: Resolution, build_host: Callable[[], nn.Module], train: Split, device: torch.device
) -> nn.Module:
    """Return a host as every environment will have it, with its slots attached and their shapes known."""
    with RandomStream(derive_seed(0, "prototype"), device):
        host = build_host().to(device)
    with attributed_to(resolution.host.label, "on its first batch"):
        try:
            graft(host, resolution.places, example=sent(train.inputs[:2], device))
        except GraftError as error:
            if error.__cause__ is not None and error.problems[0].path == "example":
                raise error.__cause__ from None  # the host itself raised
            raise ConfigError([_at_slot(resolution, problem) for problem in error.problems]) from error
    return host


def _at_slot(resolution: Resolution, problem: Problem) -> Problem:
    name = _name_in_file((problem.path or "").removeprefix("slots."))
    path: KeyPath = ("slots",)
    if name in resolution.places:
        has_place = resolution.config.slots[name].at is not None
        path = ("slots", name, "at") if has_place else ("slots", name)
    return resolution.loaded.problem(problem.code, path, problem.message, problem.hint)


def _name_in_file(slot: str) -> str:
    """Return the name in the file of a slot, which may stand for several."""
    return slot.partition(":")[0]


def _find_draws(recipe: Recipe, host: nn.Module) -> Draws:
    """Return in which passes the run draws random numbers, in its host or in what may grow in it."""
    train = recipe.data["train"]
    inputs, targets = (sent(own[:PROBE_EXAMPLES], recipe.device) for own in (train.inputs, train.targets))
    found = [draws_of(host, lambda model: recipe.task.losses(model(inputs), targets).mean())]
    for slot in slots_of(host).each():
        if (site := slot.site) is not None:
            found += [draws_of_variety(variety, site, recipe.device) for variety in recipe.varieties[slot.name]]
    return max(found)


def _select_varieties(resolution: Resolution, host: nn.Module, device: torch.device) -> dict[str, tuple[Variety, ...]]:
    """Return for each slot of the host what may grow in it.

    Raises:
        ConfigError: A blueprint that the file names, or all that a glob matches, do not fit the slot (E305).
        PluginError: A blueprint is not what its specification says.
    """
    misfits: list[Problem] = []
    faults: list[Problem] = []
    varieties: dict[str, tuple[Variety, ...]] = {}
    sites = {(_name_in_file(slot.name), slot.site) for slot in slots_of(host).each() if slot.site is not None}
    for slot in slots_of(host).each():
        assert slot.site is not None
        site, name = slot.site, _name_in_file(slot.name)
        chosen = [(one, cast("BlueprintSpec", one.spec)) for one in resolution.blueprints[name]]
        fitting = [(component, spec) for component, spec in chosen if spec.misfit(site) is None]
        for component, spec in chosen:
            path = _path_of_blueprint(resolution, name, component.id)
            elsewhere = any(name == at and spec.misfit(other) is None for at, other in sites)  # of the same pattern
            why = spec.misfit(site)
            if why is not None and (not fitting or (isinstance(path[-1], int) and not elsewhere)):
                message = f'blueprint "{component.id}" cannot grow in slot "{slot.name}": {why}'
                misfits.append(resolution.loaded.problem("E305", path, message, "See: esper components list blueprint"))
        varieties[slot.name] = tuple(Variety(component.id, spec, component.load()) for component, spec in fitting)
        for (component, _), variety in zip(fitting, varieties[slot.name], strict=True):
            if (fault := audition(variety, slot.site, device)) is not None:
                path = _path_of_blueprint(resolution, name, component.id)
                faults.append(
                    resolution.loaded.problem(fault.code, path, f"{component.title} {fault.message}", fault.hint)
                )
    if misfits:
        raise ConfigError(misfits)
    if faults:
        raise PluginError(list(dict.fromkeys(faults)))
    return varieties


def _fitting_blueprints(
    resolution: Resolution, varieties: Mapping[str, Sequence[Variety]]
) -> dict[str, tuple[Component, ...]]:
    """Return the blueprints that may grow in each slot of the file, without those of a glob that fit none.

    They are written to the run directory, where each is named, and a named one has to fit.
    """
    able = {(_name_in_file(slot), variety.id) for slot, own in varieties.items() for variety in own}
    return {
        name: tuple(component for component in own if (name, component.id) in able)
        for name, own in resolution.blueprints.items()
    }


def _path_of_blueprint(resolution: Resolution, slot: str, id_: str) -> KeyPath:
    """Return where the file names the blueprint; the path of the list if a glob matched it."""
    named = resolution.config.slots[slot].blueprints
    found = [index for index, name in enumerate(named) if name in (id_, id_.rpartition("/")[2])]
    return ("slots", slot, "blueprints", *found[:1])


# --- policies and rewards


def _part_names(arm: str, judges: Sequence[RunReward]) -> tuple[str, ...]:
    """Return the name of an arm under each of several rewards: ``ppo@price-20``, or ``ppo@reward-2``."""
    if len(judges) == 1:
        return ()
    priced = [f"{arm}@price-{judge.price:g}" for judge in judges if judge.price is not None]
    if len(set(priced)) == len(judges):
        return tuple(priced)
    return tuple(f"{arm}@reward-{number}" for number in range(1, len(judges) + 1))


def _uncounted(resolution: Resolution, judges: Sequence[RunReward], space: ActionSpace) -> ConfigError:
    """Return the error for a reward that prices operations which torch cannot count (E125)."""
    rewards = zip(judges, resolution.of_kind("reward"), strict=True)
    asking = next(chosen for judge, chosen in rewards if judge.counts_flops)
    candidates = ((slot, one) for slot, place in space.places.items() for one in place.candidates)
    uncounted = [f"{one.blueprint} in {slot}" for slot, one in candidates if one.flops is None]
    message = f"{asking.label} has a price for operations, but torch cannot count those of "
    message += ", ".join(uncounted) or "the host"
    path = (*asking.path, "settings", "price_of_flops")
    hint = 'Set "price_of_flops: 0", so that operations cost nothing.'
    return ConfigError(resolution.loaded.problem("E125", path, message, hint))


def _build_schedule(resolution: Resolution, side: str) -> Schedule | None:
    chosen = resolution.components.get(("optimizer", side, "schedule"))
    return None if chosen is None else AttributedSchedule(cast("Schedule", _build(resolution, chosen)), chosen.label)


def _build(resolution: Resolution, chosen: ConfiguredComponent, *arguments: Any, **runtime: Any) -> Any:
    """Build a component. What it says against its settings gets their place in the file."""
    try:
        return chosen.build(*arguments, **runtime)
    except ConfigError as error:
        problems = []
        for problem in error.problems:
            part = {"E202": ("use",), "E120": ("settings",)}.get(problem.code, ())
            path = (*chosen.path, "settings", *parse_path(problem.path)) if problem.path else (*chosen.path, *part)
            placed = resolution.loaded.problem(problem.code, path, problem.message, problem.hint)
            problems.append(placed if problem.file is None else problem)
        raise ConfigError(problems) from error
