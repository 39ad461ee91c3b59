"""Environments in processes of their own: nothing of it shows in a number, and none of them is left behind."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from esper_core.config import ComputeConfig
from esper_core.growth import Draws, Variety
from esper_core.leyline import (
    WAIT,
    Action,
    BlueprintSpec,
    GrowthError,
    Level,
    Op,
    PluginError,
    Problem,
    Site,
    State,
    Verdict,
)
from esper_core.leyline.errors import GovernorStop, WorkerLost
from esper_core.trainer.environment import Recipe
from esper_core.trainer.pool import Pool
from esper_core.trainer.study import AnyPool
from esper_core.trainer.workers import WorkerPool, can_fork, sendable, split

pytestmark = pytest.mark.skipif(not can_fork(), reason="processes are forked on Linux, without an accelerator")

Make = Callable[..., Recipe]
ARMS = ["grown", "other", "twin"]
GERMINATE, BAD = Action(Op.GERMINATE, "early", "test/local-conv"), Action(Op.GERMINATE, "early", "test/bad")
CHOICE = [GERMINATE, Action(Op.ADVANCE, "early"), Action(Op.PRUNE, "early"), Action(Op.FOSSILISE, "early")]
PANIC, ENOUGH = Verdict(Level.PANIC, "told so"), Verdict(Level.ENOUGH, "told so")


@pytest.fixture
def pools(make_recipe: Make) -> Iterator[Callable[..., AnyPool]]:
    """``pools(recipe, environments, processes)``: a pool, or shards where there are several processes."""
    made: list[AnyPool] = []

    def new(recipe: Recipe, environments: int, processes: int) -> AnyPool:
        one: AnyPool = (
            Pool(recipe, ARMS, environments, twin="twin", lanes=2)
            if processes == 0
            else WorkerPool(recipe, ARMS, environments, twin="twin", processes=processes)
        )
        made.append(one)
        return one

    yield new
    for one in made:
        with suppress(WorkerLost):
            one.close()


def course(
    pool: AnyPool,
    steps: range,
    *,
    choice: list[Action] = CHOICE,
    verdicts: dict[tuple[int, int], Verdict] | None = None,
) -> list[Any]:
    """All that is told of a pool when legal actions are drawn for it. verdicts: by step and place what others think."""
    told: list[Any] = []
    if steps.start == 0:
        pool.reset(1, 10)
    for step in steps:
        passed = pool.train(step)
        pool.evaluate(step)
        pool.synchronise(step)
        mishaps = pool.heal(step)
        running = [one.place for one in pool.running()]
        opinions = {place: own for (at, place), own in (verdicts or {}).items() if at == step and place in running}
        decisions = pool.judge(opinions)
        rolled, dropped = pool.carry_out(decisions, step)
        masks, actions = pool.masks(), []
        for place, (one, mask) in enumerate(zip(pool.environments, masks, strict=True)):
            generator = torch.Generator().manual_seed(1000 * one.seed + 17 * step + ARMS.index(one.arm))
            legal = [action for action in choice if mask.allows(action)]
            wanted = [WAIT, *legal, *legal][int(torch.randint(1 + 2 * len(legal), (), generator=generator))]
            actions.append(WAIT if one.arm == "twin" or place in rolled else wanted)
        decided, unborn = pool.apply(actions, step)
        changes = [*passed, *mishaps, *dropped, *decided, *unborn]
        standing = [(one.arm, one.index, one.round, one.seed, one.steps, one.over) for one in pool.environments]
        told += [
            list(pool.latest),
            decisions,
            rolled,
            masks,
            actions,
            changes,
            standing,
            pool.faults.state_dict().plain,
        ]
    return told


def ended(pool: AnyPool, last: int) -> tuple[list[Any], State]:
    state = pool.state_dict()
    changes, endings = pool.conclude(last)
    return [changes, endings], state


def assert_same(left: tuple[list[Any], State], right: tuple[list[Any], State]) -> None:
    (told, state), (other, there) = left, right
    for number, (one, another) in enumerate(zip(told, other, strict=True)):
        same = spelled(one) == spelled(another)
        assert same, f"what is told in place {number}"  # pytest would look long for where it differs
    assert list(state.tensors) == list(there.tensors)
    assert all(torch.equal(own, there.tensors[name]) for name, own in state.tensors.items())
    same = repr(state.plain) == repr(there.plain)
    assert same


def spelled(thing: Any) -> str:
    """All that stands in a thing: NaN is NaN, and a set has an order."""
    if is_dataclass(thing) and not isinstance(thing, type):
        return f"{type(thing).__name__}({', '.join(spelled(getattr(thing, one.name)) for one in fields(thing))})"
    if isinstance(thing, Mapping):
        return f"{{{', '.join(f'{spelled(key)}: {spelled(one)}' for key, one in thing.items())}}}"
    if isinstance(thing, frozenset):
        return f"{{{', '.join(sorted(map(spelled, thing)))}}}"
    if isinstance(thing, list | tuple):
        return f"[{', '.join(map(spelled, thing))}]"
    return repr(thing)


def played(pool: AnyPool, steps: int, **more: Any) -> tuple[list[Any], State]:
    told = course(pool, range(steps), **more)
    end, state = ended(pool, steps - 1)
    return told + end, state


@pytest.mark.parametrize("draws", [Draws.NEVER, Draws.FORWARD])
@pytest.mark.parametrize(("environments", "processes"), [(1, 1), (2, 2), (3, 2), (4, 2), (4, 4)])
def test_run_08_a_pool_in_processes_tells_to_the_bit_what_one_on_threads_tells(
    make_recipe: Make, pools: Callable[..., AnyPool], draws: Draws, environments: int, processes: int
) -> None:
    """BatchNorm and dropout, live seeds, drawn actions, networks at the end."""
    host = {} if draws is Draws.FORWARD else {"host": Quiet}
    recipe = replace(make_recipe(steps=8, batches=2, embargo=1, **host), draws=draws)
    expected = played(pools(recipe, environments, 0), 8)
    assert "GERMINATED" in repr(expected[0])
    assert_same(expected, played(pools(recipe, environments, processes), 8))


@pytest.mark.parametrize("how", [{"data": "streamed"}, {"micro_batches": 2}, {"compile": True}])
def test_however_a_batch_is_computed_it_is_the_same_in_processes(
    make_recipe: Make, pools: Callable[..., AnyPool], how: dict[str, Any]
) -> None:
    """Each process has loaders and a compiler of its own; this one gives back what it is given."""
    recipe = replace(
        make_recipe(steps=6, batches=2, embargo=1), compute=ComputeConfig(**how), compiler=lambda model: model
    )
    expected = played(pools(recipe, 3, 0), 6)
    assert "GERMINATED" in repr(expected[0])
    assert_same(expected, played(pools(recipe, 3, 2), 6))


class Quiet(nn.Module):
    """BatchNorm, and nothing that is drawn."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv1d(1, 4, 1), nn.BatchNorm1d(4), nn.ReLU())
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(48, 3))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(self.stem(inputs))


class Impatient(nn.Module):
    """Does no harm until its fourth pass in training; then it raises."""

    def __init__(self, site: Site) -> None:
        super().__init__()
        self.conv = nn.Conv1d(site.channels, site.channels, 1)
        self.left = 4

    def forward(self, hidden: Tensor) -> Tensor:
        self.left -= self.training
        if self.left < 0:
            raise ValueError("out of patience")
        return hidden + self.conv(hidden)


def test_faults_are_those_of_the_run_and_a_blueprint_is_withdrawn_everywhere_at_once(
    make_recipe: Make, pools: Callable[..., AnyPool]
) -> None:
    variety = Variety("test/bad", BlueprintSpec("sequence", "c*c + c"), Impatient)
    recipe = make_recipe(steps=10, batches=2, variety=variety, embargo=0)
    expected = played(pools(recipe, 4, 0), 10, choice=[BAD])
    assert repr(expected[0]).count("withdrawn=True") == 1
    assert_same(expected, played(pools(recipe, 4, 2), 10, choice=[BAD]))


def test_rollbacks_and_episodes_that_are_cut_short_are_the_same(
    make_recipe: Make, pools: Callable[..., AnyPool]
) -> None:
    """A rollback of a twin among them, and rollbacks that withdraw a blueprint."""
    recipe = make_recipe(steps=9, batches=2, embargo=0, governor={"rollbacks": 5, "watch_steps": 9})
    panics = {(step, place): PANIC for step in (3, 6) for place in (0, 1, 3, 4, 6, 7, 9, 10)} | {(3, 8): PANIC}
    verdicts = {**panics, (7, 3): ENOUGH, (7, 2): ENOUGH, (7, 7): ENOUGH}
    more = {"verdicts": verdicts, "choice": CHOICE[:2]}
    expected = played(pools(recipe, 4, 0), 9, **more)
    assert "ROLL_BACK" in repr(expected[0])
    assert "withdrawn=True" in repr(expected[0])
    assert "EARLY_STOP" in repr(expected[0])
    assert_same(expected, played(pools(recipe, 4, 2), 9, **more))


@pytest.mark.parametrize(("before", "after"), [(0, 2), (2, 0), (2, 3)])
def test_what_was_written_down_on_threads_goes_on_in_processes_and_the_other_way_round(
    make_recipe: Make, pools: Callable[..., AnyPool], before: int, after: int
) -> None:
    recipe = make_recipe(steps=8, batches=2, embargo=1)
    expected = played(pools(recipe, 3, 0), 8)
    first = pools(recipe, 3, before)
    told = course(first, range(4))
    second = pools(recipe, 3, after)
    second.load_state_dict(first.state_dict(), in_round=True)
    told += course(second, range(4, 8))
    end, state = ended(second, 7)
    assert_same(expected, (told + end, state))


def test_several_rounds_are_played_in_the_same_processes(make_recipe: Make, pools: Callable[..., AnyPool]) -> None:
    recipe, one, other = make_recipe(steps=3, batches=2), None, None
    one, other = pools(recipe, 2, 0), pools(recipe, 2, 2)
    for _ in range(3):
        assert_same(played(one, 3), played(other, 3))


class Raising(Quiet):
    """Raises in the third pass of its training."""

    def __init__(self, error: Callable[[], BaseException]) -> None:
        super().__init__()
        self.error, self.left = error, 3

    def forward(self, inputs: Tensor) -> Tensor:
        self.left -= self.training
        if self.left < 0:
            raise self.error()
        return super().forward(inputs)


def raised(pool: AnyPool) -> BaseException:
    with pytest.raises(BaseException) as caught:  # noqa: PT011  that it is the same is what is asked
        played(pool, 3)
    return caught.value


@pytest.mark.parametrize("error", [lambda: ValueError("no"), KeyboardInterrupt, lambda: SystemExit(7)])
def test_what_a_host_raises_is_told_as_if_it_were_here(
    make_recipe: Make, pools: Callable[..., AnyPool], error: Callable[[], BaseException]
) -> None:
    recipe = make_recipe(steps=3, batches=2, host=lambda: Raising(error))
    here, there = raised(pools(recipe, 2, 0)), raised(pools(recipe, 2, 2))
    assert isinstance(here, KeyboardInterrupt if error is KeyboardInterrupt else PluginError)
    assert (type(there), getattr(there, "problems", ())) == (type(here), getattr(here, "problems", ()))
    assert "Raising" in str(there.__cause__) or "forward" in str(there.__cause__), "its traceback came along"


def test_who_draws_where_a_trial_saw_none_is_told_of_each_process(
    make_recipe: Make, pools: Callable[..., AnyPool]
) -> None:
    recipe = replace(make_recipe(steps=3), draws=Draws.NEVER)  # and its host has dropout
    with pytest.raises(PluginError, match="E236"):
        played(pools(recipe, 2, 2), 3)


def test_what_does_not_come_through_is_told_in_words() -> None:
    class Local(Exception):
        """Nobody finds it by its name."""

    assert repr(sendable(Local("too far"))) == "RuntimeError('Local: too far')"
    missing = FileNotFoundError(2, "No such file")
    assert sendable(missing) is missing
    stop = GovernorStop(Problem("E402", "stopped"))
    assert sendable(stop) is stop


def test_a_host_that_cannot_be_built_is_told_and_nothing_is_left(make_recipe: Make) -> None:
    def host() -> nn.Module:
        raise GrowthError(Problem("E303", "no"))

    shards = WorkerPool(make_recipe(host=host), ARMS, 2, processes=2)
    with pytest.raises(GrowthError, match="E303 no"):
        shards.reset(0, 0)
    forks = pids(shards)
    shards.close()
    shards.close()
    assert not any(alive(pid) for pid in forks)


def pids(shards: AnyPool) -> list[int]:
    assert isinstance(shards, WorkerPool)
    return [fork.pid for fork in shards._processes]


def test_a_process_that_is_killed_is_told_and_what_was_written_goes_on(
    make_recipe: Make, pools: Callable[..., AnyPool]
) -> None:
    recipe = make_recipe(steps=6, batches=2)
    expected = played(pools(recipe, 2, 0), 6)
    shards = pools(recipe, 2, 2)
    told = course(shards, range(3))
    state = shards.state_dict()
    os.kill(pids(shards)[1], signal.SIGKILL)
    with pytest.raises(WorkerLost, match=r"E403 the process of the environments with index 1 to 1 .* SIGKILL"):
        course(shards, range(3, 6))
    shards.close()
    again = pools(recipe, 2, 2)
    again.load_state_dict(state, in_round=True)
    told += course(again, range(3, 6))
    end, last = ended(again, 5)
    assert_same(expected, (told + end, last))


def test_signals_that_ask_a_run_to_end_are_its_parents_to_mind(
    make_recipe: Make, pools: Callable[..., AnyPool]
) -> None:
    shards = pools(make_recipe(steps=3), 2, 2)
    for pid in pids(shards):
        os.kill(pid, signal.SIGHUP)
        os.kill(pid, signal.SIGINT)
        os.kill(pid, signal.SIGTERM)
    played(shards, 3)


ORPHANS = """
import time
import torch
from torch import nn
from esper_core.trainer.workers import WorkerProcess, Lifeline

def serve(pipe):
    pipe.send("at work")
    time.sleep(60)

lifeline = Lifeline()
forks = [WorkerProcess(serve, lifeline, "nobody") for _ in range(2)]
assert [fork.receive() for fork in forks] == ["at work"] * 2
print(*[fork.pid for fork in forks], flush=True)
time.sleep(60)
"""


def alive(pid: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def test_no_process_outlives_a_parent_that_is_killed_though_it_computes(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", ORPHANS], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        forks = [int(one) for one in parent.stdout.readline().split()]
        there = [alive(pid) for pid in forks]
        parent.kill()
    assert there == [True, True]
    deadline = time.monotonic() + 20
    while any(alive(pid) for pid in forks) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not any(alive(pid) for pid in forks)


def test_what_is_said_in_a_process_is_said_here_and_a_notice_once(
    make_recipe: Make, caplog: pytest.LogCaptureFixture
) -> None:
    class Saying(Quiet):
        def __init__(self) -> None:
            super().__init__()
            logging.getLogger("esper").warning("a host is born")

    recipe = make_recipe(host=Saying)
    with caplog.at_level(logging.WARNING, "esper"):
        shards = WorkerPool(recipe, ["grown"], 2, processes=2)
        shards.reset(0, 0)
        shards.close()
    assert caplog.messages == ["a host is born"] * 2


def test_indices_are_shared_out_evenly_and_in_their_order() -> None:
    assert split(1, 8) == [range(1)]
    assert split(4, 2) == [range(2), range(2, 4)]
    assert [len(own) for own in split(11, 4)] == [3, 3, 3, 2]
    assert [index for own in split(11, 4) for index in own] == list(range(11))
