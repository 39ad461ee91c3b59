"""Workers that crash, hang or disappear: they are replaced, and the numbers of other environments stay the same.

``tests/end_to_end/test_hostile_plugins.py`` has more ways in which a seed ends or blocks its worker.
"""

import ctypes
import os
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from torch import Tensor, nn

from esper_core.growth import Draws, Variety
from esper_core.leyline import WAIT, Action, BlueprintSpec, Op, Site, State
from esper_core.leyline.errors import WorkerLost
from esper_core.trainer.environment import Recipe
from esper_core.trainer.pool import Pool
from esper_core.trainer.roster import StudyPool
from esper_run.engines import PoolRequest
from esper_run.watchdog import can_fork
from esper_scale.engines.processes import ForkedWorker, ForkEngine
from esper_scale.engines.protocol import Order
from esper_scale.engines.worker_pool import WorkerPool
from tests.support.core_worlds import (
    LOCAL_CONV,
    Net,
    NoisyHost,
    SmoothHost,
    bad,
    change_recipe,
    make_recipe,
    out_of_patience,
    plain_growth,
    slow,
    spelled,
    zeroed,
)

pytestmark = pytest.mark.skipif(not can_fork(), reason="processes are forked on Linux, without an accelerator")

ARMS = ["grown", "twin"]
STEPS = 5


def hang(block: nn.Module, grown: Tensor) -> Tensor:
    time.sleep(600)
    return grown


def crash(block: nn.Module, grown: Tensor) -> Tensor:
    ctypes.string_at(0)
    return grown


def leave(block: nn.Module, grown: Tensor) -> Tensor:
    os._exit(0)


@pytest.fixture
def workers() -> Iterator[Callable[..., WorkerPool]]:
    pools: list[WorkerPool] = []

    def new(recipe: Recipe, environments: int = 2, workers: int = 2, **more: Any) -> WorkerPool:
        engine, request = ForkEngine(recipe), PoolRequest(ARMS, "twin")
        settings = {"patience": 60.0, **more}
        pools.append(WorkerPool(engine, request, environments, workers=workers, warn=recipe.reports.warn, **settings))
        return pools[-1]

    yield new
    for pool in pools:
        pool.close()


def threads(recipe: Recipe) -> Pool:
    return Pool(recipe, ARMS, 2, twin="twin")


def course(pool: StudyPool[Any], before: Callable[[int], object] = lambda step: None) -> list[list[Any]]:
    """Grow the last blueprint in the first environment, and the first one in the others; return what each reports."""
    pool.reset(0, 7)
    reports: list[list[Any]] = [[] for _ in pool.environments]
    for step in range(STEPS):
        before(step)
        changes = pool.train(step)
        pool.evaluate(step)
        pool.synchronise(step)
        lost = pool.heal(step)
        pool.carry_out(pool.judge({}), step)
        actions = []
        for environment, mask in zip(pool.environments, pool.masks(), strict=True):
            able = mask.blueprints.get("early", ())
            germinates = environment.arm == "grown" and step == 0 and able
            actions.append(
                Action(Op.GERMINATE, "early", able[0 if environment.pool_index else -1]) if germinates else WAIT
            )
        more, unborn = pool.apply(actions, step)
        for pool_index, change in [*changes, *lost, *more, *unborn]:
            reports[pool_index].append(change)
        for pool_index, signals in enumerate(pool.latest):
            reports[pool_index].append(signals)
    for pool_index, state in pool.states().items():
        reports[pool_index] += [state.plain, state.tensors]
    _, endings = pool.conclude(STEPS - 1)
    for report, ending in zip(reports, endings, strict=True):
        report.append(ending)
    return reports


def recipe_with(variety: Variety, **more: Any) -> Recipe:
    recipe = make_recipe(steps=STEPS, batches=2, **more)
    return change_recipe(recipe, varieties={"early": (LOCAL_CONV, variety)})


LEFT, HUNG = "ended the process with code 0", "did not return"


@pytest.mark.parametrize(
    ("harm", "training", "what"),
    [(leave, False, LEFT), slow(leave, True, LEFT), slow(hang, True, HUNG), slow(hang, False, HUNG)],
)
def test_a_seed_that_ends_or_blocks_its_worker_is_taken_out_and_changes_nobody_else(
    workers, harm, training, what, caplog
):
    """As if it had raised an error. The state has what was decided: another pool goes on without it."""
    expected = course(threads(recipe_with(bad(out_of_patience, 3, training=training))))
    recipe, patience = recipe_with(bad(harm, 3, training=training)), 3.0 if harm is hang else 60.0
    pool = workers(recipe, patience=patience)
    actual = course(pool)
    assert spelled(actual[1:]) == spelled(expected[1:])
    (lost_seed,) = [report for report in actual[0] if getattr(report, "blamed", False)]
    assert (lost_seed.blueprint, lost_seed.slot) == ("test/bad", "early")
    assert lost_seed.what.startswith(what)
    component = 'blueprint "test/bad" in slot early, arm "grown", RNG seed 7'
    assert f"{component} is taken out: it {lost_seed.what}" in caplog.messages
    caplog.clear()
    resumed = workers(recipe, patience=patience)
    resumed.load_states({pool_index: State(*report[-3:-1]) for pool_index, report in enumerate(actual)}, pool.latest)
    resumed.train(STEPS)
    resumed.evaluate(STEPS)
    assert caplog.messages == []


def compute_or_leave(block: Any, hidden: Tensor) -> Tensor:
    """End the process in training, whose batches have 20 examples, and not in trials."""
    return leave(block, hidden) if len(hidden) == 20 else hidden + block.conv(hidden)


def test_a_seed_that_ends_its_worker_in_a_group_is_named_and_changes_nobody_else(workers):
    def leaves(site: Site) -> nn.Module:
        return Net(compute_or_leave, conv=zeroed(nn.Conv1d(site.channels, site.channels, 1)))

    spec = BlueprintSpec("sequence", starts_as_identity=True)
    recipe = recipe_with(Variety("test/bad", spec, leaves), host=SmoothHost)
    growth = plain_growth(incubation="branch")
    recipe = change_recipe(recipe, growth=growth, draws=Draws.NEVER)
    undisturbed = course(threads(change_recipe(recipe, varieties={"early": (LOCAL_CONV,)})))
    actual = course(workers(recipe))
    assert spelled(actual[1:]) == spelled(undisturbed[1:])
    (lost_seed,) = [report for report in actual[0] if getattr(report, "blamed", False)]
    assert (lost_seed.blueprint, lost_seed.slot) == ("test/bad", "early")


@pytest.mark.parametrize("number", [signal.SIGKILL, slow(signal.SIGSTOP)])
def test_workers_that_are_killed_or_stopped_from_outside_change_nothing(workers, number):
    """One is ended before each step, in turn: with the requests since the last snapshot, or since the beginning."""
    recipe = recipe_with(LOCAL_CONV)
    expected = course(threads(recipe))
    pool = workers(recipe, patience=2.0 if number == signal.SIGSTOP else 60.0)

    def end_one(step: int) -> None:
        os.kill(pool._workers[step % 2]._worker.pid, number)

    assert spelled(course(pool, before=end_one)) == spelled(expected)


@pytest.mark.parametrize(("harm", "how"), [(leave, "exited with code 0"), (crash, "was ended by SIGSEGV")])
def test_a_host_that_ends_its_worker_ends_the_run_with_its_name_and_traceback(workers, harm, how):
    class Leaving(NoisyHost):
        left = 3

        def forward(self, inputs: Tensor) -> Tensor:
            self.left -= self.training
            return harm(self, inputs) if self.left < 0 else super().forward(inputs)

    pool = workers(recipe_with(LOCAL_CONV, host=Leaving))
    with pytest.raises(WorkerLost) as caught:
        course(pool)
    (problem,) = caught.value.problems
    assert problem.code == "E403"
    assert f'{how} in "train"; at work was the host, arm "grown", RNG seed ' in problem.message
    assert (f'File "{__file__}"' in problem.hint) == (harm is crash), "there is no traceback of an exit"


def test_a_worker_that_cannot_be_made_ends_the_run(workers):
    class Gone(ForkEngine):
        def start(self, order: Order) -> ForkedWorker:
            worker = super().start(order)
            os.kill(worker.pid, signal.SIGKILL)
            return worker

    recipe = recipe_with(LOCAL_CONV)
    with pytest.raises(WorkerLost, match=r"E403 the worker of the environments with index 0 to 0 .* SIGKILL"):
        WorkerPool(Gone(recipe), PoolRequest(ARMS, None), 2, workers=2, warn=recipe.reports.warn)
