"""Worker processes: identical results to threads, errors of a fork, and no process left behind."""

import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from multiprocessing.connection import Connection
from select import select
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from esper_core.growth import Draws
from esper_core.leyline import WAIT, Action, GrowthError, Level, PluginError, Problem, State, Verdict
from esper_core.leyline.errors import GovernorStop, WorkerLost
from esper_core.trainer.environment import Recipe
from esper_core.trainer.pool import Pool
from esper_core.trainer.roster import StudyPool
from esper_run.config import RunConfig
from esper_run.engines import PoolRequest
from esper_run.watchdog import can_fork
from esper_scale.engines import sessions
from esper_scale.engines.breadcrumbs import BreadcrumbMemory
from esper_scale.engines.processes import ForkedWorker, ForkEngine, Lifeline
from esper_scale.engines.sessions import processes_for
from esper_scale.engines.shard import sendable
from esper_scale.engines.worker_pool import WorkerPool
from tests.support.core_worlds import (
    ADVANCE,
    FOSSILISE,
    GERMINATE,
    PRUNE,
    SmoothHost,
    change_recipe,
    make_recipe,
    same,
    spelled,
    turning,
)

forks = pytest.mark.skipif(not can_fork(), reason="processes are forked on Linux, without an accelerator")
Pools = Callable[[Recipe, int, int], StudyPool[Any]]
CPU = [torch.device("cpu")]
ARMS = ["grown", "other", "twin"]
CHOICE = [GERMINATE, ADVANCE, PRUNE, FOSSILISE]
PANIC, ENOUGH = Verdict(Level.PANIC, "too hot"), Verdict(Level.ENOUGH, "enough")
slow = pytest.mark.slow


def forked(recipe: Recipe, arms: list[str], environments: int, workers: int, twin: str | None = None) -> WorkerPool:
    """Return a pool of forked worker processes."""
    request = PoolRequest(arms, twin)
    return WorkerPool(ForkEngine(recipe), request, environments, workers=workers, warn=recipe.reports.warn)


@pytest.fixture
def pools() -> Iterator[Pools]:
    """``pools(recipe, environments, processes)``: a pool of worker processes, or of threads for 0 processes."""
    created: list[StudyPool[Any]] = []

    def new(recipe: Recipe, environments: int, processes: int) -> StudyPool[Any]:
        created.append(
            forked(recipe, ARMS, environments, processes, twin="twin")
            if processes
            else Pool(recipe, ARMS, environments, twin="twin", lanes=2)
        )
        return created[-1]

    yield new
    for pool in created:
        with suppress(WorkerLost):
            pool.close()


def course(
    pool: StudyPool[Any],
    steps: range,
    *,
    choice: list[Action] = CHOICE,
    verdicts: dict[tuple[int, int], Verdict] | None = None,
) -> list[Any]:
    """Return everything that a pool reports while legal actions are drawn; verdicts: opinions by step and place."""
    reports: list[Any] = []
    if steps.start == 0:
        pool.reset(1, 10)
    for step in steps:
        passed = pool.train(step)
        pool.evaluate(step)
        pool.synchronise(step)
        lost = pool.heal(step)
        running = [environment.pool_index for environment in pool.running()]
        opinions = {
            pool_index: opinion
            for (at, pool_index), opinion in (verdicts or {}).items()
            if at == step and pool_index in running
        }
        decisions = pool.judge(opinions)
        rolled, dropped = pool.carry_out(decisions, step)
        masks, actions = pool.masks(), []
        for pool_index, (environment, mask) in enumerate(zip(pool.environments, masks, strict=True)):
            generator = torch.Generator().manual_seed(1000 * environment.seed + 17 * step + ARMS.index(environment.arm))
            legal = [action for action in choice if mask.allows(action)]
            drawn = [WAIT, *legal, *legal][int(torch.randint(1 + 2 * len(legal), (), generator=generator))]
            actions.append(WAIT if environment.arm == "twin" or pool_index in rolled else drawn)
        changes = [*passed, *lost, *dropped, *pool.apply(actions, step)]
        members = [
            (
                environment.arm,
                environment.index,
                environment.round,
                environment.seed,
                environment.steps,
                environment.over,
            )
            for environment in pool.environments
        ]
        faults = pool.faults.state_dict().plain
        reports += [list(pool.latest), decisions, rolled, masks, actions, changes, members, faults]
    return reports


def played(pool: StudyPool[Any], steps: int | range, **more: Any) -> tuple[list[Any], State]:
    """Play the last steps of a round; return everything that was reported, and the state before the round ends."""
    steps = range(steps) if isinstance(steps, int) else steps
    reports = course(pool, steps, **more)
    state = pool.state_dict()
    return [*reports, *pool.conclude(steps.stop - 1)], state


def assert_same(left: tuple[list[Any], State], right: tuple[list[Any], State]) -> None:
    (left_reports, left_state), (right_reports, right_state) = left, right
    for number, (left_report, right_report) in enumerate(zip(left_reports, right_reports, strict=True)):
        is_same = spelled(left_report) == spelled(right_report)
        assert is_same, f"report {number} differs"  # pytest would take long to find the place
    assert list(left_state.tensors) == list(right_state.tensors)
    assert same(left_state.tensors, right_state.tensors)
    is_same = repr(left_state.plain) == repr(right_state.plain)
    assert is_same


@forks
@pytest.mark.parametrize(
    ("draws", "environments", "processes"),
    [
        (Draws.FORWARD, 3, 2),
        pytest.param(Draws.NEVER, 2, 2, marks=slow),
        *(
            pytest.param(draws, *sizes, marks=slow)
            for draws in (Draws.NEVER, Draws.FORWARD)
            for sizes in ((1, 1), (4, 2), (4, 4))
        ),
    ],
)
def test_run_08_worker_processes_report_bitwise_the_same_as_threads(pools, draws, environments, processes):
    """BatchNorm and dropout where random numbers are drawn; living seeds, drawn actions, networks at the end."""
    host = {} if draws is Draws.FORWARD else {"host": SmoothHost}
    recipe = change_recipe(make_recipe(steps=8, batches=2, embargo=1, **host), draws=draws)
    expected = played(pools(recipe, environments, 0), 8)
    assert "GERMINATED" in repr(expected[0])
    assert_same(expected, played(pools(recipe, environments, processes), 8))


@forks
@pytest.mark.install  # CI runs it for every change
def test_rollbacks_and_early_ends_of_episodes_are_the_same_in_processes(pools):
    """One rollback is of a twin, and some withdraw a blueprint."""
    recipe = make_recipe(steps=9, batches=1, embargo=0, governor={"rollbacks": 5, "watch_steps": 9})
    panics = {(step, pool_index): PANIC for step in (3, 6) for pool_index in (0, 1, 3, 4, 6, 7, 9, 10)} | {
        (3, 8): PANIC
    }
    verdicts = {**panics, (7, 3): ENOUGH, (7, 2): ENOUGH, (7, 7): ENOUGH}
    more = {"verdicts": verdicts, "choice": CHOICE[:2]}
    expected = played(pools(recipe, 4, 0), 9, **more)
    assert all(word in repr(expected[0]) for word in ("ROLL_BACK", "withdrawn=True", "EARLY_STOP"))
    assert_same(expected, played(pools(recipe, 4, 2), 9, **more))


@forks
@pytest.mark.install  # CI runs it for every change
@pytest.mark.parametrize(("before", "after"), [pytest.param(0, 2, marks=slow), pytest.param(2, 0, marks=slow), (2, 3)])
def test_a_state_can_be_restored_with_another_number_of_processes(pools, before, after):
    recipe = make_recipe(steps=6, batches=1, embargo=1)
    expected = played(pools(recipe, 3, 0), 6)
    first, second = pools(recipe, 3, before), pools(recipe, 3, after)
    reports = course(first, range(3))
    second.load_state_dict(first.state_dict(), in_round=True)
    later_reports, state = played(second, range(3, 6))
    assert_same(expected, (reports + later_reports, state))


@forks
@pytest.mark.parametrize("error", [lambda: ValueError("no"), lambda: SystemExit(7)])
def test_an_error_of_a_host_is_raised_with_its_traceback_as_without_processes(pools, error):
    def fail(inputs: Tensor) -> Tensor:
        raise error()

    recipe = make_recipe(steps=3, batches=2, host=turning(fail, after=3))
    raised: list[BaseException] = []
    for processes in (0, 2):
        with pytest.raises(BaseException) as caught:  # noqa: PT011  whatever it is, both are the same
            played(pools(recipe, 2, processes), 3)
        raised.append(caught.value)
    in_thread, in_process = raised
    assert isinstance(in_thread, PluginError)
    assert (type(in_process), getattr(in_process, "problems", ())) == (
        type(in_thread),
        getattr(in_thread, "problems", ()),
    )
    assert "forward" in str(in_process.__cause__)


def test_an_error_that_cannot_be_pickled_is_sent_as_its_message():
    class Local(Exception):
        """A local class, which pickle cannot find by name."""

    assert repr(sendable(Local("too far"))) == "RuntimeError('Local: too far')"
    for error in (FileNotFoundError(2, "No such file"), GovernorStop(Problem("E402", "stopped"))):
        assert sendable(error) is error


def pids(pool: StudyPool[Any]) -> list[int]:
    assert isinstance(pool, WorkerPool)
    return [worker._worker.pid for worker in pool._workers]


@forks
def test_a_host_that_cannot_be_built_is_reported_and_no_process_is_left():
    def host() -> nn.Module:
        raise GrowthError(Problem("E303", "no"))

    pool = forked(make_recipe(host=host), ARMS, 2, 2)
    with pytest.raises(GrowthError, match="E303 no"):
        pool.reset(0, 0)
    ended = pids(pool)
    pool.close()
    pool.close()
    for pid in ended:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


@forks
def test_worker_processes_ignore_signals_that_ask_a_run_to_end(pools):
    pool = pools(make_recipe(steps=1, batches=1), 2, 2)
    for pid in pids(pool):
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
            os.kill(pid, number)
    played(pool, 1)


@forks
def test_worker_processes_exit_when_their_parent_is_killed_in_the_middle_of_a_computation():
    """Each holds the write end of a pipe, whose read end sees EOF once all of them have exited."""
    end, held = os.pipe()

    def compute(pipe: Connection, breadcrumbs: BreadcrumbMemory) -> None:
        pipe.send("computing")
        threading.Event().wait()

    def parent(pipe: Connection, breadcrumbs: BreadcrumbMemory) -> None:
        lifeline = Lifeline()
        children = [ForkedWorker(compute, lifeline) for _ in range(2)]
        pipe.send([child.receive(60) for child in children])
        threading.Event().wait()

    process = ForkedWorker(parent, Lifeline())
    os.close(held)
    assert process.receive(60) == ["computing"] * 2
    assert not select([end], [], [], 0)[0]
    process.close()
    assert select([end], [], [], 60)[0]
    assert os.read(end, 1) == b""
    os.close(end)


@forks
def test_log_messages_of_a_process_are_logged_by_its_parent(caplog):
    def host() -> nn.Module:
        logging.getLogger("esper").warning("a host is born")
        return SmoothHost()

    pool = forked(make_recipe(host=host), ["grown"], 2, 2)
    pool.reset(0, 0)
    pool.close()
    assert caplog.messages == ["a host is born"] * 2


# --- how many processes a run takes


@pytest.fixture
def four_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four cores, on which processes can be forked."""
    monkeypatch.setattr(sessions, "usable_cores", lambda: 4)
    monkeypatch.setattr(sessions, "can_fork", lambda: True)


def config(**more: object) -> RunConfig:
    """A run of eight RNG seeds."""
    slots = {"early": {"blueprints": ["conv_light"]}}
    return RunConfig.model_validate(
        {"task": {"use": "stripes"}, "host": {"use": "cnn1d"}, "slots": slots, "environments": 8, **more}
    )


@pytest.mark.usefixtures("four_cores")
@pytest.mark.parametrize(
    ("more", "count"),
    [
        ({"engine": "processes"}, 4),
        ({"engine": "processes", "lanes": 1}, 1),
        ({"engine": "processes", "environments": 3}, 3),
        ({"engine": "processes", "lanes": 2, "environments": 3}, 2),
    ],
)
def test_a_run_takes_as_many_processes_as_it_can_use(more, count):
    assert processes_for(config(**more), CPU) == count


@pytest.mark.usefixtures("four_cores")
@pytest.mark.parametrize("why", ["no forks", "a GPU"])
def test_a_warning_says_that_requested_processes_are_not_possible(why, monkeypatch, caplog):
    devices = [*CPU, torch.device("cuda")] if why == "a GPU" else CPU
    monkeypatch.setattr(sessions, "can_fork", lambda: why == "a GPU")
    assert processes_for(config(engine="processes"), devices) == 1
    assert [message for message in caplog.messages if "engine: processes needs Linux" in message]
