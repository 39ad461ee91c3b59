"""Supervision: replace a worker that crashes, hangs or disappears, without changing what the others compute.

A ``SupervisedWorker`` keeps a snapshot of its environments between two steps, and every request since. If the worker
is lost, another one loads the snapshot, repeats these requests, and gets the request in which the first one was lost.
Environments are deterministic, so they end as if nothing had happened.

If a worker is lost again in the same request, a component is to blame. Its breadcrumbs tell which: the environment at
work, and the line that its threads were at. A seed is condemned: it is taken out before the request, and counted
against its blueprint, in every later repetition, too. The loss of any other component ends the run.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from esper_core.leyline.errors import Problem, WorkerLost
from esper_run.watchdog import find_author
from esper_scale.engines.protocol import Request, WorkerGone, WorkerStarting

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from esper_core.leyline import Signals
    from esper_run.watchdog import Patience
    from esper_scale.engines.protocol import Condemned, Loss, PackedState, Reply, Worker
    from esper_scale.engines.shard import Suspect

log = logging.getLogger("esper")

LOSSES_UNTIL_VERDICT: Final = 2
"""How often a worker is lost in a request until a component is held responsible."""

ACCIDENTS_UNTIL_END: Final = 5
"""How often a worker is lost in a request, with its machine or stopped from outside, until the run ends."""

SNAPSHOT_SHARE: Final = 0.02
"""Share of the run's time that snapshots may take."""


@dataclass(frozen=True, slots=True)
class WorkerSnapshot:
    """The environments of a worker between two steps: their states, and the latest signals of all environments."""

    states: Mapping[int, PackedState]
    latest: Sequence[Signals]


@dataclass(slots=True, eq=False)
class SupervisedWorker:
    """A worker that is replaced when it is lost.

    Attributes:
        whose: The environments of the worker, as messages name them.
        start: Starts a worker for them.
        patience: That of all workers of a run.
        find_verdicts: Returns the seeds that were condemned in a request before the run was resumed.
        on_verdict: Gets each new one.
        on_wait: Called about once a second while nothing comes.
    """

    whose: str
    start: Callable[[], Worker]
    patience: Patience
    find_verdicts: Callable[[Request], Sequence[Condemned]] = lambda request: ()
    on_verdict: Callable[[Request, Condemned], None] = lambda request, condemned: None
    on_wait: Callable[[], None] = lambda: None
    _worker: Worker = field(init=False)
    _snapshot: WorkerSnapshot | None = field(default=None, init=False)
    _log: list[Request] = field(default_factory=list, init=False)
    _pending: Request | None = field(default=None, init=False)
    _is_repeating: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self._worker = self.start()

    def send(self, request: Request) -> None:
        """Send a request; ``receive`` must be called before the next one."""
        if request.method in ("reset", "load_packed_states"):  # nothing before it counts any more
            self._snapshot, self._log = None, []
        self._pending = replace(request, condemned=tuple(self.find_verdicts(request)))
        self._worker.send(self._pending)

    def receive(self) -> Reply:
        """Return the reply to the request, or the first one, for which there is no request.

        Raises:
            WorkerLost: The worker is lost again and again, and no seed is to blame.
        """
        losses: list[Loss] = []
        while True:
            try:
                if losses:
                    losses = self._replace(losses)
                reply = self._next_reply()
                break
            except (WorkerGone, TimeoutError):
                losses.append(self._lose())
        if (request := self._pending) is not None:
            self.patience.record(reply.seconds, ends_step=request.method == "apply")
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
        """Return the worker's next reply, and wait for it as long as patience lasts.

        The seconds of waiting are counted one by one: those in which the run itself was stopped do not count.
        """
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

    def _lose(self) -> Loss:
        """End the worker, and log how it was lost."""
        self.on_wait()
        loss = self._worker.end()
        self.on_wait()
        if loss.accidental and loss.frames and find_author(loss.frames[:1]):  # a component stopped its own process
            loss = replace(loss, accidental=False)
        if self._is_repeating:  # by chance
            loss = replace(loss, accidental=True)
        at = "" if self._pending is None else f' in "{self._pending.method}"'
        log.warning("the worker of %s %s%s, and is replaced", self.whose, loss.how, at)
        if loss.trace:
            log.info("the worker of %s was here:\n%s", self.whose, loss.trace)
        return loss

    def _replace(self, losses: list[Loss]) -> list[Loss]:
        """Start another worker, bring it to where the first one was lost, and send it the request again.

        Returns:
            The losses that count if it is lost again.
        """
        accidents = sum(loss.accidental for loss in losses)
        is_decided = len(losses) - accidents >= LOSSES_UNTIL_VERDICT
        if accidents >= ACCIDENTS_UNTIL_END or (is_decided and self._pending is None):
            raise self._lost(losses[-1], None)
        self._is_repeating = True
        self._worker = self.start()
        if self._pending is not None:
            self._repeat(self._pending)
            if is_decided:
                self._pending, losses = self._without_culprit(self._pending, losses[-1]), []
            self._worker.send(self._pending)
        self._is_repeating = False
        return losses

    def _repeat(self, pending: Request) -> None:
        """Bring a worker that was just started to where the first one was before a request."""
        repeated = list(self._log)
        if self._snapshot is not None:
            states = self._snapshot.states, self._snapshot.latest
            repeated.insert(0, Request("load_packed_states", states, pending.faults))
        _value_of(self._next_reply())
        for request in repeated:
            self._ask(request)

    def _without_culprit(self, pending: Request, loss: Loss) -> Request:
        """Return the request with the verdict on the seed that the worker was lost with; WorkerLost if it is none."""
        question = pending, loss.place, loss.frames, loss.what
        suspect: Suspect | None = self._ask(Request("find_suspect", question, pending.faults))
        if suspect is None or suspect.verdict is None:
            raise self._lost(loss, suspect)
        log.warning("%s is taken out: it %s", suspect.label, loss.what)
        self.on_verdict(pending, suspect.verdict)
        return replace(pending, condemned=(*pending.condemned, suspect.verdict))

    def _ask(self, request: Request) -> Any:
        """Return what the new worker replies to a request of which the run knows the outcome."""
        self._worker.send(request)
        return _value_of(self._next_reply())

    def _lost(self, loss: Loss, suspect: Suspect | None) -> WorkerLost:
        """Return the error for a worker that cannot be replaced."""
        at = "" if self._pending is None else f' in "{self._pending.method}"'
        suspicion = "" if suspect is None else f"; at work was {suspect.label}"
        frame = find_author(loss.frames)
        file, line = (None, None) if frame is None else (frame.file, frame.line)
        hint = "log.txt has the traceback of its threads. " if loss.trace else ""
        hint += "Earlier results are intact: esper resume continues from the last checkpoint."
        if loss.how.endswith("SIGKILL"):
            hint += '\nThe system may have run out of memory: use fewer lanes, or "engine: threads".'
        return WorkerLost(
            Problem("E403", f"the worker of {self.whose} {loss.how}{at}{suspicion}", file=file, line=line, hint=hint)
        )


def _value_of(reply: Reply) -> Any:
    if reply.error is not None:
        raise reply.error
    return reply.value
