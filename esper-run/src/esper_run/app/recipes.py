"""Recipes: build and check what all environments of a run have in common: task, data, host, slots and blueprints.

What a run would refuse is refused here, with its place in the file.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import combinations
from typing import TYPE_CHECKING, Any, cast, get_args

import torch
from torch import nn

from esper_core.growth import Host, RandomStream, Variety, graft
from esper_core.leyline.errors import ConfigError, GraftError, GrowthError, PluginError, Problem
from esper_core.leyline.lifecycle import ActionSpace
from esper_core.leyline.protocols import Split, SplitName
from esper_core.plugins import attributed_to
from esper_core.trainer import NetworkSettings, Recipe
from esper_run.app.descriptions import SlotDescriptions, count_operations
from esper_run.config import parse_path
from esper_run.runs.network_files import refuse_unwritable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from esper_core.leyline.protocols import Task
    from esper_core.leyline.specs import BlueprintSpec
    from esper_run.app.components import ConfiguredComponent
    from esper_run.app.resolution import Resolution
    from esper_run.config.values import KeyPath

log = logging.getLogger("esper")


@dataclass(frozen=True, slots=True)
class Prototype:
    """The recipe of a run, and what was found out about one host of it."""

    recipe: Recipe
    host: nn.Module
    descriptions: SlotDescriptions

    @property
    def space(self) -> ActionSpace:
        """What can be done in the host."""
        varieties = self.recipe.network.varieties.items()
        return ActionSpace(
            {name: tuple(variety.id for variety in slot_varieties) for name, slot_varieties in varieties},
            self.descriptions,
        )


def build_prototype(
    resolution: Resolution, device: torch.device, splits: Mapping[SplitName, Split] | None = None
) -> Prototype:
    """Build a recipe, and one host of it; ``splits`` are used instead of the task's."""
    config = resolution.config
    task = cast("Task", build_component(resolution, resolution.task))
    data = splits or {name: _load_split(resolution, task, name, device) for name in get_args(SplitName)}
    if config.compute.data != "streamed":
        _warn_of_equal(data)
    if config.episode.batch_size > len(data["train"]):
        message = f"a batch of {config.episode.batch_size} is larger than the training data"
        hint = f"There are {len(data['train'])} training examples."
        raise ConfigError(resolution.loaded.problem("E124", ("episode", "batch_size"), message, hint))

    def build_host() -> nn.Module:
        return cast("nn.Module", build_component(resolution, resolution.host, task.shape))

    named = {side: resolution.components.get(("optimizer", side, "schedule")) for side in ("host", "seed")}
    schedules = {side: chosen for side, chosen in named.items() if chosen is not None}
    host = _graft_prototype(resolution, build_host, data["train"], device, task.shape.outputs)
    varieties = _select_varieties(resolution, Host(host))
    growth = config.growth
    if growth.evidence == "auto":  # what gains are measured in is left to the task
        growth = growth.model_copy(update={"evidence": "metric" if task.metric.is_share else "loss"})
    recipe = Recipe(
        task=task,
        data=data,
        build_host=build_host,
        slots=resolution.places,
        network=NetworkSettings(
            varieties,
            config.episode.steps,
            config.episode.batches,
            growth=growth,
            governor=config.governor,
            optimizers=config.optimizer,
            schedules={side: build_component(resolution, chosen) for side, chosen in schedules.items()},
            metric=task.metric,
        ),
        batch_size=config.episode.batch_size,
        device=device,
        compute=config.compute,
    )
    trained_by = (resolution.host, resolution.task, *schedules.values())  # what is called beside blueprints
    label = " or ".join(component.label for component in trained_by)
    recipe = replace(recipe, reports=replace(recipe.reports, host=resolution.host.label, label=label))
    sites = {slot.name: slot.site for slot in Host(host).slots if slot.site is not None}
    example = data["train"].inputs[:1].to(device)
    with attributed_to(label, "on its first examples", recipe.guard()):
        recipe = recipe.laid_out(host)
        draws = recipe.find_draws(host) if config.randomness == "auto" else recipe.network.draws
        operations = count_operations(host, sites, varieties, example)
        recipe = replace(recipe, network=replace(recipe.network, draws=draws, operations=operations))
    return Prototype(recipe, host, SlotDescriptions(host, sites, varieties, example))


# --- devices and data


def choose_devices(resolution: Resolution) -> tuple[torch.device, ...]:
    """Return the devices that the file asks for; ConfigError (E123) if this machine lacks one."""
    config = resolution.config
    requested: dict[KeyPath, str] = {("devices", index): name for index, name in enumerate(config.devices)}
    devices = []
    for path, name in (requested or {("device",): config.device}).items():
        best = "cuda" if torch.cuda.is_available() and not resolution.engine.is_remote else "cpu"
        device = torch.device(best if name == "auto" else name)
        if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
            reason = f"torch {torch.__version__} sees {torch.cuda.device_count()} CUDA devices"
            raise ConfigError(resolution.loaded.problem("E123", path, f'there is no device "{name}": {reason}'))
        devices.append(device)
    return tuple(devices)


def _load_split(resolution: Resolution, task: Task, name: SplitName, device: torch.device) -> Split:
    split, label, target = task.split(name), resolution.task.label, resolution.task.component.title.target
    if not (
        isinstance(split, Split) and all(isinstance(tensor, torch.Tensor) for tensor in (split.inputs, split.targets))
    ):
        message = f'{label} returns no Split of two tensors for its split "{name}"'
        hint = "Task.split returns Split(inputs, targets)."
        raise PluginError(Problem("E231", message, path=target, hint=hint))
    inputs, targets, example = split.inputs, split.targets, tuple(task.shape.example)
    if inputs.shape[1:] != example or inputs.shape[:1] != targets.shape[:1]:
        message = f"{label} returns inputs of shape {tuple(inputs.shape)}, and targets of {tuple(targets.shape)}"
        hint = f"The shape of its examples is {example}, and each has one target."
        raise PluginError(Problem("E231", f'{message}, in its split "{name}"', path=target, hint=hint))
    if inputs.is_floating_point() and inputs.dtype != torch.float32:
        message = f'{label} gives inputs of {inputs.dtype} in its split "{name}"'
        raise PluginError(Problem("E234", message, hint="Hosts compute in torch.float32: give inputs.float()."))
    if not len(inputs):
        message = f'{label} gives no examples in its split "{name}"'
        hint = "Networks are trained, judged and tested by them."
        raise PluginError(Problem("E231", message, path=target, hint=hint))
    # Data that is streamed may be larger than the memory, and is not read for this.
    for tensors, tensor in (("inputs", inputs), ("targets", targets)):
        if resolution.config.compute.data != "streamed" and not tensor.isfinite().all():
            message = f'{label} gives {tensors} that are not finite in its split "{name}"'
            hint = "No network can learn from them: clean the data."
            raise PluginError(Problem("E231", message, path=target, hint=hint))
    with attributed_to(label, f'with its split "{name}"'):
        home = torch.device("cpu") if resolution.config.compute.data == "streamed" else device
        return type(split)(split.inputs.to(home), split.targets.to(home))


def _warn_of_equal(data: Mapping[SplitName, Split]) -> None:
    """Log a warning if two splits have the same inputs (E372)."""
    for first, second in combinations(data, 2):
        if torch.equal(data[first].inputs, data[second].inputs):
            message = f'the splits "{first}" and "{second}" of the task have the same inputs'
            hint = "Judge and test networks by examples that they did not learn."
            log.warning("%s", Problem("E372", message, hint=hint))


def digest_data(recipe: Recipe) -> dict[str, str]:
    """Return the SHA-256 of each split; of a sample if data are streamed, which may be larger than the memory."""
    is_sample, digests = recipe.compute.data == "streamed", {}
    for name, split in recipe.data.items():
        step = max(1, len(split) // 64) if is_sample else 1
        digests[str(name)] = "sampled " * is_sample + _digest(split.inputs[::step], split.targets[::step])
    return digests


def _digest(*tensors: torch.Tensor) -> str:
    digest = sha256()
    for tensor in tensors:
        digest.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().resolve_conj().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


# --- host and blueprints


def _graft_prototype(
    resolution: Resolution, build_host: Callable[[], nn.Module], train: Split, device: torch.device, outputs: int
) -> nn.Module:
    """Return a host as every environment will have it, with its slots attached and their shapes known.

    Raises:
        PluginError: It fails on its first batch, does not return ``outputs`` numbers each, or cannot have a twin.
    """
    seed, example = RandomStream.derive_seed(0, "prototype"), train.inputs[:2].to(device)

    def build() -> nn.Module:
        with RandomStream(seed, device):
            return build_host().to(device)

    host = build()
    with attributed_to(resolution.host.label, "on its first batch"):
        try:
            graft(host, resolution.places, example=example)
        except GraftError as error:
            if error.__cause__ is not None and error.problems[0].path == "example":
                raise error.__cause__ from None  # the host itself raised
            raise ConfigError([_at_slot(resolution, problem) for problem in error.problems]) from error
    try:  # as the first checkpoint would, after a part of the training
        for name, tensor in (*host.named_parameters(), *host.named_buffers()):
            refuse_unwritable(name, tensor.detach())
    except GrowthError as error:
        raise PluginError(error.problems) from error
    # Before a pass, which may change buffers. Code that is imported, or caches, may draw in the first build alone.
    if _mismatch(host, build()) and (mismatch := _mismatch(build(), build())):
        message, hint = f"{resolution.host.label} {mismatch[0]}", mismatch[1]
        raise PluginError(Problem("E231", message, path=resolution.host.component.title.target, hint=hint))
    with attributed_to(resolution.host.label, "on its first batch"):
        # In evaluation, which leaves buffers as they are.
        with RandomStream(seed, device), torch.no_grad():
            returned = host.eval()(example)
        host.train()
    is_tensor = isinstance(returned, torch.Tensor) and returned.is_floating_point()
    if not is_tensor or (returned.shape[:1], returned.shape[-1:]) != (example.shape[:1], (outputs,)):
        shape = f"{returned.dtype} of shape {tuple(returned.shape)}" if is_tensor else f"a {type(returned).__name__}"
        message, target = f"{resolution.host.label} returned {shape} for {len(example)} examples", resolution.host
        hint = f"The task needs a tensor of floating-point numbers, with {outputs} outputs for each example."
        raise PluginError(Problem("E231", message, path=target.component.title.target, hint=hint))
    return host


def _mismatch(host: nn.Module, second: nn.Module) -> tuple[str, str] | None:
    """Return what two hosts of one RNG seed share, or in what they differ, and a hint; None if they can be twins.

    Frozen parameters, and constants in buffers, may be shared, since nothing changes them; but not their modules, whose
    mode one network may change while another computes, nor modules with slots, which are their children.
    """
    first, now = (dict((*model.named_parameters(), *model.named_buffers())) for model in (host, second))
    modules, storages = {*host.modules()}, {tensor.untyped_storage().data_ptr() for tensor in first.values()}
    holding = {name: [*part.children(), *part.parameters(), *part.buffers()] for name, part in second.named_modules()}
    shared = [name for name, held in holding.items() if held and second.get_submodule(name) in modules]
    trained = [name for name in now if now[name].requires_grad and now[name].numel()]
    shared += [name for name in trained if now[name].untyped_storage().data_ptr() in storages]
    if shared:
        hint = "Build all layers in the class or function, and copy what is loaded once:  copy.deepcopy(loaded)"
        return f"returned the same {shared[0] or 'network'} twice, but networks must not share it", hint
    for name in first | now:
        if name not in first or name not in now or _digest(first[name]) != _digest(now[name]):
            hint = "Draw from torch's default generator, or seed another by torch.initial_seed(): twins start equal."
            return f"returned another {name} when it was called again with the same RNG seed", hint
    return None


def _at_slot(resolution: Resolution, problem: Problem) -> Problem:
    name = name_in_file((problem.path or "").removeprefix("slots."))
    path: KeyPath = ("slots",)
    if name in resolution.places:
        has_place = resolution.config.slots[name].at is not None
        path = ("slots", name, "at") if has_place else ("slots", name)
    return resolution.loaded.problem(problem.code, path, problem.message, problem.hint)


def name_in_file(slot: str) -> str:
    """Return the name in the file of a slot, which may stand for several."""
    return slot.partition(":")[0]


def _select_varieties(resolution: Resolution, host: Host) -> dict[str, tuple[Variety, ...]]:
    """Return for each slot of the host what may grow in it.

    Raises:
        ConfigError: A blueprint that the file names, or all that a glob matches, do not fit the slot (E305).
        PluginError: A blueprint is not what its specification says.
    """
    misfits: list[Problem] = []
    faults: list[Problem] = []
    varieties: dict[str, tuple[Variety, ...]] = {}
    sites = {(name_in_file(slot.name), slot.site) for slot in host.slots if slot.site is not None}
    for slot in host.slots:
        assert slot.site is not None
        site, name = slot.site, name_in_file(slot.name)
        chosen = [(component, cast("BlueprintSpec", component.spec)) for component in resolution.blueprints[name]]
        fitting = [(component, spec) for component, spec in chosen if spec.misfit(site) is None]
        for component, spec in chosen:
            path = _path_of_blueprint(resolution, name, component.id)
            elsewhere = any(name == at and spec.misfit(other) is None for at, other in sites)  # of the same pattern
            why = spec.misfit(site)
            if why is not None and (not fitting or (isinstance(path[-1], int) and not elsewhere)):
                message = f'blueprint "{component.id}" cannot grow in slot "{slot.name}": {why}'
                misfits.append(resolution.loaded.problem("E305", path, message, "See: esper components list blueprint"))
        varieties[slot.name] = tuple(
            Variety(component.id, spec, component.load(), component.title) for component, spec in fitting
        )
        for (component, _), variety in zip(fitting, varieties[slot.name], strict=True):
            if (fault := host.audition(variety, slot.site)) is not None:
                path = _path_of_blueprint(resolution, name, component.id)
                message = f"{component.title} {fault.message}"
                faults.append(resolution.loaded.problem(fault.code, path, message, fault.hint))
    if misfits:
        raise ConfigError(misfits)
    if faults:
        raise PluginError(list(dict.fromkeys(faults)))
    return varieties


def _path_of_blueprint(resolution: Resolution, slot: str, id_: str) -> KeyPath:
    """Return where the file names the blueprint; the path of the list if a glob matched it."""
    named = resolution.config.slots[slot].blueprints
    indices = [index for index, name in enumerate(named) if name.replace(" ", "") in (id_, id_.rpartition("/")[2])]
    return ("slots", slot, "blueprints", *indices[:1])


# --- components


def build_component(resolution: Resolution, chosen: ConfiguredComponent, *arguments: Any, **runtime: Any) -> Any:
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
