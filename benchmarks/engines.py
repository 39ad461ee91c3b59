"""What workers cost a run: ``python -m benchmarks.engines [--ray]``.

Prints the time of an empty request; what messages and snapshots of an environment of the default configuration take;
and what a run of that configuration with two workers spends in its own process, on snapshots, and on what it keeps to
replace a worker. With ``--ray`` also how much longer that run takes there: two runs compute in turn, a step each. It
needs a quiet machine and four minutes.
"""

from __future__ import annotations

import argparse
import pickle
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final
from unittest import mock

import esper_run
from esper_core.growth import FaultBook
from esper_core.leyline import WAIT, Action, Op
from esper_run.app.compose import prepare
from esper_run.app.runtime import one_thread
from esper_run.engines import PoolRequest
from esper_scale.engines.breadcrumbs import BreadcrumbMemory
from esper_scale.engines.processes import ForkEngine
from esper_scale.engines.protocol import Order, Reply, Request
from esper_scale.engines.shard import Shard
from esper_scale.engines.worker_pool import WorkerPool

if TYPE_CHECKING:
    from esper_core.leyline import ActionMask
    from esper_core.leyline.events import Event
    from esper_run.app.compose import Composition

CONFIGURATION: Final = Path(__file__).parents[1] / "plugins.yaml"
STEPS: Final = 12
"""Steps in which sizes are measured: enough for seeds to live."""

EMPTY: Final = ("of_arm", ("nobody",))
"""A request that does nothing."""


def measure_requests(composition: Composition, count: int = 300) -> float:
    """Return the median of the seconds between an empty request and its reply."""
    engine = ForkEngine(composition.recipe)
    wanted = PoolRequest(composition.arm_names, None)
    pool = WorkerPool(engine, wanted, 2, workers=2, warn=composition.recipe.reports.warn)
    with closing(engine), closing(pool):
        request, seconds = Request(*EMPTY, FaultBook().state_dict()), []
        for _ in range(count):
            began = time.perf_counter()
            pool._workers[0].send(request)
            pool._workers[0].receive()
            seconds.append(time.perf_counter() - began)
    return median(seconds[count // 10 :])


def measure_sizes(composition: Composition) -> dict[str, float]:
    """Return what a step of one environment, and a snapshot of it, take in time and in bytes."""
    order = Order(tuple(composition.arm_names), 2, range(2), "twin")
    shard = Shard(order, composition.recipe, composition.recipe.reports.warn, BreadcrumbMemory())
    answered: list[tuple[Request, Any]] = []

    def ask(method: str, *arguments: Any) -> Any:
        request = Request(method, arguments, shard.faults.state_dict())
        answered.append((request, shard.answer(request)))
        return answered[-1][1]

    with closing(shard), one_thread():
        ask("reset", 0, 0)
        began = time.perf_counter()
        for step in range(STEPS):
            for method in ("train", "evaluate", "synchronise", "heal"):
                ask(method, step)
            ask("judge", {})
            ask("apply", [_germinate(mask) for mask in ask("masks")], step)
        trained = time.perf_counter() - began
        members = len(shard.environments) * STEPS
        began = time.perf_counter()
        states = shard.answer(Request("packed_states", (), shard.faults.state_dict()))
        packed = time.perf_counter() - began
    requests = pickle.dumps([request for request, _ in answered])
    replies = pickle.dumps([Reply(value) for _, value in answered])
    began = time.perf_counter()
    pickle.loads(replies)
    read = time.perf_counter() - began
    return {
        "a step of an environment, ms": 1000 * trained / members,
        "its requests, bytes": len(requests) / members,
        "its replies, bytes": len(replies) / members,
        "reading its replies, ms": 1000 * read / members,
        "a snapshot of an environment, bytes": len(pickle.dumps(states)) / len(states),
        "taking it, ms": 1000 * packed / len(states),
    }


def _germinate(mask: ActionMask) -> Action:
    """Return an action that germinates a seed, where that is possible."""
    return next((Action(Op.GERMINATE, slot, able[0]) for slot, able in mask.blueprints.items() if able), WAIT)


class _Meter:
    """Listens to a run: how long it and its own process took from the first finished step to the last."""

    def __init__(self) -> None:
        self.steps = 0
        self.seconds, self.processor = 0.0, 0.0

    def hear(self, event: Event) -> None:
        """Take account of a finished step."""
        if event.type != "step-finished":
            return
        now, processor = time.perf_counter(), time.process_time()
        if self.steps == 0:
            self._began = now, processor
        self.steps += 1
        self.seconds, self.processor = now - self._began[0], processor - self._began[1]

    def settle(self) -> None:
        """Do nothing at the end of a step."""


def measure_run(engine: str) -> dict[str, float]:
    """Return what a run spends in its own process, on snapshots, and on keeping them with the requests since."""
    meter, spent, kept = _Meter(), [], []
    take = WorkerPool._packed_states

    def timed(pool: WorkerPool) -> Any:
        kept.append(
            sum(len(pickle.dumps((worker._snapshot, worker._log))) for worker in pool._workers) / len(pool.environments)
        )
        began = time.perf_counter()
        try:
            return take(pool)
        finally:
            spent.append(time.perf_counter() - began)

    with tempfile.TemporaryDirectory() as folder, mock.patch.object(WorkerPool, "_packed_states", timed):
        esper_run.run(CONFIGURATION, overrides=overrides(engine), runs_dir=folder, listeners=[meter])
    return {
        "its own process, ms per step of an environment": 1000 * meter.processor / meter.steps,
        "snapshots, share of the time, %": 100 * sum(spent) / meter.seconds,
        "snapshot and requests since, most, bytes per environment": max(kept, default=0.0),
    }


class Turns:
    """Lets two runs in threads compute in turn, so that a machine of varying speed affects both alike.

    A turn is a step of a run.
    """

    def __init__(self, *names: str) -> None:
        self.seconds: dict[str, list[float]] = {name: [] for name in names}
        self._waiting: set[str] = set()
        self._playing = list(names)
        self._next = 0
        self._changed = threading.Condition()

    def take(self, name: str) -> None:
        """End the turn of a run, and wait for its next one; the first comes when all runs wait."""
        with self._changed:
            self._pass_on(name)
            self._waiting.add(name)
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._waiting >= set(self._playing) and self._is_next(name))
            self._began = time.perf_counter()

    def wait_for(self, name: str) -> None:
        """Wait until a run waits for its first turn, or has ended."""
        with self._changed:
            self._changed.wait_for(lambda: name in self._waiting or name not in self._playing)

    def leave(self, name: str) -> None:
        """Let the other run go on alone. The last turn does not count, since it contains the end of the run."""
        with self._changed:
            self._playing.remove(name)
            self._next = 0
            self._changed.notify_all()

    def _pass_on(self, name: str) -> None:
        if name in self._waiting:
            self.seconds[name].append(time.perf_counter() - self._began)
            self._next = (self._next + 1) % len(self._playing)

    def _is_next(self, name: str) -> bool:
        return self._playing[self._next % len(self._playing)] == name


def measure_in_turn(*engines: str) -> dict[str, list[float]]:
    """Return the seconds of each turn of a run on each engine, but the first and the last."""
    turns, local, train = Turns(*engines), threading.local(), WorkerPool.train

    def in_turn(pool: WorkerPool, step: int) -> Any:
        turns.take(local.name)
        return train(pool, step)

    def run(engine: str) -> None:
        local.name = engine
        with tempfile.TemporaryDirectory() as folder:
            try:
                esper_run.run(CONFIGURATION, overrides=overrides(engine), runs_dir=folder)
            finally:
                turns.leave(engine)

    with mock.patch.object(WorkerPool, "train", in_turn):
        with ThreadPoolExecutor(len(engines)) as threads:
            runs = []
            for engine in engines:  # one after the other: a process that is forked beside the start of Ray may hang
                runs.append(threads.submit(run, engine))
                turns.wait_for(engine)
        for future in runs:
            future.result()
    return {engine: seconds[1:] for engine, seconds in turns.seconds.items()}


def overrides(engine: str) -> list[str]:
    """Return the changes to the configuration: two workers, and nothing that only a long run needs."""
    return [f"engine={engine}", "lanes=2", "checkpoints.every=1000", "capacity=false"]


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.engines", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--ray", action="store_true", help="Measure requests to a local Ray cluster, too.")
    parsed = parser.parse_args()
    engines = ("processes", "ray") if parsed.ray else ("processes",)
    for engine in engines:
        composition = prepare(CONFIGURATION, [f"engine={engine}", "lanes=2"])
        print(f"empty request, {engine}: {1000 * measure_requests(composition):.2f} ms")
    for name, value in measure_sizes(prepare(CONFIGURATION)).items():
        print(f"{name}: {value:,.3g}")
    for engine in engines:
        for name, value in measure_run(engine).items():
            print(f"{engine}: {name}: {value:,.3g}")
    if parsed.ray:
        took = measure_in_turn(*engines)
        for engine, seconds in took.items():
            print(f"{engine}: {len(seconds)} turns, s: {sum(seconds):.1f}")
        print(f"ray against processes: {sum(took['ray']) / sum(took['processes']):.3f}")


if __name__ == "__main__":
    main()
