"""P3, P4, P13, P14, P19: what seeds, slots, snapshots and averages cost, one thread."""

from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import nn

from benchmarks.perf.figures import Figure, processor_time
from benchmarks.perf.workloads import workload
from esper_blueprints.conv_light import ConvLight
from esper_core import BlueprintSpec, graft
from esper_core.growth import Garden, OptimizerKeeper, Variety
from esper_core.growth.snapshots import Snapshot
from esper_core.leyline import Action, DataShape, Op
from esper_core.settings import GrowthConfig, OptimizerConfig
from esper_core.trainer import Pool
from esper_grow.gardener import Counterfactuals
from esper_tasks.hosts import cnn2d
from tests.support.core_worlds import add_seed

pytestmark = pytest.mark.usefixtures("in_process")

IMAGE = (3, 32, 32)
SLOTS = ("early", "middle", "late")


def host(*slots: str) -> nn.Module:
    torch.manual_seed(0)
    model = cnn2d(DataShape("image", IMAGE, 10))
    return graft(model, slots, example=torch.randn(2, *IMAGE)) if slots else model


def batch(quick: bool):
    examples = 8 if quick else 128
    return torch.randn(examples, *IMAGE), torch.randint(10, (examples,))


def share_behind(model: nn.Module, inputs: torch.Tensor) -> float:
    """Return the multiplications that come after each slot, summed over the slots, as a share of all."""
    counts: dict[str, int] = {}

    def count(name, module, args, output):
        weights = sum(parameter.numel() for parameter in module.parameters() if parameter.ndim > 1)
        counts[name] = output.numel() // output.shape[1] * weights

    layers = [(name, layer) for name, layer in model.named_modules() if isinstance(layer, nn.Conv2d | nn.Linear)]
    handles = [layer.register_forward_hook(partial(count, name)) for name, layer in layers]
    model(inputs)
    for handle in handles:
        handle.remove()
    names, behind = list(counts), 0
    for slot in SLOTS:
        last = max(place for place, name in enumerate(names) if name.startswith(f"{slot}."))
        behind += sum(counts[name] for name in names[last + 1 :])
    return behind / sum(counts.values())


def test_leaving_out_each_of_three_seeds(compare, record, quick):
    model = host(*SLOTS).eval()
    for number, slot in enumerate(SLOTS):
        add_seed(model, slot, ConvLight, number=number, noise=0.02)
    batches = [batch(quick) for _ in range(4)]
    losses = partial(nn.functional.cross_entropy, reduction="none")
    counterfactuals = Counterfactuals(model)

    def one_pass():
        for inputs, targets in batches:
            losses(model(inputs), targets)

    with torch.inference_mode():
        bound = 1 + share_behind(model, batches[0][0]) + 0.2
        counterfactuals.measure(batches, losses)
        assert counterfactuals.reason is None
        took = compare({"one": one_pass, "replayed": partial(counterfactuals.measure, batches, losses)}, 25)
    ratio = took["replayed"] / took["one"]
    record(Figure("P3", "evaluation with each of three seeds left out, against one pass", ratio, "×", bound))


def garden_with_seed(incubation: str, slot: str, quick: bool):
    """Return a garden with one seed, and a function that trains one batch."""
    model = host(slot)
    settings = OptimizerConfig(learning_rate=1e-3)
    keeper = OptimizerKeeper(model.parameters(), host_settings=settings, seed_settings=settings)
    variety = Variety("blueprints/conv_light", BlueprintSpec("image", starts_as_identity=True), ConvLight)
    growth = GrowthConfig(incubation="branch" if incubation == "branch" else "shadow", gates="off")
    garden = Garden(model, keeper, {slot: [variety]}, seed=0, batches=1, settings=growth)
    garden.apply(Action(Op.GERMINATE, slot, variety.id, speed=0), 0)
    garden.open_step()
    if incubation == "acting":
        garden.apply(Action(Op.ADVANCE, slot), 0)
    inputs, targets = batch(quick)

    def loss(model: nn.Module) -> torch.Tensor:
        return nn.functional.cross_entropy(model(inputs), targets)

    def train():
        garden.tick()
        keeper.zero_grad()
        keeper.backward(loss(model))
        keeper.step(garden.blended)
        for number in garden.incubating:
            garden.incubate(number, loss)
        garden.take_incubation_losses()

    return garden, train


@pytest.mark.parametrize("slot", SLOTS)
def test_incubation_against_training_host_and_seed_together(compare, record, quick, slot):
    took = compare({way: garden_with_seed(way, slot, quick)[1] for way in ("acting", "shadow", "branch")}, 25)
    for incubation, bound in (("shadow", 1.7), ("branch", 2.1)):
        label = f"{incubation}, {slot} slot: time against training host and seed together"
        record(Figure("P4", label, took[incubation] / took["acting"], "×", bound))


def test_empty_slots(compare, record, quick):
    plain, grafted = host().eval(), host()
    grafted.load_state_dict(plain.state_dict(), assign=True)  # the same memory, since its position affects the time
    graft(grafted.eval(), SLOTS, example=torch.randn(2, *IMAGE))
    inputs, _ = batch(quick)
    with torch.no_grad():
        took = compare({"plain": partial(plain, inputs), "grafted": partial(grafted, inputs)}, 400, warmup=10)
    beyond = 100 * (took["grafted"] / took["plain"] - 1)
    record(Figure("P13", "three empty slots, time beyond the host's forward pass", beyond, "%", 1.0))


def test_snapshot_of_the_governor(compare, record, quick):
    garden, train = garden_with_seed("acting", "middle", quick)
    train()
    snapshot = Snapshot(garden)
    took = compare({"train": train, "snapshot": partial(snapshot.take, garden)}, 25)
    share = 100 * took["snapshot"] / took["train"]
    record(Figure("P14", "snapshot of the governor, share of a training batch", share, "%", 10.0, 1))


@pytest.mark.parametrize(("name", "bound", "turns"), [("conv", 2.0, 20), ("1-d", 5.0, 60)])
def test_averaging_of_weights(compare, record, quick, name, bound, turns):
    """A host alone: its training step with a running average of its weights, and without one."""
    work = workload(name, quick=quick)
    recipe = work.recipe(channels_last=name == "conv")
    with ExitStack() as stack:
        sides = {}
        for average in (0.0, 16.0):
            growth = recipe.network.growth.model_copy(update={"average": average})
            pool = Pool(replace(recipe, network=replace(recipe.network, growth=growth)), ["grown"], 1)
            stack.enter_context(closing(pool))
            pool.reset(0, 0)
            sides[average] = partial(processor_time, partial(pool.train, 0))
        took = compare(sides, turns)
    beyond = 100 * (took[16.0] / took[0.0] - 1)
    record(Figure("P19", f"{name}: averaging the weights, time beyond a training step", beyond, "%", bound))
