"""Lanes: the order of work on streams and threads, and results that do not depend on it."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from esper_core.growth import Draws, RandomStream, draws_of
from esper_core.leyline import WAIT, Action, Op, PluginError
from esper_core.settings import ComputeConfig
from esper_core.trainer.environment import Environment, Recipe
from esper_core.trainer.lanes import CudaStream, Lanes, assigned
from esper_core.trainer.pool import Pool
from tests.support.core_worlds import ADVANCE, PRUNE, Net, RecordingStream, change_recipe, make_recipe, spelled, turning
from tests.support.studies import play

GERMINATE = Action(Op.GERMINATE, "early", "test/local-conv")


def recorded(arms: list[str], environments: int, lanes: int) -> tuple[Pool, list[str]]:
    """Return a pool at the beginning of a round, and the log of its streams."""
    log: list[str] = []
    streams = [RecordingStream(f"s{place}", log) for place in range(lanes)]
    pool = Pool(make_recipe(batches=1), arms, environments, twin="twin" if "twin" in arms else None)
    pool._lanes = Lanes([streams[place % lanes] for place in range(len(pool.environments))])
    pool.reset(0, 3)
    log.clear()
    return pool, log


def test_b8_pt_02_a_lane_waits_for_what_another_lane_made_before_it_reads_it():
    pool, log = recorded(["grown", "twin"], 1, lanes=2)
    pool.train(0)
    log.clear()
    pool.evaluate(0)
    crossing = log.index("s1 mark 1")
    assert log[crossing : crossing + 3] == ["s1 mark 1", "s0 waits for s1:1", "s0 keeps (60,)"]
    assert log[:crossing] == ["s0 on", "s0 off", "s1 on", "s1 off"], "both were evaluated before"
    assert log[crossing + 3 :] == ["s0 on", "s0 off", "s1 on", "s1 off"], "and measured behind it"


def test_sim_crit_1_the_host_waits_once_a_step_for_each_lane_after_everything_was_launched():
    pool, log = recorded(["grown", "twin"], 2, lanes=2)
    pool.train(0)
    pool.evaluate(0)
    assert not [line for line in log if line.startswith("host waits")]
    pool.synchronise(0)
    assert [line for line in log if line.startswith("host waits")] == ["host waits for s0", "host waits for s1"]


def test_sim_high_1_work_of_an_environment_is_launched_on_its_own_lane_alone():
    pool, log = recorded(["grown"], 3, lanes=3)
    play(pool, range(3), {0: GERMINATE, 2: ADVANCE})
    depth = 0
    for line in log:
        depth += line.endswith(" on") - line.endswith(" off")
        assert 0 <= depth <= 1, "no work is launched on two lanes at once"
    assert {line.split()[0] for line in log if line.endswith(" on")} == {"s0", "s1", "s2"}


def test_b1_pt_05_a_rollback_opens_its_own_lane_and_no_other():
    pool, log = recorded(["grown"], 2, lanes=2)
    pool.train(0)
    next(iter(pool.environments[1].keeper.host.parameters)).grad.fill_(torch.nan)
    pool.evaluate(0)
    pool.synchronise(0)
    decisions = pool.judge({})
    log.clear()
    rolled, _ = pool.carry_out({1: decisions[1]}, 0)
    assert list(rolled) == [1]
    assert log == ["s1 on", "s1 off"]


def test_environments_take_the_lanes_of_their_devices_in_turn():
    first, second = torch.device("cuda:0"), torch.device("cuda:1")
    devices: list[torch.device] = []

    def make(device: torch.device) -> RecordingStream:
        devices.append(device)
        return RecordingStream(str(device), [])

    streams = assigned([first, first, second, second, first, first, second, second], 3, make)
    assert devices == [first, first, second, second, first, second]
    assert streams[0] is streams[5]
    assert streams[2] is streams[7]
    assert len({id(stream) for stream in streams}) == 6


def test_environments_of_one_index_share_a_device_whatever_their_arm():
    devices = [torch.device("cpu"), torch.device("meta")]
    pool = Pool(make_recipe(), ["grown", "twin"], 3, devices=devices)
    kinds = [environment.recipe.device.type for environment in pool.environments]
    assert kinds == ["cpu", "cpu", "meta", "meta", "cpu", "cpu"]
    assert pool.environments[2].recipe.data["train"].inputs.device.type == "meta"


def test_the_first_error_of_several_is_raised_when_all_work_is_done():
    lanes = Lanes(workers=2)
    done: list[int] = []

    def act(place: int) -> int:
        if place in (1, 2):
            raise ValueError(str(place))
        done.append(place)
        return place

    with pytest.raises(ValueError, match="1"):
        lanes.run([0, 1, 2, 3], act)
    assert sorted(done) == [0, 3]
    lanes.close()


def drawn(environment: Environment, step: int) -> Action:
    generator = torch.Generator().manual_seed(1000 * environment.seed + step)
    legal = [WAIT, *[action for action in (GERMINATE, ADVANCE, PRUNE) if environment.mask().allows(action)]]
    return legal[int(torch.randint(len(legal), (), generator=generator))]


def trajectory(recipe: Recipe, environments: int, lanes: int, index: int = 0) -> list[list[Any]]:
    """Return the signals and weights of one environment in each step.

    ``index``: of the environment; by itself it is the first, and has the seed that it has beside others.
    """
    pool = Pool(recipe, ["grown", "twin"], environments, twin="twin", lanes=lanes)
    pool.reset(0, 3 if environments > 1 else 3 + index)
    place = 2 * index if environments > 1 else 0
    environment = pool.environments[place]
    assert (environment.arm, environment.seed) == ("grown", 3 + index)

    def look(signals: list[Any]) -> list[Any]:
        return [signals[place], [parameter.detach().clone() for parameter in environment.model.parameters()]]

    reports = play(pool, range(recipe.network.steps), drawn, look)
    pool.close()
    return reports


def test_run_08_a_trajectory_is_bitwise_the_same_with_any_number_of_environments_and_lanes():
    """BatchNorm and dropout, live seeds, drawn actions; the environment that is compared is the last of three."""
    recipe = change_recipe(make_recipe(steps=8, batches=2), draws=Draws.FORWARD)
    alone = trajectory(recipe, 1, 1, index=2)
    assert any(signals.seeds for signals, _ in alone)
    for lanes in (1, 2):
        is_same = spelled(alone) == spelled(trajectory(recipe, 3, lanes, index=2))
        assert is_same  # pytest would take long to show the difference


def quiet(*more: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Conv1d(1, 4, 1), nn.BatchNorm1d(4), nn.Flatten(), nn.Linear(48, 3), *more)


def recomputing() -> nn.Module:
    """A host that computes its forward pass again in the backward pass."""
    inner = nn.Sequential(nn.Flatten(), nn.Linear(12, 3), nn.Dropout(0.5))
    return Net(lambda net, x: torch.utils.checkpoint.checkpoint(net.inner, x, use_reentrant=False), inner=inner)


def passed_back_in_training() -> nn.Module:
    """A network without a backward pass in evaluation, as recurrent layers are on a GPU."""

    def checked(net: nn.Module, x: Tensor) -> Tensor:
        outputs = net.inner(x)
        if outputs.requires_grad:
            training = net.training
            outputs.register_hook(lambda gradient: gradient if training else pytest.fail("passed back in evaluation"))
        return outputs

    return Net(checked, inner=quiet())


def recurrent(dropout: float) -> nn.Module:
    inner = nn.GRU(12, 3, num_layers=2, dropout=dropout)
    return Net(lambda net, x: net.inner(x.transpose(0, 1))[0].squeeze(0), inner=inner)


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (quiet(), Draws.NEVER),
        (quiet(nn.Dropout(0.0)), Draws.FORWARD),
        (quiet(nn.Dropout(0.5)), Draws.FORWARD),
        (recurrent(0.5), Draws.FORWARD),
        (recurrent(0.0), Draws.NEVER),
        (recomputing(), Draws.ANYWHERE),
        (passed_back_in_training(), Draws.NEVER),
    ],
    ids=["nothing", "dropout of 0", "dropout", "recurrent dropout", "recurrent", "recomputed", "training alone"],
)
def test_a_dry_run_finds_out_when_a_network_draws_and_changes_nothing(model, expected):
    inputs = torch.randn(4, 1, 12, generator=torch.Generator().manual_seed(1))
    before = [tensor.clone() for tensor in model.state_dict().values()]
    default = torch.get_rng_state()
    assert draws_of(model, lambda network: network(inputs).square().mean()) is expected
    assert all(map(torch.equal, before, model.state_dict().values()))
    assert torch.equal(default, torch.get_rng_state())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_host_that_begins_to_draw_later_is_refused_and_the_generator_restored():
    late = turning(lambda inputs: inputs + torch.randn_like(inputs), after=4)
    pool = Pool(change_recipe(make_recipe(host=late), draws=Draws.NEVER), ["grown"], 2)
    pool.reset(0, 3)
    default = torch.get_rng_state()
    pool.train(0)
    with pytest.raises(PluginError, match=r"drew random numbers in training, step 1(?s:.)*Set \"randomness: always\""):
        pool.train(1)
    assert torch.equal(default, torch.get_rng_state())


def test_a_random_stream_that_cannot_be_used_blocks_no_other():
    broken = RandomStream(1)
    broken.load_state_dict((torch.zeros(3, dtype=torch.uint8), None))
    with pytest.raises(RuntimeError), broken:
        pytest.fail("it was used")
    lanes = Lanes(workers=2)

    def draw(place: int) -> float:
        with RandomStream(place):
            return torch.rand(()).item()

    assert len(lanes.run([0, 1], draw)) == 2
    lanes.close()


# --- streams and events of a GPU, and no wait of the host within a step


@pytest.fixture
def recipe() -> Recipe:
    return change_recipe(make_recipe(steps=6, batches=4).on(torch.device("cuda:0")), draws=Draws.FORWARD)


def losses(pool: Pool) -> list[float]:
    """Return the validation losses of the first environment, with a seed that is blended."""
    return play(pool, 6, {0: GERMINATE, 3: ADVANCE}, lambda signals: signals[0].validation_loss)


@pytest.mark.gpu
def test_streams_do_not_disturb_each_other(recipe):
    alone = losses(Pool(recipe, ["grown", "twin"], 1, twin="twin", lanes=1))
    beside = losses(Pool(recipe, ["grown", "twin"], 4, twin="twin", lanes=4))
    assert beside == pytest.approx(alone, rel=1e-3)


@pytest.mark.gpu
def test_a_group_on_a_gpu_has_the_results_of_its_networks(recipe):
    """Its passes are captured from the third on; three networks have the room of four."""
    settings = change_recipe(recipe, draws=Draws.NEVER)
    apart = losses(Pool(settings, ["grown"], 3))
    together = Pool(change_recipe(settings, compute=ComputeConfig(fused="gpu")), ["grown"], 3)
    assert losses(together) == pytest.approx(apart, rel=1e-2)
    assert together.why_alone(together.environments[1]) == ""


@pytest.mark.gpu
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


@pytest.mark.gpu
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


@pytest.mark.gpu
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
