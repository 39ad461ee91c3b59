"""Ray: workers on the machines of a Ray cluster, or of one that is started here for a run.

Each worker is an actor with one CPU. The actor builds the recipe of the run once, and serves its environments in a
forked process, as ``processes`` does, so that a seed that crashes or hangs is found in the same way. It only passes
requests and replies on. Actors live as long as the engine: the study of the controls uses those of the first study.

Only this module imports ray, and only when a run asks for it.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import torch

from esper_core import __version__
from esper_core.leyline.errors import ClusterError, Problem, one_line
from esper_scale.engines.nodes import NodeRecord, check_node
from esper_scale.engines.processes import ForkEngine, usable_cores
from esper_scale.engines.protocol import WorkerEnd, WorkerGone, WorkerStarting
from esper_scale.engines.shard import sendable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from esper_scale.engines.portable import PortableData, PortableRun
    from esper_scale.engines.processes import ForkedWorker
    from esper_scale.engines.protocol import Order, Reply, Request

log = logging.getLogger("esper")

SECONDS_TO_END: Final = 10.0
"""How long an actor may take to say how its worker ended."""

SECONDS_BETWEEN_LOOKS: Final = 0.2
"""How often an actor looks whether its worker is to be ended while a request is under way."""

SECONDS_TO_CONNECT: Final = 10.0
"""How long a cluster may take to accept a connection."""


# --- the worker's side


class ShardActor:
    """Runs in a process of the cluster: builds the recipe, and passes requests on to a forked process that has it.

    Methods return errors instead of raising them. ``end`` may be called while another method runs.
    """

    def __init__(self) -> None:
        torch.set_num_threads(1)
        self._engine: ForkEngine | None = None
        self._worker: ForkedWorker | None = None
        self._lock = threading.Lock()
        self._is_ending = threading.Event()

    def prepare(self, version: str, references: Sequence[Any]) -> tuple[NodeRecord | None, BaseException | None]:
        """Build the recipe of a run; return what is installed here, and the error if it cannot be built.

        version: of esper-core where the run was started. references: to the run and its data. They come in a list,
        which Ray does not resolve, since another version could not unpickle them.
        """
        record = None
        if version != __version__:
            return NodeRecord(packages={"esper-core": __version__}), None
        try:
            run, data = _import_ray().get(references)
            loaded, plugins = run.load()
            record = run.describe(plugins)
            self._engine = ForkEngine(run.build(loaded, plugins, data))
        except BaseException as error:
            return record, sendable(error)
        return record, None

    def start(self, order: Order) -> Reply | None:
        """Fork a worker, and return its first reply; None: it is gone."""
        assert self._engine is not None
        self._is_ending.clear()
        self._worker = self._engine.start(order)
        return self._receive(self._worker)

    def exchange(self, request: Request) -> Reply | None:
        """Send a request to the worker, and return the reply; None: it is gone."""
        if (worker := self._worker) is None:
            return None
        worker.send(request)
        return self._receive(worker)

    def end(self) -> WorkerEnd:
        """End the worker, and return how it ended."""
        self._is_ending.set()
        with self._lock:
            worker, self._worker = self._worker, None
            return WorkerEnd("was not there") if worker is None else worker.end()

    def _receive(self, worker: ForkedWorker) -> Reply | None:
        """Wait for a reply, and let ``end`` interrupt that."""
        while not self._is_ending.is_set():
            with self._lock:
                try:
                    return worker.receive(SECONDS_BETWEEN_LOOKS)
                except TimeoutError:
                    continue
                except (WorkerGone, OSError):
                    return None
        return None


# --- the run's side


class RayEngine:
    """Starts workers in actors of a cluster.

    Args:
        run: What actors build the recipe from.
        data: The data of the run, which each machine gets once.
        run_node: What is installed where the run was started.
        address: The cluster; None: that of RAY_ADDRESS, else one on this machine.
        wait_seconds: How long actors may take to start.
        most: The largest number of workers.
        lanes: How many workers the run takes; None: as many as the cluster has CPUs, at most ``most``.
        on_node: Gets what is installed on the node of each worker, once it was found to fit.
        on_wait: Called about once a second while an actor starts; may raise Interrupted.

    Attributes:
        workers: How many workers the run takes.
    """

    def __init__(
        self,
        run: PortableRun,
        data: PortableData,
        run_node: NodeRecord,
        *,
        address: str | None,
        wait_seconds: float,
        most: int,
        lanes: int | None = None,
        on_node: Callable[[NodeRecord], None] = lambda node: None,
        on_wait: Callable[[], None] = lambda: None,
    ) -> None:
        self.wait_seconds, self.on_wait = wait_seconds, on_wait
        self._run_node, self._on_node = run_node, on_node
        self._free: list[_Actor] = []
        self._actors: set[_Actor] = set()
        self._ray = _import_ray()
        self._is_connected_by_run = not self._ray.is_initialized()
        if self._is_connected_by_run:
            self._connect(address or os.environ.get("RAY_ADDRESS"), min(most, lanes or usable_cores()))
        self.workers = max(1, min(most, lanes or int(self._ray.cluster_resources().get("CPU", 1))))
        self._run, self._data = self._ray.put(run), self._ray.put(data)

    def start(self, order: Order) -> RayWorker:
        """Start a worker in a free actor, or in a new one."""
        if self._free:
            return RayWorker(self, self._free.pop(), order)
        handle = self._ray.remote(num_cpus=1, max_restarts=0, concurrency_groups={"control": 1})(ShardActor).remote()
        actor = _Actor(handle, handle.prepare.remote(__version__, [self._run, self._data]))
        self._actors.add(actor)
        return RayWorker(self, actor, order)

    def close(self) -> None:
        """End the actors, and the cluster if it was started for the run."""
        for actor in tuple(self._actors):
            self.discard(actor)
        self._free = []
        if self._is_connected_by_run:
            self._ray.shutdown()

    def release(self, actor: _Actor) -> None:
        """Take back an actor whose worker has ended."""
        self._free.append(actor)

    def discard(self, actor: _Actor) -> None:
        """End an actor's process, and with it the worker."""
        self._actors.discard(actor)
        with suppress(self._ray.exceptions.RayError, ValueError):
            self._ray.kill(actor.handle, no_restart=True)

    def get(self, reference: Any, seconds: float) -> Any:
        """Return what a method of an actor returned.

        Raises:
            WorkerGone: The actor is gone.
            TimeoutError: It did not return in so many seconds.
            ClusterError: Its process could not start (E404).
        """
        done, _ = self._ray.wait([reference], timeout=max(0.0, seconds))
        if not done:
            raise TimeoutError
        errors = self._ray.exceptions
        try:
            return self._ray.get(reference)
        except (errors.RayTaskError, errors.RuntimeEnvSetupError) as error:
            raise self._start_error(error) from error
        except errors.RayError as error:
            if "creation task" in str(error):
                raise self._start_error(error) from error
            raise WorkerGone(str(error)) from error

    def pending_error(self) -> ClusterError:
        """Return the error for actors that do not start."""
        every, free = self._ray.cluster_resources(), self._ray.available_resources()
        message = (
            f"{self.workers} workers of one CPU each did not start in {self.wait_seconds:g} seconds: "
            f"the cluster has {every.get('CPU', 0):g} CPUs, {free.get('CPU', 0):g} of them free"
        )
        hint = "Use fewer lanes, free CPUs, or wait longer:  --set engine.settings.wait_seconds=1800"
        return ClusterError(Problem("E404", message, hint=hint))

    def _connect(self, address: str | None, cpus: int) -> None:
        """Connect to a cluster, or start one on this machine."""
        options: dict[str, Any] = {"address": address}
        if address is None:
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
            options = {"address": "local", "num_cpus": cpus, "include_dashboard": False}
        elif not _is_reachable(address):
            raise _connection_error(address, "nothing listens there")
        try:
            with _kept_signal_handlers():
                self._ray.init(**options, logging_level="error", log_to_driver=False)
        except Exception as error:
            raise _connection_error(address or "this machine", one_line(str(error))) from error

    def check(self, record: NodeRecord | None, error: BaseException | None) -> None:
        """Check what ``ShardActor.prepare`` returned: what is installed there, then whether the recipe was built."""
        if record is not None:
            check_node(self._run_node, record)
            self._on_node(record)
        if error is not None:
            raise error

    def _start_error(self, error: Exception) -> ClusterError:
        """Return the error for an actor whose process cannot do its work."""
        last = (str(error).strip().splitlines() or [type(error).__name__])[-1]
        hint = "Install esper-core and the plugins of the run in the same versions on every node."
        return ClusterError(Problem("E404", f"a worker on the Ray cluster failed: {one_line(last)}", hint=hint))


@dataclass(slots=True, eq=False)
class _Actor:
    """An actor, and a reference to what it returns once it has built the recipe; None: that was checked."""

    handle: Any
    prepared: Any


class RayWorker:
    """A worker in an actor."""

    def __init__(self, engine: RayEngine, actor: _Actor, order: Order) -> None:
        self._engine = engine
        self._actor: _Actor | None = actor
        self._until = time.monotonic() + engine.wait_seconds
        self._reply = actor.handle.start.remote(order)
        self._why = ""

    def send(self, request: Request) -> None:
        """Send a request. If the actor is gone, ``receive`` says so."""
        if self._actor is not None:
            self._reply = self._actor.handle.exchange.remote(request)

    def receive(self, seconds: float) -> Reply:
        """Return the next reply. See ``Worker``."""
        if self._actor is None:
            raise WorkerGone
        if self._actor.prepared is not None:
            self._wait_for_recipe(self._actor, seconds)
        reply: Reply | None = self._engine.get(self._reply, seconds)
        if reply is None:
            raise WorkerGone
        return reply

    def end(self) -> WorkerEnd:
        """End the worker if it still runs, and return how it ended; its actor is free then, if it answers."""
        actor, self._actor = self._actor, None
        if actor is not None and actor.prepared is None:
            try:
                # Beside the request that is under way, which would be answered first otherwise.
                ending = actor.handle.end.options(concurrency_group="control").remote()
                end: WorkerEnd = self._engine.get(ending, SECONDS_TO_END)
            except (WorkerGone, TimeoutError) as error:
                self._why = str(error) or "It does not answer."
            else:
                self._engine.release(actor)
                return end
        if actor is not None:
            self._engine.discard(actor)
        return WorkerEnd("was lost with its actor or node", trace=self._why)

    def close(self) -> None:
        """End the worker, whatever it is doing."""
        self.end()

    def _wait_for_recipe(self, actor: _Actor, seconds: float) -> None:
        """Wait until the actor has built the recipe, and check what is installed on its node."""
        try:
            self._engine.check(*self._engine.get(actor.prepared, seconds))
        except TimeoutError:
            if time.monotonic() >= self._until:
                raise self._engine.pending_error() from None
            self._engine.on_wait()
            raise WorkerStarting from None
        except WorkerGone as error:
            self._why = str(error)
            raise
        actor.prepared = None


@contextmanager
def _kept_signal_handlers() -> Iterator[None]:
    """Restore the signal handlers after the block: Ray's own one would end a run in the middle of a step."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _is_reachable(address: str) -> bool:
    """Return whether something listens at an address; Ray itself would try for minutes. True if it names no port."""
    host, _, port = address.rpartition("//")[2].rpartition(":")
    if not host or not port.isdecimal():
        return True
    try:
        socket.create_connection((host.strip("[]"), int(port)), SECONDS_TO_CONNECT).close()
    except OSError:
        return False
    return True


def _connection_error(address: str, why: str) -> ClusterError:
    hint = "Check the address:  ray status --address ADDRESS\nA cluster with tokens needs RAY_AUTH_MODE=token."
    return ClusterError(Problem("E404", f"cannot connect to a Ray cluster at {address}: {why}", hint=hint))


def _import_ray() -> Any:
    try:
        import ray
        import ray.exceptions
    except ImportError as error:
        hint = "Install it, on every node:  pip install 'esper-scale[ray]'"
        message = f"engine: ray needs Ray, which cannot be imported: {error}"
        raise ClusterError(Problem("E404", message, hint=hint)) from error
    return ray
