"""Forward passes: half precision, micro-batches, compiled passes and memory layouts give the numbers of plain ones."""

import logging
import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from esper_core.governor import Act
from esper_core.growth import Draws, Variety, graft
from esper_core.leyline import Action, BlueprintSpec, Op, PluginError, Site, Split
from esper_core.leyline.signals import CALM
from esper_core.settings import ComputeConfig, OptimizersConfig
from esper_core.trainer.batches import BatchOrder, Resident, chunks
from esper_core.trainer.environment import Environment, Recipe
from esper_core.trainer.forward import CompiledHost, half_precision, torch_compiler
from esper_core.trainer.measurements import evaluate
from esper_core.trainer.pool import Pool
from tests.support import core_worlds
from tests.support.core_worlds import ADVANCE, FOSSILISE, GERMINATE, SmoothHost, begin, begin_pool, change_recipe
from tests.support.studies import play


def computed(*, way: str = "shadow", more: dict[str, Any] | None = None, **compute: Any) -> Recipe:
    """Return a recipe with these compute settings."""
    recipe = core_worlds.make_recipe(**{"steps": 8, "host": SmoothHost, **(more or {})})
    return change_recipe(
        recipe, compute=ComputeConfig(**compute), growth=core_worlds.plain_growth(embargo=2, incubation=way)
    )


def parameters(environment: Environment) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in environment.model.parameters()]


@pytest.mark.parametrize(
    ("precision", "way"), [("bfloat16", "shadow"), core_worlds.slow("float16", "shadow"), ("float16", "branch")]
)
def test_a_whole_life_in_half_precision_leaves_parameters_and_losses_in_float32(precision, way):
    seen: set[tuple[torch.dtype, bool]] = set()

    class Watched(SmoothHost):
        def forward(self, inputs: Tensor) -> Tensor:
            outputs = super().forward(inputs)
            seen.add((outputs.dtype, torch.is_autocast_cache_enabled()))
            return outputs

    pool = begin_pool(computed(way=way, precision=precision, more={"host": Watched}))
    seen.clear()  # the slots were observed before
    reports = play(pool, range(8), {0: GERMINATE, 2: ADVANCE, 5: FOSSILISE})
    grown, _ = pool.environments
    assert seen == {(getattr(torch, precision), False)}, "the cache of shortened weights is shared by all lanes"
    assert len(grown.garden.slots["early"].fossils) == 1
    assert {tensor.dtype for tensor in grown.model.parameters()} == {torch.float32}
    assert grown.network.evaluation.losses.dtype is torch.float32
    assert reports[-1][0].train_loss < reports[0][0].train_loss
    assert reports[-1][0].loss_scale == (65536.0 if precision == "float16" else None)


def test_a_host_that_is_in_half_precision_itself_is_measured_in_float32():
    def in_half() -> nn.Module:
        parts = dict(SmoothHost().named_children())
        return core_worlds.Net(lambda net, inputs: SmoothHost.forward(net, inputs.bfloat16()), **parts).bfloat16()

    environment = begin(computed(more={"host": in_half}))
    _, metric = environment.evaluate("test").tolist()
    right = metric * len(environment.recipe.data["test"])
    assert right == pytest.approx(round(right), abs=1e-4)


def test_gains_are_computed_in_the_precision_of_the_evaluation():
    """Bitwise, since otherwise a difference in rounding would count as a gain."""
    pool = begin_pool(computed(precision="bfloat16"))
    grown, _ = pool.environments
    split, task = grown.recipe.data["validation"], grown.recipe.task

    def evaluated(*outputs: Any) -> Tensor:
        return evaluate(grown.model, task, split, *outputs).losses

    signals = play(pool, range(2), {0: GERMINATE})[-1][0]
    with grown.garden.incubating[0].trial():
        tried = evaluated(grown.forward.outputs)
        in_float32 = evaluated()
    assert not torch.equal(tried, in_float32)
    assert signals.slots[0].living.gain.mean == (grown.network.evaluation.losses - tried).double().mean().item()


def test_sim_low_3_auto_precision_is_bfloat16_or_float16_on_a_gpu_and_float32_on_a_cpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0) if device.index == 1 else (7, 5))
    old, new = torch.device("cuda", 0), torch.device("cuda", 1)
    assert half_precision("auto", old) is torch.float16
    assert half_precision("auto", new) is torch.bfloat16
    assert half_precision("auto", torch.device("cpu")) is None
    assert half_precision("float32", new) is None


def test_sim_low_3_every_environment_has_scalers_of_its_own_in_each_round():
    pool, scalers = Pool(computed(precision="float16"), ["a", "b"], 2), []
    for number in range(2):
        pool.reset(number, 3)
        scalers += [environment.keeper.scaler for environment in pool.environments]
    assert len({id(scaler) for scaler in scalers}) == 8


def test_while_a_scaler_searches_its_factor_nothing_is_learnt_and_nothing_rolled_back():
    pool = begin_pool(computed(precision="float16"), scale=2.0**60)
    before = parameters(pool.environments[0])
    scales = [step[0].loss_scale for step in play(pool, range(4))]
    assert scales == [2.0**57, 2.0**54, 2.0**51, 2.0**48], "each of three batches was skipped, and halved it"
    assert all(map(torch.equal, before, parameters(pool.environments[0])))
    assert pool.environments[0].network.governor.state_dict().plain["rollbacks"] == 0


def test_gradients_of_an_acting_seed_that_overflowed_are_unknown():
    pool = begin_pool(computed(precision="float16"), scale=2.0**10)
    play(pool, range(4), {0: GERMINATE, 1: ADVANCE})
    network, scaler = pool.environments[0].network, pool.environments[0].keeper.scaler
    for step, scale in ((4, 2.0**100), (5, 2.0**8)):
        scaler.load_state_dict({**scaler.state_dict(), "scale": scale})
        ((signals, _),) = play(pool, range(step, step + 1))
        gradients = signals.slots[0].living.gradients
        assert network.measured.host_finite
        assert (gradients is None) is (step == 4)
    assert gradients.non_finite == 0.0
    assert gradients.global_norm > 0.0


@pytest.mark.parametrize(("scale", "spoilt", "finite"), [(2.0, False, True), (0.5, False, False), (2.0, True, False)])
def test_infinite_gradients_below_scale_1_and_infinite_parameters_are_a_panic(scale, spoilt, finite):
    pool = begin_pool(computed(precision="float16"), scale=scale)
    play(pool, range(1))
    grown = pool.environments[0]
    first = next(iter(grown.keeper.host.parameters))
    (first.data if spoilt else first.grad).fill_(torch.inf)
    grown.evaluate("validation")
    signals = grown.network.signals(1, grown.network.numbers().tolist())
    assert grown.network.measured.host_finite is finite
    assert (grown.network.judge(replace(signals, validation_loss=1.0), CALM).act is Act.ROLL_BACK) is not finite


def test_host_and_fossils_skip_an_overflowed_step_together():
    """They are clipped together: one gradient of NaN would make all others NaN."""
    pool = begin_pool(computed(precision="float16", more={"optimizer": {"clip_norm": 0.5}, "batches": 1}), scale=4.0)
    play(pool, range(7), {0: GERMINATE, 1: ADVANCE, 5: FOSSILISE})
    keeper = pool.environments[0].keeper
    (fossil,) = keeper.fossils.values()
    host_and_fossil = (*keeper.host.parameters, *fossil.parameters)
    before = [parameter.detach().clone() for parameter in host_and_fossil]
    for parameter in host_and_fossil:
        parameter.grad = torch.ones_like(parameter)
    for parameter in keeper.host.parameters:
        parameter.grad.fill_(torch.nan)
    keeper.step([])
    assert all(map(torch.equal, before, host_and_fossil))
    assert keeper.scaler.state_dict()["scale"] == 2.0
    keeper.zero_grad()
    keeper.step([])  # without gradients, as if everything were frozen
    assert keeper.scaler.state_dict()["scale"] == 2.0


@pytest.mark.parametrize(
    ("way", "parts"), [("shadow", 3), ("branch", 20), core_worlds.slow("shadow", 2), core_worlds.slow("shadow", 20)]
)
def test_without_batch_norm_micro_batches_equal_one_batch(way, parts):
    """Within 1e-6 after a step of each kind, with plain SGD: Adam would divide what differs in its last bits."""
    results = []
    for micro_batches in (1, parts):
        sgd = {"optimizer": {"kind": "sgd", "momentum": 0.0}}
        pool = begin_pool(computed(way=way, more=sgd, micro_batches=micro_batches))
        reports = [signals for signals, _ in play(pool, range(4), {0: GERMINATE, 2: ADVANCE})]
        losses = [(signals.train_loss, signals.validation_loss) for signals in reports]
        losses += [(seed.incubation_loss or 0.0,) for signals in reports for seed in signals.seeds]
        results.append((parameters(pool.environments[0]), list(map(torch.tensor, losses))))
    torch.testing.assert_close(*results, rtol=0, atol=1e-6)


@pytest.mark.parametrize("way", ["shadow", "branch"])
def test_sim_low_2_no_tensor_is_read_while_a_step_is_trained_and_measured(monkeypatch, way):
    """With a seed that incubates, and then with one that acts."""

    def refuse(self: Tensor, *_: Any) -> None:
        raise AssertionError("the host read a number")

    more = {"optimizer": {"clip_norm": 1.0}, "host": core_worlds.NoisyHost}
    pool = begin_pool(computed(way=way, more=more), average=16)
    pool.train(0)  # buffers are looked at once
    for step, action in enumerate([GERMINATE, ADVANCE, Action(), Action()]):
        with monkeypatch.context() as patch:
            for reads in ("item", "tolist", "numpy", "__float__", "__int__", "__bool__", "__index__"):
                patch.setattr(Tensor, reads, refuse)
            pool.train(step)
            pool.evaluate(step)
        pool.synchronise(step)
        pool.apply([action, Action()], step)


# --- compiled passes


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Returns a recipe of the noisy host, or of another, whose passes are compiled by this compiler."""

    def build(compiler: Any = None, host: Callable[[], nn.Module] = core_worlds.NoisyHost, **more: Any) -> Any:
        if compiler is not None:
            monkeypatch.setattr("esper_core.trainer.environment.torch_compiler", compiler)
        recipe = core_worlds.make_recipe(steps=12, host=host, **more)
        return change_recipe(recipe, compute=ComputeConfig(compile=True), draws=Draws.FORWARD)

    return build


def course(pool: Pool, steps: int) -> list[list[Tensor]]:
    """Return the training loss and the parameters of the first environment after each step of a seed's life."""

    def look(_: Any) -> list[Tensor]:
        environment = pool.environments[0]
        return [environment.network.measurements.train_loss, *parameters(environment)]

    return play(pool, steps, {1: GERMINATE, 3: replace(ADVANCE, speed=0), 6: FOSSILISE}, look)


def test_a_torch_that_cannot_isolate_recompilations_compiles_all_the_same(monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda model, *, dynamic, options: (model, dynamic))
    model = nn.Identity()
    assert torch_compiler(model) == (model, False)


class Compilers:
    """Fakes of torch's compiler: each takes a model, and returns what is called instead."""

    def __init__(self, fails: Callable[[int], bool] = lambda number: False, at: str = "compile") -> None:
        self.asked, self.ran = 0, 0
        self._fails, self._at = fails, at

    def __call__(self, model: nn.Module) -> Callable[[Tensor], Tensor]:
        number, self.asked = self.asked, self.asked + 1
        if self._fails(number) and self._at == "compile":
            raise FileNotFoundError("no such compiler: cc\nand much more")

        def run(inputs: Tensor) -> Tensor:
            self.ran += 1
            outputs: Tensor = model(inputs)
            if self._fails(number) and self._at == "backward":
                outputs.register_hook(self._refuse)
            elif self._fails(number):
                self._refuse(outputs)
            return outputs

        return run

    @staticmethod
    def _refuse(_: Tensor) -> None:
        raise RuntimeError("the backend gave up")


def passing_on(look: Callable[[Tensor], Tensor]) -> Callable[[nn.Module], Callable[[Tensor], Tensor]]:
    """Return a compiler whose passes return ``look(outputs)``."""
    return lambda model: lambda inputs: look(model(inputs))


def test_the_pass_is_compiled_for_each_structure_and_each_environment(compiled):
    compilers = Compilers()
    recipe = compiled(compilers)
    plain = Pool(replace(recipe, compute=ComputeConfig()), ["grown"], 1)
    assert core_worlds.same(course(Pool(recipe, ["grown"], 1), 8), course(plain, 8))
    assert plain.environments[0].network.compiled is None
    assert compilers.asked == 5, "alone; training; blending; holding; kept"
    assert compilers.ran == 8 * 3
    course(Pool(recipe, ["grown", "twin"], 1, lanes=2), 1)
    assert compilers.asked == 7


@pytest.mark.parametrize("at", ["compile", "forward", "backward"])
def test_b8_pt_03_a_failure_to_compile_is_reported_once_and_retried_when_the_structure_changes(compiled, at, caplog):
    """BatchNorm counts each batch once, although some of them were run twice."""
    compilers = Compilers(lambda number: number < 2, at)
    pool = Pool(compiled(compilers), ["grown"], 1)
    course(pool, 5)
    (record,) = caplog.records
    reason = "FileNotFoundError: no such compiler: cc and much more"
    assert record.levelname == "WARNING"
    assert "compute.compile" in record.getMessage()
    assert record.getMessage().endswith(reason if at == "compile" else "RuntimeError: the backend gave up")
    assert compilers.asked == 3, "it failed twice: alone, and with a seed"
    assert isinstance(pool.environments[0].network.compiled, CompiledHost)
    assert pool.environments[0].model.stem[1].num_batches_tracked == 5 * 3


def test_a_compiled_pass_that_fails_later_counts_its_batch_once_in_batch_norm(compiled, caplog):
    """As when torch compiles anew for a batch of another size."""
    numbers = count()
    compiler = passing_on(lambda outputs: outputs if next(numbers) != 1 else 1 / 0)
    pool = Pool(compiled(compiler), ["grown"], 1)
    course(pool, 1)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert pool.environments[0].model.stem[1].num_batches_tracked == 3


def test_passes_that_failed_to_compile_change_no_number_and_several_environments_report_it_once(compiled, caplog):
    compilers = Compilers(lambda number: True, "backward")
    recipe = compiled(compilers, SmoothHost)
    failing = Pool(recipe, ["grown", "b"], 2, lanes=2)
    plain = Pool(replace(recipe, compute=ComputeConfig()), ["grown"], 1)
    assert core_worlds.same(course(failing, 8), course(plain, 8))
    failing.close()
    assert compilers.asked > 4
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_random_streams_are_held_until_the_first_compiled_pass_has_its_gradients(compiled):
    """Compiling saves and restores torch's generators, so no other lane may draw meanwhile; later it may."""
    held: list[bool] = []

    def hook(outputs: Tensor) -> Tensor:
        outputs.register_hook(lambda gradient: held.append(environment.network.training_stream._lender is not None))
        return outputs

    environment = begin(compiled(passing_on(hook), SmoothHost))
    environment.train()
    assert held == [True, False, False]


def test_an_error_of_the_host_is_not_attributed_to_the_compiler(compiled, caplog):
    def fail(inputs: Tensor) -> Tensor:
        raise ValueError("my own fault")

    with pytest.raises(PluginError, match="my own fault"):
        course(Pool(compiled(Compilers(), core_worlds.turning(fail, after=2)), ["a"], 1), 1)
    assert not caplog.records


def test_hosts_are_called_with_the_recursion_limit_of_the_compiler(compiled, monkeypatch):
    """It raises the limit in its first pass, and guards around that pass would attribute the change to the host."""
    limits = [sys.getrecursionlimit()]
    monkeypatch.setattr(sys, "getrecursionlimit", lambda: 1000)
    monkeypatch.setattr(sys, "setrecursionlimit", limits.append)
    Pool(compiled(Compilers()), ["a"], 1).close()
    assert limits[1:] == [2000]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # torch's own
def test_the_compiler_of_torch_gives_the_same_course_in_all_but_the_last_bits(compiled, caplog):
    """With dropout and BatchNorm, over a whole life, and more environments than torch's limit of recompilations."""
    caplog.set_level(logging.WARNING, "esper")
    recipe = compiled(optimizer={"kind": "sgd"}, batches=6)
    compiled_course = course(Pool(recipe, ["grown", "twin"], 5, lanes=2), 8)
    written = course(Pool(replace(recipe, compute=ComputeConfig()), ["grown"], 1), 8)
    assert not [record for record in caplog.records if record.name == "esper"]
    torch.testing.assert_close(compiled_course, written, rtol=1e-3, atol=1e-4)


# --- the layout of images in memory

Flat = Callable[[Tensor], Tensor]


def host(flat: Flat = lambda hidden: hidden.flatten(1), look: Flat = lambda inputs: inputs) -> nn.Module:
    """Two convolutions and a head; flat: how features become a vector, look: how the examples are viewed."""
    stem = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU())
    late, head = nn.Conv2d(4, 4, 3, padding=1), nn.Linear(4 * 36, 3)
    return core_worlds.Net(
        lambda net, x: net.head(flat(torch.relu(net.late(net.stem(look(x)))))), stem=stem, late=late, head=head
    )


def viewed(hidden: Tensor) -> Tensor:
    """View the memory in another shape, and back."""
    return hidden.view(len(hidden), -1).view(hidden.shape)


def variety(look: Flat) -> Variety:
    """x + conv(x), the convolution at 0."""

    def block(site: Site) -> nn.Module:
        conv = core_worlds.zeroed(nn.Conv2d(site.channels, site.channels, 3, padding=1, bias=False))
        return core_worlds.Net(lambda net, hidden: look(hidden) + net.conv(look(hidden)), conv=conv)

    return Variety("test/seed", BlueprintSpec("image", starts_as_identity=True), block)


def images(examples: int, seed: int) -> Split:
    generator = torch.Generator().manual_seed(seed)
    targets = torch.randint(0, 3, (examples,), generator=generator)
    inputs = torch.randn(examples, 3, 6, 6, generator=generator) + targets.view(-1, 1, 1, 1)
    return Split(inputs, targets)


def recipe_of(build: Any = host, *, block: Flat = lambda hidden: hidden, **more: Any) -> Recipe:
    splits: dict[Any, Split] = {name: images(60, seed) for seed, name in enumerate(("train", "validation", "test"))}
    return change_recipe(core_worlds.make_recipe(host=build, variety=variety(block)), data=splits, **more)


def is_channels_last(model: nn.Module) -> bool:
    return model.late.weight.is_contiguous(memory_format=torch.channels_last)


def tried(recipe: Recipe) -> tuple[Recipe, nn.Module]:
    model = recipe.build_host()
    graft(model, recipe.slots, example=recipe.data["train"].inputs[:2])
    return recipe.laid_out(model), model


def test_images_and_weights_lie_channels_last_and_all_numbers_are_the_same():
    torch.manual_seed(3)
    recipe = recipe_of()
    laid, grafted = tried(recipe)
    assert is_channels_last(laid.build_host())
    assert is_channels_last(grafted)
    assert not is_channels_last(recipe.build_host()), "the recipe that was given is unchanged"

    inputs, plain = recipe.data["test"].inputs, host()
    twin = host().to(memory_format=torch.channels_last)
    twin.load_state_dict(plain.state_dict())
    torch.testing.assert_close(twin(inputs), plain(inputs))

    resident, other = (Resident(variant.data["train"]) for variant in (recipe, laid))
    batch, expected = other.next(BatchOrder(60, 20, 7)), resident.next(BatchOrder(60, 20, 7))
    assert all(map(torch.equal, batch, expected))
    for inputs in [batch[0], *(chunk for chunk, _ in chunks(laid.data["validation"], torch.device("cpu")))]:
        assert inputs.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("incubation", ["shadow", "branch"])
@pytest.mark.parametrize("implementation", ["fused", "plain"])
def test_a_seed_learns_the_same_in_either_layout(incubation, implementation):
    """Gradients of convolutions lie like the images, their parameters do not; fused steps take what lies first."""
    how = {"implementation": implementation}
    optimizers = OptimizersConfig.model_validate({"host": how, "seed": how})
    recipe = recipe_of(optimizers=optimizers, growth=core_worlds.plain_growth(incubation=incubation))
    laid, _ = tried(recipe)
    learnt = []
    for variant in (recipe, laid):
        environment = begin(variant)
        environment.network.apply(Action(Op.GERMINATE, "early", "test/seed"), 0)
        environment.train()
        (seed,) = environment.network.garden.living_seeds()
        learnt.append([parameter.detach() for parameter in seed.parameters()])
    (plain,), (other,) = learnt
    assert plain.abs().max() > 1e-4
    torch.testing.assert_close(other, plain, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(
    ("build", "block"),
    [
        (lambda: host(lambda hidden: hidden.view(len(hidden), -1)), torch.clone),
        (host, viewed),
        (lambda: host(look=viewed), torch.clone),
    ],
    ids=["a host that views features", "a blueprint that views features", "a host that views its input"],
)
def test_a_host_or_blueprint_that_views_memory_in_another_shape_keeps_its_layout(build, block):
    recipe = recipe_of(build, block=block)
    laid, tried_on = tried(recipe)
    assert laid is recipe
    assert not is_channels_last(tried_on)
    environment = begin(laid)
    environment.network.apply(Action(Op.GERMINATE, "early", "test/seed"), 0)
    environment.train()
    assert environment.network.lost.take() == []
