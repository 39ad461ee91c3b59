"""Supervision: replace a worker that crashes, hangs or disappears, without changing what the others compute.

A ``SupervisedWorker`` keeps a snapshot of its environments between two steps, and every request since. If the worker
is lost, another one loads the snapshot, repeats these requests, and gets the request in which the first one was lost.
Environments are deterministic, so they end as if nothing had happened. Networks of a group are computed one by one in
that request, with the same results, since code of seeds of all of them runs at once otherwise.

If a worker is lost again in the same request, the component at work is to blame, which its breadcrumb names. A seed is
taken out before the request, and counted against its blueprint. Anything else ends the run, which can be resumed.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from esper_core.leyline.errors import Problem, WorkerLost
from esper_scale.engines.protocol import Request, WorkerGone, WorkerStarting

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from esper_core.leyline import Signals
    from esper_run.watchdog import Patience
    from esper_scale.engines.protocol import Engine, Order, PackedState, Reply, Worker, WorkerEnd

log = logging.getLogger("esper")

CHANCES: Final = 2
"""How often a worker is lost in a request until a component is held responsible. The first time may be by chance: the
machine was lost, or the system had no memory left."""

LINES_OF_TRACE: Final = 12
"""Lines of a traceback in an error, the innermost first; log.txt has all."""


@dataclass(frozen=True, slots=True)
class WorkerSnapshot:
    """The environments of a worker between two steps: their states, and the latest signals of all environments."""

    states: Mapping[int, PackedState]
    latest: Sequence[Signals]


@dataclass(slots=True, eq=False)
class SupervisedWorker:
    """A worker that is replaced when it is lost.

    Attributes:
        engine: Starts it, and those that replace it.
        order: The environments of the worker.
        patience: That of all workers of a run.
        on_wait: Called about once a second while nothing comes.
    """

    engine: Engine
    order: Order
    patience: Patience
    on_wait: Callable[[], None] = lambda: None
    _worker: Worker = field(init=False)
    _snapshot: WorkerSnapshot | None = field(default=None, init=False)
    _log: list[Request] = field(default_factory=list, init=False)
    """The requests since the snapshot, with the seeds that were lost in them."""
    _pending: Request | None = field(default=None, init=False)
    """The request that waits for its reply."""
    _is_repeating: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self._worker = self.engine.start(self.order)

    def send(self, request: Request) -> None:
        """Send a request; ``receive`` must be called before the next one."""
        if request.method in ("reset", "load_packed_states"):  # nothing before it counts any more
            self._snapshot, self._log = None, []
        self._pending = request
        self._worker.send(request)

    def receive(self) -> Reply:
        """Return the reply to the request, or the first one, for which there is no request.

        Raises:
            WorkerLost: The worker was lost repeatedly, and no seed is to blame.
        """
        losses, is_lost = 0, False
        while True:
            # A replacement can be lost as well, while it repeats what was done before. So all of it is tried.
            try:
                if is_lost:
                    self._replace()
                reply = self._next_reply()
                break
            except (WorkerGone, TimeoutError):
                end, is_lost, losses = self._end(), True, losses + 1
                if losses == CHANCES:
                    self._take_out(end)
                    losses = 0
        if (request := self._pending) is not None:
            self.patience.record(reply.seconds, ends_step=request.method == "apply")
            # Kept only now: a request in which the worker is lost is not repeated, but sent again.
            self._log.append(request)
            self._pending = None
        return reply

    def keep(self, snapshot: WorkerSnapshot) -> None:
        """Keep a snapshot that was taken now, between two steps: nothing before it has to be repeated."""
        self._snapshot, self._log = snapshot, []

    def close(self) -> None:
        """End the worker."""
        self._worker.close()

    def _next_reply(self) -> Reply:
        """Return the worker's next reply, and wait for it as long as patience lasts."""
        # Seconds are counted one by one, since those in which the run itself was stopped must not count.
        left = self.patience.seconds
        while True:
            try:
                return self._worker.receive(min(1.0, left))
            except WorkerStarting:
                self.on_wait()
            except TimeoutError:
                self.on_wait()
                left -= 1.0
                if left <= 0.0:
                    raise

    def _end(self) -> WorkerEnd:
        """End the worker, and log how."""
        # Before and after: ending a worker may take a while, and must not look as if the run stood still.
        self.on_wait()
        end = self._worker.end()
        self.on_wait()
        log.warning("the worker of %s %s%s, and is replaced", self.order, end.how, self._at)
        if end.trace:
            log.info("the worker of %s was here:\n%s", self.order, end.trace)
        # What was repeated went well before. So that loss is by chance, whoever was at work.
        return replace(end, breadcrumb=None) if self._is_repeating else end

    def _replace(self) -> None:
        """Start another worker, bring it to where the first one was lost, and send it the request again."""
        self._is_repeating = True
        self._worker = self.engine.start(self.order)
        if self._pending is not None:
            self._pending = pending = replace(self._pending, singly=True)
            repeated = list(self._log)
            if self._snapshot is not None:
                states = self._snapshot.states, self._snapshot.latest
                repeated.insert(0, Request("load_packed_states", states, pending.faults))
            _value_of(self._next_reply())  # the first one, which says that its environments are made
            for request in repeated:
                self._worker.send(request)
                _value_of(self._next_reply())
            self._worker.send(pending)
        self._is_repeating = False

    def _take_out(self, end: WorkerEnd) -> None:
        """Let the seed that was at work be taken out before the request; WorkerLost if there was none."""
        breadcrumb = end.breadcrumb
        if self._pending is None or breadcrumb is None or not breadcrumb.slot:
            raise self._lost(end)
        log.warning("%s is taken out: it %s", breadcrumb.component, end.what)
        self._pending = replace(self._pending, lost_seeds=(*self._pending.lost_seeds, (breadcrumb, end.what)))

    def _lost(self, end: WorkerEnd) -> WorkerLost:
        """Return the error for a worker that cannot be replaced."""
        component = "" if end.breadcrumb is None else f"; at work was {end.breadcrumb.component}"
        hint = "Earlier results are intact: esper resume continues from the last checkpoint."
        if end.signal == "SIGKILL":
            hint += '\nThe system may have run out of memory: use fewer lanes, or "engine: threads".'
        if end.trace:
            # Of several threads the last one is that of the environments.
            current = end.trace[max(end.trace.rfind("Current thread"), 0) :].splitlines()
            hint = "\n".join(("log.txt has the traceback of all threads.", hint, *current[:LINES_OF_TRACE]))
        return WorkerLost(Problem("E403", f"the worker of {self.order} {end.how}{self._at}{component}", hint=hint))

    @property
    def _at(self) -> str:
        return "" if self._pending is None else f' in "{self._pending.method}"'


def _value_of(reply: Reply) -> Any:
    if reply.error is not None:
        raise reply.error
    return reply.value
