"""The compiled training pass: failures to compile are reported once and retried with the next structure."""

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from esper_core.growth import Draws
from esper_core.leyline import PluginError
from esper_core.settings import ComputeConfig
from esper_core.trainer.forward import CompiledHost, torch_compiler
from esper_core.trainer.pool import Pool
from tests.support.core_worlds import (
    ADVANCE,
    FOSSILISE,
    GERMINATE,
    NoisyHost,
    SmoothHost,
    begin,
    change_recipe,
    make_recipe,
    same,
    turning,
)
from tests.support.studies import play

LIFE = {1: GERMINATE, 3: replace(ADVANCE, speed=0), 6: FOSSILISE}


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Returns a recipe of the noisy host, or of another, whose passes are compiled by this compiler."""

    def build(compiler: Any = None, host: Callable[[], nn.Module] = NoisyHost, **more: Any) -> Any:
        if compiler is not None:
            monkeypatch.setattr("esper_core.trainer.environment.torch_compiler", compiler)
        recipe = make_recipe(steps=12, host=host, **more)
        return change_recipe(recipe, compute=ComputeConfig(compile=True), draws=Draws.FORWARD)

    return build


def course(pool: Pool, steps: int) -> list[list[Tensor]]:
    """Return the training loss and the parameters of the first environment after each step of a seed's life."""

    def look(_: Any) -> list[Tensor]:
        environment = pool.environments[0]
        return [
            environment.network.measurements.train_loss,
            *(parameter.detach().clone() for parameter in environment.model.parameters()),
        ]

    return play(pool, steps, LIFE, look)


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


def test_the_pass_is_compiled_for_each_structure_and_each_environment(compiled):
    compilers = Compilers()
    recipe = compiled(compilers)
    plain = Pool(replace(recipe, compute=ComputeConfig()), ["grown"], 1)
    assert same(course(Pool(recipe, ["grown"], 1), 8), course(plain, 8))
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
    passes: list[int] = []

    def compiler(model: nn.Module) -> Callable[[Tensor], Tensor]:
        def run(inputs: Tensor) -> Tensor:
            outputs: Tensor = model(inputs)
            passes.append(len(passes))
            if passes[-1] == 1:
                raise RuntimeError("the backend gave up")
            return outputs

        return run

    pool = Pool(compiled(compiler), ["grown"], 1)
    course(pool, 1)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert pool.environments[0].model.stem[1].num_batches_tracked == 3


def test_passes_that_failed_to_compile_change_no_number_and_several_environments_report_it_once(compiled, caplog):
    compilers = Compilers(lambda number: True, "backward")
    recipe = compiled(compilers, SmoothHost)
    failing = Pool(recipe, ["grown", "b"], 2, lanes=2)
    plain = Pool(replace(recipe, compute=ComputeConfig()), ["grown"], 1)
    assert same(course(failing, 8), course(plain, 8))
    failing.close()
    assert compilers.asked > 4
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_random_streams_are_held_until_the_first_compiled_pass_has_its_gradients(compiled):
    """Compiling saves and restores torch's generators, so no other lane may draw meanwhile; later it may."""
    held: list[bool] = []

    def compiler(model: nn.Module) -> Callable[[Tensor], Tensor]:
        def run(inputs: Tensor) -> Tensor:
            outputs: Tensor = model(inputs)
            outputs.register_hook(lambda gradient: held.append(environment.network.training_stream._lender is not None))
            return outputs

        return run

    environment = begin(compiled(compiler, SmoothHost))
    environment.train()
    assert held == [True, False, False]


def test_an_error_of_the_host_is_not_attributed_to_the_compiler(compiled, caplog):
    def fail(inputs: Tensor) -> Tensor:
        raise ValueError("my own fault")

    with pytest.raises(PluginError, match="my own fault"):
        course(Pool(compiled(Compilers(), turning(fail, after=2)), ["a"], 1), 1)
    assert not caplog.records


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
