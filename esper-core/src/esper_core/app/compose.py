"""How does a resolved configuration become something that runs? Here every piece is built and put together.

This is the one place that knows them all. Nothing is trained yet; what a run would refuse is refused here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

import torch

from esper_core.app.ability import demand_able
from esper_core.app.resolution import TWIN
from esper_core.app.runtime import tune_allocator
from esper_core.app.selection import select_varieties
from esper_core.config import parse_path
from esper_core.config.limits import CAPACITY
from esper_core.growth import (
    Draws,
    Growth,
    RandomStream,
    Terrain,
    derive_seed,
    draws_of,
    draws_of_variety,
    graft,
    slots_of,
)
from esper_core.leyline.actions import ActionSpace
from esper_core.leyline.constants import MIN_EXAMPLES_FOR_EVIDENCE, PROBE_EXAMPLES
from esper_core.leyline.errors import ConfigError, GraftError, PluginError, Problem, suggestion
from esper_core.leyline.protocols import Split
from esper_core.leyline.specs import Operations
from esper_core.plugins.isolation import AnswerableSchedule, AnswerableTask, answerable
from esper_core.trainer.batches import sent
from esper_core.trainer.environment import Recipe
from esper_core.trainer.event_records import record_of
from esper_core.trainer.forward import laid_out
from esper_core.trainer.measurements import count_parameters
from esper_core.trainer.pool import Pool
from esper_core.trainer.study import Arm, Judge, Study
from esper_core.trainer.workers import Shards, processes_for

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import nn

    from esper_core.app.resolution import Chosen, Resolution
    from esper_core.config.paths import KeyPath
    from esper_core.leyline.events import EpisodeFinished
    from esper_core.leyline.protocols import Policy, Reward, Schedule, SplitName, Task
    from esper_core.leyline.signals import HealthSnapshot, Verdict
    from esper_core.telemetry import Bus, Clock
    from esper_core.trainer.progress import Course
    from esper_core.trainer.study import AnyPool

HOST_DTYPE = torch.float32
"""What hosts compute in; symbols come as whole numbers."""

SPLITS: tuple[SplitName, ...] = ("train", "validation", "test")


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a study is run among: who hears of it, its clock, and what is asked after each step. See ``Study``."""

    bus: Bus
    clock: Clock
    pause: Callable[[Course], None]
    check_health: Callable[[HealthSnapshot], Verdict]


@dataclass(frozen=True, slots=True)
class Composition:
    """What a study is made from, checked and ready: it can be described before it is run."""

    resolution: Resolution
    task: Task
    recipe: Recipe
    space: ActionSpace
    arms: tuple[Arm, ...]
    judges: tuple[Judge, ...]
    """The rewards of the run, as ``Arm.parts`` are named by them."""
    host_parameters: int
    devices: tuple[torch.device, ...]

    @property
    def arm_names(self) -> tuple[str, ...]:
        """Every arm, the twin last."""
        twin = (TWIN,) if self.resolution.loaded.config.twin else ()
        return (*self.acting, *twin)

    @property
    def rewards(self) -> Mapping[str, Judge]:
        """The reward of each arm that has a policy."""
        return {name: judge for arm in self.arms for name, judge in zip(arm.names, self.judges, strict=True)}

    def judge_of(self, arm: str | None) -> Judge:
        """Return the reward of an arm, or the only one of the run if ``arm`` is None.

        Raises:
            ConfigError: If there is no such arm, or if there are several rewards and no arm is named.
        """
        if arm is not None:
            if arm not in self.rewards:
                message = f'there is no arm "{arm}" with a policy'
                raise ConfigError(Problem("E114", message, hint=suggestion(arm, self.rewards)))
            return self.rewards[arm]
        if len(self.judges) > 1:
            message = f"an episode has one reward, and the configuration has {len(self.judges)}"
            hint = f"Name the arm whose reward counts: {', '.join(self.acting)}."
            raise ConfigError(self.resolution.loaded.problem("E114", ("rewards",), message, hint))
        return self.judges[0]

    @property
    def acting(self) -> tuple[str, ...]:
        """Every arm that has a policy, once for each reward where there are several."""
        return tuple(name for arm in self.arms for name in arm.names)

    @property
    def controls(self) -> Mapping[str, str]:
        """For each arm that may grow, where that is asked for, the arm that has what it grew from the start."""
        if not self.resolution.loaded.config.capacity:
            return {}
        alone = len(self.acting) == 1
        return {name: CAPACITY if alone else f"{CAPACITY}-of-{name}" for name in self.acting}

    @property
    def every_arm(self) -> tuple[str, ...]:
        """The arms, the twin, and the controls that follow them."""
        return (*self.arm_names, *self.controls.values())

    def study(self, around: Surroundings) -> Study:
        """The study, ready for ``trainer.loop.run_study``."""
        if self.resolution.loaded.config.compute.allocator == "tuned":
            tune_allocator()
        twin = TWIN if self.resolution.loaded.config.twin else None
        return self._study(around, self._pool(self.arm_names, twin), self.arms, twin)

    def follow_up(self, around: Surroundings, finished: Sequence[EpisodeFinished]) -> Study | None:
        """The control by static capacity: on the same seeds what each arm grew, trained from the start.

        finished: how the episodes of the study ended. None where nothing was grown.
        """
        grown = {(self.controls.get(e.arm), e.seed): [record_of(Growth, one) for one in e.grown] for e in finished}
        arms = [own for arm, own in self.controls.items() if any(e.grown for e in finished if e.arm == arm)]
        if not arms:
            return None
        pool = self._pool(arms, None, implants=lambda arm, seed: grown[arm, seed])
        return self._study(around, pool, (), None)

    def _pool(self, arms: Sequence[str], twin: str | None, **more: Any) -> AnyPool:
        config = self.resolution.loaded.config
        if (processes := processes_for(config, self.devices)) > 1:
            return Shards(self.recipe, arms, config.instances, processes=processes, twin=twin, **more)
        lanes = None if config.lanes == "auto" else config.lanes
        return Pool(self.recipe, arms, config.instances, twin=twin, devices=self.devices, lanes=lanes, **more)

    def _study(self, around: Surroundings, pool: AnyPool, arms: Sequence[Arm], twin: str | None) -> Study:
        config = self.resolution.loaded.config
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
            bus=around.bus,
            clock=around.clock,
            packages={
                component.id: component.source
                for components in self.resolution.blueprints.values()
                for component in components
            },
            pause=around.pause,
            check_health=around.check_health,
        )


def compose(resolution: Resolution) -> Composition:
    """Build and check every piece. ConfigError or PluginError with a place in the file where there is one."""
    config = resolution.loaded.config
    devices = choose_devices(resolution)
    device = devices[0]
    task = AnswerableTask(cast("Task", _built(resolution, resolution.task)), resolution.task.label)
    data = {name: _on_device(resolution, task, name, device) for name in SPLITS}
    _check_batches(resolution, data["train"])
    _check_evidence(resolution, data["validation"])

    def build_host() -> nn.Module:
        return cast("nn.Module", _built(resolution, resolution.host, task.shape))

    host = _grafted(resolution, build_host, data["train"], device)
    varieties = select_varieties(resolution, host, device)
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
        host_schedule=_schedule(resolution, "host"),
        seed_schedule=_schedule(resolution, "seed"),
    )
    recipe = laid_out(recipe, host)
    if config.randomness == "auto":
        recipe = replace(recipe, draws=_draws(recipe, host))
    judges = tuple(_judge(resolution, chosen, task) for chosen in resolution.rewards)
    sites = {slot.name: slot.site for slot in slots_of(host).each() if slot.site is not None}
    space = ActionSpace(
        {name: tuple(variety.id for variety in own) for name, own in varieties.items()},
        Terrain(host, sites, varieties, sent(data["train"].inputs[:1], device)),
    )
    return Composition(
        resolution=resolution,
        task=task,
        recipe=replace(recipe, operations=_operations(resolution, judges, space)),
        space=space,
        arms=_arms(resolution, space, judges),
        judges=judges,
        host_parameters=count_parameters(host),
        devices=devices,
    )


def choose_devices(resolution: Resolution) -> tuple[torch.device, ...]:
    """The devices that the file asks for, the first of which is tried on; ConfigError where this machine lacks one."""
    config = resolution.loaded.config
    if config.devices:
        return tuple(_device(resolution, one, ("devices", place)) for place, one in enumerate(config.devices))
    return (_device(resolution, config.device, ("device",)),)


def _device(resolution: Resolution, wanted: str, path: KeyPath) -> torch.device:
    if wanted == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    device = torch.device(wanted)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        found = f"torch {torch.__version__} sees {torch.cuda.device_count()} CUDA devices"
        raise ConfigError(resolution.loaded.problem("E123", path, f'there is no device "{wanted}": {found}'))
    return device


def _draws(recipe: Recipe, host: nn.Module) -> Draws:
    """When anything that this run trains draws random numbers: the host, or what may grow in it."""
    train = recipe.data["train"]
    inputs, targets = (sent(own[:PROBE_EXAMPLES], recipe.device) for own in (train.inputs, train.targets))
    of_host = draws_of(host, lambda model: recipe.task.losses(model(inputs), targets).mean())
    sites = {slot.name: slot.site for slot in slots_of(host).each()}
    of_seeds = {
        draws_of_variety(variety, site, recipe.device)
        for name, own in recipe.varieties.items()
        if (site := sites[name]) is not None
        for variety in own
    }
    return max(of_host, *of_seeds)


def _built(resolution: Resolution, chosen: Chosen, *arguments: Any, **runtime: Any) -> Any:
    """A component built from its settings; what it says against these gets the line it is on.

    A fault of its own is told as its package's.
    """
    factory = chosen.component.load()
    try:
        with answerable(chosen.label, "while it was built"):
            built = factory(*arguments, **runtime, **chosen.settings)
            demand_able(chosen.component.kind, built, chosen.label)
            return built
    except ConfigError as error:
        raise ConfigError([_at_setting(resolution, chosen, problem) for problem in error.problems]) from error


def _at_setting(resolution: Resolution, chosen: Chosen, problem: Problem) -> Problem:
    if problem.file is not None:
        return problem
    path = (*chosen.path, "settings", *parse_path(problem.path)) if problem.path else chosen.path
    return resolution.loaded.problem(problem.code, path, problem.message, problem.hint)


def _schedule(resolution: Resolution, side: str) -> Schedule | None:
    chosen = resolution.schedules.get(side)
    return None if chosen is None else AnswerableSchedule(cast("Schedule", _built(resolution, chosen)), chosen.label)


def _on_device(resolution: Resolution, task: Task, name: SplitName, device: torch.device) -> Split:
    split = task.split(name)
    if not (isinstance(split, Split) and all(isinstance(one, torch.Tensor) for one in (split.inputs, split.targets))):
        message = f'{resolution.task.label} gives no Split of two tensors when asked for its split "{name}"'
        hint = "Task.split returns Split(inputs, targets)."
        raise PluginError(Problem("E231", message, path=resolution.task.label.target, hint=hint))
    if split.inputs.is_floating_point() and split.inputs.dtype != HOST_DTYPE:
        message = f'{resolution.task.label} gives inputs of {split.inputs.dtype} in its split "{name}"'
        raise PluginError(Problem("E234", message, hint="Hosts compute in torch.float32: give inputs.float()."))
    with answerable(resolution.task.label, f'with its split "{name}"'):
        home = torch.device("cpu") if resolution.loaded.config.compute.data == "streamed" else device
        return type(split)(split.inputs.to(home), split.targets.to(home))


def _check_batches(resolution: Resolution, train: Split) -> None:
    size = resolution.loaded.config.episode.batch_size
    if size > len(train):
        message = f"a batch of {size} is larger than the training data"
        hint = f"There are {len(train)} examples to train on."
        raise ConfigError(resolution.loaded.problem("E124", ("episode", "batch_size"), message, hint))


def _check_evidence(resolution: Resolution, validation: Split) -> None:
    gates = resolution.loaded.config.growth.gates
    if gates != "off" and len(validation) < MIN_EXAMPLES_FOR_EVIDENCE:
        message = f"with gates {gates} nothing could ever be shown by {len(validation)} validation examples"
        hint = f'A gate needs {MIN_EXAMPLES_FOR_EVIDENCE} at least: take more of the task, or write gates: "off".'
        raise ConfigError(resolution.loaded.problem("E114", ("growth", "gates"), message, hint))


def _grafted(
    resolution: Resolution, build_host: Callable[[], nn.Module], train: Split, device: torch.device
) -> nn.Module:
    """A host as every environment will have it, its slots observed."""
    with RandomStream(derive_seed(0, "prototype"), device):
        host = build_host().to(device)
    with answerable(resolution.host.label, "on its first batch"):
        try:
            graft(host, resolution.places, example=sent(train.inputs[:2], device))
        except GraftError as error:
            raise ConfigError([_at_slot(resolution, problem) for problem in error.problems]) from error
    return host


def _at_slot(resolution: Resolution, problem: Problem) -> Problem:
    name = (problem.path or "").removeprefix("slots.").partition(":")[0]
    path: KeyPath = ("slots", name) if name in resolution.places else ("slots",)
    at = (*path, "at") if len(path) > 1 and resolution.loaded.config.slots[name].at is not None else path
    return resolution.loaded.problem(problem.code, at, problem.message, problem.hint)


def _judge(resolution: Resolution, chosen: Chosen, task: Task) -> Judge:
    return Judge(cast("Reward", _built(resolution, chosen, metric=task.metric)), chosen.label)


def _operations(resolution: Resolution, judges: Sequence[Judge], space: ActionSpace) -> Operations | None:
    """Those of host and blueprints, where a reward has a price for them: they are not counted for nothing."""
    asking = [(judge, chosen) for judge, chosen in zip(judges, resolution.rewards, strict=True) if judge.counts_flops]
    if not asking:
        return None
    host = next(iter(space.places.values())).host_flops
    found = {(slot, one.blueprint): one.flops for slot, place in space.places.items() for one in place.candidates}
    known = {block: flops for block, flops in found.items() if flops is not None}
    if not host or len(known) < len(found):
        judge, chosen = asking[0]
        unknown = [f"{blueprint} in {slot}" for slot, blueprint in found if (slot, blueprint) not in known]
        whose = ", ".join(unknown) if host else "the host"
        message = f"{judge.label} has a price for operations, and torch counts none of {whose}"
        hint = "Write price_of_flops: 0, and they are free."
        path = (*chosen.path, "settings", "price_of_flops")
        raise ConfigError(resolution.loaded.problem("E125", path, message, hint))
    return Operations(host, known)


def _parts(arm: str, judges: Sequence[Judge]) -> tuple[str, ...]:
    """What an arm's environments are called under each of several rewards: ``ppo@price-20``, or ``ppo@reward-2``."""
    priced = [f"{arm}@price-{judge.price:g}" for judge in judges if judge.price is not None]
    if len(set(priced)) == len(judges):
        return tuple(priced)
    return tuple(f"{arm}@reward-{number}" for number in range(1, len(judges) + 1))


def _arms(resolution: Resolution, space: ActionSpace, judges: Sequence[Judge]) -> tuple[Arm, ...]:
    """Each arm with a policy of its own; what a policy says against its settings gets the line it is on."""
    arms: list[Arm] = []
    problems: list[Problem] = []
    for name, chosen in resolution.policies.items():
        try:
            parts = _parts(name, judges) if len(judges) > 1 else ()
            arms.append(Arm(name, cast("Policy", _built(resolution, chosen, space)), chosen.label, parts))
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise ConfigError(problems)
    return tuple(arms)
