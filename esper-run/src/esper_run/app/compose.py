"""Composition: build task, host, slots, policies and rewards of a resolved configuration, and check that they fit.

``compose`` builds every piece and trains nothing: what a run would refuse is refused here, with its place in the file.
``Composition.study`` puts the pieces together with what belongs to one run, ready for ``trainer.loop.run_study``.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from pydantic import TypeAdapter

from esper_core.growth import Growth, Host, Variety
from esper_core.leyline.constants import MIN_EXAMPLES_FOR_EVIDENCE
from esper_core.leyline.errors import Problem
from esper_core.leyline.files import read_bytes
from esper_core.trainer import Arm, RunReward, Study
from esper_run.app.recipes import build_component, build_prototype, choose_devices, name_in_file
from esper_run.app.resolution import load_run_plugins, resolve
from esper_run.app.runtime import one_thread, tune_allocator
from esper_run.app.threads import ThreadsSession
from esper_run.config import config_of, load_config
from esper_run.config.model import CAPACITY, TWIN
from esper_run.engines import PoolRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import torch

    from esper_core.leyline.events import EpisodeFinished, HostLayer
    from esper_core.leyline.lifecycle import ActionSpace
    from esper_core.leyline.protocols import Policy, Reward, Task
    from esper_core.leyline.signals import HealthSnapshot, Verdict
    from esper_core.plugins import Component
    from esper_core.telemetry import Bus, Clock
    from esper_core.trainer import Recipe
    from esper_run.app.recipes import Prototype
    from esper_run.app.resolution import Resolution
    from esper_run.config import RunConfig
    from esper_run.engines import EngineSession
    from esper_run.runs.records import Run


@dataclass(frozen=True, slots=True)
class StudyContext:
    """What a study gets from the run that it is part of. See ``Study``.

    Attributes:
        engine: Computes the environments; None: threads of this process.
        heartbeat: Called when work begins in an environment, with its pool index, and about once a second for workers.
    """

    bus: Bus
    clock: Clock
    check_health: Callable[[HealthSnapshot], Verdict]
    engine: EngineSession | None = None
    heartbeat: Callable[[int], None] = lambda pool_index: None


@dataclass(frozen=True, slots=True)
class Composition:
    """The pieces of a study, built and checked.

    Attributes:
        layers: Those of the host, with the slots behind them.
        devices: Those that the configuration asks for; data and trial passes are on the first.
        warnings: What the run will do otherwise than its user may expect.
    """

    resolution: Resolution
    task: Task
    recipe: Recipe
    space: ActionSpace
    arms: tuple[Arm, ...]
    reward: RunReward
    host_parameters: int
    layers: tuple[HostLayer, ...]
    devices: tuple[torch.device, ...]
    warnings: tuple[Problem, ...] = ()

    @property
    def config(self) -> RunConfig:
        """The configuration as the file has it."""
        return self.resolution.config

    @property
    def gains_in(self) -> str:
        """The unit of gains and prices: nats, or the name of the metric."""
        by_metric = self.recipe.network.growth.evidence == "metric"
        return self.task.metric.name if by_metric else "nats"

    @property
    def acting(self) -> tuple[str, ...]:
        """Every arm that has a policy."""
        return tuple(arm.name for arm in self.arms)

    @property
    def arm_names(self) -> tuple[str, ...]:
        """Every arm that is trained side by side, the twin last."""
        return (*self.acting, TWIN) if self.config.twin else self.acting

    @property
    def controls(self) -> Mapping[str, str]:
        """For each arm that may grow, the arm that has what it grew from the start; empty without ``capacity``."""
        if not self.config.capacity or self.config.growth.freeze_fossils:  # frozen from the start, blocks do nothing
            return {}
        alone = len(self.acting) == 1
        return {name: CAPACITY if alone else f"{CAPACITY}-of-{name}" for name in self.acting}

    @property
    def every_arm(self) -> tuple[str, ...]:
        """The arms, the twin, and the controls."""
        return (*self.arm_names, *self.controls.values())

    def describe_groups(self) -> str:
        """Say whether networks of one structure are trained together, or why not."""
        from esper_core.trainer import Pool  # needed by few callers

        with one_thread(), redirect_stdout(sys.stderr):
            why = Pool.obstacle_to_groups(self.recipe, self.config.seed)
        return f"Networks train one after another: {why}." if why else "Networks of one structure train together."

    def study(self, context: StudyContext) -> Study:
        """Return the study of all arms and their twin."""
        return self._study(context, self.arm_names, self.arms, TWIN if self.config.twin else None)

    def follow_up(self, context: StudyContext, finished: Sequence[EpisodeFinished]) -> Study | None:
        """Return the study of the controls: what each arm grew, trained from the start with the same RNG seeds.

        None if nothing was grown. ``finished`` says how the episodes of the first study ended.
        """
        records = TypeAdapter(list[Growth])
        grown = {
            (self.controls[e.arm], e.seed): records.validate_python(list(e.grown))
            for e in finished
            if e.arm in self.controls
        }
        arms = [control for arm, control in self.controls.items() if any(e.grown for e in finished if e.arm == arm)]
        return self._study(context, arms, (), None, grown) if arms else None

    def _study(
        self,
        context: StudyContext,
        names: Sequence[str],
        arms: Sequence[Arm],
        twin: str | None,
        implants: Mapping[tuple[str, int], Sequence[Growth]] | None = None,
    ) -> Study:
        tune_allocator()
        engine = ThreadsSession(self) if context.engine is None else context.engine
        config, blueprints = self.config, self.resolution.blueprints.values()
        return Study(
            pool=engine.pool(PoolRequest(names, twin, implants, context.heartbeat)),
            arms=arms,
            twin=twin,
            reward=self.reward,
            episode=config.episode,
            first_seeds=range(config.seed, config.seed + config.rounds * config.environments, config.environments),
            bus=context.bus,
            clock=context.clock,
            packages={component.id: component.source for components in blueprints for component in components},
            check_health=context.check_health,
        )


def prepare(configuration: Mapping[str, Any] | Path | str, overrides: Sequence[str] = ()) -> Composition:
    """Load, resolve and compose a configuration: a file, or what such a file would contain.

    Raises:
        ConfigError: Something in the configuration is wrong.
        PluginError: A plugin that it uses is at fault.
    """
    if isinstance(configuration, Mapping):
        loaded, folder = config_of(configuration, overrides), Path()
    else:
        loaded, folder = load_config(configuration, overrides), Path(configuration).parent
    return compose(resolve(loaded, load_run_plugins(loaded, folder)))


def compose(resolution: Resolution) -> Composition:
    """Build and check every piece of a run, with one thread. What plugins print goes to stderr.

    Raises:
        ConfigError: The pieces do not fit together, or a component refuses its settings.
        PluginError: A component raises, or is not what its kind requires.
    """
    with one_thread(), redirect_stdout(sys.stderr):
        devices = choose_devices(resolution)
        prototype = build_prototype(resolution, devices[0])
        recipe, host, space = prototype.recipe, prototype.host, prototype.space
        reward = build_component(resolution, resolution.reward, metric=recipe.task.metric)
        return Composition(
            resolution=replace(resolution, blueprints=_fitting_blueprints(resolution, recipe.network.varieties)),
            task=recipe.task,
            recipe=recipe,
            space=space,
            arms=tuple(
                Arm(name, cast("Policy", build_component(resolution, chosen, space)), chosen.label)
                for name, chosen in resolution.policies.items()
            ),
            reward=RunReward(cast("Reward", reward), resolution.reward.label),
            host_parameters=sum(parameter.numel() for parameter in host.parameters()),
            layers=Host(host).layers,
            devices=devices,
            warnings=tuple(_warnings(resolution.config, prototype, space)),
        )


def _warnings(config: RunConfig, prototype: Prototype, space: ActionSpace) -> Iterator[Problem]:
    """Yield what the run will do otherwise than its user may expect (E125, E127)."""
    recipe, growth = prototype.recipe, config.growth
    if recipe.network.operations is None and Host(prototype.host).follows_operations(growth):
        places = ((slot, candidate) for slot, place in space.descriptions.items() for candidate in place.candidates)
        uncounted = [f"{candidate.blueprint} in {slot}" for slot, candidate in places if candidate.flops is None]
        message = f"torch cannot count the operations of {', '.join(uncounted) or 'the host'}: prices follow parameters"
        yield Problem("E125", message, hint='Accept a batch of one, or write "growth.price.of: parameters".')
    if growth.gates != "off" and (reason := _why_nothing_is_kept(config, len(recipe.data["validation"]))):
        hint = 'With  growth: {gates: "off"}  the policy alone decides, without a bound on its errors.'
        yield Problem("E127", f"no gate will open: {reason}", hint=hint)


def _why_nothing_is_kept(config: RunConfig, validation: int) -> str:
    """Return why gates can show no gain with so many validation examples; empty if they can."""
    if validation < MIN_EXAMPLES_FOR_EVIDENCE:
        return f"they need {MIN_EXAMPLES_FOR_EVIDENCE} validation examples, and there are {validation}"
    if not config.twin and config.growth.incubation != "branch":
        return "without a twin or a branch no seed that is blended in can show a gain"
    return ""


def _fitting_blueprints(
    resolution: Resolution, varieties: Mapping[str, Sequence[Variety]]
) -> dict[str, tuple[Component, ...]]:
    """Return the blueprints that may grow in each slot of the file, without those of a glob that fit none.

    They are written to the run directory, where each is named, and a named one has to fit.
    """
    able = {(name_in_file(slot), variety.id) for slot, fitting in varieties.items() for variety in fitting}
    return {
        name: tuple(component for component in components if (name, component.id) in able)
        for name, components in resolution.blueprints.items()
    }


def code_of(resolution: Resolution) -> list[dict[str, str | None]]:
    """Return what a manifest says of each active plugin, and of the module of a host that has an import path."""
    active = [record for record in resolution.plugins.records if record.status == "active"]
    keys = ("id", "package", "version", "sha256")
    code = [{key: getattr(entry, key) for key in keys} | {"entry_point": Path(entry.origin).name} for entry in active]
    host, module = resolution.host.component, resolution.host.component.id.partition(":")[0]
    file = Path(getattr(sys.modules.get(module), "__file__", None) or "")
    if not host.plugin and file.is_file():
        sha = sha256(read_bytes(file, follow=True)).hexdigest()
        code.append({"id": host.id, "package": "local file", "version": sha[:12], "sha256": sha, "entry_point": module})
    return code


def changed_files(composition: Composition, record: Run) -> Iterator[str]:
    """Yield a warning for each one-file plugin, and a host's module, that changed since the run began."""
    before = {plugin["id"]: plugin.get("sha256") for plugin in record.manifest.get("plugins", [])}
    for code in code_of(composition.resolution):
        if code["package"] == "local file" and before.get(code["id"]) not in (None, code["sha256"]):
            yield f"{code['entry_point']} changed since {record.path.name} began: the numbers may differ"
