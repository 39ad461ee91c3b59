"""Lanes on a GPU: streams, events, and no wait of the host within a step."""

import pytest
import torch

from esper_core.growth import Draws
from esper_core.leyline import Action, Op
from esper_core.settings import ComputeConfig
from esper_core.trainer.environment import Recipe
from esper_core.trainer.lanes import CudaStream, Lanes, assigned
from esper_core.trainer.pool import Pool
from tests.support.core_worlds import ADVANCE, change_recipe, make_recipe
from tests.support.studies import play

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

GERMINATE = Action(Op.GERMINATE, "early", "test/local-conv")


@pytest.fixture
def recipe() -> Recipe:
    return change_recipe(make_recipe(steps=6, batches=4).on(torch.device("cuda:0")), draws=Draws.FORWARD)


def losses(pool: Pool) -> list[float]:
    """Return the validation losses of the first environment, with a seed that is blended."""
    return play(pool, 6, {0: GERMINATE, 3: ADVANCE}, lambda signals: signals[0].validation_loss)


def test_streams_do_not_disturb_each_other(recipe):
    alone = losses(Pool(recipe, ["grown", "twin"], 1, twin="twin", lanes=1))
    beside = losses(Pool(recipe, ["grown", "twin"], 4, twin="twin", lanes=4))
    assert beside == pytest.approx(alone, rel=1e-3)


def test_a_group_on_a_gpu_has_the_results_of_its_networks(recipe):
    """Its passes are captured from the third on; three networks have the room of four."""
    settings = change_recipe(recipe, draws=Draws.NEVER)
    apart = losses(Pool(settings, ["grown"], 3))
    together = Pool(change_recipe(settings, compute=ComputeConfig(fused="gpu")), ["grown"], 3)
    assert losses(together) == pytest.approx(apart, rel=1e-2)
    assert together.why_alone(together.environments[1]) == ""


def test_a_stream_waits_for_what_another_stream_made():
    device = torch.device("cuda:0")
    lanes = Lanes(assigned([device, device], 2, CudaStream))
    for _ in range(20):
        with lanes.on(0):
            tensor = torch.ones(4_000_000, device=device)
            for _ in range(50):
                tensor = tensor + 1.0
        lanes.hand(tensor, 0, 1)
        with lanes.on(1):
            read = tensor.sum()
        del tensor
        with lanes.on(0):
            torch.zeros(4_000_000, device=device)  # would reuse the memory if it were freed
        lanes.drain([0, 1])
        assert read.item() == 51.0 * 4_000_000


def test_sim_low_2_the_host_does_not_wait_while_a_step_is_trained(recipe):
    pool = Pool(change_recipe(recipe, draws=Draws.NEVER), ["twin"], 2, lanes=2)
    pool.reset(0, 3)
    pool.train(0)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        pool.train(1)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_b1_pt_05_a_rollback_does_not_change_other_environments(recipe):
    def numbers(*, sick: bool) -> list[torch.Tensor]:
        pool = Pool(recipe, ["grown"], 2, lanes=2)
        pool.reset(0, 3)
        for step in range(3):
            pool.train(step)
            if sick and step == 1:
                first = next(iter(pool.environments[0].keeper.host.parameters))
                first.data.fill_(torch.nan)
            pool.evaluate(step)
            pool.synchronise(step)
            pool.carry_out(pool.judge({}), step)
        return [parameter.detach().cpu() for parameter in pool.environments[1].model.parameters()]

    pairs = zip(numbers(sick=False), numbers(sick=True), strict=True)
    assert all(torch.allclose(well, beside, rtol=1e-4) for well, beside in pairs)
