"""The training pass, eager or compiled: a failure to compile is reported once and retried with the next structure."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from esper_core.config import ComputeConfig
from esper_core.growth import Draws
from esper_core.leyline import WAIT, Action, Op, PluginError
from esper_core.trainer.environment import Environment, Recipe
from esper_core.trainer.forward import CompiledHost
from esper_core.trainer.pool import Pool

Make = Callable[..., Recipe]
GERMINATE = Action(Op.GERMINATE, "early", "test/local-conv", speed=1)
ADVANCE, FOSSILISE, PRUNE = (Action(op, "early", speed=0) for op in (Op.ADVANCE, Op.FOSSILISE, Op.PRUNE))


class Plain(nn.Module):
    """A small host without BatchNorm."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv1d(1, 4, 1), nn.GELU())
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(48, 3))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(self.stem(inputs))


def asked(make_recipe: Make, host: Any = Plain, seams: Any = None, **compute: bool) -> Recipe:
    recipe = make_recipe(steps=12, batches=6, host=host)
    return replace(recipe, compute=ComputeConfig(**compute), draws=Draws.FORWARD, **(seams or {}))


def course(pool: Pool, actions: dict[int, Action], steps: int) -> list[list[Tensor]]:
    """The training loss and the parameters of the first environment, step by step."""
    pool.reset(0, 3)
    found = []
    for step in range(steps):
        pool.train(step)
        pool.evaluate(step)
        pool.synchronise(step)
        pool.heal(step)
        pool.apply([actions.get(step, WAIT)] + [WAIT] * (len(pool.environments) - 1), step)
        own = pool.environments[0]
        found.append([own.network.measurements.train_loss, *(each.detach().clone() for each in own.model.parameters())])
    return found


def assert_same(left: list[list[Tensor]], right: list[list[Tensor]]) -> None:
    for step, (one, other) in enumerate(zip(left, right, strict=True)):
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True)), step


LIFE = {1: GERMINATE, 3: ADVANCE, 6: FOSSILISE}

# --- compiled


class Compilers:
    """Stand-ins for torch's compiler: each is asked with a model, and gives back what is called in its place."""

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
            if self._fails(number):
                if self._at == "backward":
                    outputs.register_hook(self._refuse)
                else:
                    self._refuse(outputs)
            return outputs

        return run

    @staticmethod
    def _refuse(_: Tensor) -> None:
        raise RuntimeError("the backend gave up")


def test_without_the_option_the_host_runs_as_it_is_written(make_recipe):
    environment = Environment(make_recipe(), arm="a", index=0)
    environment.reset(0, 3)
    assert environment.network.compiled is None


def test_the_pass_is_compiled_anew_for_each_structure_and_each_environment(make_recipe, noisy_host):
    compilers = Compilers()
    recipe = asked(make_recipe, noisy_host, {"compiler": compilers}, compile=True)
    compiled = course(Pool(recipe, ["grown"], 1), LIFE, 10)
    assert_same(compiled, course(Pool(replace(recipe, compute=ComputeConfig()), ["grown"], 1), LIFE, 10))
    assert compilers.asked == 5, "alone; training; blending; holding; kept"
    assert compilers.ran == 60
    course(Pool(recipe, ["grown", "twin"], 1, lanes=2), {}, 1)
    assert compilers.asked == 7


@pytest.mark.parametrize("at", ["compile", "forward", "backward"])
def test_b8_pt_03_a_failure_to_compile_is_told_once_with_its_reason_and_tried_again_when_the_structure_changes(
    at, make_recipe, noisy_host, caplog
):
    """The course is that of the network as it is written, BatchNorm's counts included, until a compiler does better."""
    caplog.set_level(logging.WARNING, "esper")
    compilers = Compilers(lambda number: number < 2, at)
    recipe = asked(make_recipe, noisy_host, {"compiler": compilers}, compile=True)
    pool = Pool(recipe, ["grown"], 1)
    course(pool, {1: GERMINATE, 3: ADVANCE}, 5)
    (record,) = caplog.records
    reason = (
        "FileNotFoundError: no such compiler: cc and much more"
        if at == "compile"
        else "RuntimeError: the backend gave up"
    )
    assert record.levelname == "WARNING"
    assert "compute.compile" in record.getMessage()
    assert record.getMessage().endswith(reason)
    assert compilers.asked == 3, "twice in vain: alone, with a seed; and then it went"
    assert isinstance(pool.environments[0].network.compiled, CompiledHost)
    tracked = pool.environments[0].model.stem[1].num_batches_tracked
    assert tracked == 5 * 6


def test_what_failed_leaves_no_trace_in_the_numbers(make_recipe):
    compilers = Compilers(lambda number: True, "backward")
    recipe = asked(make_recipe, Plain, {"compiler": compilers}, compile=True)
    failing = course(Pool(recipe, ["grown"], 1), LIFE, 8)
    assert_same(failing, course(Pool(replace(recipe, compute=ComputeConfig()), ["grown"], 1), LIFE, 8))


def test_two_environments_whose_compilers_fail_say_so_once(make_recipe, caplog):
    compilers = Compilers(lambda number: True)
    pool = Pool(asked(make_recipe, Plain, {"compiler": compilers}, compile=True), ["a", "b"], 2, lanes=2)
    course(pool, {}, 2)
    pool.close()
    assert compilers.asked == 4
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_who_compiles_holds_the_turn_to_draw_until_the_gradients_are_there(make_recipe):
    """Torch saves its generators then, and restores them: another lane must not draw in between. Later lanes may."""
    held: list[bool] = []

    def compiler(model: nn.Module) -> Callable[[Tensor], Tensor]:
        def run(inputs: Tensor) -> Tensor:
            outputs: Tensor = model(inputs)
            outputs.register_hook(lambda gradient: held.append(environment.network.training_stream._lender is not None))
            return outputs

        return run

    environment = Environment(asked(make_recipe, Plain, {"compiler": compiler}, compile=True), arm="a", index=0)
    environment.reset(0, 3)
    environment.train()
    assert held == [True] + [False] * 5


class Broken(Plain):
    """Raises by itself, from its third batch on."""

    def __init__(self) -> None:
        super().__init__()
        self.passes = 0

    def forward(self, inputs: Tensor) -> Tensor:
        self.passes += self.training and len(inputs) > 2
        if self.passes > 2:
            raise ValueError("my own fault")
        return super().forward(inputs)


def test_what_is_the_networks_own_fault_is_not_laid_at_the_compilers_door(make_recipe, caplog):
    pool = Pool(asked(make_recipe, Broken, {"compiler": Compilers()}, compile=True), ["a"], 1)
    with pytest.raises(PluginError, match="my own fault"):
        course(pool, {}, 1)
    assert not caplog.records


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # torch's own
def test_torchs_compiler_gives_the_same_course_in_all_but_last_bits(make_recipe, noisy_host, caplog):
    """Dropout and BatchNorm, more environments than torch would compile one class for by default, a whole life."""
    caplog.set_level(logging.WARNING, "esper")
    recipe = asked(make_recipe, noisy_host, compile=True)
    sgd = make_recipe(optimizer={"kind": "sgd"}).optimizers
    recipe = replace(recipe, optimizers=sgd)
    compiled = course(Pool(recipe, ["grown", "twin"], 5, lanes=2), LIFE, 8)
    written = course(Pool(replace(recipe, compute=ComputeConfig()), ["grown"], 1), LIFE, 8)
    assert not [record for record in caplog.records if record.name == "esper"]
    for one, other in zip(compiled, written, strict=True):
        for left, right in zip(one, other, strict=True):
            torch.testing.assert_close(left, right, rtol=1e-3, atol=1e-4)
