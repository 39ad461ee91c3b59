"""Shared set-up for tests of growth and training: hosts, blocks, actions, and bitwise comparisons."""

import json
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load as decode, save as encode
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from esper_core import BlueprintSpec, Site, SlotPlace, graft
from esper_core.growth import Garden, OptimizerKeeper, OptimizerSettings, Seed, Variety, host_parameters, slots_of
from esper_core.leyline import WAIT, Action, ActionMask, Metric, Observation, Op, Signals, Split, Stage, State
from esper_core.leyline.protocols import Rollout
from esper_core.settings import GovernorConfig, GrowthConfig, OptimizerConfig, OptimizersConfig
from esper_core.trainer.environment import Environment, Recipe
from esper_core.trainer.growing_network import NetworkSettings
from esper_core.trainer.lanes import CudaStream
from esper_core.trainer.pool import Pool

GERMINATE = Action(Op.GERMINATE, "early", "test/local-conv", speed=1)
ADVANCE, PRUNE, FOSSILISE = (Action(op, "early") for op in (Op.ADVANCE, Op.PRUNE, Op.FOSSILISE))


def slow(*values: Any, id: str | None = None) -> Any:
    """Return a case of a parametrised test that runs in the slow suite only."""
    return pytest.param(*values, id=id, marks=pytest.mark.slow)


class Net(nn.Module):
    """A module of these parts, parameters and buffers, whose forward is a function of itself and the inputs."""

    def __init__(self, compute: Callable[..., Any], **parts: Any) -> None:
        super().__init__()
        self.compute = compute
        for name, part in parts.items():
            if isinstance(part, Tensor) and not isinstance(part, nn.Parameter):
                self.register_buffer(name, part)
            else:
                setattr(self, name, part)

    def forward(self, *args: Any, **named: Any) -> Any:
        return self.compute(self, *args, **named)


class NoisyHost(nn.Module):
    """A host with BatchNorm and dropout, which reveals any change of buffers or random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv1d(1, 4, 1), nn.BatchNorm1d(4), nn.ReLU())
        self.drop = nn.Dropout(0.2)
        self.hidden = nn.Sequential(nn.Flatten(), nn.Linear(48, 8), nn.ReLU())
        self.head = nn.Linear(8, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(self.hidden(self.drop(self.stem(inputs))))


class SmoothHost(nn.Module):
    """A host without BatchNorm and dropout: no random numbers, and the loss of a batch is the mean over its parts."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv1d(1, 4, 1), nn.GELU())
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(48, 3))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(self.stem(inputs))


def turning(change: Callable[[Tensor], Tensor], after: int) -> type[SmoothHost]:
    """Return a smooth host that changes its inputs in training, after some batches; those of a dry run do not count."""

    class Turning(SmoothHost):
        left = after

        def forward(self, inputs: Tensor) -> Tensor:
            self.left -= self.training and len(inputs) > 2
            return super().forward(change(inputs) if self.training and self.left < 0 else inputs)

    return Turning


def replacing() -> nn.Module:
    """Return a host that replaces its buffer by another tensor, rather than filling it."""

    def compute(net: Any, inputs: Tensor) -> Tensor:
        hidden = net.drop(net.stem(inputs))
        if net.training:
            net.average = 0.9 * net.average + 0.1 * hidden.detach().mean(0)
        return net.head((hidden - net.average).flatten(1))

    stem = nn.Sequential(nn.Conv1d(1, 4, 1), nn.ReLU())
    return Net(compute, stem=stem, drop=nn.Dropout(0.2), head=nn.Linear(48, 3), average=torch.zeros(4, 12))


def noisy_in_evaluation() -> nn.Module:
    """Return a host with dropout in evaluation, too."""

    def compute(net: Any, inputs: Tensor) -> Tensor:
        return net.head(nn.functional.dropout(net.stem(inputs), 0.2).flatten(1))

    return Net(compute, stem=nn.Conv1d(1, 4, 1), head=nn.Linear(48, 3))


def local_conv(site: Site) -> Any:
    """x + conv(relu(conv(x))), the last one zero: the identity at birth."""
    first, last = (nn.Conv1d(site.channels, site.channels, 3, padding=1) for _ in range(2))
    return Net(lambda net, hidden: hidden + net.last(torch.relu(net.first(hidden))), first=first, last=zeroed(last))


class Tame(nn.Module):
    """x + W·tanh(V·x + v) over the features, W at 0: the identity at birth."""

    def __init__(self, site: Site) -> None:
        super().__init__()
        self.axis = -1 if site.kind == "tokens" else 1
        self.first = nn.Linear(site.channels, site.channels)
        self.last = zeroed(nn.Linear(site.channels, site.channels, bias=False))

    def forward(self, hidden: Tensor) -> Tensor:
        features = hidden.movedim(self.axis, -1)
        return (features + self.last(torch.tanh(self.first(features)))).movedim(-1, self.axis)


class Wild(Tame):
    """Not the identity."""

    def forward(self, hidden: Tensor) -> Tensor:
        return super().forward(hidden) - 2 * hidden


def loud(site: Site) -> nn.Module:
    """Not the identity at birth, so the seed has a gain in front of it."""
    mix = nn.Conv1d(site.channels, site.channels, 1)
    return Net(lambda net, hidden: torch.tanh(net.mix(hidden)), mix=mix)


def zeroed(module: nn.Module) -> Any:
    """Return the module with every parameter at 0."""
    for parameter in module.parameters():
        nn.init.zeros_(parameter)
    return module


class NanGradient(torch.autograd.Function):
    """Returns its input, with a gradient of NaN."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor) -> Tensor:
        return hidden.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * torch.nan


def out_of_patience(block: nn.Module, grown: Tensor) -> Tensor:
    raise ValueError("out of patience")


class Bad(nn.Module):
    """A valid block for its first ``patience`` passes in training or evaluation, which then calls ``harm``."""

    def __init__(self, site: Site, harm: Callable[[Any, Tensor], Tensor], patience: int, training: bool) -> None:
        super().__init__()
        self.conv = zeroed(nn.Conv1d(site.channels, site.channels, 1))
        self.harm, self.patience, self.counted = harm, patience, training

    def forward(self, hidden: Tensor) -> Tensor:
        self.patience -= self.training is self.counted
        grown = hidden + self.conv(hidden)
        return grown if self.patience >= 0 else self.harm(self, grown)


def bad(
    harm: Callable[[Any, Tensor], Tensor] = out_of_patience, patience: int = 0, *, training: bool = True
) -> Variety:
    spec = BlueprintSpec("sequence", starts_as_identity=True)
    return Variety("test/bad", spec, lambda site: Bad(site, harm, patience, training))


LOCAL_CONV = Variety("test/local-conv", BlueprintSpec("sequence", starts_as_identity=True), local_conv)
LOUD = Variety("test/loud", BlueprintSpec("sequence"), loud)
TAME = Variety("test/tame", BlueprintSpec("vector", starts_as_identity=True), Tame)
WILD = Variety("test/wild", BlueprintSpec("vector"), Wild)


def sites_of(channels: int, features: int, **sizes: tuple[int, ...]) -> dict[str, Site]:
    """Return a site of each kind: ``sites_of(4, 8, image=(6, 6), sequence=(12,), tokens=(5,))``; adapters fit, too."""
    widths = {"image": channels, "sequence": channels, "vector": features, "tokens": features}
    return {kind: Site(kind, width, sizes.get(kind, ()), inputs=width) for kind, width in widths.items()}


class ToyTask:
    """Three classes of bumps on noise, told apart by the bump's shape."""

    metric = Metric("accuracy", "up", "%")

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return nn.functional.cross_entropy(outputs, targets, reduction="none")

    def scores(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs.argmax(1) == targets).float()


def toy_split(examples: int, seed: int) -> Split:
    """Return examples of the toy task."""
    generator = torch.Generator().manual_seed(seed)
    shapes = torch.tensor([[1.0, 2.0, 1.0], [2.0, -1.0, 2.0], [-1.0, 0.0, 1.0]])
    targets = torch.randint(0, 3, (examples,), generator=generator)
    inputs = 0.1 * torch.randn(examples, 1, 12, generator=generator)
    starts = torch.randint(0, 9, (examples,), generator=generator)
    for row, (target, start) in enumerate(zip(targets, starts, strict=True)):
        inputs[row, 0, start : start + 3] += shapes[target]
    return Split(inputs, targets)


class Drawn(TensorDataset):
    """Yields different data in each pass, from a generator that is not restored."""

    def __init__(self, *tensors: Tensor) -> None:
        super().__init__(*tensors)
        self.generator = torch.Generator().manual_seed(0)

    def __getitem__(self, index: int) -> Any:
        inputs, targets = super().__getitem__(index)
        return inputs + torch.randn(inputs.shape, generator=self.generator), targets


def per_example(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Return one loss for each example, as a user's function does."""
    inputs, targets = batch
    return nn.functional.cross_entropy(model(inputs), targets, reduction="none")


class PlannedPolicy:
    """Carries out a plan where the mask allows it, and records observations, masks and rollouts."""

    def __init__(self, plan: Mapping[int, Action] | None = None) -> None:
        self.plan = plan or {}
        self.seen: list[Observation] = []
        self.masks: list[ActionMask] = []
        self.rollouts: list[Rollout] = []

    def act(self, observations: Sequence[Observation], masks: Sequence[ActionMask]) -> list[Action]:
        self.seen += observations
        self.masks += masks
        planned = [self.plan.get(observation.step, WAIT) for observation in observations]
        return [action if mask.allows(action) else WAIT for action, mask in zip(planned, masks, strict=True)]

    def update(self, rollout: Rollout) -> dict[str, float]:
        self.rollouts.append(rollout)
        return {}


class Falling:
    """A schedule that differs in each step."""

    def factor(self, step: int, steps: int | None) -> float:
        return 1.0 / (1 + step)


def make_recipe(
    *,
    steps: int = 6,
    batches: int = 3,
    host: Callable[[], nn.Module] = NoisyHost,
    variety: Variety = LOCAL_CONV,
    place: SlotPlace | None = None,
    optimizer: dict[str, object] | None = None,
    embargo: int = 2,
    governor: dict[str, object] | None = None,
) -> Recipe:
    """Return the recipe of small environments."""
    settings = {"learning_rate": 1e-2, **(optimizer or {})}
    task = ToyTask()
    return Recipe(
        task=task,
        data={"train": toy_split(120, 1), "validation": toy_split(60, 2), "test": toy_split(60, 3)},
        build_host=host,
        slots={"early": place or SlotPlace("stem")},
        network=NetworkSettings(
            {"early": (variety,)},
            steps,
            batches,
            growth=plain_growth(embargo=embargo),
            governor=GovernorConfig.model_validate(governor or {}),
            optimizers=OptimizersConfig.model_validate({"host": settings, "seed": settings}),
            metric=task.metric,
        ),
        batch_size=20,
        device=torch.device("cpu"),
    )


OF_NETWORKS = {field.name for field in fields(NetworkSettings)}


def plain_growth(**more: Any) -> GrowthConfig:
    """Return settings with which any seed may be kept, judged by the weights of its last step."""
    return GrowthConfig(**{"gates": "off", "nursery": 1, "average": 0, "incubation": "shadow", **more})


def change_recipe(recipe: Recipe, **changes: Any) -> Recipe:
    """Return the recipe with other values, its own or those of the settings of its networks."""
    of_network = {name: changes.pop(name) for name in OF_NETWORKS & changes.keys()}
    return replace(recipe, network=replace(recipe.network, **of_network), **changes)


def begin(recipe: Recipe, seed: int = 3, **more: Any) -> Environment:
    """Return an environment at the beginning of a round."""
    environment = Environment(recipe, **{"arm": "grown", "index": 0, **more})
    environment.reset(0, seed)
    return environment


def train_and_act(environment: Environment, *actions: Action) -> None:
    """Train a step before each of these actions."""
    for step, action in enumerate(actions):
        environment.train()
        environment.network.apply(action, step)


def begin_pool(
    recipe: Recipe, *, twin: bool = True, scale: float | None = None, interval: int = 1000, **growth: Any
) -> Pool:
    """Return a pool of a network and its twin at the beginning of a round, with these settings of growth.

    ``scale``: the first factor of the scalers of the loss, which half precision takes; ``interval``: between increases.
    """
    settings = GrowthConfig.model_validate({**recipe.network.growth.model_dump(), **growth})
    recipe = change_recipe(recipe, growth=settings)
    pool = Pool(recipe, ["grown", "twin"] if twin else ["grown"], 1, twin="twin" if twin else None)
    pool.reset(0, 3)
    for environment in pool.environments if scale is not None else ():
        environment.keeper.scaler = torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=interval)
    return pool


def read(environment: Environment, step: int) -> Signals:
    environment.evaluate("validation")
    return environment.network.conclude_step(step, environment.network.numbers().tolist())


def numbers(model: nn.Module) -> dict[str, Tensor]:
    """Return copies of all parameters and buffers, without those of seeds."""
    named = (*model.named_parameters(), *model.named_buffers())
    return {name: tensor.detach().clone() for name, tensor in named if "_esper" not in name}


def same(left: Any, right: Any) -> bool:
    """Return whether tensors, or anything that holds them in their order or by their names, are bitwise equal."""
    if isinstance(left, Tensor) or isinstance(right, Tensor):
        return isinstance(left, Tensor) and isinstance(right, Tensor) and torch.equal(left.to_dense(), right.to_dense())
    if isinstance(left, Mapping):
        return left.keys() == right.keys() and all(same(value, right[name]) for name, value in left.items())
    if isinstance(left, Iterable) and not isinstance(left, str):
        left_members, right_members = list(left), list(right)
        return len(left_members) == len(right_members) and all(map(same, left_members, right_members))
    return bool(left == right)


def spelled(value: Any) -> Any:
    """Return nested lists and mappings of texts, which are equal only for bitwise equal values: NaN equals itself."""
    if isinstance(value, Tensor):
        return spelled(value.tolist())
    if is_dataclass(value) and not isinstance(value, type):
        return [type(value).__name__, *(spelled(getattr(value, field.name)) for field in fields(value))]
    if isinstance(value, Mapping):
        return {repr(key): spelled(member) for key, member in value.items()}
    if isinstance(value, list | tuple):
        return [spelled(member) for member in value]
    return sorted(map(repr, value)) if isinstance(value, set | frozenset) else repr(value)


def through_files(state: State) -> State:
    """Return the state after writing it to a JSON file and a tensor file and reading it."""
    text = json.dumps(state.plain, allow_nan=False, sort_keys=True)
    assert json.loads(text) == state.plain, "JSON would change it"
    assert all(not tensor.requires_grad for tensor in state.tensors.values())
    return State(json.loads(text), decode(encode(dict(state.tensors))))


def make_garden(
    model: nn.Module,
    *varieties: Variety,
    optimizer: OptimizerConfig | OptimizerSettings | None = None,
    growth: dict[str, Any] | None = None,
    **more: Any,
) -> Garden:
    """Return a garden over all slots of a model, which take these varieties."""
    optimizer_settings = optimizer or OptimizerConfig()
    keeper = OptimizerKeeper(host_parameters(model), host_settings=optimizer_settings, seed_settings=optimizer_settings)
    settings = GrowthConfig.model_validate(
        {"gates": "off", "nursery": 1, "incubation": "shadow", "embargo": 0, **(growth or {})}
    )
    slots = {slot.name: varieties for slot in slots_of(model)}
    return Garden(model, keeper, slots, **{"seed": 0, "batches": 1, "settings": settings, **more})


class Bend(nn.Module):
    """x + tanh(mix(x)): changes everything a little."""

    def __init__(self, site: Site) -> None:
        super().__init__()
        self.axis = -1 if site.kind == "tokens" else 1
        self.mix = nn.Linear(site.channels, site.channels)

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden + torch.tanh(self.mix(hidden.movedim(self.axis, -1))).movedim(-1, self.axis)


def add_seed(
    model: nn.Module,
    name: str,
    block: Callable[[Site], nn.Module] = Bend,
    *,
    alpha: float = 1.0,
    fossil: bool = False,
    seed: int = 0,
    noise: float = 0.0,
    spec: BlueprintSpec | None = None,
    **more: Any,
) -> Seed:
    """Put a seed into a slot, where it acts immediately.

    Its weights are drawn with the RNG seed ``seed``; ``noise``: the spread of what is added to all its parameters.
    """
    slot = slots_of(model).named(name)
    assert slot.site is not None
    spec = spec or BlueprintSpec(slot.site.kind, starts_as_identity=True)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        arguments = {"blueprint": "test/bend", "spec": spec, "site": slot.site, "number": len(slot.seeds)}
        grown = Seed(block(slot.site), **{**arguments, **more})
        for parameter in grown.parameters() if noise else ():
            parameter.data.add_(noise * torch.randn_like(parameter))
    grown.to(next(model.parameters()).dtype).train(model.training)
    grown.stage = Stage.FOSSILISED if fossil else Stage.HOLDING
    grown.alpha.aim(alpha, 0)
    slot.seeds.append(grown)
    return grown


class LinearWorld:
    """A host of linear layers with a slot behind each but the last, its garden, and how it is trained.

    Args:
        places: how many seeds the slot behind each layer may keep.
        ready: says which seeds pass their gate; without it gates are off.
    """

    def __init__(
        self,
        places: Mapping[str, int],
        varieties: Sequence[Variety],
        host: OptimizerConfig | OptimizerSettings,
        seeds: OptimizerConfig | OptimizerSettings | None = None,
        *,
        growth: GrowthConfig,
        batches: int = 1,
        ready: Callable[[Seed], bool] | None = None,
    ) -> None:
        torch.manual_seed(4)
        width, self.batches = 3, batches
        layers = {name: nn.Linear(width, width) for name in places}
        self.model = nn.Sequential(OrderedDict([*layers.items(), ("head", nn.Linear(width, 1))]))
        self.host_keys = list(self.model.state_dict())
        self.inputs, self.targets = torch.randn(6, width), torch.randn(6, 1)
        slots = {name: SlotPlace(name, stack=limit) for name, limit in places.items()}
        graft(self.model, slots, example=self.inputs)
        parameters = list(self.model.parameters())
        self.keeper = OptimizerKeeper(parameters, host_settings=host, seed_settings=seeds or host)
        more: dict[str, Any] = {"batches": batches, "settings": growth}
        if ready is not None:
            more["gates"] = SimpleNamespace(
                ready=ready, refusal=lambda seed, op: None, lead=lambda seed: 0.0, explain=lambda reason, seed: reason
            )
        self.garden = Garden(self.model, self.keeper, dict.fromkeys(places, varieties), seed=3, **more)

    def loss(self, model: nn.Module) -> Tensor:
        return (model(self.inputs) - self.targets).square().mean()

    def backward(self) -> None:
        self.keeper.zero_grad()
        self.loss(self.model).backward()

    def train_batch(self) -> None:
        """Train the host, blended seeds and incubating seeds on one batch."""
        self.garden.tick()
        self.backward()
        self.keeper.step(self.garden.blended)
        for number in self.garden.incubating:
            self.garden.incubate(number, self.loss)

    def train(self, steps: int = 1) -> None:
        for _ in range(steps):
            self.garden.open_step()
            for _ in range(self.batches):
                self.train_batch()
            self.garden.close_step()


class RecordingStream(CudaStream):
    """Records its calls in one list for all streams; its marks are numbered."""

    def __init__(self, name: str, log: list[str]) -> None:
        self.name, self.log, self.marks = name, log, 0

    @contextmanager
    def current(self) -> Iterator[None]:
        self.log.append(f"{self.name} on")
        yield
        self.log.append(f"{self.name} off")

    def mark(self) -> Any:
        self.marks += 1
        self.log.append(f"{self.name} mark {self.marks}")
        return f"{self.name}:{self.marks}"

    def wait(self, mark: str) -> None:
        self.log.append(f"{self.name} waits for {mark}")

    def keep(self, tensor: Tensor) -> None:
        self.log.append(f"{self.name} keeps {tuple(tensor.shape)}")

    def drain(self) -> None:
        self.log.append(f"host waits for {self.name}")
