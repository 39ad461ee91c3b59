"""Worker processes: identical results to threads, errors of a fork, and workers that crash, hang or disappear.

``tests/end_to_end/test_hostile_plugins.py`` has more ways in which a seed ends or blocks its worker.
"""

import ctypes
import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection
from select import select
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from esper_core import leyline
from esper_core.growth import Draws, Variety
from esper_core.leyline import WAIT, Action, ActionMask, BlueprintSpec, GrowthError, Level, Op, Problem, Verdict
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
from esper_scale.engines.protocol import Order
from esper_scale.engines.sessions import processes_for
from esper_scale.engines.shard import sendable
from esper_scale.engines.worker_pool import WorkerPool
from tests.support import core_worlds
from tests.support.core_worlds import ADVANCE, GERMINATE, LOCAL_CONV, SmoothHost, bad, change_recipe, make_recipe, slow

forks = pytest.mark.skipif(not can_fork(), reason="processes are forked on Linux, without an accelerator")
CPU = [torch.device("cpu")]
ARMS, PAIR = ["grown", "other", "twin"], ["grown", "twin"]
PANIC, ENOUGH = Verdict(Level.PANIC, "too hot"), Verdict(Level.ENOUGH, "enough")
Choose = Callable[[Any, Any, int], Action]


def forked(recipe: Recipe, arms: list[str], environments: int, workers: int, **settings: Any) -> WorkerPool:
    """Return a pool of forked worker processes."""
    request = PoolRequest(arms, "twin" if "twin" in arms else None)
    return WorkerPool(ForkEngine(recipe), request, environments, workers=workers, warn=recipe.reports.warn, **settings)


@pytest.fixture
def pools() -> Iterator[Callable[..., Any]]:
    """``pools(recipe, environments, processes)``: a pool of worker processes, or of threads for 0 processes."""
    created: list[StudyPool[Any]] = []

    def new(
        recipe: Recipe, environments: int, processes: int, arms: list[str] = ARMS, **settings: Any
    ) -> StudyPool[Any]:
        created.append(
            forked(recipe, arms, environments, processes, **settings)
            if processes
            else Pool(recipe, arms, environments, twin="twin", lanes=2)
        )
        return created[-1]

    yield new
    for pool in created:
        with suppress(WorkerLost):
            pool.close()


def drawn(*choice: Action) -> Choose:
    """Draw among these actions where they are legal; the twin waits."""

    def choose(environment: Any, mask: Any, step: int) -> Action:
        generator = torch.Generator().manual_seed(1000 * environment.seed + 17 * step + ARMS.index(environment.arm))
        legal = [action for action in choice if mask.allows(action)]
        action = [WAIT, *legal, *legal][int(torch.randint(1 + 2 * len(legal), (), generator=generator))]
        return WAIT if environment.arm == "twin" else action

    return choose


DRAWN = drawn(GERMINATE, ADVANCE, core_worlds.PRUNE, core_worlds.FOSSILISE)


def course(
    pool: StudyPool[Any],
    steps: range,
    choose: Choose = DRAWN,
    *,
    verdicts: dict[tuple[int, int], Verdict] | None = None,
    before: Callable[[int], object] = lambda step: None,
) -> list[list[Any]]:
    """Return what a pool reports of each environment, and last what it reports of all.

    ``choose``: the actions; ``verdicts``: opinions by step and place; ``before``: is called before each step.
    """
    if steps.start == 0:
        pool.reset(1, 10)
    reports: list[list[Any]] = [[] for _ in (*pool.environments, "all")]
    for step in steps:
        before(step)
        passed = pool.train(step)
        pool.evaluate(step)
        pool.synchronise(step)
        lost = pool.heal(step)
        running = [(step, environment.pool_index) for environment in pool.running()]
        opinions = {place[1]: opinion for place, opinion in (verdicts or {}).items() if place in running}
        decisions = pool.judge(opinions)
        rolled, dropped = pool.carry_out(decisions, step)
        masks = pool.masks()
        actions = [
            WAIT if environment.pool_index in rolled else choose(environment, mask, step)
            for environment, mask in zip(pool.environments, masks, strict=True)
        ]
        changes, unborn = pool.apply(actions, step)
        occurrences = [*passed, *lost, *dropped, *changes, *unborn]
        for place, change in occurrences:
            reports[place].append(change)
        for place, member in enumerate(pool.environments):
            outcome = pool.latest[place], decisions.get(place), rolled.get(place), masks[place], actions[place]
            reports[place] += [
                *outcome,
                (member.arm, member.index, member.round, member.seed, member.steps, member.over),
            ]
        reports[-1] += [[place for place, _ in occurrences], pool.faults.state_dict().plain]
    return reports


def played(pool: StudyPool[Any], steps: int | range, *arguments: Any, **more: Any) -> list[list[Any]]:
    """Play the last steps of a round, and return what is reported, with the states before the round ends."""
    steps = range(steps) if isinstance(steps, int) else steps
    reports = course(pool, steps, *arguments, **more)
    for place, state in pool.states().items():
        reports[place] += [state, repr(state.plain), list(state.tensors)]
    changes, endings = pool.conclude(steps.stop - 1)
    for place, closing in [*changes, *enumerate(endings)]:
        reports[place].append(closing)
    return reports


def assert_same(left: list[list[Any]], right: list[list[Any]]) -> None:
    for place, (report, other) in enumerate(zip(left, right, strict=True)):
        is_same = core_worlds.spelled(report) == core_worlds.spelled(other)
        assert is_same, f"reports of place {place} differ"  # pytest would take long to find where


@forks
@pytest.mark.parametrize(
    ("draws", "environments", "processes"),
    [
        (Draws.FORWARD, 3, 2),
        slow(Draws.NEVER, 2, 2),
        *(slow(draws, *sizes) for draws in (Draws.NEVER, Draws.FORWARD) for sizes in ((1, 1), (4, 2), (4, 4))),
    ],
)
def test_run_08_worker_processes_report_bitwise_the_same_as_threads(pools, draws, environments, processes):
    """BatchNorm and dropout where random numbers are drawn; living seeds, drawn actions, networks at the end."""
    host = {} if draws is Draws.FORWARD else {"host": SmoothHost}
    recipe = change_recipe(make_recipe(steps=8, batches=2, embargo=1, **host), draws=draws)
    expected = played(pools(recipe, environments, 0), 8)
    assert "GERMINATED" in repr(expected)
    assert_same(expected, played(pools(recipe, environments, processes), 8))


@forks
@pytest.mark.install  # CI runs it for every change
def test_rollbacks_and_early_ends_of_episodes_are_the_same_in_processes(pools):
    """One rollback is of a twin, and some withdraw a blueprint."""
    recipe = make_recipe(steps=9, batches=1, embargo=0, governor={"rollbacks": 5, "watch_steps": 9})
    panics = {(step, place): PANIC for step in (3, 6) for place in (0, 1, 3, 4, 6, 7, 9, 10)}
    verdicts = {**panics, (3, 8): PANIC, (7, 3): ENOUGH, (7, 2): ENOUGH, (7, 7): ENOUGH}
    expected, actual = (
        played(pools(recipe, 4, processes), 9, drawn(GERMINATE, ADVANCE), verdicts=verdicts) for processes in (0, 2)
    )
    assert all(word in repr(expected) for word in ("ROLL_BACK", "withdrawn=True", "EARLY_STOP"))
    assert_same(expected, actual)


@forks
@pytest.mark.install  # CI runs it for every change
@pytest.mark.parametrize(("before", "after"), [slow(0, 2), slow(2, 0), (2, 3)])
def test_a_state_can_be_restored_with_another_number_of_processes(pools, before, after):
    recipe = make_recipe(steps=6, batches=1, embargo=1)
    expected = played(pools(recipe, 3, 0), 6)
    first, second = pools(recipe, 3, before), pools(recipe, 3, after)
    reports = course(first, range(3))
    second.load_state_dict(first.state_dict(), in_round=True)
    later_reports = played(second, range(3, 6))
    assert_same(expected, [report + later for report, later in zip(reports, later_reports, strict=True)])


@forks
@pytest.mark.parametrize("error", [lambda: ValueError("no"), lambda: SystemExit(7)])
def test_an_error_of_a_host_is_raised_with_its_traceback_as_without_processes(pools, error):
    def fail(inputs: Tensor) -> Tensor:
        raise error()

    recipe = make_recipe(steps=3, batches=2, host=core_worlds.turning(fail, after=3))
    raised: list[BaseException] = []
    for processes in (0, 2):
        with pytest.raises(BaseException) as caught:  # noqa: PT011  whatever it is, both are the same
            played(pools(recipe, 2, processes), 3)
        raised.append(caught.value)
    in_thread, in_process = raised
    assert isinstance(in_thread, leyline.PluginError)
    assert (type(in_process), in_process.problems) == (type(in_thread), in_thread.problems)
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


# --- workers that crash, hang or disappear: they are replaced, and the numbers of others stay the same

STEPS = 5


def crash(block: nn.Module, grown: Tensor) -> Tensor:
    ctypes.string_at(0)
    return grown


def leave(block: nn.Module, grown: Tensor) -> Tensor:
    os._exit(0)


def recipe_with(variety: Variety, **more: Any) -> Recipe:
    recipe = make_recipe(steps=STEPS, batches=2, **more)
    return change_recipe(recipe, varieties={"early": (LOCAL_CONV, variety)})


def germinate_last_in_first(environment: Any, mask: Any, step: int) -> Action:
    """Grow the last blueprint in the first environment, and the first one in the others."""
    able = mask.blueprints.get("early", ()) if environment.arm == "grown" and step == 0 else ()
    return Action(Op.GERMINATE, "early", able[0 if environment.pool_index else -1]) if able else WAIT


@pytest.fixture
def pair_course(pools: Callable[..., Any]) -> Callable[..., list[list[Any]]]:
    """``pair_course(recipe)``: what two pairs of environments report, in two processes, or in threads for 0."""

    def play(recipe: Recipe, processes: int = 2, before: Any = lambda pool, step: None, **settings: Any) -> Any:
        pool = pools(recipe, 2, processes, PAIR, **settings)
        return played(pool, STEPS, germinate_last_in_first, before=partial(before, pool))

    return play


def lost_seed(reports: list[list[Any]]) -> Any:
    """Return the seed that the first environment lost; it is the only one that is blamed."""
    (seed,) = [report for report in reports[0] if getattr(report, "blame", "none") != "none"]
    assert (seed.blueprint, seed.slot) == ("test/bad", "early")
    return seed


@forks
def test_a_seed_that_ends_its_worker_is_taken_out_and_changes_nobody_else(pools, pair_course, caplog):
    """As if it had raised an error. The state has what was decided: another pool goes on without it."""
    expected = pair_course(recipe_with(bad(core_worlds.out_of_patience, 3, training=False)), 0)
    recipe = recipe_with(bad(leave, 3, training=False))
    actual = pair_course(recipe, patience=60.0)
    assert_same(actual[1:], expected[1:])
    reason = lost_seed(actual).what
    assert reason.startswith("ended the process with code 0")
    component = 'blueprint "test/bad" in slot early, arm "grown", RNG seed 10'
    assert f"{component} is taken out: it {reason}" in caplog.messages
    caplog.clear()
    resumed = pools(recipe, 2, 2, PAIR, patience=60.0)
    last_reports = [{type(report): report for report in reports} for reports in actual[:-1]]
    states = {place: last[leyline.State] for place, last in enumerate(last_reports)}
    resumed.load_states(states, [last[leyline.Signals] for last in last_reports])
    resumed.train(STEPS)
    resumed.evaluate(STEPS)
    assert caplog.messages == []


def compute_or_leave(block: Any, hidden: Tensor) -> Tensor:
    """End the process in training, whose batches have 20 examples, and not in trials."""
    return leave(block, hidden) if len(hidden) == 20 else hidden + block.conv(hidden)


@forks
def test_a_seed_that_ends_its_worker_in_a_group_is_named_and_changes_nobody_else(pair_course):
    def leaves(site: leyline.Site) -> nn.Module:
        return core_worlds.Net(compute_or_leave, conv=core_worlds.zeroed(nn.Conv1d(site.channels, site.channels, 1)))

    spec = BlueprintSpec("sequence", starts_as_identity=True)
    recipe = recipe_with(Variety("test/bad", spec, leaves), host=SmoothHost)
    growth = core_worlds.plain_growth(incubation="branch")
    recipe = change_recipe(recipe, growth=growth, draws=Draws.NEVER)
    undisturbed = pair_course(change_recipe(recipe, varieties={"early": (LOCAL_CONV,)}), 0)
    actual = pair_course(recipe)
    others, others_undisturbed = (
        [[entry for entry in report if not isinstance(entry, ActionMask)] for report in reports[1:-1]]
        for reports in (actual, undisturbed)
    )
    assert_same(others, others_undisturbed)
    assert lost_seed(actual)


@forks
@pytest.mark.parametrize("number", [signal.SIGKILL, slow(signal.SIGSTOP)])
def test_workers_that_are_killed_or_stopped_from_outside_change_nothing(pair_course, number):
    """One is ended before each step, in turn: with the requests since the last snapshot, or since the beginning."""
    recipe, patience = recipe_with(LOCAL_CONV), 2.0 if number == signal.SIGSTOP else 60.0

    def end_one(pool: WorkerPool, step: int) -> None:
        os.kill(pids(pool)[step % 2], number)

    assert_same(pair_course(recipe, before=end_one, patience=patience), pair_course(recipe, 0))


@forks
@pytest.mark.parametrize(("harm", "how"), [(leave, "exited with code 0"), (crash, "was ended by SIGSEGV")])
def test_a_host_that_ends_its_worker_ends_the_run_with_its_name_and_traceback(pair_course, harm, how):
    with pytest.raises(WorkerLost) as caught:
        pair_course(recipe_with(LOCAL_CONV, host=core_worlds.turning(partial(harm, nn.Identity()), after=3)))
    (problem,) = caught.value.problems
    assert problem.code == "E403"
    assert f'{how} in "train"; at work was the host, arm "grown", RNG seed ' in problem.message
    assert (f'File "{__file__}"' in problem.hint) == (harm is crash), "there is no traceback of an exit"


@forks
def test_a_worker_that_cannot_be_made_ends_the_run():
    class Gone(ForkEngine):
        def start(self, order: Order) -> ForkedWorker:
            worker = super().start(order)
            os.kill(worker.pid, signal.SIGKILL)
            return worker

    recipe = recipe_with(LOCAL_CONV)
    with pytest.raises(WorkerLost, match=r"E403 the worker of the environments with index 0 to 0 .* SIGKILL"):
        WorkerPool(Gone(recipe), PoolRequest(PAIR, None), 2, workers=2, warn=recipe.reports.warn)


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
