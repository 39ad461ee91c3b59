"""Groups: networks of one structure are trained as one program, with the same results in a group of any size."""

import gc
import random
import weakref
from abc import ABC
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from itertools import chain, count
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from esper_core.fused import GRAPHS, Program
from esper_core.growth import Branch, Draws
from esper_core.growth.examples import tensors_in
from esper_core.leyline import WAIT, Action, BlueprintSpec, Signals, Split
from esper_core.settings import ComputeConfig
from esper_core.trainer.environment import Environment, Recipe
from esper_core.trainer.group_steps import JointTraining
from esper_core.trainer.pool import Pool
from tests.support import core_worlds
from tests.support.core_worlds import ADVANCE, GERMINATE, Net, SmoothHost, change_recipe, numbers, same, spelled
from tests.support.studies import play


def fused(
    host: Callable[[], nn.Module] = SmoothHost, *, compute: Mapping[str, Any] | None = None, **more: Any
) -> Recipe:
    """Return a recipe whose networks are trained in groups where they can be."""
    settings = ComputeConfig.model_validate({"fused": True, **(compute or {})})
    growth = core_worlds.plain_growth(**{"incubation": "branch", "embargo": 0, **more.pop("growth", {})})
    changes = {"draws": Draws.NEVER, "growth": growth, "compute": settings, **more}
    return change_recipe(core_worlds.make_recipe(host=host, batches=2), **changes)


def grow_first(environment: Environment, step: int) -> Action:
    """Grow in the environments with an even index alone, so that groups part."""
    return {0: GERMINATE, 1: ADVANCE, 3: core_worlds.FOSSILISE}.get(step, WAIT) if environment.index % 2 == 0 else WAIT


def run(recipe: Recipe, environments: int, lanes: int = 1) -> tuple[list[list[Signals]], list[Environment], list[Any]]:
    """Return the signals of two environments and their twins, these environments, and in each step how many units
    there are and why networks are alone."""
    pool, notes = Pool(recipe, ["grown", "twin"], environments, twin="twin", lanes=lanes), []

    def look(signals: list[Signals]) -> list[Signals]:
        units = pool.groups.units(pool.environments, 1)
        notes.append((len(units), {pool.why_alone(environment) for environment in pool.environments}))
        return signals[:4]

    return play(pool, 6, grow_first, look), pool.environments[:4], notes


class ScoresOfBatches(core_worlds.ToyTask):
    """A task whose scores are the accuracy of their batch."""

    def scores(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return super().scores(outputs, targets).mean().expand(len(targets))


@pytest.mark.parametrize("incubation", ["branch", core_worlds.slow("shadow")])
def test_results_do_not_depend_on_how_many_networks_are_trained_with_one(incubation: str) -> None:
    recipe = fused(growth={"incubation": incubation, "average": 3}, task=ScoresOfBatches())
    signals, environments, notes = run(recipe, 2)
    assert notes[0] == (1, {""})
    assert notes[-1] == (2, {""}), "one grew"
    for number, lanes in ((7, 1), (2, 2), (5, 3)):
        others, members, _ = run(recipe, number, lanes)
        assert spelled(others) == spelled(signals)
        assert same([numbers(member.model) for member in members], [numbers(member.model) for member in environments])
    plain, _, _ = run(change_recipe(recipe, compute=ComputeConfig()), 2)
    for signal, other in zip(chain(*signals), chain(*plain), strict=True):
        assert signal.validation_loss == pytest.approx(other.validation_loss, rel=1e-4)
        assert signal.validation_metric == pytest.approx(other.validation_metric, rel=1e-4)
        assert [slot.state for slot in signal.slots] == [slot.state for slot in other.slots]


def test_a_resumed_pool_goes_on_with_the_same_bits() -> None:
    whole, resumed = (Pool(fused(), ["grown", "twin"], 2, twin="twin") for _ in range(2))
    play(whole, 3, grow_first)
    resumed.reset(0, 3)
    resumed.load_state_dict(core_worlds.through_files(whole.state_dict()), in_round=True)
    assert spelled(play(whole, range(3, 6), grow_first)) == spelled(play(resumed, range(3, 6), grow_first))


def with_hook(*, on_gradient: bool = False) -> nn.Module:
    host = SmoothHost()
    if on_gradient:
        host.head[1].weight.register_hook(torch.relu)
    else:
        host.head[1].register_forward_hook(lambda module, args, output: output * 2)
    return host


def changed(change: Callable[[Any, Tensor], Tensor], **parts: Any) -> nn.Module:
    """Return a smooth host that changes its inputs, by more parts of it."""
    host = Net(lambda net, inputs: SmoothHost.forward(net, change(net, inputs)), **parts)
    for name, part in SmoothHost().named_children():
        host.add_module(name, part)
    host.register_buffer("mean", torch.ones(1))
    return host


def counted(net: Any, inputs: Tensor) -> Tensor:
    net.passes += 1
    return inputs


class Tally:
    """A count in a slot, which is no attribute in a ``__dict__``."""

    __slots__ = "passes"

    def __init__(self) -> None:
        self.passes = 0


PASSES, TALLY, GENERATOR = {"host": 0}, SimpleNamespace(passes=0), random.Random(0)


class Counting(SmoothHost):
    """A host that counts its passes where ``where`` says: not in attributes of its own."""

    passes = 0

    def __init__(self, where: str) -> None:
        super().__init__()
        self.where, self.held = where, HELD[where]()

    def forward(self, inputs: Tensor) -> Tensor:
        self.note()
        return super().forward(inputs)

    def note(self) -> None:
        match self.where:
            case "class":
                Counting.passes += 1
            case "class of the object":
                type(self).passes += 1
            case "file":
                PASSES["host"] += 1
            case "object of the file":
                TALLY.passes += 1
            case "iterator" | "generator":
                next(self.held)
            case "method":
                self.held()
            case "Python's generator":
                random.random()
            case "NumPy's generator":
                np.random.rand()
            case _:
                self.held.passes += 1


class Drawing(SmoothHost):
    """A host that draws from a generator in its file."""

    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs if GENERATOR.random() else -inputs)


class Derived(Counting, ABC):
    """A host whose base class counts. Python keeps a cache in its abstract class, which is no state."""


DRAWN = dict.fromkeys(("Python's generator", "NumPy's generator"), "it draws random numbers, or changes settings")
HELD: dict[str, Callable[[], Any]] = {
    **dict.fromkeys(("class", "class of the object", "file", "object of the file", *DRAWN), lambda: None),
    "object": lambda: SimpleNamespace(passes=0),
    "slots": Tally,
    "iterator": count,
    "generator": lambda: (number for number in range(10**9)),
    "method": lambda: [*range(10**4)].pop,
}


CHANGES = "a pass changes attributes of its modules, or what they refer to"
UNSEEN = 'module "" uses an object of the type {}, whose state cannot be seen'
OPAQUE = DRAWN | {"iterator": UNSEEN.format("count"), "generator": UNSEEN.format("generator")}


def scaled_without_gradients(net: Any, inputs: Tensor) -> Tensor:
    with torch.no_grad():
        return inputs * net.stem[0].weight[0, 0, 0]


def marked_in_evaluation(net: Any, inputs: Tensor) -> Tensor:
    marks = torch.zeros(inputs.shape)
    marks[..., 0] = 5.0
    return inputs if net.training else inputs + marks


def with_one_memory() -> nn.Module:
    host = SmoothHost()
    host.again = nn.Conv1d(1, 4, 1)
    host.again.weight = nn.Parameter(host.stem[0].weight)
    return host


HABITS: dict[str, Callable[[Any, Tensor], Tensor]] = {
    'no rule for torch\'s "conv2d"': lambda net, inputs: functional.conv2d(
        inputs.unsqueeze(1), net.mean.view(1, 1, 1, 1)
    ).flatten(1, 2),
    "it joins all numbers of a batch": lambda net, inputs: inputs if inputs.sum() > 0 else -inputs,
    '"as_tensor" takes what was computed as a constant': lambda net, inputs: inputs * torch.as_tensor(data=net.mean),
    '"__getitem__" takes what was computed as a constant': scaled_without_gradients,
    "other outputs than one after another": marked_in_evaluation,
    "an evaluation changes buffers, attributes of modules, or what they refer to": lambda net, inputs: (
        inputs * net.mean.mul_(0.9)
    ),
}
"""What networks do with their inputs, by why they are not one program."""


@pytest.mark.parametrize(
    ("recipe", "reason"),
    [
        (fused(with_hook), 'hook on module "head.1"'),
        (fused(partial(with_hook, on_gradient=True)), 'hook on the gradient of "weight"'),
        (fused(partial(changed, counted, passes=0)), CHANGES),
        *((fused(partial(Derived, where)), OPAQUE.get(where, CHANGES)) for where in HELD),
        (fused(with_one_memory), '"weight" lies in the memory of another tensor'),
        (fused(Drawing), UNSEEN.format("Random")),
        *((fused(partial(changed, change)), why) for why, change in HABITS.items()),
        (fused(draws=Draws.ANYWHERE), "host or blueprints draw random numbers"),
        (fused(compute={"precision": "bfloat16"}), "compute.precision is bfloat16"),
        (fused(compute={"micro_batches": 2}), "compute.micro_batches is above 1"),
    ],
    ids=lambda value: value.replace(" ", "-") if isinstance(value, str) else "",
)
def test_networks_that_cannot_be_one_program_are_trained_as_they_always_were(recipe: Recipe, reason: str) -> None:
    signals, _, notes = run(recipe, 1)
    assert notes[0] == (2, {reason})
    compute = recipe.compute.model_copy(update={"fused": False})
    assert spelled(run(change_recipe(recipe, compute=compute), 1)[0]) == spelled(signals)


class Balanced(core_worlds.ToyTask):
    """A task that weighs each example by how rare its class is in the batch."""

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return super().losses(outputs, targets) * len(targets) / (targets == targets[:, None]).sum(1)


def test_losses_that_look_at_their_batch_are_noticed_in_sorted_data():
    recipe = fused(task=Balanced())
    train = recipe.data["train"]
    by_class = train.targets.argsort(stable=True)
    data = {**recipe.data, "train": Split(train.inputs[by_class], train.targets[by_class])}
    assert run(change_recipe(recipe, data=data), 1)[2][0] == (2, {"another loss than one after another"})


NURSERY = {"nursery": 2, "incubation": "branch", "average": 3}
FIRST, SECOND = (
    replace(variety, spec=BlueprintSpec("sequence", starts_as_identity=True))
    for variety in (core_worlds.TAME, core_worlds.WILD)
)
PLANT_FIRST, PLANT_SECOND = (replace(GERMINATE, blueprint=variety.id) for variety in (FIRST, SECOND))


def nursery(**more: Any) -> Recipe:
    """Return a recipe with places for two seeds at once, of two blueprints."""
    return fused(varieties={"early": (FIRST, SECOND)}, growth=NURSERY, **more)


def planted() -> Pool:
    """Return two networks with a seed each, and their twins, at the beginning of a round."""
    pool = Pool(nursery(), ["grown", "twin"], 2, twin="twin")
    pool.reset(0, 3)
    pool.apply([PLANT_FIRST, WAIT] * 2, 0)
    return pool


class NullGraph(TorchDispatchMode):
    """Captures on a CPU: a launch makes the same calls with the tensors that the capture had, and runs nothing else."""

    made = 0

    def __init__(self, compute: Callable[[], Tensor]) -> None:
        super().__init__()
        self._calls: list[Any] = []
        with self:
            self.result = compute()
        NullGraph.made += 1
        for _, _, _, results in self._calls:
            for result in results:
                result.data.fill_(7)  # a graph computes nothing while it is captured

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        results = func(*args, **(kwargs or {}))
        made = [results] if isinstance(results, Tensor) else [part for part in results if isinstance(part, Tensor)]
        arguments = {tensor.untyped_storage().data_ptr() for tensor in tensors_in([args, kwargs])}
        new = [result for result in made if result.untyped_storage().data_ptr() not in arguments]
        self._calls.append((func, args, kwargs or {}, new))
        return results

    @torch.no_grad()
    def launch(self) -> None:
        for func, args, kwargs, new in self._calls:
            results = func(*args, **kwargs)
            made = [results] if isinstance(results, Tensor) else results
            if new:
                for result, again in zip(new, [part for part in made if isinstance(part, Tensor)], strict=True):
                    result.data.copy_(again)


def refuse_to_capture(compute: Callable[[], Tensor]) -> Any:
    compute()
    msg = "operation not permitted when stream is capturing"
    raise RuntimeError(msg)


@pytest.mark.parametrize("environments", [3, core_worlds.slow(8)])
def test_passes_that_are_captured_have_the_results_of_others(
    monkeypatch: pytest.MonkeyPatch, environments: int
) -> None:
    """On a GPU a group of three has the room of four, and its graph serves from step to step."""
    recipe = fused(growth={"average": 3})
    plain = play(Pool(recipe, ["grown"], environments), 5)
    grown = play(Pool(recipe, ["grown"], environments), 8, grow_first)
    monkeypatch.setitem(GRAPHS, "cpu", NullGraph)
    NullGraph.made = 0
    assert spelled(play(Pool(recipe, ["grown"], environments), 5)) == spelled(plain)
    assert NullGraph.made == 1
    assert spelled(play(Pool(recipe, ["grown"], environments), 8, grow_first)) == spelled(grown)
    assert NullGraph.made > 2
    monkeypatch.setitem(GRAPHS, "cpu", refuse_to_capture)
    assert spelled(play(Pool(recipe, ["grown"], environments), 5)) == spelled(plain)


def grow_both(environment: Environment, step: int) -> Action:
    """Grow both in environments with an even index, at once, and one of them in the others."""
    plans = {0: PLANT_FIRST, 1: PLANT_SECOND}, {1: PLANT_SECOND}
    return plans[environment.index % 2].get(step, WAIT)


def test_seeds_on_branches_are_trained_with_their_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = Pool(change_recipe(nursery(), compute=ComputeConfig()), ["grown"], 2)
    plain = play(pool, 5, grow_both)
    monkeypatch.setattr(Branch, "train", None)
    monkeypatch.setattr("esper_core.trainer.environment.evaluate", pytest.fail)
    results = [
        play(Pool(nursery(), ["grown"], count), 5, grow_both, lambda signals: signals[:2]) for count in (2, 1, 5)
    ]
    one_by_one = Pool(nursery(), ["grown"], 2)
    one_by_one.groups.singly = True
    assert spelled(play(one_by_one, 5, grow_both)) == spelled(results[0])
    assert spelled(results[2]) == spelled(results[0])
    assert spelled(results[1]) == spelled([signals[:1] for signals in results[0]])
    for signals, expected in zip(results[0][-1], plain[-1], strict=True):
        for seed, other in zip(signals.slots[0].seeds, expected.slots[0].seeds, strict=True):
            assert seed.incubation_loss == pytest.approx(other.incubation_loss, rel=1e-4)
            assert seed.gain.mean == pytest.approx(other.gain.mean, rel=1e-2, abs=1e-5)
            assert seed.gradients.global_norm == pytest.approx(other.gradients.global_norm, rel=1e-3)


@pytest.mark.parametrize("what", ["network", "seed"])
def test_a_network_or_seed_that_fails_in_a_group_is_trained_by_itself_and_leaves_the_others_their_results(
    monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    train, train_alone, alone = JointTraining.train, Branch.train, []

    def parts_of(training: JointTraining) -> list[Tensor]:
        """Return the first parameter of each network or seed that is trained in a pass."""
        if what == "network":
            return [member.network.trained[0] for member in training.members]
        guests = [member.network.guest for member in training.members]
        return [next(guest.seed.parameters()) for guest in guests if guest is not None]

    def trained(*, harm: str) -> list[Mapping[str, Tensor]]:
        """Train three networks for a step, in which the second one, or its seed, fails or has no numbers."""
        pool = Pool(fused() if what == "network" else nursery(), ["grown"], 3)
        pool.reset(0, 3)
        if what == "seed":
            pool.apply([PLANT_FIRST] * 3, 0)
        second = pool.environments[1]
        victim = next((second.model if what == "network" else second.garden.living_seeds()[0]).parameters())

        def fail(training: JointTraining, *batch: Tensor) -> Exception | None:
            is_in = any(part is victim for part in parts_of(training))
            return ValueError("of this part") if is_in and harm == "error" else train(training, *batch)

        def train_one(branch: Branch, *parts: Any) -> None:
            alone.append(harm)
            train_alone(branch, *parts)

        if harm == "NaN":
            victim.data.fill_(torch.nan)
        monkeypatch.setattr(JointTraining, "train", fail)
        monkeypatch.setattr(Branch, "train", train_one)
        pool.train(0)
        states = [environment.garden.state_dict().tensors for environment in pool.environments]
        pool.evaluate(0)
        if what == "network":
            return [numbers(environment.model) for environment in pool.environments]
        pool.synchronise(0)
        pool.heal(0)
        assert [len(environment.garden.incubating) for environment in pool.environments] == [1, harm != "NaN", 1]
        return states

    whole, failed, not_finite = (trained(harm=harm) for harm in ("", "error", "NaN"))
    assert alone == (["error", "error"] if what == "seed" else []), "one batch each"
    assert same([whole[0], whole[2]], [failed[0], failed[2]])
    assert same([whole[0], whole[2]], [not_finite[0], not_finite[2]])
    torch.testing.assert_close(failed[1], whole[1])
    assert what == "seed" or all(tensor.isnan().all() for tensor in not_finite[1].values())


def test_lanes_get_as_many_branches_as_each_other_and_small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = planted()

    def arms() -> list[list[str]]:
        return [[environment.arm for environment in unit] for unit in pool.groups.units(pool.environments, 2)]

    assert arms() == [["grown", "twin"]] * 2
    monkeypatch.setattr("esper_core.trainer.groups.MOST_NETWORKS", 2)
    assert arms() == [["grown"], ["grown"], ["twin"], ["twin"]], "a pass of a branch has its host, too"


def test_a_host_that_lost_its_seed_still_equals_its_twin_and_keeps_no_memory_of_it() -> None:
    pool = planted()
    seed = weakref.ref(pool.environments[0].garden.living_seeds()[0])
    next(seed().parameters()).data.fill_(torch.nan)
    pool.train(0)
    pool.evaluate(0)
    pool.synchronise(0)
    assert len(pool.heal(0)) == 1
    assert [len(environment.garden.incubating) for environment in pool.environments] == [0, 0, 1, 0]
    grown, twin = pool.latest[:2]
    assert (grown.validation_loss, grown.train_loss) == (twin.validation_loss, twin.train_loss)
    pool.train(1)
    gc.collect()
    assert seed() is None


def test_a_seed_that_fails_in_evaluation_leaves_its_host_equal_to_its_twin(monkeypatch: pytest.MonkeyPatch) -> None:
    pool, outputs = planted(), Program.outputs
    pool.train(0)

    def fail(program: Program, stacks: Any, *others: Any, **named: Any) -> Any:
        if any(run.guest is not None for run in stacks.runs):
            raise ValueError("of a seed")
        return outputs(program, stacks, *others, **named)

    monkeypatch.setattr(Program, "outputs", fail)
    pool.evaluate(0)
    pool.synchronise(0)
    grown, twin = pool.latest[:2]
    assert grown.validation_loss == twin.validation_loss
    assert grown.slots[0].seeds[0].gain is not None, "measured by itself"
